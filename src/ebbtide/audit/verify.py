"""Verifies one run, before or after its sweep. Changes nothing but the file of its findings.

The plan and its record are checked by themselves (`plan_checks`), and then compared with the
storage, and with what commits need. The walk finds this: the format's `Walk` reads trees and nodes,
a few files at a time. Addresses are compared as text. The walk holds only the addresses of trees
and nodes in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ebbtide.arrow import texts
from ebbtide.audit.findings import Finding, Verification
from ebbtide.audit.plan_checks import (
    Candidate,
    Candidates,
    Planned,
    check_decision,
    check_present,
    is_inside,
    read_planned,
)
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import Reading
from ebbtide.formats.capabilities import Walk, purged_among, walk_of
from ebbtide.gc.parts import ADDRESS_SCHEMA, read_tables
from ebbtide.gc.plan import REMOVAL, AuditedRun
from ebbtide.gc.prefetch import ahead
from ebbtide.gc.runs import FENCE_FILE
from ebbtide.gc.steps import Meter, advance
from ebbtide.retention.decision import Decision, Roots, decide
from ebbtide.text import count_text

if TYPE_CHECKING:
    from ebbtide.gc.collector import Collector

LOOKS_AT_ONCE: Final = 32
_SECOND: Final = timedelta(seconds=1)
READERS: Final = 16

Unreadable = NotFound | ValueError
"""Why a `Walk` cannot read a file: it is missing, or damaged."""


def verify(collector: Collector, run_id: str) -> Verification:
    """Checks the plan of a run, and the record of its sweep. Takes no lease.

    Of a plan that deletes all files of a gone repository, it checks that the repository is gone,
    each candidate, and the figures. There is no walk, since no commit needs a file.

    Writes its findings into the run's folder if it can. Raises Refused as a reading of the
    repository does, and `plan_corrupt` if a part is missing or damaged. Raises Refused
    `plan_foreign` for the plan of a gone repository that is not gone now, and as
    `Collector.audited` does.
    """
    run = collector.audited(run_id)
    result = Verification(run.plan.run_id, run.plan.identity.repository_name)
    work = _Verifying(run, result)
    if run.check_removable is None:
        work.check()
    else:
        try:
            run.check_removable()
        except Refused as error:
            result.add(Finding("repository", error.message))
        for chunk in work.chunks():
            work.young_among(chunk)
    result.write(run.folder)
    return result


@dataclass(frozen=True, slots=True)
class _Verifying:
    run: AuditedRun
    result: Verification
    _unread: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Checks the commits, the candidates and the record. Raises as `verify` does."""
        run, plan = self.run, self.run.plan
        if plan.mode == REMOVAL or plan.commits is None or plan.refs is None:
            raise Refused(
                "plan_foreign",
                f"the plan of run {plan.run_id} was made while {plan.identity.repository_name} was "
                "gone, and it is not gone now: plan again",
            )
        with run.steps("read"):
            planned = read_planned(run.folder, plan, plan.commits, plan.refs)
            check_decision(plan, planned, self.result)
        self.result.checked["commits"] = len(planned.roots.commits)
        for number, chunk in enumerate(self.chunks()):
            self._check_chunk(chunk, planned, is_first=number == 0)

    def chunks(self) -> Iterator[dict[str, Candidate]]:
        """Yields the candidates as `Candidates.chunks` does, and counts them."""
        for chunk in Candidates(self.run, self.result).chunks():
            self.result.checked["candidates"] += len(chunk)
            outcomes = sum(each.outcome is not None for each in chunk.values())
            self.result.checked["outcomes"] += outcomes
            yield chunk

    def _check_chunk(
        self, chunk: dict[str, Candidate], planned: Planned, *, is_first: bool
    ) -> None:
        """Adds a finding for each of these candidates that is needed, protected or too young."""
        run, plan = self.run, self.run.plan
        judged = {each.judged_by for each in chunk.values()}
        listed: set[str] = set()
        for table in read_tables(run.folder, plan.protected, ADDRESS_SCHEMA):
            listed |= judged.intersection(texts(table.column("address")))
        with run.repository.reading(plan.cutoff) as reading:
            roots = reading.roots()
            if is_first:
                is_swept = run.folder.has(FENCE_FILE)
                check_present(plan, planned, roots, self.result, is_swept=is_swept)
            self._check_protected(chunk, reading, judged, listed)
        needs = needs_of(planned, roots, decide(roots))
        with run.steps("walk"):
            needed = self._walk(needs, chunk, self.result.checked if is_first else Counter())
        young = self.young_among(chunk)
        # A purged file is deleted even if a commit needs it or it is young.
        told = sorted({*needed, *(each.address for each in young)})
        closed = purged_among(run.repository, told)
        for address, need in needed.items():
            if address not in closed:
                self._name(chunk[address], need)
        for each in young:
            if each.address not in closed:
                self.result.add(each.finding("young", f"the plan's cutoff is {plan.cutoff}"))

    def _check_protected(
        self, chunk: dict[str, Candidate], reading: Reading, judged: set[str], listed: set[str]
    ) -> None:
        """Adds a finding for each candidate that is protected, now or by the plan's own list. The
        candidates are `judged` by these addresses, of which the plan has `listed` some."""
        reasons: dict[str, str] = {}
        was_there: set[str] = set()
        for table in reading.protected():
            columns = (table.column(name) for name in ("address", "reason", "created_at"))
            for address, reason, since in zip(*(c.to_pylist() for c in columns), strict=True):
                if address in judged:
                    reasons.setdefault(address, reason)
                    if since is not None and since < self.run.plan.read_at:
                        was_there.add(address)
        stay = listed | reasons.keys()
        protected = (each for each in chunk.values() if each.judged_by in stay)
        for each in sorted(protected, key=lambda each: each.address):
            by = each.judged_by
            reason = reasons.get(by, "the plan lists it as protected")
            if by in reasons and self._is_lost(each):
                self.result.add(each.finding("lost", reason))
            elif by in listed or (by in was_there and each.goes):
                self.result.add(each.finding("protected", reason))
            elif each.goes:
                self.result.add(each.finding("revived", reason))

    def _walk(
        self, needs: Needs, chunk: dict[str, Candidate], read: Counter[str]
    ) -> dict[str, Need]:
        """Returns the candidates that are needed. Adds a finding for each required file that cannot
        be read, unless the sweep took it."""
        needed: dict[str, Need] = {}
        walk, meter = walk_of(self.run.repository), self.run.meter
        for address, need, error in reach(walk, needs, chunk, meter, read):
            candidate = chunk.get(address)
            if error is None:
                if candidate is not None:
                    needed.setdefault(address, need)
            elif not (candidate is not None and candidate.went) and address not in self._unread:
                self._unread.add(address)
                sort, why = ("damaged", str(error))
                if isinstance(error, NotFound):
                    sort, why = ("missing", "the file is not there")
                self.result.add(Finding(sort, f"{need.text}: {why}", address))
        return needed

    def _name(self, candidate: Candidate, need: Need) -> None:
        """Adds a finding for a candidate that is needed, unless it is there again."""
        if candidate.went:
            if self._is_lost(candidate):
                self.result.add(candidate.finding("lost", need.text))
        elif candidate.goes:
            sort = "needed" if need.planned else "revived"
            self.result.add(candidate.finding(sort, need.text))

    def _is_lost(self, candidate: Candidate) -> bool:
        """Whether a candidate was deleted. An undo does not change the record. Therefore a
        quarantined file is looked up on the storage."""
        if candidate.outcome == "quarantined":
            return self.run.repository.storage.head(candidate.address) is None
        return candidate.went

    def young_among(self, chunk: dict[str, Candidate]) -> list[Candidate]:
        """Compares the candidates that a sweep would delete with the files on the storage. Returns
        the candidates that are too young by the plan or by the storage."""
        run, young = self.run, list[Candidate]()
        storage = run.repository.storage
        going = (each for each in chunk.values() if each.goes and is_inside(each.address))
        with run.steps("compare"):
            run.meter.begin("files", len(chunk))
            for each, there in ahead(
                lambda each: storage.head(each.address), going, at_once=LOOKS_AT_ONCE
            ):
                advance(1)
                if there is None:
                    self.result.add(each.finding("gone", "the file does not exist"))
                    continue
                dates = (each.last_modified, there.last_modified)
                if max(map(_latest, dates)) >= run.plan.cutoff:
                    young.append(each)
                # For files that an incremental run remembers, the plan may have a date that is
                # later than the file's own.
                is_later = there.last_modified >= each.last_modified + _SECOND
                if there.size_bytes != each.size_bytes or is_later:
                    text = f"the file has {count_text(there.size_bytes, 'byte')}, and is dated "
                    text += there.last_modified.isoformat()
                    self.result.add(each.finding("changed", text))
        return young


def _latest(date: datetime) -> datetime:
    """Returns the latest instant that a date can mean: a date in whole seconds can mean any instant
    of that second."""
    return date if date.microsecond else date + timedelta(microseconds=999_999)


@dataclass(frozen=True, slots=True)
class Need:
    """The reason why an address is needed, in words. `planned`: by a commit that the plan knew.
    `required`: by a commit that stays now, so that the file must exist."""

    text: str
    planned: bool
    required: bool


@dataclass(frozen=True, slots=True)
class Needs:
    """The trees that stay by id (`record`), those of them whose data stays (`data`), and other
    addresses that belong to the records of commits (`companions`)."""

    record: dict[str, Need] = field(default_factory=dict)
    data: dict[str, Need] = field(default_factory=dict)
    companions: dict[str, Need] = field(default_factory=dict)


def needs_of(planned: Planned, roots: Roots, now: Decision) -> Needs:
    """Returns the needs of commits: those that the plan keeps, if they still exist, and those that
    stay `now`."""
    needs = Needs()
    known = {c.commit_id: c for c in roots.commits if c.tree_id in roots.tree_checksums}
    for source, kept in ((planned.roots, planned.kept), (roots, now)):
        for commit_id in (each.commit_id for each in source.commits if each.commit_id in known):
            tree_id, by_plan = known[commit_id].tree_id, source is planned.roots
            is_strict = tree_id not in roots.lenient_trees
            if commit_id in kept.active:
                text = f"commit {commit_id}: {kept.active[commit_id]}"
                need = Need(text, by_plan, is_strict and commit_id in now.active)
                _merge(needs.data, tree_id, need)
            if commit_id in kept.active or commit_id in kept.recorded:
                text = f"the record of commit {commit_id}"
                need = Need(text, by_plan, is_strict and commit_id in now.recorded)
                _merge(needs.record, tree_id, need)
                for address in source.companions.get(commit_id, ()):
                    _merge(needs.companions, address, need)
    return needs


def _merge(needs: dict[str, Need], key: str, need: Need) -> None:
    """Adds a need. The first need of a key stays. It becomes required if any need of the key is."""
    first = needs.setdefault(key, need)
    if need.required and not first.required:
        needs[key] = replace(first, required=True)


def reach(
    walk: Walk, needs: Needs, wanted: Container[str], meter: Meter, read: Counter[str]
) -> Iterator[tuple[str, Need, Unreadable | None]]:
    """Yields each needed address; an address in a node only if it is `wanted`.

    Yields a required tree or node that cannot be read with the error. Adds the number of trees and
    nodes that were read to `read`.
    """
    nodes: dict[str, Need] = {}
    seen: set[str] = set()
    yield from ((address, need, None) for address, need in needs.companions.items())
    trees = {walk.tree(tree_id): tree_id for tree_id in needs.record}
    meter.begin("trees", len(trees))
    for tree, found in ahead(_or_error(walk.nodes), trees, at_once=READERS):
        advance(1)
        need, data = needs.record[trees[tree]], needs.data.get(trees[tree])
        yield tree, need, None
        if isinstance(found, Exception):
            if need.required:
                yield tree, need, found
            continue
        read["trees"] += 1
        for node in found:
            if node not in seen:
                yield node, need, None
            seen.add(node)
            if data is not None:
                _merge(nodes, node, data)

    def content(node: str) -> list[str]:
        return [address for address in walk.content(node) if address in wanted]

    meter.begin("nodes", len(nodes))
    for node, found in ahead(_or_error(content), nodes, at_once=READERS):
        advance(1)
        if not isinstance(found, Exception):
            read["nodes"] += 1
            yield from ((address, nodes[node], None) for address in found)
        elif nodes[node].required:
            yield node, nodes[node], found


def _or_error(function: Callable[[str], list[str]]) -> Callable[[str], list[str] | Unreadable]:
    """Returns a function that returns the error of an unreadable file in place of raising it."""

    def read(address: str) -> list[str] | Unreadable:
        try:
            return function(address)
        except (NotFound, ValueError) as error:
            return error

    return read
