"""Verifies one run, before or after its sweep. Changes nothing but the file of its findings.

The plan and its record are checked by themselves (`planned`), and then compared with what the
repository needs (`walk`) and with the storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ebbtide.arrow import texts
from ebbtide.audit.findings import Finding, Verification
from ebbtide.audit.planned import (
    Candidate,
    Candidates,
    Planned,
    check_decision,
    check_present,
    is_inside,
    read_planned,
)
from ebbtide.audit.walk import Need, Needs, needs_of, reach
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import Reading
from ebbtide.gc.parts import ADDRESS_SCHEMA, read_tables
from ebbtide.gc.planning.plan import REMOVAL, AuditedRun
from ebbtide.gc.runs import FENCE_FILE
from ebbtide.gc.steps import advance
from ebbtide.retention.decision import decide
from ebbtide.storage import ObjectInfo
from ebbtide.text import count_text

if TYPE_CHECKING:
    from ebbtide.gc.collector import Collector

LOOKS_AT_ONCE: Final = 32
_SECOND: Final = timedelta(seconds=1)


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
        closed = run.repository.purged_among(told)
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
        walk, meter = self.run.repository.walk, self.run.meter
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

        def head(candidate: Candidate) -> tuple[Candidate, ObjectInfo | None]:
            return candidate, run.repository.storage.head(candidate.address)

        going = [each for each in chunk.values() if each.goes and is_inside(each.address)]
        with run.steps("compare"), ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
            run.meter.begin("files", len(chunk))
            for start in range(0, len(going), LOOKS_AT_ONCE * 32):
                for each, there in pool.map(head, going[start : start + LOOKS_AT_ONCE * 32]):
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
