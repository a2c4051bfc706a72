"""The quarantines of one repository: restores their files, deletes them, and reports on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from ebbtide.arrow import Column
from ebbtide.errors import NotFound
from ebbtide.formats.base import Guard, RepositoryFormat, RunHold
from ebbtide.gc import quarantine
from ebbtide.gc.engine import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.quarantine import Quarantine
from ebbtide.gc.relations.keys import KeyArray, KeySet, keys_of
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Steps
from ebbtide.gc.sweeping.intents import told as told_of
from ebbtide.gc.sweeping.recovery import Ending, Recovered, kept_keys, restore
from ebbtide.gc.sweeping.undoing import Undo, open_batches


@dataclass(frozen=True, slots=True)
class Quarantines:
    """The quarantines of one repository. A change of a quarantine needs a hold on the
    repository."""

    engine: Engine
    repository: RepositoryFormat
    options: RunOptions

    def undo(
        self,
        plan: Plan,
        folder: RunFolder,
        hold: RunHold,
        steps: Steps,
        *,
        under: str,
        sweeps_ended: bool,
    ) -> tuple[bool, dict[str, Any]]:
        """Restores the files that a run quarantined. Returns whether the run is undone completely,
        and the field `quarantine` of its report. Raises as `Undo.execute`."""
        undo = Undo(
            self.engine,
            self.repository,
            plan,
            folder,
            hold,
            steps,
            lasts=self.options.undo_hold,
            patience=self.options.patience,
            under=under,
            sweeps_ended=sweeps_ended,
        )
        undone = undo.execute()
        known = self._told(plan.run_id, "undone" if undone.is_whole else "held")
        return undone.is_whole, known | undone.to_json()

    def held(self, run_id: str) -> Quarantine:
        """Returns the record of a run that has files in quarantine. Raises NotFound
        `not_quarantined`."""
        record = quarantine.read(self.repository.storage, run_id)
        if record is None or record.state != "held":
            raise NotFound("not_quarantined", f"run {run_id} has no files in quarantine")
        return record

    def purge(
        self, record: Quarantine, report: RunReport, folder: RunFolder, steps: Steps
    ) -> tuple[RunReport, Recovered]:
        """Deletes the files that a run has in quarantine, after it has restored those that are
        needed now. Returns the run's report with the new state of the quarantine, and what was
        restored. `folder` is that of the present run, or of the run itself.

        A needed file stays in quarantine too while a batch of a sweep is not settled, because its
        process may still delete the restored file. The quarantine is then `held` further on.
        Raises Failed `storage_error`, and Refused `repository_changed` if a file that was not
        needed is needed now.
        """
        storage, engine = self.repository.storage, self.engine
        with steps("purge"):
            ending = Ending(engine, self.repository, self.options, record.run_id, folder)
            needed, guard = ending.needed()
            recovered = restore(engine, self.repository, folder, needed)
            sweepers = told_of(intent for _, intent in open_batches(self.repository))
            stays = needed if sweepers else []
            told = report.quarantine or {}
            engine.meter.begin("files", told.get("objects"))
            quarantine.delete_held(
                engine,
                storage,
                record.run_id,
                wanted=partial(_without, kept_keys(folder, stays)),
                guard=partial(_unless_restored, guard, kept_keys(folder, needed)),
                batch_max=self.repository.batch_max,
            )
            if stays:
                told = self._told(record.run_id, "held") | {"sweepers": sweepers}
                return replace(report, quarantine=told), recovered
            if record.delete_versions:
                quarantine.delete_hidden(storage, record.run_id)
        if record.back_at is None:
            quarantine.drop(storage, record.run_id)
        else:
            quarantine.write(storage, replace(record, state="purged"))
        return replace(report, quarantine=self._told(record.run_id, "purged")), recovered

    def over(self, plan: Plan) -> Iterator[Quarantine]:
        """Yields the records of quarantines whose time is over, after a sweep of `plan`.

        Deletes the record of an undone or purged quarantine when its restored files are no longer
        protected, and a clean run has begun since they were restored.
        """
        now, storage = self.repository.now(), self.repository.storage
        for record in quarantine.read_all(storage):
            is_seen = record.back_at is None or record.back_at < plan.clean_at
            if record.state == "held":
                if record.until <= now:
                    yield record
            elif is_seen and not record.protects(now):
                quarantine.drop(storage, record.run_id)

    def has(self, run_id: str) -> bool:
        """Whether there is a record of a run's quarantine."""
        return quarantine.read(self.repository.storage, run_id) is not None

    def has_any(self) -> bool:
        """Whether any run has files in quarantine."""
        records = quarantine.read_all(self.repository.storage)
        return any(record.state == "held" for record in records)

    def undone_since(self, instant: datetime) -> str | None:
        """Returns a run that had files restored after `instant`, or None. An incremental run does
        not look at restored files."""
        for record in quarantine.read_all(self.repository.storage):
            if record.back_at is not None and record.back_at > instant:
                return record.run_id
        return None

    def until(self, run_id: str) -> datetime | None:
        """Returns the end of a run's quarantine, or None if the run has no record of one."""
        record = quarantine.read(self.repository.storage, run_id)
        return None if record is None else record.until

    def _told(self, run_id: str, state: str) -> dict[str, Any]:
        """Returns the field `quarantine` of a report, with the files that are in quarantine now."""
        left = quarantine.count(self.repository.storage, run_id)
        until = self.until(run_id) if state == "held" else None
        at = None if state == "held" else self.repository.now()
        return {
            "state": state,
            "until": None if until is None else until.isoformat(),
            "at": None if at is None else at.isoformat(),
            "objects": left.objects,
            "bytes": left.bytes_total,
        }


def _without(keys: KeyArray, table: pa.Table) -> pa.Table:
    """Returns the rows whose addresses have none of the keys."""
    return table.filter(pa.array(~KeySet(keys).has(keys_of(table.column("address")))))


def _unless_restored(guard: Guard, restored: KeyArray, addresses: Column) -> None:
    """Calls `guard` with the addresses whose files were not restored, if there are any."""
    left = pa.array(~KeySet(restored).has(keys_of(addresses)))
    guard(addresses.filter(left))
