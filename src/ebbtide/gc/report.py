"""The report of a run, and the recorded runs of a repository.

The command line prints a report, a file keeps it, and programs read it. What a file of a run says
about its own place and repository is not used: the folder that was opened and the repository that
was opened count. A copied or moved repository therefore shows its own. Not for: choosing a run
(`collector`), or its folder (`runs.RunFolders`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal

from ebbtide.errors import EbbtideError, ExitCode, NotFound, Refused
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import NotingPlans, NotingSweeps
from ebbtide.gc import quarantine
from ebbtide.gc.costs import retained_json, warnings_of
from ebbtide.gc.deletes import LOCKED, OUTCOMES, Outcomes, tally
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Count
from ebbtide.gc.plan import Plan, read_plan
from ebbtide.gc.quarantines import Recovered
from ebbtide.gc.runs import FENCE_FILE, PLAN_FILE, REPORT_FILE, RunFolder, RunFolders
from ebbtide.gc.sweep import Swept
from ebbtide.text import count_text

RunState = Literal["planned", "swept", "incomplete", "refused", "undone"]

COUNTED: Final = ("listed", "live", "protected", "young", "candidate", *OUTCOMES, LOCKED)

INTERRUPTED: Final = "the sweep was interrupted: sweep the run again, it continues where it stopped"

EXIT_CODES: Mapping[str, ExitCode] = {
    "planned": ExitCode.DONE,
    "swept": ExitCode.DONE,
    "incomplete": ExitCode.INCOMPLETE,
    "refused": ExitCode.REFUSED,
    "undone": ExitCode.DONE,
}


_KINDS: Final = ("kinds", "deleted_kinds")
_LATER_FIELDS: Final = frozenset(
    [
        "inventory_url",
        "engine",
        "quarantine",
        "policy_sha256",
        "retained",
        "versions_deleted",
        "storage_classes",
        "recovered",
        "incidents",
        "unfinished",
    ]
)
"""The fields that reports of earlier versions lack."""


def without_contents(
    by_ref: Iterable[Mapping[str, Any]], kept: int, expiring: int, closed: int
) -> tuple[int, int, int]:
    """Returns the counts of commits by state without the contents of collections, which no policy
    changes. `by_ref` has summaries as mappings. Those of older runs do not tell contents apart, and
    leave the counts as they are."""
    for each in by_ref:
        if each["kind"] == "collections" and "gone_count" in each:
            kept -= each["kept_count"]
            expiring -= each["expired_count"]
            closed -= each["gone_count"]
    return kept, expiring, closed


class _NoCounts(dict[str, Count]):
    """The counts of a run that counted nothing: each is zero."""

    def __missing__(self, name: str) -> Count:
        return Count()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The findings of a run, and its outcomes. Counts are of files and their bytes.

    - `counts`: listed, live, protected, young and candidate; after a sweep also deleted,
      quarantined, missing, failed, revived and locked. Locked files are failed ones: they are
      hidden, and an object lock keeps their versions.
    - `kinds`: the listed files by kind, including foreign files. `deleted_kinds`: the deleted ones.
    - `commits`: `active` commits keep their data, `expired` commits lose it by this plan, and
      `gone` commits lost it to earlier runs. `forgettable` commits also lose their records.
    - `mode`: clean, incremental (continued from run `previous_id`) or removal. `mode_reason` says
      why a run is clean. Both are None for a run without a plan.
    - `young_slices`: the number of slices that were not listed, because all their files are younger
      than the grace.
    - `inventory_url`: the inventory that was read instead of a listing.
    - `engine`: Spark with its version and master, or `duckdb`.
    - `policy_sha256`: the checksum of the policy's JSON, or None without a policy.
    - `quarantine`: its `state` (held, undone, purged), and the number (`objects`) and `bytes` of
      the files in it. `until` is its end while it is held, and `at` is when it was undone or
      purged.
    - `retained`: what the storage keeps of deleted files: `state` (no, versions, soft_delete,
      unknown), `reason`, and `lock`: the object lock of the bucket, or None.
      `versions_deleted`: the sweep deletes their versions too.
    - `recovered`: the needed files that were absent: the numbers `restored` and `lost`, with some
      names (`Recovered`); None if there were none. `incidents`: the warnings about them.
    - `storage_classes`: the storage classes of the candidates that the plan asked for
      (`CandidateClasses.to_json`), or None.
    - `unfinished`: the last steps that failed after the work of the run, each as the `kind` and
      `message` of its error. They change nothing about its state and its counts.
    """

    run_id: str
    repository: str
    state: RunState
    run_path: str
    counts: Mapping[str, Count] = field(default_factory=_NoCounts)
    kinds: Mapping[str, Count] = field(default_factory=dict)
    deleted_kinds: Mapping[str, Count] = field(default_factory=dict)
    commits: Mapping[str, int] = field(default_factory=dict)
    by_ref: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    mode: str | None = None
    mode_reason: str | None = None
    previous_id: str | None = None
    young_slices: int = 0
    inventory_url: str | None = None
    engine: str | None = None
    quarantine: Mapping[str, Any] | None = None
    policy_sha256: str | None = None
    retained: Mapping[str, Any] | None = None
    versions_deleted: bool = False
    storage_classes: Mapping[str, Any] | None = None
    recovered: Mapping[str, Any] | None = None
    incidents: tuple[str, ...] = ()
    error: Mapping[str, str] | None = None
    unfinished: tuple[Mapping[str, str], ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """The warnings, and the messages of unfinished steps."""
        return (*self.warnings, *(each["message"] for each in self.unfinished))

    @property
    def has_plan(self) -> bool:
        """Whether the run has a plan, swept or not. If a gate refused to make a plan, there are no
        figures."""
        return self.counts.get("listed", Count()).objects > 0

    @property
    def has_outcomes(self) -> bool:
        """Whether the counts have the outcomes of the candidates. They are missing if the sweep was
        interrupted."""
        return self.counts.keys() >= set(OUTCOMES)

    def with_recovered(self, found: Recovered, warnings: tuple[str, ...] = ()) -> RunReport:
        """Returns the report with more files that were absent, and more warnings."""
        known = Recovered(**(self.recovered or {}))
        total = known + found
        others = [each for each in self.warnings if each not in known.warnings]
        told = [each for each in self.incidents if each not in known.warnings]
        new = (*total.warnings, *warnings)
        return replace(
            self,
            warnings=(*others, *new),
            incidents=(*told, *new),
            recovered=None if total == Recovered() else asdict(total),
        )

    def interrupted(self, message: str) -> RunReport:
        """Returns the report of a sweep that passed its fence, and did not end or deleted only a
        part of the candidates."""
        return replace(self, state="incomplete", error=error_json("incomplete", message))

    @classmethod
    def from_json(cls, content: Mapping[str, Any], *, run_id: str | None = None) -> RunReport:
        """Returns the report that `to_json` wrote. Raises Refused `report_corrupt` for other
        content, and if the report is not of the run `run_id`."""
        try:
            found = cls._of(content)
            if run_id not in (None, found.run_id):
                raise ValueError(f"it is of run {found.run_id}")
            return found
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise report_corrupt(run_id or content.get("run_id"), repr(error)) from None

    @classmethod
    def _of(cls, content: Mapping[str, Any]) -> RunReport:
        found: dict[str, Any] = {
            each.name: tuple(content[each.name]) if each.default == () else content[each.name]
            for each in fields(cls)
            if each.name != "counts" and (each.name in content or each.name not in _LATER_FIELDS)
        }
        for name in _KINDS:
            found[name] = {kind: Count.from_json(count) for kind, count in found[name].items()}
        counted = [name for name in COUNTED if f"{name}_count" in content]
        counts = {n: Count.of(content[f"{n}_count"], content[f"{n}_bytes"]) for n in counted}
        return cls(**found, counts=counts)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the report file and of `--json`. Each count is two flat fields,
        for programs."""
        content: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "counts":
                for name in COUNTED:
                    count = value.get(name, Count())
                    content |= {f"{name}_count": count.objects, f"{name}_bytes": count.known_bytes}
            elif each.name in _KINDS:
                content[each.name] = {kind: count.to_json() for kind, count in value.items()}
            else:
                content[each.name] = _plain(value)
        return content


def _plain(value: Any) -> Any:
    """Returns a value of a report as JSON has it."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def report_corrupt(run_id: str | None, why: str) -> Refused:
    """Returns the refusal for a damaged report, for the caller to raise."""
    return Refused(
        "report_corrupt",
        f"the report of run {run_id} is not as it was written ({why}): restore report.json, or "
        "delete that file and sweep the run again, which writes a new report",
    )


def outcome_attributes(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the outcome and the counts of a report, in the form of `RunReport.to_json`, as
    attributes of a span. Bytes of unknown size are None."""
    counted = [f"{name}_{unit}" for name in COUNTED for unit in ("count", "bytes")]
    return {f"ebbtide.{name}": report[name] for name in ("state", "mode", *counted)}


def _with_outcomes(report: RunReport, outcomes: Outcomes) -> RunReport:
    """Returns the report of a plan with the outcomes of its sweep."""
    counts = {**report.counts, **outcomes.counts}
    return replace(report, counts=counts, deleted_kinds=outcomes.deleted_by_kind)


def _locked(swept: Swept) -> str:
    """Returns what an error adds if object locks keep versions."""
    locked = swept.outcomes.counts[LOCKED].objects
    if not locked:
        return ""
    lock = swept.retained.lock
    by_default = f" ({lock.reason})" if lock is not None and lock.state == "on" else ""
    one = "failed file is hidden, and an object lock keeps its versions"
    several = "failed files are hidden, and object locks keep their versions"
    return (
        f". {count_text(locked, one, several)}{by_default}: a sweep can delete them when the locks "
        "have ended"
    )


def error_json(kind: str, message: str) -> dict[str, str]:
    """Returns an error in the form that all reports use."""
    return {"kind": kind, "message": message}


@dataclass(frozen=True, slots=True)
class RecordedRuns:
    """The plans and reports of one repository's runs: makes reports, reads and writes them."""

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
            recorded_checksum=self.folders.plan_checksum(folder),
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
            report = RunReport.from_json(content, run_id=folder.name)
            return replace(report, run_path=folder.path, repository=self._name)
        plan = self.plan(folder)
        is_fenced = folder.get_json(FENCE_FILE) is not None
        return self.stopped(plan, folder) if is_fenced else self.planned(plan, folder)

    def all(self) -> Iterator[RunReport]:
        """Yields the reports of all recorded runs, newest first. A run whose files are damaged or
        missing has a refused report, so that it does not hide the others."""
        for run_id, places in self.folders.recorded().items():
            try:
                yield self.report(self.folders.among(run_id, places))
            except (NotFound, Refused) as error:
                yield self.refused(run_id, places[0], error)

    @property
    def _name(self) -> str:
        return self.repository.identity.repository_name

    def refused(
        self,
        run_id: str,
        folder: RunFolder,
        error: EbbtideError,
        seconds: Mapping[str, float] | None = None,
    ) -> RunReport:
        """Returns the report of a run that a gate refused."""
        return RunReport(
            run_id=run_id,
            repository=self._name,
            state="refused",
            run_path=folder.path,
            seconds=seconds or {},
            error=error_json(error.kind, error.message),
        )

    def planned(self, plan: Plan, folder: RunFolder, *, allow_share: bool = False) -> RunReport:
        """Returns the report of a plan that was not swept. Its state is `refused` if the plan
        exceeds the allowed share, unless `allow_share`."""
        refusal, classes = None if allow_share else plan.refusal, plan.storage_classes
        return RunReport(
            run_id=plan.run_id,
            repository=self._name,
            state="refused" if refusal else "planned",
            run_path=folder.path,
            counts=plan.counts,
            kinds=plan.kinds,
            commits={
                "active": plan.active_count,
                "expired": plan.expired_count,
                "gone": plan.gone_count,
                "forgettable": plan.forgettable_count,
            },
            by_ref=plan.by_ref,
            warnings=plan.all_warnings,
            seconds=plan.seconds,
            mode=plan.mode,
            mode_reason=plan.mode_reason,
            previous_id=plan.previous_id,
            young_slices=plan.young_slices,
            inventory_url=plan.inventory_url,
            engine=plan.engine,
            policy_sha256=plan.policy_sha256,
            retained=None if plan.retained is None else retained_json(plan.retained),
            storage_classes=None if classes is None else classes.to_json(),
            error=error_json(*refusal) if refusal else None,
        )

    def swept(
        self, plan: Plan, swept: Swept, folder: RunFolder, seconds: Mapping[str, float]
    ) -> RunReport:
        """Returns the report of a sweep."""
        failed = swept.outcomes.counts["failed"].objects
        report = self.planned(plan, folder, allow_share=True)
        report = self._with_quarantine(_with_outcomes(report, swept.outcomes))
        retained = warnings_of(swept.retained, versions_deleted=swept.versions_deleted)
        report = replace(
            report,
            state="swept",
            commits={**report.commits, "forgotten": swept.forgotten_count},
            warnings=(*plan.own_warnings, *retained),
            seconds={**plan.seconds, **{f"sweep: {name}": s for name, s in seconds.items()}},
            engine=self.engine.name,
            retained=retained_json(swept.retained),
            versions_deleted=swept.versions_deleted,
        )
        if failed or swept.untried:
            report = report.interrupted(
                f"{count_text(failed, 'deletion')} failed, {swept.untried:,} not tried: look at "
                "the parts under deleted/ for the reasons, then sweep the run again"
                f"{_locked(swept)}",
            )
        return report.with_recovered(swept.recovered)

    def stopped(self, plan: Plan, folder: RunFolder, message: str = INTERRUPTED) -> RunReport:
        """Returns the report of a sweep that passed its fence and did not end, with the outcomes
        that are on record. `message` says why it did not end."""
        report = self.planned(plan, folder, allow_share=True)
        with suppress(EbbtideError):
            report = _with_outcomes(report, tally(self.engine, folder))
            report = self._with_quarantine(report)
        return report.interrupted(message)

    def _with_quarantine(self, report: RunReport) -> RunReport:
        """Returns the report of a sweep with its quarantine, if it has one. Raises Refused
        `plan_corrupt`."""
        record = quarantine.read(self.repository.storage, report.run_id)
        if record is None:
            return report
        held, until = report.counts["quarantined"], record.until.isoformat()
        told = {"state": "held", "until": until, "objects": held.objects, "bytes": held.bytes_total}
        return replace(report, quarantine=told)

    def report_or_bare(self, run_id: str) -> tuple[RunReport, RunFolder | EbbtideError]:
        """Returns the report of a run that has files in quarantine, and its folder. If its report
        cannot be read, returns a report without figures, and the error: nobody should write this
        report in place of the other."""
        places = self.folders.places(run_id)
        try:
            folder = self.folders.among(run_id, places)
            return self.report(folder), folder
        except (NotFound, Refused) as error:
            path = places[0].path
            bare = RunReport(run_id=run_id, repository=self._name, state="swept", run_path=path)
            return bare, error

    def finish(self, folder: RunFolder, report: RunReport) -> None:
        """Writes a report to a run's folder, and records the run's state."""
        folder.put_json(REPORT_FILE, report.to_json())
        self.record(folder, report)

    def record(self, folder: RunFolder, report: RunReport, checksum: str | None = None) -> None:
        """Records the run's state, the place of its folder, and the checksum of a new plan."""
        repository = self.repository
        if checksum is not None and isinstance(repository, NotingPlans):
            repository.note_plan()
        self.folders.record(folder, report.state, checksum)
        plan = folder.get_json(PLAN_FILE) if isinstance(repository, NotingSweeps) else None
        if isinstance(repository, NotingSweeps) and plan is not None and report.state == "swept":
            repository.note_sweep(plan, report.to_json())
