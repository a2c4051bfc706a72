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
from ebbtide.formats.base import RepositoryFormat, RunHold
from ebbtide.formats.capabilities import undoable
from ebbtide.gc.ahead import told_ahead
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.last_steps import LastSteps, staying, with_unfinished
from ebbtide.gc.modes import choose
from ebbtide.gc.options import RunOptions
from ebbtide.gc.planning.gates import check_grace
from ebbtide.gc.planning.making import make_plan
from ebbtide.gc.planning.plan import AuditedRun, Plan, read_commits, write_plan
from ebbtide.gc.planning.whatif import Alternative, WhatIf, what_if
from ebbtide.gc.quarantines import Quarantines
from ebbtide.gc.recorded import RecordedRuns
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
    REPORT_FILE,
    RunFolder,
    RunFolders,
    announce_epoch,
)
from ebbtide.gc.steps import Observer, Steps, Unheld, silent
from ebbtide.gc.sweeping.recovery import Recovered
from ebbtide.gc.sweeping.sweep import Sweep, Swept, incomplete, nothing_deleted
from ebbtide.ids import LATEST, descending_id, is_ahead, is_id
from ebbtide.retention import Policy

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
        self._folders = RunFolders(repository, options.run_dir)
        self._runs = RecordedRuns(engine, self._folders)
        self._quarantines = Quarantines(engine, self._folders, options)

    def plan(self) -> RunReport:
        """Makes a plan, and deletes nothing. If a gate refuses, the report's state is `refused`.

        Raises InvalidInput `unsafe_grace`, `invalid_inventory` or `invalid_argument`.
        """
        self._check_options()
        now = self._repository.now()
        given = self._open_inventory(now)
        run_id = descending_id(now)
        work = partial(self._plan, given=given)
        return self._held("plan", run_id, self._folders.new(run_id), work, deletes=False)

    def sweep(self, run_id: str | None = None) -> RunReport:
        """Carries out the plan of a run, or without `run_id` the plan of `newest_unswept`.

        If a gate refuses, the report's state is `refused`, and the plan can be swept later. Raises
        NotFound `run_not_found` and Conflict `plan_used`.
        """
        self._check_options()
        if run_id is None:
            run_id = self.newest_unswept()
        return self._held("sweep", run_id, self._folders.of(run_id), self._sweep, deletes=True)

    def undo(self, run_id: str, *, under: str = "", sweeps_ended: bool = False) -> RunReport:
        """Restores the files that a sweep quarantined, and opens the commits that it closed.

        With `under`, only files whose addresses begin with it are restored, and no commit is
        opened. When everything is restored, the run cannot be swept again.

        If a sweep began a batch and did not record its end, the files of this batch stay in
        quarantine, and the commits that need them stay closed. `sweeps_ended` restores these files
        too: the caller must know that no process of any sweep exists, not even a suspended one.

        If a gate refuses, the report's state is `refused`. Raises InvalidInput `invalid_argument`
        if the format has no undo, NotFound `run_not_found` and `not_quarantined`, Conflict
        `plan_used`, Incomplete `incomplete` and Failed `storage_error`. After the last two, the
        undo can be repeated.
        """
        undoable(self._repository)
        work = partial(self._undo, under=under, sweeps_ended=sweeps_ended)
        folder = self._folder_of_held(run_id, under=under)
        return self._held("undo", run_id, folder, work, deletes=True)

    def purge(self, run_id: str) -> RunReport:
        """Deletes the files that a sweep quarantined. This needs neither its plan nor its report.

        If a gate refuses, the report's state is `refused`. Raises NotFound `run_not_found` and
        `not_quarantined`, Incomplete `incomplete` and Failed `storage_error`. After the last two,
        the purge can be repeated.
        """
        places = self._folders.places(run_id)
        folder = places[0] if self._quarantines.has(run_id) else self._folders.of(run_id)
        return self._held("purge", run_id, folder, self._purge, deletes=True)

    def _undo(
        self, run_id: str, folder: RunFolder, hold: RunHold, *, under: str, sweeps_ended: bool
    ) -> RunReport:
        steps = self._steps(hold, run_id)
        is_whole, told = self._quarantines.undo(
            run_id, folder, hold, steps, under=under, sweeps_ended=sweeps_ended
        )
        report, home = self._runs.report_or_bare(run_id)
        state = "undone" if is_whole else report.state
        return self._finished(replace(report, state=state, quarantine=told), home)

    def _purge(self, run_id: str, folder: RunFolder, hold: RunHold) -> RunReport:
        record, steps = self._quarantines.held(run_id), self._steps(hold, run_id)
        needed = self._quarantines.rescue(record, folder, steps)
        report, home = self._runs.report_or_bare(run_id)
        report = self._quarantines.purge(record, report, needed, steps)
        return self._finished(report.with_recovered(needed.recovered, staying(report)), home)

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
            self._runs.finish(folder, report)
            return report
        report = planned_report(plan, run_path=folder.path, allow_share=self._options.allow_share)
        with nothing_deleted(), _without_rest(folder):
            self._runs.record(folder, report, write_plan(folder, plan))
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
            chosen=choose(self._runs, self._quarantines, self._options),
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

    def _sweep(self, run_id: str, folder: RunFolder, hold: RunHold) -> RunReport:
        plan = self._runs.plan(folder, to_sweep=True)
        steps = self._steps(hold, run_id)
        attempt = self._attempt(plan, folder, hold, steps)
        swept: Swept | None = None
        try:
            swept = attempt.execute()
            return self._conclude(plan, swept, folder, hold, steps)
        except EbbtideError as error:
            if swept is None and not isinstance(error, Incomplete):
                raise
            return self._stopped(plan, folder, hold, incomplete(error), attempt.recovered)

    def _stopped(
        self,
        plan: Plan,
        folder: RunFolder,
        hold: RunHold,
        error: Incomplete,
        recovered: Recovered,
    ) -> RunReport:
        """Returns the report of a sweep that stopped after its first delete. Writes it, unless
        another run has the repository and may have swept this plan."""
        report = self._runs.stopped(plan, folder, error.message).with_recovered(recovered)
        with suppress(EbbtideError):
            hold.check()
            self._runs.finish(folder, report)
        return report

    def _attempt(self, plan: Plan, folder: RunFolder, hold: RunHold, steps: Steps) -> Sweep:
        return Sweep(self._engine, self._repository, plan, folder, hold, self._options, steps)

    def _conclude(
        self, plan: Plan, swept: Swept, folder: RunFolder, hold: RunHold, steps: Steps
    ) -> RunReport:
        until, seconds = self._quarantines.until(plan.run_id), steps.seconds()
        report = swept_report(
            plan,
            swept,
            run_path=folder.path,
            seconds=seconds,
            engine=self._engine.name,
            until=until,
        )
        folder.put_json(REPORT_FILE, report.to_json())
        last = LastSteps(self._runs, self._quarantines, self._options, steps, hold, folder, report)
        return last.execute(plan)

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

    def run(self, confirm: Confirm = always) -> RunReport:
        """Makes a plan, asks `confirm`, and sweeps the plan. Returns the plan's report if a gate
        refused the plan or `confirm` returned False, otherwise the sweep's report."""
        name = self._repository.identity.repository_name
        with telemetry.span("gc run", {telemetry.REPOSITORY: name}):
            report = self.plan()
            if report.state != "planned":
                return report
            plan = self.plan_of(report.run_id)
            return self.sweep(report.run_id) if confirm(plan) else report

    def runs(self) -> list[RunReport]:
        """Returns the reports of all recorded runs, newest first."""
        return list(self._runs.all())

    def find_run(self, text: str) -> str:
        """Returns the id of the run that a text names: an id, the beginning of only one id, or
        `latest`. Any other text is returned unchanged: it can be the id of a run that is recorded
        nowhere. `latest` is never a run that is dated in the future.

        Raises Conflict `ref_ambiguous`, and NotFound `run_not_found` for `latest` without a run.
        """
        known = list(self._repository.run_paths())
        if text == LATEST:
            if not known or self._is_ahead(known[0]):
                raise NotFound(
                    "run_not_found",
                    f"{self._repository.identity.repository_name} has no run yet: make a plan with "
                    f"'ebbtide gc plan'{self._ahead_hint(known)}",
                )
            return known[0]
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
        reports = self.runs()
        for report in reports:
            if report.state in ("swept", "undone") or self._is_ahead(report.run_id):
                break
            if report.has_plan:
                return report.run_id
        raise NotFound(
            "run_not_found",
            f"{self._repository.identity.repository_name} has no plan to sweep: make one with "
            f"'ebbtide gc plan'{self._ahead_hint([each.run_id for each in reports])}",
        )

    def _is_ahead(self, run_id: str) -> bool:
        return is_ahead(run_id, self._repository.now())

    def _ahead_hint(self, run_ids: Sequence[str]) -> str:
        """Returns the end of a message about runs that are dated in the future, or ""."""
        ahead = [each for each in run_ids if self._is_ahead(each)]
        return f". {told_ahead(ahead[0])}: name it by its id" if ahead else ""

    def show(self, run_id: str) -> RunReport:
        """Returns the report of a run, or a report of its plan if the run has no report yet.

        Raises NotFound `run_not_found`, and Refused if the report or the plan is damaged.
        """
        return self._runs.report(self._folders.of(run_id))

    def show_held(self, run_id: str) -> RunReport:
        """Returns the report of a run, to be looked at before its quarantine is changed. If it
        cannot be read, returns a report that has only the quarantine. Raises as `show` does if the
        run has no quarantine."""
        try:
            return self.show(run_id)
        except (NotFound, Refused):
            if not is_id(run_id) or not self._quarantines.has(run_id):
                raise
            bare, _ = self._runs.report_or_bare(run_id)
            return replace(bare, quarantine=self._quarantines.told(run_id, "held"))

    def folder_of(self, run_id: str) -> RunFolder:
        """Returns the folder of a run. Raises NotFound `run_not_found`."""
        return self._folders.of(run_id)

    def plan_to_confirm(self, run_id: str) -> Plan | None:
        """Returns the plan to show before a sweep of the run. Raises as `plan_of`."""
        return self.plan_of(run_id)

    def plan_of(self, run_id: str) -> Plan:
        """Returns the plan of a run. Raises NotFound `run_not_found`, and Refused if the plan is
        damaged."""
        return self._runs.plan(self._folders.of(run_id))

    def reasons(self, run_id: str) -> Mapping[str, str]:
        """Returns the reason for each commit whose data the run's plan keeps: commit id to reason.
        Raises as `plan_of`."""
        folder = self._folders.of(run_id)
        return read_commits(folder, self._runs.plan(folder).commits).reasons

    def audited(self, run_id: str) -> AuditedRun:
        """Returns a run for `audit.verify`. Takes no lease. Raises as `plan_of`."""
        folder = self._folders.of(run_id)
        return AuditedRun(
            self._repository,
            self._runs.plan(folder, to_sweep=True),
            folder,
            self._steps(Unheld(), run_id),
            self._engine.meter,
            self._repository.layout,
        )

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

    def _folder_of_held(self, run_id: str, *, under: str) -> RunFolder:
        """Returns the folder of a run with files in quarantine.

        If it has neither plan nor report, the files can still be restored. The commits cannot,
        unless the folder is known to be lost: it may be in a directory that nobody named. Raises
        NotFound `run_not_found`.
        """
        try:
            return self._folders.of(run_id)
        except NotFound as error:
            if not is_id(run_id) or not self._quarantines.has(run_id):
                raise
            inside = self._folders.inside(run_id)
            is_lost = self._repository.run_paths().get(run_id) is not None
            if under or is_lost or inside.has(FENCE_FILE):
                return inside
            raise NotFound(
                error.kind,
                f"{error.message}. Without them no commit can be opened: 'ebbtide gc undo --under' "
                "restores only the run's files in quarantine, by the beginning of their addresses",
            ) from error

    def _finished(self, report: RunReport, folder: RunFolder | EbbtideError) -> RunReport:
        """Writes the report of an undo or a purge. Returns it, with the error of the write."""
        try:
            if isinstance(folder, EbbtideError):
                raise folder
            self._runs.finish(folder, report)
        except EbbtideError as error:
            return with_unfinished(report, error, f"the report of run {report.run_id} is as before")
        return report
