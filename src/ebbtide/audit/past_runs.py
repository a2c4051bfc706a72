"""Finds the run that deleted an address or a commit, and the undone runs that protect an address.

It reads the records of runs, newest first. A record that cannot be read is an error (Refused
`plan_corrupt`), because it may have the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebbtide.arrow import make_schema, texts
from ebbtide.audit.answers import PastHolder, Went
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import ExpiredCommit, Protector, Reading
from ebbtide.formats.capabilities import expired_commit
from ebbtide.gc import quarantine
from ebbtide.gc.deletes import OUTCOME_SCHEMA
from ebbtide.gc.engines.base import Batches, Engine
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, opened_part, read_part, read_tables, split
from ebbtide.gc.plan import Plan, read_plan
from ebbtide.gc.runs import FENCE_FILE, PLAN_FILE, REPORT_FILE, RunFolder, RunFolders
from ebbtide.model import Commit
from ebbtide.quarantined import UNREADABLE, Fate, fate_of

GONE: Final = ("deleted", "quarantined", "missing")
"""The outcomes after which a file does not exist at its address, by rank."""
_ADDRESS: Final = OUTCOME_SCHEMA.get_field_index("address")
_COMMIT: Final = ("commit_id", "created_at", "tree_id", "active", "recorded", "tombstoned")


@dataclass(frozen=True, slots=True)
class PastRuns:
    """The records of the runs of one repository."""

    engine: Engine
    folders: RunFolders

    def went(self, address: str, trees: Collection[str], *, limit: int) -> Went | None:
        """Returns the newest run that deleted or quarantined an address. If no run did, returns the
        newest run that found it missing. At most `limit` of the commits are named that the run
        expired, and that had one of these `trees`."""
        missing: RunFolder | None = None
        for folder in self._newest_first():
            outcome = self._outcome_in(folder, address)
            if outcome == "missing":
                missing = missing or folder
            elif outcome is not None:
                return self._describe(folder, outcome, trees, limit=limit)
        return None if missing is None else self._describe(missing, "missing", trees, limit=limit)

    def _newest_first(self) -> Iterator[RunFolder]:
        for run_id, places in self.folders.recorded().items():
            with suppress(NotFound):
                yield self.folders.among(run_id, places)

    def _outcome_in(self, folder: RunFolder, address: str) -> str | None:
        """Returns the outcome of an address by a run, or None if the file exists after it. Files
        that were written together have similar addresses, so that the smallest and largest address
        of a row group exclude most groups."""
        wanted = pa.scalar(address, pa.string())

        def step(names: Sequence[str]) -> Batches:
            for name in names:
                with opened_part(folder, name) as file:
                    for number in range(file.num_row_groups):
                        if _may_have(file, number, address):
                            columns = ["address", "outcome"]
                            rows = file.read_row_group(number, columns=columns, use_threads=False)
                            rows = rows.filter(pc.equal(rows.column("address"), wanted))
                            yield from rows.select(["outcome"]).to_batches()

        tasks = split(folder.names("deleted"), tasks=self.engine.task_count)
        rows = self.engine.rows(tasks, step, make_schema(("outcome", pa.string()))).collect()
        found = texts(rows.column("outcome"))
        return next((outcome for outcome in GONE if outcome in found), None)

    def _describe(
        self, folder: RunFolder, outcome: str, trees: Collection[str], *, limit: int
    ) -> Went:
        plan, fence = self._plan_of(folder), folder.get_json(FENCE_FILE)
        fate = self.fate(folder.name if outcome == "quarantined" else None)
        commits = [
            PastHolder(commit_id=row["commit_id"], created_at=row["created_at"])
            for row in _commits_with(folder, plan, "tree_id", trees)
            if not row["active"]
        ]
        commits.sort(key=lambda holder: (holder.created_at, holder.commit_id), reverse=True)
        return Went(
            run_id=folder.name,
            run_path=folder.path,
            outcome=outcome,
            at=None if fence is None else datetime.fromisoformat(fence["fenced_at"]),
            aside_until=None if fate is None else fate.until,
            fate=fate,
            planned_at=None if plan is None else plan.started_at,
            cutoff=None if plan is None else plan.cutoff,
            policy=None if plan is None else plan.policy,
            commits=tuple(commits[:limit]),
            commit_count=len(commits),
        )

    def _plan_of(self, folder: RunFolder) -> Plan | None:
        """Returns a run's plan, also of the repository that this one is a copy of; None without
        one."""
        if not folder.has(PLAN_FILE):
            return None
        checksum = self.folders.plan_checksum(folder)
        return read_plan(folder, identity=None, recorded_checksum=checksum)

    def fate(self, run_id: str | None) -> Fate | None:
        """Returns what became of the data that a run took; None without a run."""
        if run_id is None:
            return None
        repository, run_state = self.folders.repository, None
        with suppress(NotFound):
            run_state, _ = _end_of(self.folders.of(run_id))
        return fate_of(
            repository.storage,
            run_id,
            repository=repository.identity.repository_name,
            run_state=run_state,
            now=repository.now(),
        )

    def restored(self, address: str, now: datetime) -> Iterator[Protector]:
        """Yields the protections of an address that an undo restored."""
        for record in quarantine.read_all(self.folders.repository.storage):
            parts = record.back if record.protects(now) else ()
            if any(self._has(record.run_id, part, address) for part in parts):
                yield Protector(
                    reason="restored",
                    where=f"by an undo of run {record.run_id}",
                    since=record.back_at,
                    until=record.back_until,
                )

    def _has(self, run_id: str, part: Part, address: str) -> bool:
        """Whether a part of restored files has an address."""
        inside = self.folders.inside(run_id)
        addresses = next(read_tables(inside, [part], ADDRESS_SCHEMA)).column("address")
        return bool(pc.any(pc.equal(addresses, pa.scalar(address, pa.string()))).as_py())

    def closing(self, commit: Commit, reading: Reading, *, is_active: bool) -> ExpiredCommit | None:
        """Returns the run that closed a commit, or None for other commits. If the format does not
        record it, the runs do. In a format that closes nothing, the run that took its data."""
        found = expired_commit(reading, commit.commit_id) if commit.tombstoned else None
        if found is None:
            with suppress(Refused):  # the state of the commit is known without the run
                if commit.tombstoned:
                    return self.expired(commit.commit_id, forgotten=False)
                return None if is_active else self._taken(commit.commit_id)
        return found

    def expired(self, commit_id: str, *, forgotten: bool) -> ExpiredCommit | None:
        """Returns the newest run that expired a commit, or None if no run on record did.
        `forgotten`: the run that expired its record too."""
        found = (expired for _, expired in self._expiries(commit_id, forgotten=forgotten))
        return next((each for each in found if each is not None), None)

    def _taken(self, commit_id: str) -> ExpiredCommit | None:
        """Returns the run that took the data of a commit that nothing closes, or None.

        Each run expires such a commit anew: the first one of them that took files is meant. A run
        that kept the commit, or was undone, ends the search.
        """
        taken: ExpiredCommit | None = None
        for folder, expired in self._expiries(commit_id, forgotten=False):
            state, took_files = _end_of(folder)
            if state == "undone" or expired is None:
                return taken
            if state != "refused" and took_files:
                taken = expired
        return taken

    def _expiries(
        self, commit_id: str, *, forgotten: bool
    ) -> Iterator[tuple[RunFolder, ExpiredCommit | None]]:
        """Yields each run that swept, newest first, with its expiry of a commit. The expiry is None
        if the run did not expire the commit."""
        # Runs after the one that closed a commit find it closed.
        was_gone = "recorded" if forgotten else "tombstoned"
        for folder in self._newest_first():
            fence = folder.get_json(FENCE_FILE)
            plan = None if fence is None else self._plan_of(folder)
            if fence is None or plan is None or plan.commits is None:
                continue
            expired = None
            rows = _commits_with(folder, plan, "commit_id", [commit_id])
            was_expired = any(not row["active"] and not row[was_gone] for row in rows)
            if was_expired and commit_id not in fence["kept_after_all"]:
                at = datetime.fromisoformat(fence["fenced_at"])
                expired = ExpiredCommit(run_id=folder.name, at=at, forgotten=forgotten)
            yield folder, expired


def _may_have(file: pq.ParquetFile, number: int, address: str) -> bool:
    known: Any = file.metadata.row_group(number).column(_ADDRESS).statistics
    if known is None or not known.has_min_max:
        return True
    return bool(known.min <= address <= known.max)


def _commits_with(
    folder: RunFolder, plan: Plan | None, column: str, values: Collection[str]
) -> list[dict[str, Any]]:
    """Returns the commits of a plan that have one of the values in a column, with the columns of
    _COMMIT."""
    if plan is None or plan.commits is None:
        return []
    rows = read_part(folder, plan.commits.name, plan.commits.checksum, columns=_COMMIT)
    wanted = pa.array(sorted(values), pa.string())
    return rows.filter(pc.is_in(rows.column(column), value_set=wanted)).to_pylist()


def _end_of(folder: RunFolder) -> tuple[str, bool]:
    """Returns the state of a run that passed its fence, and whether it deleted or quarantined a
    file, as far as its report says. A run without a report did not end."""
    try:
        report = folder.get_json(REPORT_FILE)
    except Refused:
        return UNREADABLE, True
    if report is None:
        return "sweeping", True
    counts = (report.get(name, 0) for name in ("deleted_count", "quarantined_count"))
    return str(report.get("state")), any(counts)
