"""The recorded runs of one repository: reads and writes their plans and reports.

What a file of a run says about its own place and repository is not used: the folder that was opened
and the repository that was opened count. A copied or moved repository therefore shows its own. Not
for: choosing a run (`collector`), or its folder (`runs.RunFolders`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from ebbtide.errors import EbbtideError, NotFound, Refused
from ebbtide.formats.base import RepositoryFormat
from ebbtide.gc import quarantine
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Answers
from ebbtide.gc.planning.plan import Plan, read_plan
from ebbtide.gc.report import (
    RunReport,
    planned_report,
    refused_report,
    report_corrupt,
    stopped_report,
)
from ebbtide.gc.runs import FENCE_FILE, REPORT_FILE, RunFolder, RunFolders
from ebbtide.gc.sweeping.outcomes import Outcomes, tally


@dataclass(frozen=True, slots=True)
class RecordedRuns:
    """The plans and reports of one repository's runs."""

    engine: Engine
    folders: RunFolders

    @property
    def repository(self) -> RepositoryFormat:
        """The repository of the runs."""
        return self.folders.repository

    def plan(self, folder: RunFolder, *, to_sweep: bool = False) -> Plan:
        """Returns the plan in a run's folder. A plan `to_sweep` must have been made for this very
        repository; others may be of the one that this is a copy of.

        Raises Refused `plan_missing`, `plan_corrupt`, `plan_foreign` or `unknown_format_version`.
        """
        run_id = folder.name
        plan = read_plan(
            folder,
            identity=self.repository.identity if to_sweep else None,
            recorded_checksum=self.repository.plan_checksum(run_id),
        )
        if plan.run_id != run_id:
            raise Refused(
                "plan_foreign", f"{folder.path} holds the plan of run {plan.run_id}, not {run_id}"
            )
        return plan

    def report(self, folder: RunFolder) -> RunReport:
        """Returns the report in a run's folder, or a report of its plan if the run has no report
        yet. If the sweep was interrupted, the report has the outcomes that are on record.

        Raises Refused if the report or the plan is damaged.
        """
        try:
            content = folder.get_json(REPORT_FILE)
        except Refused as error:
            raise report_corrupt(folder.name, error.message) from error
        if content is not None:
            return self._own(RunReport.from_json(content, run_id=folder.name), folder)
        plan = self.plan(folder)
        if folder.get_json(FENCE_FILE) is None:
            return self._own(planned_report(plan, run_path=folder.path), folder)
        return self.stopped(plan, folder)

    def _own(self, report: RunReport, folder: RunFolder) -> RunReport:
        """Returns a report that names the repository and the folder that were opened."""
        name = self.repository.identity.repository_name
        return replace(report, run_path=folder.path, repository=name)

    def all(self) -> Iterator[RunReport]:
        """Yields the reports of all recorded runs, newest first. A run whose files are damaged or
        missing has a refused report, so that it does not hide the others."""
        for run_id, places in self.folders.recorded().items():
            try:
                yield self.report(self.folders.among(run_id, places))
            except (NotFound, Refused) as error:
                yield refused_report(
                    run_id=run_id,
                    repository=self.repository.identity.repository_name,
                    run_path=places[0].path,
                    error=error,
                    seconds={},
                )

    def stopped(self, plan: Plan, folder: RunFolder, message: str | None = None) -> RunReport:
        """Returns the report of a sweep that passed its fence and did not end, with the outcomes
        that are on record. `message` says why it did not end."""
        outcomes: Outcomes | None = None
        until: datetime | None = None
        with suppress(EbbtideError):
            outcomes = tally(self.engine, folder, Answers())
            record = quarantine.read(self.repository.storage, plan.run_id)
            until = None if record is None else record.until
        report = stopped_report(plan, outcomes, run_path=folder.path, until=until, message=message)
        return self._own(report, folder)

    def report_or_bare(self, run_id: str) -> tuple[RunReport, RunFolder | EbbtideError]:
        """Returns the report of a run that has files in quarantine, and its folder. If its report
        cannot be read, returns a report without figures, and the error: nobody should write this
        report in place of the other."""
        places = self.folders.places(run_id)
        try:
            folder = self.folders.among(run_id, places)
            return self.report(folder), folder
        except (NotFound, Refused) as error:
            name, path = self.repository.identity.repository_name, places[0].path
            return RunReport(run_id=run_id, repository=name, state="swept", run_path=path), error

    def finish(self, folder: RunFolder, report: RunReport) -> None:
        """Writes a report to a run's folder, and records the run's state."""
        folder.put_json(REPORT_FILE, report.to_json())
        self.record(folder, report)

    def record(self, folder: RunFolder, report: RunReport, checksum: str | None = None) -> None:
        """Records the run's state, the place of its folder, and the checksum of a new plan."""
        self.repository.record_run(
            report.run_id,
            state=report.state,
            run_path=None if folder == self.folders.inside(report.run_id) else folder.path,
            plan_checksum=checksum,
        )
