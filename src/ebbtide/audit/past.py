"""Finds the run that deleted an address or a commit, and the undone runs that protect an address.

It reads the records of runs, newest first. A record that cannot be read is an error, because it may
have the answer.
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

from ebbtide.arrow import texts
from ebbtide.audit.answers import PastHolder, Went
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import ExpiredCommit, Protector, RepositoryFormat
from ebbtide.gc import quarantine
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import ADDRESS_SCHEMA, PartRows, opened_part, read_part, read_tables, split
from ebbtide.gc.planning.plan import Plan, read_plan
from ebbtide.gc.runs import FENCE_FILE, PLAN_FILE, REPORT_FILE, RunFolder, RunFolders
from ebbtide.gc.sweeping.outcomes import OUTCOME_SCHEMA
from ebbtide.quarantined import UNREADABLE, Fate, fate_of

GONE: Final = ("deleted", "quarantined", "missing")
"""The outcomes after which a file does not exist at its address, by rank."""
_ADDRESS: Final = OUTCOME_SCHEMA.get_field_index("address")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an address in the record of a run."""

    run_id: str
    folder: RunFolder
    outcome: str


def find_outcome(engine: Engine, folders: RunFolders, address: str) -> Outcome | None:
    """Returns the newest run that deleted or quarantined the address. If no run did, returns the
    newest run that found it missing. Raises Refused `plan_corrupt`."""
    missing: Outcome | None = None
    for run_id, folder in _runs(folders):
        outcome = _outcome_in(engine, folder, address)
        if outcome is not None and outcome != "missing":
            return Outcome(run_id, folder, outcome)
        if outcome is not None and missing is None:
            missing = Outcome(run_id, folder, outcome)
    return missing


def _runs(folders: RunFolders) -> Iterator[tuple[str, RunFolder]]:
    """Yields the runs with files, newest first, each with its folder."""
    for run_id, places in folders.recorded().items():
        with suppress(NotFound):
            yield run_id, folders.among(run_id, places)


def _outcome_in(engine: Engine, folder: RunFolder, address: str) -> str | None:
    def work(_number: int, task: Sequence[str], answer: PartRows) -> None:
        for name in task:
            for outcome in _outcomes(folder, name, address):
                answer.counted(Count(1), of=outcome)

    names = folder.names("deleted")
    answers = engine.run(split(names, tasks=engine.task_count), work)
    found = {each.of for each in answers.counts}
    return next((outcome for outcome in GONE if outcome in found), None)


def _outcomes(folder: RunFolder, name: str, address: str) -> Iterator[str]:
    """Yields the outcomes of the address in one part. Files that were written together have similar
    addresses, so that the smallest and largest address of a row group exclude most groups."""
    with opened_part(folder, name) as file:
        for number in range(file.num_row_groups):
            if not _may_have(file, number, address):
                continue
            rows = file.read_row_group(number, columns=["address", "outcome"], use_threads=False)
            chosen = pc.equal(rows.column("address"), pa.scalar(address, pa.string()))
            yield from texts(rows.filter(chosen).column("outcome"))


def _may_have(file: pq.ParquetFile, number: int, address: str) -> bool:
    known: Any = file.metadata.row_group(number).column(_ADDRESS).statistics
    if known is None or not known.has_min_max:
        return True
    return bool(known.min <= address <= known.max)


def describe(folders: RunFolders, outcome: Outcome, trees: Collection[str], *, limit: int) -> Went:
    """Returns the run of an outcome, with its plan's dates and policy, and with at most `limit` of
    the commits that it expired and that had one of these `trees`."""
    plan = _plan_of(folders.repository, outcome.run_id, outcome.folder)
    is_aside = outcome.outcome == "quarantined"
    fate = fate_in(folders, outcome.run_id) if is_aside else None
    found = [] if plan is None else list(_expired_with(outcome.folder, plan, trees))
    found.sort(key=lambda holder: (holder.created_at, holder.commit_id), reverse=True)
    return Went(
        run_id=outcome.run_id,
        run_path=outcome.folder.path,
        outcome=outcome.outcome,
        at=_fenced_at(outcome.folder),
        aside_until=None if fate is None else fate.until,
        fate=fate,
        planned_at=None if plan is None else plan.started_at,
        cutoff=None if plan is None else plan.cutoff,
        policy=None if plan is None else plan.policy,
        commits=tuple(found[:limit]),
        commit_count=len(found),
    )


def _plan_of(repository: RepositoryFormat, run_id: str, folder: RunFolder) -> Plan | None:
    """Returns a run's plan, also of the repository that this one is a copy of; None without one."""
    if not folder.has(PLAN_FILE):
        return None
    checksum = repository.plan_checksum(run_id)
    return read_plan(folder, identity=None, recorded_checksum=checksum)


def _fenced_at(folder: RunFolder) -> datetime | None:
    fence = folder.get_json(FENCE_FILE)
    return None if fence is None else datetime.fromisoformat(fence["fenced_at"])


def fate_in(folders: RunFolders, run_id: str) -> Fate:
    """Returns what became of the data that a run took."""
    repository, folder = folders.repository, None
    with suppress(NotFound):
        folder = folders.of(run_id)
    return fate_of(
        repository.storage,
        run_id,
        repository=repository.identity.repository_name,
        run_state=None if folder is None else _state_in(folder),
        now=repository.now(),
    )


def _state_in(folder: RunFolder) -> str:
    """Returns the state of a run that passed its fence. A run without a report did not end."""
    try:
        report = folder.get_json(REPORT_FILE)
    except Refused:
        return UNREADABLE
    return "sweeping" if report is None else str(report.get("state"))


def brought_back(folders: RunFolders, address: str, now: datetime) -> Iterator[Protector]:
    """Yields the protections of an address that an undo restored. Raises Refused
    `plan_corrupt`."""
    for record in quarantine.read_all(folders.repository.storage):
        if not record.protects(now):
            continue
        wanted = pa.scalar(address, pa.string())
        for part in record.back:
            folder = quarantine.folder_of_back(folders, record.run_id, part)
            table = next(read_tables(folder, [part], ADDRESS_SCHEMA))
            if pc.any(pc.equal(table.column("address"), wanted)).as_py():
                yield Protector(
                    reason="restored",
                    where=f"by an undo of run {record.run_id}",
                    since=record.back_at,
                    until=record.back_until,
                )
                break


def _expired_with(folder: RunFolder, plan: Plan, trees: Collection[str]) -> Iterator[PastHolder]:
    if plan.commits is None or plan.commits.name is None:
        return
    columns = ("commit_id", "created_at", "tree_id", "active")
    rows = read_part(folder, plan.commits.name, plan.commits.checksum, columns=columns).to_pylist()
    for row in rows:
        if not row["active"] and row["tree_id"] in trees:
            yield PastHolder(commit_id=row["commit_id"], created_at=row["created_at"])


def find_expired(folders: RunFolders, commit_id: str, *, forgotten: bool) -> ExpiredCommit | None:
    """Returns the newest run that expired a commit, or None if no run on record did. `forgotten`:
    the run that expired its record too. Raises Refused `plan_corrupt`."""
    found = (
        expired
        for run_id, folder in _runs(folders)
        for expired in _expired_by(folders, run_id, folder, commit_id, forgotten=forgotten)
    )
    return next((expired for expired in found if expired is not None), None)


def find_taken(folders: RunFolders, commit_id: str) -> ExpiredCommit | None:
    """Returns the run that took the data of a commit that nothing closes, or None.

    Each run expires such a commit anew: the first one of them that took files is meant. A run that
    kept the commit, or was undone, ends the search. Raises Refused `plan_corrupt`.
    """
    taken: ExpiredCommit | None = None
    for run_id, folder in _runs(folders):
        state = _state_in(folder)
        for expired in _expired_by(folders, run_id, folder, commit_id, forgotten=False):
            if state == "undone" or expired is None:
                return taken
            if state != "refused" and _took_files(folder):
                taken = expired
    return taken


def _expired_by(
    folders: RunFolders, run_id: str, folder: RunFolder, commit_id: str, *, forgotten: bool
) -> Iterator[ExpiredCommit | None]:
    """Yields the expiry of a commit by a run, or None if the run did not expire it. Yields nothing
    for a run that did not sweep."""
    fence = folder.get_json(FENCE_FILE)
    plan = None if fence is None else _plan_of(folders.repository, run_id, folder)
    if fence is None or plan is None or plan.commits is None or plan.commits.name is None:
        return
    columns = ("commit_id", "active", "recorded", "tombstoned")
    rows = read_part(folder, plan.commits.name, plan.commits.checksum, columns=columns)
    mine = pc.equal(rows.column("commit_id"), pa.scalar(commit_id, pa.string()))
    # Runs after the one that closed a commit find it closed.
    was_expired = any(
        not row["active"] and not (row["recorded"] if forgotten else row["tombstoned"])
        for row in rows.filter(mine).to_pylist()
    )
    at = datetime.fromisoformat(fence["fenced_at"])
    is_meant = was_expired and commit_id not in fence["kept_after_all"]
    yield ExpiredCommit(run_id=run_id, at=at, forgotten=forgotten) if is_meant else None


def _took_files(folder: RunFolder) -> bool:
    """Whether a sweep deleted or quarantined a file, as far as its report says."""
    try:
        report = folder.get_json(REPORT_FILE)
    except Refused:
        return True
    names = ("deleted_count", "quarantined_count")
    return report is None or any(report.get(name, 0) for name in names)
