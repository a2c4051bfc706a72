"""The collector of one repository: its plans, sweeps, undos, and the last steps of its runs.

Not for: how a plan is made (`planner`) and carried out (`sweep`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
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
from ebbtide.formats.base import RepositoryFormat, RunHold
from ebbtide.formats.capabilities import Sliced, SlicedReading, require_undoable
from ebbtide.gc.costs import check_deletes_versions
from ebbtide.gc.curve import Curve, curve_of
from ebbtide.gc.deletes import gone_among, unsettled
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.gates import check_grace
from ebbtide.gc.hold import check_storage, hold
from ebbtide.gc.inventory_report import InventoryReport, open_inventory
from ebbtide.gc.modes import choose
from ebbtide.gc.options import RunOptions
from ebbtide.gc.plan import AuditedRun, Plan, write_plan
from ebbtide.gc.planner import make_plan
from ebbtide.gc.quarantine import Quarantine
from ebbtide.gc.quarantines import Quarantines, Recovered
from ebbtide.gc.report import RecordedRuns, RunReport, error_json, outcome_attributes
from ebbtide.gc.runs import (
    FENCE_FILE,
    REPORT_FILE,
    RunFolder,
    RunFolders,
    announce_epoch,
    told_ahead,
)
from ebbtide.gc.steps import Observer, Steps, Unheld, silent
from ebbtide.gc.sweep import Sweep, Swept, incomplete, nothing_deleted
from ebbtide.gc.uncommitted import write_protected
from ebbtide.gc.undo import Undo
from ebbtide.gc.usage import Usage, usage_of
from ebbtide.gc.whatif import Alternative, WhatIf, looking, what_if
from ebbtide.ids import LATEST, descending_id, instant_of, is_ahead, is_id
from ebbtide.retention import Policy
from ebbtide.text import count_text, shown

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
    """Collects one repository. `engine` carries out the steps of its runs. If `on_hold` is set, it
    is called with the id of each run that has taken the repository."""

    on_hold: Callable[[str], None] | None = None

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
        return self._held("plan", run_id, self._folders.places(run_id)[0], work, deletes=False)

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
        require_undoable(self._repository)
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
        steps, options = self._steps(hold, run_id), self._options
        undo = Undo(self._engine, self._folders, run_id, folder, hold, steps, options)
        undo.under, undo.sweeps_ended = under, sweeps_ended
        undone, is_whole = undo.execute()
        told = self._quarantines.told(run_id, "undone" if is_whole else "held") | asdict(undone)
        report, home = self._runs.report_or_bare(run_id)
        state = "undone" if is_whole else report.state
        return self._finished(replace(report, state=state, quarantine=told), home)

    def _purge(self, run_id: str, folder: RunFolder, hold: RunHold) -> RunReport:
        record, steps = self._quarantines.held(run_id), self._steps(hold, run_id)
        needed = self._quarantines.rescue(record, folder, steps)
        report, home = self._runs.report_or_bare(run_id)
        told = self._quarantines.purge(record, report.quarantine, needed, steps)
        report = replace(report, quarantine=told)
        return self._finished(report.with_recovered(needed.recovered, staying(report)), home)

    def _steps(self, hold: RunHold, run_id: str) -> Steps:
        return Steps(hold, self._observer, name=partial(self._engine.name_jobs, run_id))

    def _held(
        self, action: str, run_id: str, folder: RunFolder, work: Work, *, deletes: bool
    ) -> RunReport:
        """Does `work` while this run holds the repository, within a span of its own. Returns the
        report of `work`, or a refused one.

        The run announces itself on the storage only after a check that the storage belongs to this
        database. A plan whose files go to another place (`run_dir`) does not announce itself.
        """
        storage = self._repository.storage
        name = self._repository.identity.repository_name
        about = {telemetry.REPOSITORY: name, telemetry.RUN_ID: run_id}
        with telemetry.span(f"gc {action}", about) as traced:
            try:
                with ExitStack() as until_done:
                    with nothing_deleted():
                        hold = until_done.enter_context(self._holding(run_id, deletes=deletes))
                        check_storage(self._repository)
                        if deletes or self._options.run_dir is None:
                            announce_epoch(storage, run_epoch=hold.run_epoch, run_id=run_id)
                    report = work(run_id, folder, hold)
            except Refused as error:
                report = self._runs.refused(run_id, folder, error)
            traced.note(outcome_attributes(report.to_json()))
            if report.error is not None:
                traced.fail(report.error["kind"])
            return report

    @contextmanager
    def _holding(self, run_id: str, *, deletes: bool = True) -> Iterator[RunHold]:
        """Holds the repository for one run, and tells `on_hold`."""
        with hold(self._repository, run_id, self._options, deletes=deletes) as held:
            if self.on_hold is not None:
                self.on_hold(run_id)
            yield held

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
            report = self._runs.refused(run_id, folder, error, steps.seconds())
            self._runs.finish(folder, report)
            return report
        report = self._runs.planned(plan, folder, allow_share=self._options.allow_share)
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
        newest = next(iter(self._folders.paths()), None)
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
            message = incomplete(error).message
        report = self._runs.stopped(plan, folder, message).with_recovered(attempt.recovered)
        # If another run has the repository, it may have swept this plan.
        with suppress(EbbtideError):
            hold.check()
            self._runs.finish(folder, report)
        return report

    def _attempt(self, plan: Plan, folder: RunFolder, hold: RunHold, steps: Steps) -> Sweep:
        return Sweep(self._engine, self._repository, plan, folder, hold, self._options, steps)

    def _conclude(
        self, plan: Plan, swept: Swept, folder: RunFolder, hold: RunHold, steps: Steps
    ) -> RunReport:
        report = self._runs.swept(plan, swept, folder, steps.seconds())
        folder.put_json(REPORT_FILE, report.to_json())
        last = LastSteps(self._runs, self._quarantines, self._options, steps, hold, folder, report)
        return last.execute(plan)

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
        known = list(self._folders.paths())
        if text == LATEST:
            if not known or self._is_ahead(known[0]):
                raise self._without("has no run yet: make a plan", known)
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
        known = [each.run_id for each in reports]
        raise self._without("has no plan to sweep: make one", known)

    def _is_ahead(self, run_id: str) -> bool:
        return is_ahead(run_id, self._repository.now())

    def _without(self, what: str, run_ids: Sequence[str]) -> NotFound:
        """Returns the error for a repository whose only runs, if any, are dated in the future."""
        ahead = [each for each in run_ids if self._is_ahead(each)]
        hint = f". {told_ahead(ahead[0])}: name it by its id" if ahead else ""
        name = self._repository.identity.repository_name
        return NotFound("run_not_found", f"{name} {what} with 'ebbtide gc plan'{hint}")

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

    def usage(self) -> Usage:
        """Returns which refs, holds and protections hold the bytes. Changes nothing, and takes no
        lease. Raises as `what_if`."""
        self._check_options()
        given = self._open_inventory(self._repository.now())
        with looking(
            self._repository, self._engine, self._options, given, self._observer, name="usage"
        ) as planner:
            return usage_of(planner)

    def curve(self, rule: str | None = None) -> Curve:
        """Returns what each period and each count would keep, in the rule for a pattern, by default
        the usual one. Changes nothing, and takes no lease. Raises as `what_if`, and InvalidInput
        `invalid_argument` in mode rewrite, and if no branch has the pattern."""
        self._check_options()
        given = self._open_inventory(self._repository.now())
        with looking(
            self._repository, self._engine, self._options, given, self._observer, name="curve"
        ) as planner:
            return curve_of(planner, rule)

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
            is_lost = self._folders.is_elsewhere(run_id)
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


def with_unfinished(report: RunReport, error: EbbtideError, what: str) -> RunReport:
    """Returns a report that also names a step that failed: `what`, and the error."""
    told = error_json(error.kind, f"{what}: {error.message}")
    return replace(report, unfinished=(*report.unfinished, told))


def staying(report: RunReport) -> tuple[str, ...]:
    """Returns a warning if needed files stay in a quarantine whose time is over."""
    told = report.quarantine or {}
    if told.get("state") != "held":
        return ()
    return (
        f"the quarantine of run {report.run_id} keeps {count_text(told['objects'], 'file')} that "
        f"are needed and restored: {told['sweepers']} may still delete them. If no process of a "
        f"sweep exists: 'ebbtide gc undo {report.repository} {report.run_id} --sweeps-ended'",
    )


@dataclass(slots=True)
class LastSteps:
    """The last steps of one run, under its hold: records its state, ends older quarantines, and
    deletes old runs. `report` is the run's report, in `folder`.

    The sweep has ended before, and its report is written. A step that fails here changes nothing
    about that: the report names it (`unfinished`), and the next run tries again. An older run that
    cannot be read prevents only its own end. If the lease is lost, the other steps are left to the
    next run.
    """

    runs: RecordedRuns
    quarantines: Quarantines
    options: RunOptions
    steps: Steps
    hold: RunHold
    folder: RunFolder
    report: RunReport
    _is_lost: bool = field(default=False, init=False)

    def execute(self, plan: Plan) -> RunReport:
        """Does the last steps. Returns the report, which names those that failed, and the needed
        files that came back from older quarantines."""
        written = self.report
        self._try(
            "the state of the run was not recorded",
            partial(self.runs.record, self.folder, self.report),
        )
        step = partial(self._forget_dropped, plan)
        self._try("the deleted files are still named as dropped", step)
        self._try("older quarantines were not ended", partial(self._end_quarantines, plan))
        self._try("the files of old runs were not deleted", self._drop_old_runs)
        if self.report != written:
            # Whoever took the lease may have undone this run by now.
            with suppress(EbbtideError):
                self.hold.check()
                self.folder.put_json(REPORT_FILE, self.report.to_json())
        return self.report

    def _try(self, what: str, step: Callable[[], None]) -> None:
        """Does a step while the run holds its lease. If the step fails, notes `what` and why."""
        if self._is_lost:
            return
        try:
            self.hold.check()
            step()
        except EbbtideError as error:
            self._is_lost = error.kind == "lease_lost"
            self._note(error, what)

    def _note(self, error: EbbtideError, what: str) -> None:
        self.report = with_unfinished(self.report, error, what)

    def _forget_dropped(self, plan: Plan) -> None:
        """Makes later incremental runs look no more at files that this run deleted."""
        engine, repository = self.runs.engine, self.runs.repository
        if not isinstance(repository, Sliced):
            return
        with repository.reading(plan.cutoff) as reading:
            assert isinstance(reading, SlicedReading)
            dropped = write_protected(self.folder, reading.dropped(), name="dropped/after")
        # So many dropped files make the next run a clean one, which does not look at the names.
        if dropped and engine.holds(dropped):
            repository.forget_dropped(self.hold, gone_among(engine, self.folder, dropped))

    def _end_quarantines(self, plan: Plan) -> None:
        """Ends the quarantines whose time is over, each for itself."""
        over, damaged = self.quarantines.over(plan)
        for run_id, error in damaged.items():
            self._note(error, f"the quarantine of run {run_id} cannot be ended")
        for record in over:
            what = f"the quarantine of run {record.run_id} was not ended"
            self._try(what, partial(self._end_quarantine, record))

    def _end_quarantine(self, record: Quarantine) -> None:
        needed = self.quarantines.rescue(record, self.folder, self.steps)
        self.report = self.report.with_recovered(needed.recovered)
        found, folder = self.runs.report_or_bare(record.run_id)
        told = self.quarantines.purge(record, found.quarantine, needed, self.steps)
        report = replace(found, quarantine=told)
        self.report = self.report.with_recovered(Recovered(), staying(report))
        if isinstance(folder, RunFolder):
            self.runs.finish(folder, report)
            return
        ended = f"the quarantine of run {record.run_id} has ended, and its files are deleted"
        self._note(folder, f"{ended}, but its report cannot say so")

    def _drop_old_runs(self) -> None:
        """Deletes the files and records of runs that are older than `run_retention`. Also deletes
        the files of old runs that ended before they were recorded."""
        oldest = self.runs.repository.now() - self.options.run_retention
        for run_id, places in self.runs.folders.known().items():
            made_at = instant_of(run_id)
            if made_at is None or made_at >= oldest:
                continue
            what = f"the files of the old run {run_id} were not deleted"
            self._try(what, partial(self._drop, run_id, places))

    def _drop(self, run_id: str, places: Sequence[RunFolder]) -> None:
        if self.quarantines.has(run_id):
            return
        # An undo of any run needs the record of batches that this run may not have ended.
        if any(map(unsettled, places)) and self.quarantines.has_any():
            return
        self.runs.folders.drop(run_id, places)
