"""The last steps of a run: records its state, ends older quarantines, and deletes old runs.

The sweep has ended before, and its report is written. A step that fails here changes nothing about
that: the report names it (`unfinished`), and the next run tries again. An older run that cannot be
read prevents only its own end. If the lease is lost, the other steps are left to the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from ebbtide.errors import EbbtideError
from ebbtide.formats.base import RunHold
from ebbtide.formats.capabilities import Sliced, SlicedReading
from ebbtide.gc.options import RunOptions
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.quarantine import Quarantine
from ebbtide.gc.quarantines import Quarantines
from ebbtide.gc.recorded import RecordedRuns
from ebbtide.gc.relations.protected import write_protected
from ebbtide.gc.report import RunReport, error_json
from ebbtide.gc.runs import REPORT_FILE, RunFolder
from ebbtide.gc.steps import Steps
from ebbtide.gc.sweeping.intents import unsettled
from ebbtide.gc.sweeping.outcomes import gone_among
from ebbtide.gc.sweeping.recovery import Recovered
from ebbtide.ids import instant_of
from ebbtide.text import count_text


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
    """The last steps of one run, under its hold. `report` is the run's report, in `folder`."""

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
        report = self.quarantines.purge(record, found, needed, self.steps)
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
        for folder in places:
            folder.delete()
        self.runs.repository.drop_run(run_id)
