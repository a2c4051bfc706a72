"""The collector of one repository: its plans, sweeps, undos and reports.

Not for: how a plan is made (`planning`) and carried out (`sweeping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial

from ebbtide import telemetry
from ebbtide.errors import (
    Conflict,
    EbbtideError,
    Failed,
    Incomplete,
    InvalidInput,
    NotFound,
    Refused,
)
from ebbtide.escaping import shown
from ebbtide.formats.base import RUNS_PREFIX, RepositoryFormat, RunHold
from ebbtide.gc.engine import Engine
from ebbtide.gc.modes import is_due, newest_swept
from ebbtide.gc.options import RunOptions
from ebbtide.gc.planning.gates import check_grace
from ebbtide.gc.planning.incremental import Chosen, Earlier, EarlierRun
from ebbtide.gc.planning.making import make_plan
from ebbtide.gc.planning.plan import Plan, read_commits, read_plan, write_plan
from ebbtide.gc.planning.whatif import Alternative, WhatIf, what_if
from ebbtide.gc.quarantines import Quarantines
from ebbtide.gc.relations.inventory_report import InventoryReport, open_inventory
from ebbtide.gc.report import (
    RunReport,
    outcome_attributes,
    planned_report,
    refused_report,
    swept_report,
)
from ebbtide.gc.retaining import check_deletes_versions
from ebbtide.gc.runs import (
    FENCE_FILE,
    PLAN_FILE,
    REPORT_FILE,
    RunFolder,
    announce_epoch,
)
from ebbtide.gc.steps import Observer, Steps, Unheld, silent
from ebbtide.gc.sweeping.intents import unsettled
from ebbtide.gc.sweeping.recovery import Recovered
from ebbtide.gc.sweeping.sweep import Sweep, Swept, incomplete, nothing_deleted
from ebbtide.gc.verifying.findings import Verification
from ebbtide.gc.verifying.verify import verify
from ebbtide.ids import LATEST, descending_id, instant_of
from ebbtide.retention import Policy
from ebbtide.storage import open_storage
from ebbtide.text import count_text

Work = Callable[[str, RunFolder, RunHold], RunReport]
"""An operation of the collector under a hold. Called with the run's id, its folder and the hold;
returns the run's report."""

Confirm = Callable[[Plan], bool]
"""Called with the plan before a sweep. If it returns False, the plan is not swept."""


@contextmanager
def _without_rest(folder: RunFolder) -> Iterator[None]:
    """Deletes the files of a plan if the disk becomes full within the block. An incomplete plan is
    useless, and the next run needs the space."""
    try:
        yield
    except Failed as error:
        if error.kind == "disk_full":
            with suppress(EbbtideError):
                folder.delete()
        raise


def _staying(report: RunReport) -> list[str]:
    """Returns a warning if needed files stay in a quarantine whose time is over."""
    told = report.quarantine or {}
    if told.get("state") != "held":
        return []
    return [
        f"the quarantine of run {report.run_id} keeps {count_text(told['objects'], 'file')} that "
        f"are needed and restored: {told['sweepers']} may still delete them. If no process of a "
        f"sweep exists: 'ebbtide gc undo {report.repository} {report.run_id} --sweeps-ended'"
    ]


def always(_plan: Plan) -> bool:
    """Confirms every plan."""
    return True


class Collector:
    """Collects one repository. `engine` carries out the steps of its runs."""

    def __init__(
        self,
        repository: RepositoryFormat,
        *,
        engine: Engine,
        options: RunOptions,
        observer: Observer = silent,
    ) -> None:
        self._repository = repository
        self._engine = engine
        self._options = options
        self._observer = observer
        self._quarantines = Quarantines(engine, repository, options)

    def plan(self) -> RunReport:
        """Makes a plan, and deletes nothing. If a gate refuses, the report's state is `refused`.

        Raises InvalidInput `unsafe_grace`, `invalid_inventory` or `invalid_argument`.
        """
        self._check_options()
        now = self._repository.now()
        given = self._open_inventory(now)
        run_id = descending_id(now)
        work = partial(self._plan, given=given)
        return self._held("plan", run_id, self._new_folder(run_id), work, deletes=False)

    def sweep(self, run_id: str | None = None) -> RunReport:
        """Carries out the plan of a run, or without `run_id` the plan of `newest_unswept`.

        If a gate refuses, the report's state is `refused`, and the plan can be swept later. Raises
        NotFound `run_not_found` and Conflict `plan_used`.
        """
        self._check_options()
        if run_id is None:
            run_id = self.newest_unswept()
        return self._held("sweep", run_id, self._folder(run_id), self._sweep, deletes=True)

    def undo(self, run_id: str, *, under: str = "", sweeps_ended: bool = False) -> RunReport:
        """Restores the files that a sweep quarantined, and opens the commits that it closed.

        With `under`, only files whose addresses begin with it are restored, and no commit is
        opened. When everything is restored, the run cannot be swept again.

        If a sweep began a batch and did not record its end, the files of this batch stay in
        quarantine, and the commits that need them stay closed. `sweeps_ended` restores these files
        too: the caller must know that no process of any sweep exists, not even a suspended one.

        If a gate refuses, the report's state is `refused`. Raises InvalidInput `invalid_argument`
        if the format has no undo, NotFound `run_not_found` and `not_quarantined`, Conflict
        `plan_used`, and Failed `storage_error`, after which the undo can be repeated.
        """
        self._repository.check_undoable()
        work = partial(self._undo, under=under, sweeps_ended=sweeps_ended)
        return self._held("undo", run_id, self._folder(run_id), work, deletes=True)

    def purge(self, run_id: str) -> RunReport:
        """Deletes the files that a sweep quarantined.

        If a gate refuses, the report's state is `refused`. Raises NotFound `run_not_found` and
        `not_quarantined`, and Failed `storage_error`, after which the purge can be repeated.
        """
        return self._held("purge", run_id, self._folder(run_id), self._purge, deletes=True)

    def _undo(
        self, run_id: str, folder: RunFolder, hold: RunHold, *, under: str, sweeps_ended: bool
    ) -> RunReport:
        plan, steps = self._read_plan(folder, run_id), self._steps(hold, run_id)
        is_whole, told = self._quarantines.undo(
            plan, folder, hold, steps, under=under, sweeps_ended=sweeps_ended
        )
        report = self.show(run_id)
        state = "undone" if is_whole else report.state
        report = replace(report, state=state, quarantine=told)
        self._finish(folder, report)
        return report

    def _purge(self, run_id: str, folder: RunFolder, hold: RunHold) -> RunReport:
        record, report = self._quarantines.held(run_id), self.show(run_id)
        steps = self._steps(hold, run_id)
        try:
            report, recovered = self._quarantines.purge(record, report, folder, steps)
        except Refused as error:
            if error.kind != "repository_changed":
                raise
            text = f"the quarantine of run {run_id} stays: {error.message}: purge the run again"
            raise Incomplete("incomplete", text) from error
        report = report.with_recovered(recovered)
        self._finish(folder, report)
        return report

    def _steps(self, hold: RunHold, run_id: str) -> Steps:
        return Steps(hold, self._observer, name=partial(self._engine.name_jobs, run_id))

    def _held(
        self, action: str, run_id: str, folder: RunFolder, work: Work, *, deletes: bool
    ) -> RunReport:
        """Does `work` within a span of its own. Returns the report, also of a refused run."""
        name = self._repository.identity.repository_name
        about = {telemetry.REPOSITORY: name, telemetry.RUN_ID: run_id}
        with telemetry.span(f"gc {action}", about) as traced:
            report = self._held_work(run_id, folder, work, deletes=deletes)
            traced.note(outcome_attributes(report.to_json()))
            if report.error is not None:
                traced.fail(report.error["kind"])
            return report

    def _held_work(self, run_id: str, folder: RunFolder, work: Work, *, deletes: bool) -> RunReport:
        """Does `work` while this run holds the repository. Returns the report of `work`, or a
        refused one.

        The run announces itself on the storage only after a check that the storage belongs to this
        database. A plan whose files go to another place (`run_dir`) does not announce itself.
        """
        storage = self._repository.storage
        try:
            with ExitStack() as until_done:
                with nothing_deleted():
                    holding = self._repository.hold(run_id, deletes=deletes)
                    hold = until_done.enter_context(holding)
                    self._repository.check_storage()
                    if deletes or self._options.run_dir is None:
                        announce_epoch(storage, run_epoch=hold.run_epoch, run_id=run_id)
                return work(run_id, folder, hold)
        except Refused as error:
            return self._refused(run_id, folder, error, {})

    def _open_inventory(self, now: datetime) -> InventoryReport | None:
        if self._options.inventory is None:
            return None
        given = open_inventory(self._options.inventory, self._options.inventory_date)
        if given.date > now:
            raise InvalidInput(
                "invalid_inventory",
                f"{given.url} is dated {given.date.isoformat()}, which is in the future: it is "
                f"{now.isoformat()} now",
            )
        return given

    def _plan(
        self, run_id: str, folder: RunFolder, hold: RunHold, *, given: InventoryReport | None
    ) -> RunReport:
        steps = self._steps(hold, run_id)
        try:
            with nothing_deleted(), _without_rest(folder):
                plan = self._make_plan(run_id, folder, steps, given)
        except Refused as error:
            report = self._refused(run_id, folder, error, steps.seconds())
            self._finish(folder, report)
            return report
        report = planned_report(plan, run_path=folder.path, allow_share=self._options.allow_share)
        with nothing_deleted(), _without_rest(folder):
            checksum = write_plan(folder, plan)
            self._repository.record_run(
                run_id, state=report.state, run_path=folder.path, plan_checksum=checksum
            )
        return report

    def _make_plan(
        self, run_id: str, folder: RunFolder, steps: Steps, given: InventoryReport | None
    ) -> Plan:
        return make_plan(
            self._engine,
            self._repository,
            run_id=run_id,
            folder=folder,
            options=self._options,
            steps=steps,
            chosen=self._chosen(),
            given=given,
            expected=self._expected(),
        )

    def _expected(self) -> int | None:
        """Returns the number of files in the newest plan, as an estimate for the new one. None if
        there is no plan, or if it cannot be read."""
        newest = next(iter(self._repository.run_paths()), None)
        try:
            return None if newest is None else self.plan_of(newest).whole.objects
        except (NotFound, Refused):
            return None

    def _chosen(self) -> Chosen:
        """Returns the run that a plan continues from, by the options and the recorded runs; or why
        the plan is clean."""
        mode = self._options.mode
        if mode == "clean" or self._repository.closed_after() is None:
            return Chosen()
        if self._options.inventory is not None:
            return Chosen(reason="an inventory was given")
        recorded = self._repository.run_paths()
        newest = newest_swept((run_id, self._read_report(run_id)) for run_id in recorded)
        if isinstance(newest, str):
            return Chosen(reason=newest)
        try:
            plan = self.plan_of(newest.run_id)
        except (NotFound, Refused) as error:
            return Chosen(reason=error.message)
        if plan.closed_after is None:
            return Chosen(reason=f"run {plan.run_id} used an inventory")
        due = is_due(plan.clean_at, self._repository.now(), every=self._options.clean_every)
        if mode == "auto" and due is not None:
            return Chosen(reason=due)
        undone = self._quarantines.undone_since(plan.clean_at)
        if undone is not None:
            return Chosen(reason=f"run {undone} was undone since the last clean run")
        run = EarlierRun(plan, RunFolder.at(newest.run_path))
        return Chosen(Earlier(run, plan.whole - newest.counts["deleted"]))

    def _read_report(self, run_id: str) -> RunReport | None:
        try:
            return self.show(run_id)
        except (NotFound, Refused):
            return None

    def _sweep(self, run_id: str, folder: RunFolder, hold: RunHold) -> RunReport:
        plan = self._read_plan(folder, run_id)
        steps = self._steps(hold, run_id)
        attempt = self._attempt(plan, folder, hold, steps)
        try:
            return self._conclude(plan, attempt.execute(), folder, hold, steps)
        except Incomplete as error:
            report = planned_report(plan, run_path=folder.path).interrupted(error.message)
            return report.with_recovered(attempt.recovered)

    def _attempt(self, plan: Plan, folder: RunFolder, hold: RunHold, steps: Steps) -> Sweep:
        return Sweep(self._engine, self._repository, plan, folder, hold, self._options, steps)

    def _conclude(
        self, plan: Plan, swept: Swept, folder: RunFolder, hold: RunHold, steps: Steps
    ) -> RunReport:
        del hold
        until, seconds = self._quarantines.until(plan.run_id), steps.seconds()
        report = swept_report(
            plan,
            swept,
            run_path=folder.path,
            seconds=seconds,
            engine=self._engine.name,
            until=until,
        )
        try:
            folder.put_json(REPORT_FILE, report.to_json())
        except Failed as error:
            raise incomplete(error) from error
        try:
            self._record(report)
            recovered, warnings = self._end_quarantines(plan, folder, steps)
            if recovered != Recovered() or warnings:
                report = report.with_recovered(recovered, warnings)
                folder.put_json(REPORT_FILE, report.to_json())
            self._drop_old_runs()
        except Failed as error:
            text = f"run {plan.run_id} is {report.state}, and its report is written"
            raise Failed(error.kind, f"{text}. A later step failed: {error.message}") from error
        return report

    def _end_quarantines(
        self, plan: Plan, folder: RunFolder, steps: Steps
    ) -> tuple[Recovered, tuple[str, ...]]:
        """Deletes the files of quarantines whose time is over, and restores needed ones. Returns
        what was restored, and a warning for each quarantine that could not end."""
        recovered, warnings = Recovered(), list[str]()
        for record in self._quarantines.over(plan):
            report = self.show(record.run_id)
            try:
                report, found = self._quarantines.purge(record, report, folder, steps)
            except Refused as error:
                if error.kind != "repository_changed":
                    raise
                warnings.append(f"the quarantine of run {record.run_id} stays: {error.message}")
                continue
            recovered += found
            warnings += _staying(report)
            self._finish(RunFolder.at(record.run_path), report)
        return recovered, tuple(warnings)

    def _refused(
        self, run_id: str, folder: RunFolder, error: EbbtideError, seconds: Mapping[str, float]
    ) -> RunReport:
        return refused_report(
            run_id=run_id,
            repository=self._repository.identity.repository_name,
            run_path=folder.path,
            error=error,
            seconds=seconds,
        )

    def _drop_old_runs(self) -> None:
        """Deletes the files and records of runs that are older than `run_retention`. Also deletes
        the files of old runs that ended before they were recorded."""
        oldest = self._repository.now() - self._options.run_retention
        for run_id, path in (self._folders() | self._repository.run_paths()).items():
            made_at = instant_of(run_id)
            if made_at is None or made_at >= oldest:
                continue
            if self._quarantines.has(run_id):
                continue
            folder = self._folder_at(run_id, path)
            # An undo of any run needs the record of batches that this run may not have ended.
            if not (unsettled(folder) and self._quarantines.has_any()):
                folder.delete()
                self._repository.drop_run(run_id)

    def _folders(self) -> dict[str, str]:
        """Returns the folders under RUNS_PREFIX, also of runs that are not recorded: run id to
        path."""
        storage = self._repository.storage
        names = (each.removeprefix(RUNS_PREFIX) for each in storage.list_prefixes(RUNS_PREFIX))
        ids = (name.rstrip("/") for name in names)
        return {run_id: RunFolder.inside(storage, run_id).path for run_id in ids}

    def run(self, confirm: Confirm = always) -> RunReport:
        """Makes a plan, asks `confirm`, and sweeps the plan. Returns the plan's report if a gate
        refused the plan or `confirm` returned False, otherwise the sweep's report."""
        name = self._repository.identity.repository_name
        with telemetry.span("gc run", {telemetry.REPOSITORY: name}):
            report = self.plan()
            if report.state != "planned":
                return report
            plan = self._read_plan(self._folder(report.run_id), report.run_id)
            return self.sweep(report.run_id) if confirm(plan) else report

    def runs(self) -> list[RunReport]:
        """Returns the reports of all recorded runs, newest first."""
        return [self._known(*known) for known in self._repository.run_paths().items()]

    def find_run(self, text: str) -> str:
        """Returns the id of the run that a text names: an id, the beginning of only one id, or
        `latest`. Any other text is returned unchanged: it can be the id of a run that is recorded
        nowhere.

        Raises Conflict `ref_ambiguous`, and NotFound `run_not_found` for `latest` without a run.
        """
        known = sorted(self._repository.run_paths())
        if text == LATEST:
            if not known:
                raise NotFound(
                    "run_not_found",
                    f"{self._repository.identity.repository_name} has no run yet: make a plan with "
                    "'ebbtide gc plan'",
                )
            return known[0]  # ids of newer runs sort before those of older runs
        found = [run_id for run_id in known if text and run_id.startswith(text)]
        if len(found) > 1 and text not in found:
            raise Conflict(
                "ref_ambiguous",
                f"{shown(text)} is the beginning of {len(found)} runs, such as {found[0]} and "
                f"{found[1]}: write more of the id",
            )
        return found[0] if len(found) == 1 else text

    def newest_unswept(self) -> str:
        """Returns the run with the newest plan.

        Raises NotFound `run_not_found` if no run after the last complete sweep has a plan. An older
        plan is not chosen, because a newer one was swept in its place.
        """
        for report in self.runs():
            if report.state in ("swept", "undone"):
                break
            if report.has_plan:
                return report.run_id
        raise NotFound(
            "run_not_found",
            f"{self._repository.identity.repository_name} has no plan to sweep: make one with "
            "'ebbtide gc plan'",
        )

    def show(self, run_id: str) -> RunReport:
        """Returns the report of a run, or a report of its plan if the run has no report yet.

        Raises NotFound `run_not_found`, and Refused if the report or the plan is damaged.
        """
        folder = self._folder(run_id)
        report = folder.get_json(REPORT_FILE)
        if report is not None:
            return RunReport.from_json(report)
        planned = planned_report(self._read_plan(folder, run_id), run_path=folder.path)
        if folder.get_json(FENCE_FILE) is not None:
            return planned.interrupted()
        return planned

    def _known(self, run_id: str, path: str) -> RunReport:
        """Returns the report of a run as `show` does, or a refused report if the run's files are
        damaged or missing: `runs` still lists the other runs."""
        try:
            return self.show(run_id)
        except (NotFound, Refused) as error:
            return self._refused(run_id, RunFolder.at(path), error, {})

    def plan_to_confirm(self, run_id: str) -> Plan | None:
        """Returns the plan to show before a sweep of the run. Raises as `plan_of`."""
        return self.plan_of(run_id)

    def plan_of(self, run_id: str) -> Plan:
        """Returns the plan of a run. Raises NotFound `run_not_found`, and Refused if the plan is
        damaged."""
        return self._read_plan(self._folder(run_id), run_id)

    def reasons(self, run_id: str) -> Mapping[str, str]:
        """Returns the reason for each commit whose data the run's plan keeps: commit id to reason.
        Raises as `plan_of`."""
        folder = self._folder(run_id)
        return read_commits(folder, self._read_plan(folder, run_id).commits).reasons

    def verify(self, run_id: str) -> Verification:
        """Verifies a run's plan, and the record of its sweep. Takes no lease. Raises as `plan_of`
        and `verifying.verify.verify`."""
        folder = self._folder(run_id)
        steps = self._steps(Unheld(), run_id)
        plan = self._read_plan(folder, run_id)
        return verify(self._repository, plan, folder, steps=steps, meter=self._engine.meter)

    def what_if(
        self,
        policies: Sequence[Policy],
        *,
        found: Callable[[Alternative], None] = lambda _each: None,
    ) -> WhatIf:
        """Compares plans with other policies and with the present policy. Calls `found` with each
        result as soon as it is known. Takes no lease, and deletes its own files at the end.

        Raises InvalidInput as `plan` does, and Refused by a gate.
        """
        self._check_options()
        return what_if(
            self._repository,
            policies,
            engine=self._engine,
            options=self._options,
            given=self._open_inventory(self._repository.now()),
            observer=self._observer,
            found=found,
        )

    def _check_options(self) -> None:
        self._check_grace()
        self._options.check_inventory()
        if self._options.delete_versions:
            check_deletes_versions(self._repository.storage)
        if not self._repository.storage.shared_between_processes:
            raise InvalidInput(
                "invalid_argument",
                f"{self._repository.storage.url} is in the memory of this process, where worker "
                "processes cannot reach it: use a directory or an object store",
            )

    def _check_grace(self) -> None:
        options = self._options
        check_grace(
            options.grace,
            grace_min=options.grace_min,
            reason=options.grace_reason,
            unsafe=options.unsafe,
        )

    def _new_folder(self, run_id: str) -> RunFolder:
        if self._options.run_dir is not None:
            return RunFolder(open_storage(self._options.run_dir), f"{run_id}/")
        return RunFolder.inside(self._repository.storage, run_id)

    def _folder(self, run_id: str) -> RunFolder:
        if self._options.run_dir is not None:
            folder = self._new_folder(run_id)
        else:
            folder = self._folder_at(run_id, self._repository.run_paths().get(run_id))
        if not (folder.has(PLAN_FILE) or folder.has(REPORT_FILE)):
            raise NotFound(
                "run_not_found",
                f"no run {shown(run_id)} of {self._repository.identity.repository_name} in "
                f"{folder.path.removesuffix(run_id)}: see 'ebbtide gc runs'",
            )
        return folder

    def _folder_at(self, run_id: str, path: str | None) -> RunFolder:
        """Returns the folder of a run that is recorded at a path. A folder in the usual place is
        opened through the repository's own storage, which removes directories that become
        empty."""
        inside = RunFolder.inside(self._repository.storage, run_id)
        return inside if path is None or path == inside.path else RunFolder.at(path)

    def _read_plan(self, folder: RunFolder, run_id: str) -> Plan:
        plan = read_plan(
            folder,
            identity=self._repository.identity,
            recorded_checksum=self._repository.plan_checksum(run_id),
        )
        if plan.run_id != run_id:
            raise Refused(
                "plan_foreign", f"{folder.path} holds the plan of run {plan.run_id}, not {run_id}"
            )
        return plan

    def _finish(self, folder: RunFolder, report: RunReport) -> None:
        folder.put_json(REPORT_FILE, report.to_json())
        self._record(report)

    def _record(self, report: RunReport) -> None:
        self._repository.record_run(report.run_id, state=report.state, run_path=report.run_path)
