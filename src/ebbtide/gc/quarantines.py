"""The quarantines of one repository: restores their files, deletes them, and reports on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from ebbtide.arrow import Column
from ebbtide.errors import Conflict, Incomplete, NotFound, Refused
from ebbtide.formats.base import Guard, RepositoryFormat, RunHold
from ebbtide.formats.capabilities import batch_max_of
from ebbtide.gc import quarantine
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.quarantine import Quarantine
from ebbtide.gc.relations.keys import KeyArray, KeySet, keys_of
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolder, RunFolders
from ebbtide.gc.steps import Steps
from ebbtide.gc.sweeping.intents import told as told_of
from ebbtide.gc.sweeping.recovery import QuarantineEnd, Recovered, kept_keys, restore
from ebbtide.gc.sweeping.undoing import Undo, open_batches


@dataclass(frozen=True, slots=True)
class Needed:
    """The files of a quarantine that are needed now: their `keys`, the check to make before each
    batch of deletes, and what was `recovered` of them."""

    keys: KeyArray
    guard: Guard
    recovered: Recovered


@dataclass(frozen=True, slots=True)
class Quarantines:
    """The quarantines of one repository. A change of a quarantine needs a hold on the
    repository."""

    engine: Engine
    folders: RunFolders
    options: RunOptions

    @property
    def repository(self) -> RepositoryFormat:
        """The repository of the quarantines."""
        return self.folders.repository

    def undo(
        self,
        run_id: str,
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
            self.folders,
            run_id,
            folder,
            hold,
            steps,
            lasts=self.options.undo_hold,
            patience=self.options.patience,
            under=under,
            sweeps_ended=sweeps_ended,
        )
        undone = undo.execute()
        known = self.told(run_id, "undone" if undone.is_whole else "held")
        return undone.is_whole, known | undone.to_json()

    def held(self, run_id: str) -> Quarantine:
        """Returns the record of a run that has files in quarantine. Raises NotFound
        `not_quarantined`."""
        record = quarantine.read(self.repository.storage, run_id)
        if record is None or record.state != "held":
            raise NotFound("not_quarantined", f"run {run_id} has no files in quarantine")
        return record

    def rescue(self, record: Quarantine, folder: RunFolder, steps: Steps) -> Needed:
        """Restores the files of a run's quarantine that are needed now. `folder` is that of the
        present run, or of the run itself. Raises Failed `storage_error`, and Refused."""
        with steps("restore"):
            ending = QuarantineEnd(
                self.engine, self.repository, self.options, record.run_id, folder
            )
            needed, guard = ending.needed()
            recovered = restore(self.engine, self.repository, folder, needed)
        return Needed(kept_keys(folder, needed), guard, recovered)

    def purge(
        self, record: Quarantine, report: RunReport, needed: Needed, steps: Steps
    ) -> RunReport:
        """Deletes the files that a run has in quarantine, after `rescue` has restored the `needed`
        ones. Returns the run's report with the new state of the quarantine.

        A needed file stays in quarantine too while a batch of a sweep is not settled, because its
        process may still delete the restored file. The quarantine is then `held` further on.
        Raises Failed `storage_error`, and Incomplete if it stops for any other reason, such as a
        file that was not needed and is needed now.
        """
        storage, engine = self.repository.storage, self.engine
        try:
            with steps("purge"):
                sweepers = told_of(intent for _, intent in open_batches(self.folders))
                stays = needed.keys if sweepers else needed.keys[:0]
                told = report.quarantine or {}
                engine.meter.begin("files", told.get("objects"))
                checks = quarantine.FinalChecks(
                    partial(_without, stays),
                    partial(_unless_restored, needed.guard, needed.keys),
                    batch_max_of(self.repository),
                )
                quarantine.delete_held(engine, storage, record.run_id, checks)
                if len(stays):
                    told = self.told(record.run_id, "held") | {"sweepers": sweepers}
                    return replace(report, quarantine=told)
                if record.delete_versions:
                    quarantine.delete_hidden(storage, record.run_id)
        except (Refused, NotFound, Conflict) as error:
            raise Incomplete(
                "incomplete",
                f"the purge of run {record.run_id} was stopped: {error.message}. Files that it "
                "deleted until then cannot be restored: purge the run again for the others",
            ) from error
        if record.back_at is None:
            quarantine.drop(storage, record.run_id)
        else:
            quarantine.write(storage, replace(record, state="purged"))
        return replace(report, quarantine=self.told(record.run_id, "purged"))

    def over(self, plan: Plan) -> tuple[list[Quarantine], dict[str, Refused]]:
        """Returns the records of quarantines whose time is over, after a sweep of `plan`, and the
        errors of damaged records by run id.

        Deletes the record of an undone or purged quarantine when its restored files are no longer
        protected, and a clean run has begun since they were restored.
        """
        now, storage = self.repository.now(), self.repository.storage
        records, damaged = quarantine.read_each(storage)
        for record in records:
            is_seen = record.back_at is None or record.back_at < plan.clean_at
            if record.state != "held" and is_seen and not record.protects(now):
                quarantine.drop(storage, record.run_id)
        return [each for each in records if each.state == "held" and each.until <= now], damaged

    def has(self, run_id: str) -> bool:
        """Whether there is a record of a run's quarantine, damaged or not."""
        return quarantine.is_recorded(self.repository.storage, run_id)

    def has_any(self) -> bool:
        """Whether any run may have files in quarantine."""
        records, damaged = quarantine.read_each(self.repository.storage)
        return bool(damaged) or any(record.state == "held" for record in records)

    def undone_since(self, instant: datetime) -> str | None:
        """Returns why files may have been restored after `instant`, or None. An incremental run
        does not look at restored files."""
        records, damaged = quarantine.read_each(self.repository.storage)
        for error in damaged.values():
            return error.message
        for record in records:
            if record.back_at is not None and record.back_at > instant:
                return f"run {record.run_id} was undone since the last clean run"
        return None

    def until(self, run_id: str) -> datetime | None:
        """Returns the end of a run's quarantine, or None if the run has no record of one."""
        record = quarantine.read(self.repository.storage, run_id)
        return None if record is None else record.until

    def told(self, run_id: str, state: str) -> dict[str, Any]:
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
