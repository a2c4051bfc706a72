"""Checks a plan's candidates and their outcomes: against the plan, the report and the storage."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.audit.findings import Finding, Findings
from ebbtide.errors import InvalidInput
from ebbtide.formats.base import Layout
from ebbtide.gc.counts import Count
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import advance
from ebbtide.gc.sweeping.outcomes import OUTCOME_SCHEMA, OUTCOMES
from ebbtide.storage import Storage
from ebbtide.storage.base import ObjectInfo, split_address
from ebbtide.text import count_text

CANDIDATES_HELD: Final = 1_000_000
"""The number of candidates that are held in memory together. For each further group of candidates,
the walk is repeated."""
LOOKS_AT_ONCE: Final = 32
_SECOND: Final = timedelta(seconds=1)
_COLUMNS: Final = ("address", "size_bytes", "last_modified", "kind", "target")
_ENDED: Final = ("swept", "undone")
_REPORTED: Final = (*_ENDED, "incomplete")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row of CANDIDATE_SCHEMA, and its recorded outcome; None if none is recorded."""

    address: str
    size_bytes: int
    last_modified: datetime
    kind: str
    target: str | None
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

    def __init__(self, plan: Plan, folder: RunFolder, layout: Layout, findings: Findings) -> None:
        self._plan = plan
        self._folder = folder
        self._layout = layout
        self._findings = findings
        self._records = _by_part(folder.names("deleted"))
        self.total = Count()
        self.outcomes: Counter[str] = Counter()
        self.outcome_bytes: Counter[str] = Counter()

    def chunks(self, report: Mapping[str, Any] | None) -> Iterator[dict[str, Candidate]]:
        """Yields all candidates by address, about CANDIDATES_HELD at a time, and then checks the
        figures.

        `report` is the content of the run's report; None if there is no report. Raises Refused
        `plan_corrupt`.
        """
        must_end = report is not None and report.get("state") in _ENDED
        held: dict[str, Candidate] = {}
        for part in self._plan.candidates:
            for found in self._read(part):
                if found.address in held:
                    self._findings.add(found.finding("twice", f"listed again in {part.name}"))
                held[found.address] = found
                if must_end and found.outcome is None:
                    text = "the sweep of the run is complete"
                    self._findings.add(found.finding("unrecorded", text))
            if len(held) >= CANDIDATES_HELD:
                yield held
                held = {}
        if held:
            yield held
        for stem in self._records:
            self._findings.add(Finding("stray", f"deleted/{stem}: the plan has no such part"))
        self._check_figures(report)

    def _read(self, part: Part) -> Iterator[Candidate]:
        """Yields the candidates of one part with their recorded outcomes, and checks them."""
        table = read_part(self._folder, part.name, part.checksum, columns=_COLUMNS)
        self._check_shapes(part, table)
        stem = part.name.rpartition("/")[2].removesuffix(".parquet")
        recorded = self._recorded(self._records.pop(stem, []))
        count = Count()
        for row in table.to_pylist():
            count += Count(1, row["size_bytes"])
            outcome = self._outcome(row, recorded.pop(row["address"], None))
            # A million rows can be held in memory, and have few different kinds.
            yield Candidate(**row | {"kind": sys.intern(row["kind"])}, outcome=outcome)
        for address, record in recorded.items():
            text = f"recorded as {record['outcome']} in deleted/{stem}"
            self._findings.add(Finding("stray", text, address, kind=record["kind"]))
        if count != Count(part.rows, part.bytes_total):
            text = f"{part.name} has {_figure(count)}, and the plan says "
            text += _figure(Count(part.rows, part.bytes_total))
            self._findings.add(Finding("figure", text))
        self.total += count

    def _recorded(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Returns the record by address. If several attempts recorded an address, the outcome that
        comes first in OUTCOMES counts."""
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            for row in read_part(self._folder, name).select(OUTCOME_SCHEMA.names).to_pylist():
                before = found.get(row["address"])
                if before is None or _rank(row) < _rank(before):
                    found[row["address"]] = row
        return found

    def _outcome(self, row: dict[str, Any], record: dict[str, Any] | None) -> str | None:
        """Returns the recorded outcome of a candidate, and counts it."""
        if record is None:
            return None
        if (record["size_bytes"], record["kind"]) != (row["size_bytes"], row["kind"]):
            text = f"on record as a {record['kind']} of {record['size_bytes']:,} bytes"
            self._findings.add(
                Finding("changed", text, row["address"], None, row["kind"], row["size_bytes"])
            )
        outcome = str(record["outcome"])
        self.outcomes[outcome] += 1
        self.outcome_bytes[outcome] += record["size_bytes"]
        return outcome

    def _check_shapes(self, part: Part, table: pa.Table) -> None:
        """Checks that each candidate has the kind and target of its address, and that files of this
        kind can be deleted."""
        addresses = cast("pa.StringArray", table.column("address").combine_chunks())
        kinds, targets = self._layout.classify(addresses), self._layout.targets(addresses)
        columns = [table.column("kind").to_pylist(), table.column("target").to_pylist()]
        rows = zip(texts(addresses), texts(kinds), targets.to_pylist(), *columns, strict=True)
        for address, kind, target, said, said_target in rows:
            text = None
            if kind not in self._layout.delete_order or not _is_inside(address):
                text = f"a {kind} file, which is never deleted"
            elif kind != said or kind != part.kind:
                text = f"a {kind}, and listed as a {said} in {part.name}"
            elif target != said_target:
                text = f"written for {target}, and listed as for {said_target}"
            if text is not None:
                self._findings.add(Finding("shape", text, address, kind=str(said)))

    def _check_figures(self, report: Mapping[str, Any] | None) -> None:
        """Checks that the sums in the plan and in the report equal those of the rows."""
        wanted = self._plan.candidate_total
        if self.total != wanted:
            text = f"the plan counts {_figure(wanted)}, and its parts have {_figure(self.total)}"
            self._findings.add(Finding("figure", text))
        if report is None or report.get("state") not in _REPORTED:
            return
        for outcome in OUTCOMES:
            found = Count(self.outcomes[outcome], self.outcome_bytes[outcome])
            said = Count(report.get(f"{outcome}_count", 0), report.get(f"{outcome}_bytes", 0))
            if found != said:
                text = f"{outcome}: the report counts {_figure(said)}, the record {_figure(found)}"
                self._findings.add(Finding("figure", text))


def _rank(row: Mapping[str, Any]) -> int:
    return OUTCOMES.index(row["outcome"])


def _by_part(names: Iterable[str]) -> dict[str, list[str]]:
    """Groups the names of record parts by the name of their part of candidates."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.split("/")[1], []).append(name)
    return found


def _is_inside(address: str) -> bool:
    try:
        return bool(split_address(address))
    except InvalidInput:
        return False


def _figure(count: Count) -> str:
    return f"{count_text(count.objects, 'file')} of {count_text(count.bytes_total, 'byte')}"


def look_at_files(
    storage: Storage, plan: Plan, candidates: Iterable[Candidate], findings: Findings
) -> list[Candidate]:
    """Compares the candidates that a sweep would delete with the files on the storage. Returns the
    candidates that are too young by the plan or by the storage."""
    young: list[Candidate] = []

    def head(candidate: Candidate) -> tuple[Candidate, ObjectInfo | None]:
        return candidate, storage.head(candidate.address)

    going = [each for each in candidates if each.goes and _is_inside(each.address)]
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        for start in range(0, len(going), LOOKS_AT_ONCE * 32):
            for each, there in pool.map(head, going[start : start + LOOKS_AT_ONCE * 32]):
                advance(1)
                if there is None:
                    findings.add(each.finding("gone", "the file does not exist"))
                    continue
                if max(_latest(each.last_modified), _latest(there.last_modified)) >= plan.cutoff:
                    young.append(each)
                # For files that an incremental run remembers, the plan may have a date that is
                # later than the file's own.
                is_later = there.last_modified >= each.last_modified + _SECOND
                if there.size_bytes != each.size_bytes or is_later:
                    size = count_text(there.size_bytes, "byte")
                    date = there.last_modified.isoformat()
                    text = f"the file has {size}, and is dated {date}"
                    findings.add(each.finding("changed", text))
    return young


def _latest(date: datetime) -> datetime:
    """Returns the latest instant that a date can mean: a date in whole seconds can mean any instant
    of that second."""
    return date if date.microsecond else date + timedelta(microseconds=999_999)
