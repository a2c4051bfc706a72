"""Checks a plan and the record of its sweep by themselves: commits, candidates, outcomes, figures.

Not for: what the repository and its storage have now (`verify`).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.audit.findings import Finding, Verification
from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.gc.deletes import OUTCOME_SCHEMA, OUTCOMES
from ebbtide.gc.parts import Count, Part, read_part
from ebbtide.gc.plan import COMMITS_FILE, REFS_FILE, AuditedRun, Plan
from ebbtide.gc.runs import REPORT_FILE, RunFolder
from ebbtide.gc.store import judged_by
from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Decision, Roots, decide
from ebbtide.storage.base import split_address
from ebbtide.text import count_text

CANDIDATES_HELD: Final = 1_000_000
"""The number of candidates that are held in memory together. For each further group of candidates,
the walk is repeated."""
_COLUMNS: Final = ("address", "size_bytes", "last_modified", "kind")
_ENDED: Final = ("swept", "undone")
_REPORTED: Final = (*_ENDED, "incomplete")
_COMMIT: Final = tuple(Commit.__dataclass_fields__)
_COUNTED: Final = ("active_count", "expired_count", "gone_count", "forgettable_count")


@dataclass(frozen=True, slots=True)
class Planned:
    """The commits and refs of a plan, what it `said` about each commit, and the decision that is
    made `again` from them; None if they lack a part of the history. A reason that the plan does not
    name is an empty text."""

    roots: Roots
    said: Decision
    again: Decision | None

    @property
    def kept(self) -> Decision:
        """What stays by the plan, or else by the second decision."""
        if self.again is None:
            return self.said
        reasons = {commit_id: reason for commit_id, reason in self.said.active.items() if reason}
        active, recorded = {**self.again.active, **reasons}, self.again.recorded
        return Decision(active, self.said.expired, self.said.recorded | recorded)


def read_planned(folder: RunFolder, plan: Plan, commits: Part, refs: Part) -> Planned:
    """Reads the commits and refs of a plan, and decides again. Raises Refused `plan_corrupt`."""
    rows = read_part(folder, COMMITS_FILE, commits.checksum).to_pylist()
    known = tuple(
        Commit(**{name: row[name] for name in _COMMIT} | {"parent_ids": tuple(row["parent_ids"])})
        for row in rows
    )
    known_refs = tuple(
        Ref(**row) for row in read_part(folder, REFS_FILE, refs.checksum).to_pylist()
    )
    named = {ref.commit_id for ref in known_refs}
    named.update(parent_id for each in known for parent_id in each.parent_ids)
    roots = Roots(
        now=plan.read_at,
        refs=known_refs,
        commits=known,
        stub_ids=frozenset(named.difference(each.commit_id for each in known)),
        tree_checksums={},
        policy=None if plan.policy is None else Policy.parse(plan.policy),
        companions={row["commit_id"]: tuple(row["companions"]) for row in rows},
    )
    # If a commit were there twice, a sweep would follow the row that keeps less.
    expired = frozenset(row["commit_id"] for row in rows if not row["active"])
    forgotten = {row["commit_id"] for row in rows if not row["recorded"]}
    reasons = {row["commit_id"]: row["reason"] or "" for row in rows}
    said = Decision(
        active={each: reason for each, reason in reasons.items() if each not in expired},
        expired=expired,
        recorded=frozenset(reasons.keys() - forgotten),
    )
    try:
        return Planned(roots, said, decide(roots))
    except EbbtideError:
        return Planned(roots, said, None)


def check_decision(plan: Plan, planned: Planned, result: Verification) -> None:
    """Adds a finding for each commit whose state in the plan differs from the second decision, and
    for wrong counts."""
    said, again, commits = planned.said, planned.again, planned.roots.commits
    lost = [each for each in commits if each.commit_id in said.expired]
    gone = sum(each.tombstoned for each in lost)
    forgettable = sum(each.commit_id not in said.recorded for each in lost)
    counts = (len(commits) - len(lost), len(lost) - gone, gone, forgettable)
    for name, count in zip(_COUNTED, counts, strict=True):
        if getattr(plan, name) != count:
            text = f"{name} is {getattr(plan, name):,}, and the plan has {count:,} such commits"
            result.add(Finding("figure", text))
    if again is None:
        text = "the plan's commits and refs lack a part of the history"
        result.add(Finding("reason", f"{text}: no second decision is possible"))
        return
    for commit_id in (each.commit_id for each in commits):
        first, second = (_fate(decision, commit_id) for decision in (said, again))
        if first != second:
            text = f"the plan says {first[-1]}; the second decision says {second[-1]}"
            result.add(Finding("reason", text, commit_id=commit_id))


def _fate(decision: Decision, commit_id: str) -> tuple[str | None, bool, str]:
    """Returns the reason if the data of a commit stays, whether its record does, and both in
    words."""
    reason, is_recorded = decision.active.get(commit_id), commit_id in decision.recorded
    if reason is not None:
        return reason, is_recorded, f"kept ({reason or 'without a reason'})"
    words = "expired, its record kept" if is_recorded else "expired, its record deleted too"
    return reason, is_recorded, words


def check_present(
    plan: Plan, planned: Planned, roots: Roots, result: Verification, *, is_swept: bool
) -> None:
    """Compares the plan with the repository as it is now. A changed commit is a difference, because
    commits never change. Before the sweep, other changes are notes."""
    now = {commit.commit_id: commit for commit in roots.commits}
    known = {commit.commit_id: commit for commit in planned.roots.commits}
    for commit_id, before in known.items():
        commit = now.get(commit_id)
        # For an unreachable commit, a format may know only the date of its file.
        if commit is None or commit.tree_id in roots.lenient_trees:
            continue
        if _lasting(commit) != _lasting(before):
            text = f"the plan has {_lasting(before)}, the repository {_lasting(commit)}"
            result.add(Finding("commit", text, commit_id=commit_id))
    if is_swept:
        return
    changed: list[str] = []
    if made := len(now.keys() - known):
        changed.append(f"commits that the plan does not know: {made:,}")
    moved = {(ref.kind, ref.name) for ref in {*planned.roots.refs} ^ {*roots.refs}}
    changed += [f"{kind} {name} was changed, created or deleted" for kind, name in sorted(moved)]
    if (None if roots.policy is None else roots.policy.to_mapping()) != plan.policy:
        changed.append("the policy or a hold was changed")
    for text in changed:
        result.add(Finding("since", text))


def _lasting(commit: Commit) -> str:
    """Returns the properties of a commit that never change, in words."""
    return f"tree {commit.tree_id}, dated {commit.created_at.isoformat()}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row of CANDIDATE_SCHEMA, and its recorded outcome; None if none is recorded."""

    address: str
    size_bytes: int
    last_modified: datetime
    kind: str
    judged_by: str  # the address whose protections count: a temporary file's final address
    outcome: str | None

    @property
    def goes(self) -> bool:
        """Whether a sweep would still delete the candidate."""
        return self.outcome in (None, "failed")

    @property
    def went(self) -> bool:
        """Whether the record says that the file does not exist at its address any more. An undo may
        have restored a quarantined file."""
        return self.outcome in ("deleted", "missing", "quarantined")

    def finding(self, sort: str, text: str) -> Finding:
        """Returns a finding about the candidate."""
        return Finding(sort, text, self.address, kind=self.kind, size_bytes=self.size_bytes)


class Candidates:
    """Reads the candidates of a plan with their recorded outcomes, and checks both."""

    def __init__(self, run: AuditedRun, result: Verification) -> None:
        self._run = run
        self._result = result
        self._total = Count()
        self._outcomes: defaultdict[str, Count] = defaultdict(Count)
        self._records: defaultdict[str, list[str]] = defaultdict(list)
        """The names of record parts, by the name of their part of candidates."""
        for name in run.folder.names("deleted"):
            self._records[name.split("/")[1]].append(name)

    def chunks(self) -> Iterator[dict[str, Candidate]]:
        """Yields all candidates by address, about CANDIDATES_HELD at a time, and then checks the
        figures. Raises Refused `plan_corrupt`."""
        report = self._run.folder.get_json(REPORT_FILE)
        must_end = report is not None and report.get("state") in _ENDED
        held: dict[str, Candidate] = {}
        for part in self._run.plan.candidates:
            for found in self._read(part):
                if found.address in held:
                    self._result.add(found.finding("twice", f"listed again in {part.name}"))
                held[found.address] = found
                if must_end and found.outcome is None:
                    text = "the sweep of the run is complete"
                    self._result.add(found.finding("unrecorded", text))
            if len(held) >= CANDIDATES_HELD:
                yield held
                held = {}
        if held:
            yield held
        for stem in self._records:
            self._result.add(Finding("stray", f"deleted/{stem}: the plan has no such part"))
        wanted = self._run.plan.candidate_total
        self._compare("the plan counts", wanted, "and its parts have", self._total)
        if report is not None and report.get("state") in _REPORTED:
            for outcome in OUTCOMES:
                said = Count(report.get(f"{outcome}_count", 0), report.get(f"{outcome}_bytes", 0))
                lead = f"{outcome}: the report counts"
                self._compare(lead, said, "the record", self._outcomes[outcome])

    def _read(self, part: Part) -> Iterator[Candidate]:
        """Yields the candidates of one part with their recorded outcomes, and checks them."""
        table = read_part(self._run.folder, part.name, part.checksum, columns=_COLUMNS)
        rows = table.to_pylist()
        self._check_shapes(part, table, rows)
        judged = texts(judged_by(table))
        stem = part.name.rpartition("/")[2].removesuffix(".parquet")
        recorded = self._recorded(self._records.pop(stem, []))
        count = Count()
        for row, by in zip(rows, judged, strict=True):
            record = recorded.pop(row["address"], None)
            # A million rows can be held in memory, and have few different kinds.
            row["kind"] = sys.intern(row["kind"])
            outcome = None if record is None else record["outcome"]
            found = Candidate(**row, judged_by=by, outcome=outcome)
            count += Count(1, found.size_bytes)
            if record is not None:
                kind, size_bytes = record["kind"], record["size_bytes"]
                self._outcomes[record["outcome"]] += Count(1, size_bytes)
                if (kind, size_bytes) != (found.kind, found.size_bytes):
                    text = f"on record as a {kind} of {size_bytes:,} bytes"
                    self._result.add(found.finding("changed", text))
            yield found
        for address, record in recorded.items():
            text = f"recorded as {record['outcome']} in deleted/{stem}"
            self._result.add(Finding("stray", text, address, kind=record["kind"]))
        said = Count(part.rows, part.bytes_total)
        self._compare(f"{part.name} has", count, "and the plan says", said)
        self._total += count

    def _recorded(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Returns the record by address. If several attempts recorded an address, the outcome that
        comes first in OUTCOMES counts."""
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            for row in read_part(self._run.folder, name).select(OUTCOME_SCHEMA.names).to_pylist():
                first = found.setdefault(row["address"], row)
                if OUTCOMES.index(row["outcome"]) < OUTCOMES.index(first["outcome"]):
                    found[row["address"]] = row
        return found

    def _check_shapes(self, part: Part, table: pa.Table, rows: list[dict[str, Any]]) -> None:
        """Checks that each candidate has the kind of its address, and that files of this kind can
        be deleted."""
        layout = self._run.layout
        addresses = cast("pa.StringArray", table.column("address").combine_chunks())
        for row, kind in zip(rows, texts(layout.classify(addresses)), strict=True):
            text = None
            if kind not in layout.delete_order or not is_inside(row["address"]):
                text = f"a {kind} file, which is never deleted"
            elif kind != row["kind"] or kind != part.kind:
                text = f"a {kind}, and listed as a {row['kind']} in {part.name}"
            if text is not None:
                self._result.add(Finding("shape", text, row["address"], kind=str(row["kind"])))

    def _compare(self, lead: str, first: Count, between: str, second: Count) -> None:
        """Adds a finding if two counts differ that should be equal."""
        if first != second:
            text = f"{lead} {_figure(first)}, {between} {_figure(second)}"
            self._result.add(Finding("figure", text))


def is_inside(address: str) -> bool:
    """Whether an address is one within the storage root."""
    try:
        return bool(split_address(address))
    except InvalidInput:
        return False


def _figure(count: Count) -> str:
    return f"{count_text(count.objects, 'file')} of {count_text(count.bytes_total, 'byte')}"
