"""Verifies one run, before or after its sweep. Changes nothing but the file of its findings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Protocol

from ebbtide.arrow import texts
from ebbtide.audit.candidates import Candidate, Candidates, look_at_files
from ebbtide.audit.commits import (
    PlannedRoots,
    check_decision,
    check_present,
    read_planned,
)
from ebbtide.audit.findings import Finding, Findings, Verification
from ebbtide.audit.reaching import Need, Needs, reach
from ebbtide.errors import Refused
from ebbtide.formats.base import Layout, Reading, RepositoryFormat
from ebbtide.formats.capabilities import purged_among
from ebbtide.gc.parts import ADDRESS_SCHEMA, read_tables
from ebbtide.gc.planning.plan import REMOVAL, AuditedRun, Plan
from ebbtide.gc.runs import FENCE_FILE, REPORT_FILE, RunFolder
from ebbtide.gc.steps import Meter, Steps
from ebbtide.retention.decision import decide

CHECKED: Final = ("candidates", "outcomes", "commits", "trees", "nodes")


class Audited(Protocol):
    """The collector of a repository, also of a gone one."""

    def audited(self, run_id: str) -> AuditedRun:
        """Returns a run. Raises as `Collector.plan_of`."""


def verify(collector: Audited, run_id: str) -> Verification:
    """Checks the plan of a run, and the record of its sweep. Takes no lease.

    Of a plan that deletes all files of a gone repository, it checks that the repository is gone,
    each candidate, and the figures. There is no walk, since no commit needs a file.

    Writes its findings into the run's folder if it can. Raises Refused as a reading of the
    repository does, and `plan_corrupt` if a part is missing or damaged. Raises Refused
    `plan_foreign` for the plan of a gone repository that is not gone now, and as `audited` does.
    """
    run = collector.audited(run_id)
    work = _Verifying(run.repository, run.plan, run.folder, run.layout, run.steps, run.meter)
    if run.check_removable is None:
        work.run()
        return work.result()
    try:
        run.check_removable()
    except Refused as error:
        work.findings.add(Finding("repository", error.message))
    for chunk in work.candidates.chunks(run.folder.get_json(REPORT_FILE)):
        work.count(chunk)
        work.look_at(chunk)
    return work.result()


@dataclass(slots=True)
class _Verifying:
    repository: RepositoryFormat
    plan: Plan
    folder: RunFolder
    layout: Layout
    steps: Steps
    meter: Meter
    findings: Findings = field(default_factory=Findings)
    checked: Counter[str] = field(default_factory=Counter)
    candidates: Candidates = field(init=False)
    _unread: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.candidates = Candidates(self.plan, self.folder, self.layout, self.findings)

    def run(self) -> None:
        """Checks the commits, the candidates and the record. Raises as `verify` does."""
        plan = self.plan
        if plan.mode == REMOVAL or plan.commits is None or plan.refs is None:
            raise Refused(
                "plan_foreign",
                f"the plan of run {plan.run_id} was made while {plan.identity.repository_name} was "
                "gone, and it is not gone now: plan again",
            )
        with self.steps("read"):
            planned = read_planned(self.folder, plan, plan.commits, plan.refs)
            check_decision(plan, planned, self.findings)
        self.checked["commits"] = len(planned.commits)
        is_first = True
        for chunk in self.candidates.chunks(self.folder.get_json(REPORT_FILE)):
            self.count(chunk)
            self._check(chunk, planned, is_first=is_first)
            is_first = False

    def count(self, chunk: dict[str, Candidate]) -> None:
        """Counts candidates that were checked."""
        self.checked["candidates"] += len(chunk)
        self.checked["outcomes"] += sum(each.outcome is not None for each in chunk.values())

    def look_at(self, chunk: dict[str, Candidate]) -> list[Candidate]:
        """Compares candidates with the files on the storage. Returns those that are too young."""
        with self.steps("compare"):
            self.meter.begin("files", len(chunk))
            return look_at_files(self.repository.storage, self.plan, chunk.values(), self.findings)

    def result(self) -> Verification:
        """Writes the findings, and returns the result."""
        path, unwritten = self.findings.write(self.folder)
        return Verification(
            run_id=self.plan.run_id,
            repository=self.plan.identity.repository_name,
            counts=dict(self.findings.counts),
            shown=self.findings.shown,
            checked={name: self.checked[name] for name in CHECKED},
            path=path,
            unwritten=unwritten,
        )

    def _check(self, chunk: dict[str, Candidate], planned: PlannedRoots, *, is_first: bool) -> None:
        """Adds a finding for each of these candidates that is needed, protected or too young."""
        listed = self._listed_as_protected(chunk)
        with self.repository.reading(self.plan.cutoff) as reading:
            roots = reading.roots()
            if is_first:
                swept = self.folder.has(FENCE_FILE)
                check_present(self.plan, planned, roots, self.findings, swept=swept)
            self._check_protected(chunk, reading, listed)
        needed: dict[str, Need] = {}

        def look(address: str, need: Need) -> None:
            if address in chunk:
                needed.setdefault(address, need)

        def unread(sort: str, address: str, text: str) -> None:
            if not (address in chunk and chunk[address].went) and address not in self._unread:
                self._unread.add(address)
                self.findings.add(Finding(sort, text, address))

        needs = Needs.of(planned, roots, decide(roots))
        with self.steps("walk"):
            read = reach(self.repository.walk, needs, chunk, look, unread, self.meter)
        young = self.look_at(chunk)
        # A purged file is deleted even if a commit needs it or it is young.
        told = sorted({*needed, *(each.address for each in young)})
        closed = purged_among(self.repository, told)
        for address, need in needed.items():
            if address not in closed:
                self._name(chunk[address], need)
        for each in young:
            if each.address not in closed:
                self.findings.add(each.finding("young", f"the plan's cutoff is {self.plan.cutoff}"))
        self.checked.update(read if is_first else ())

    def _is_lost(self, candidate: Candidate) -> bool:
        """Whether a candidate was deleted. An undo does not change the record. Therefore a
        quarantined file is looked up on the storage."""
        if candidate.outcome == "quarantined":
            return self.repository.storage.head(candidate.address) is None
        return candidate.went

    def _name(self, candidate: Candidate, need: Need) -> None:
        if candidate.went:
            if self._is_lost(candidate):
                self.findings.add(candidate.finding("lost", need.text))
        elif candidate.goes:
            sort = "needed" if need.planned else "revived"
            self.findings.add(candidate.finding(sort, need.text))

    def _listed_as_protected(self, chunk: dict[str, Candidate]) -> set[str]:
        """Returns the candidates that the plan itself lists as protected."""
        judged = _Judged(chunk)
        found: set[str] = set()
        for table in read_tables(self.folder, self.plan.protected, ADDRESS_SCHEMA):
            for address in texts(table.column("address")):
                found.update(judged.by(address))
        return found

    def _check_protected(
        self, chunk: dict[str, Candidate], reading: Reading, listed: set[str]
    ) -> None:
        """Adds a finding for each candidate that is protected, by the plan or now."""
        judged = _Judged(chunk)
        reasons: dict[str, tuple[str, bool]] = {}
        for table in reading.protected():
            columns = (table.column(name) for name in ("address", "reason", "created_at"))
            for address, reason, since in zip(*(c.to_pylist() for c in columns), strict=True):
                was_there = since is not None and since < self.plan.read_at
                for own in judged.by(address):
                    before = reasons.get(own, (reason, False))
                    reasons[own] = (before[0], before[1] or was_there)
        for own in sorted(listed | reasons.keys()):
            candidate = chunk[own]
            reason, was_there = reasons.get(own, ("the plan lists it as protected", False))
            if own in reasons and self._is_lost(candidate):
                self.findings.add(candidate.finding("lost", reason))
            elif own in listed or (was_there and candidate.goes):
                self.findings.add(candidate.finding("protected", reason))
            elif candidate.goes:
                self.findings.add(candidate.finding("revived", reason))


class _Judged:
    """Candidates by the address that they are judged by: for temporary files, their target."""

    def __init__(self, chunk: dict[str, Candidate]) -> None:
        self._chunk = chunk
        self._temporary: dict[str, list[str]] = {}
        for each in chunk.values():
            if each.target is not None:
                self._temporary.setdefault(each.target, []).append(each.address)

    def by(self, address: str) -> list[str]:
        """Returns the addresses of the candidates that are judged by an address."""
        own = self._chunk.get(address)
        found = [] if own is None or own.target is not None else [address]
        return found + self._temporary.get(address, [])
