"""The report of a run: the command line prints it, a file keeps it, and programs read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

from ebbtide.errors import EbbtideError, ExitCode, Refused
from ebbtide.gc.counts import Count
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.retaining import retained_json, warnings_of
from ebbtide.gc.sweeping.outcomes import LOCKED, OUTCOMES, Outcomes
from ebbtide.gc.sweeping.recovery import Recovered
from ebbtide.gc.sweeping.sweep import Swept
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
        known = Recovered.from_json(self.recovered)
        total = known + found
        others = [each for each in self.warnings if each not in known.warnings]
        told = [each for each in self.incidents if each not in known.warnings]
        new = (*total.warnings, *warnings)
        return replace(
            self,
            warnings=(*others, *new),
            incidents=(*told, *new),
            recovered=None if total == Recovered() else total.to_json(),
        )

    def interrupted(self, message: str) -> RunReport:
        """Returns the report of a sweep that passed its fence and did not end."""
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
        return cls(
            run_id=content["run_id"],
            repository=content["repository"],
            state=content["state"],
            run_path=content["run_path"],
            counts={
                n: Count.of(content[f"{n}_count"], content[f"{n}_bytes"])
                for n in COUNTED
                if f"{n}_count" in content
            },
            kinds={n: Count.from_json(count) for n, count in content["kinds"].items()},
            deleted_kinds={
                n: Count.from_json(count) for n, count in content["deleted_kinds"].items()
            },
            commits=content["commits"],
            by_ref=tuple(content["by_ref"]),
            warnings=tuple(content["warnings"]),
            seconds=content["seconds"],
            mode=content["mode"],
            mode_reason=content["mode_reason"],
            previous_id=content["previous_id"],
            young_slices=content["young_slices"],
            inventory_url=content.get("inventory_url"),
            engine=content.get("engine"),
            quarantine=content.get("quarantine"),
            policy_sha256=content.get("policy_sha256"),
            retained=content.get("retained"),
            versions_deleted=content.get("versions_deleted", False),
            storage_classes=content.get("storage_classes"),
            recovered=content.get("recovered"),
            incidents=tuple(content.get("incidents", ())),
            error=content["error"],
            unfinished=tuple(content.get("unfinished", ())),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the report file and of `--json`. Each count is two flat fields,
        for programs."""
        flat: dict[str, Any] = {
            "run_id": self.run_id,
            "repository": self.repository,
            "state": self.state,
            "run_path": self.run_path,
        }
        for name in COUNTED:
            count = self.counts.get(name, Count())
            flat[f"{name}_count"], flat[f"{name}_bytes"] = count.objects, count.known_bytes
        return flat | {
            "kinds": {name: count.to_json() for name, count in self.kinds.items()},
            "deleted_kinds": {n: count.to_json() for n, count in self.deleted_kinds.items()},
            "commits": dict(self.commits),
            "by_ref": [dict(summary) for summary in self.by_ref],
            "warnings": list(self.warnings),
            "seconds": dict(self.seconds),
            "mode": self.mode,
            "mode_reason": self.mode_reason,
            "previous_id": self.previous_id,
            "young_slices": self.young_slices,
            "inventory_url": self.inventory_url,
            "engine": self.engine,
            "quarantine": None if self.quarantine is None else dict(self.quarantine),
            "policy_sha256": self.policy_sha256,
            "retained": None if self.retained is None else dict(self.retained),
            "versions_deleted": self.versions_deleted,
            "storage_classes": self.storage_classes and dict(self.storage_classes),
            "recovered": self.recovered and dict(self.recovered),
            "incidents": list(self.incidents),
            "error": dict(self.error) if self.error else None,
            "unfinished": [dict(each) for each in self.unfinished],
        }


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


def refused_report(
    *,
    run_id: str,
    repository: str,
    run_path: str,
    error: EbbtideError,
    seconds: Mapping[str, float],
) -> RunReport:
    """Returns the report of a run that a gate refused."""
    return RunReport(
        run_id=run_id,
        repository=repository,
        state="refused",
        run_path=run_path,
        seconds=seconds,
        error=error_json(error.kind, error.message),
    )


def planned_report(plan: Plan, *, run_path: str, allow_share: bool = False) -> RunReport:
    """Returns the report of a plan that was not swept. Its state is `refused` if the plan exceeds
    the allowed share, unless `allow_share`."""
    refusal = None if allow_share else plan.refusal
    return RunReport(
        run_id=plan.run_id,
        repository=plan.identity.repository_name,
        state="refused" if refusal else "planned",
        run_path=run_path,
        counts=plan.counts,
        kinds=plan.kinds,
        commits=commit_counts(plan),
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
        storage_classes=None if plan.classes is None else plan.classes.to_json(),
        error=error_json(*refusal) if refusal else None,
    )


def swept_report(
    plan: Plan,
    swept: Swept,
    *,
    run_path: str,
    seconds: Mapping[str, float],
    engine: str,
    until: datetime | None = None,
) -> RunReport:
    """Returns the report of a sweep. `until` is the end of its quarantine, or None without one."""
    held = swept.outcomes.by_outcome["quarantined"]
    failed = swept.outcomes.by_outcome["failed"].objects
    complete = not failed and not swept.untried
    report = RunReport(
        run_id=plan.run_id,
        repository=plan.identity.repository_name,
        state="swept" if complete else "incomplete",
        run_path=run_path,
        counts={**plan.counts, **swept.outcomes.by_outcome, LOCKED: swept.outcomes.locked},
        kinds=plan.kinds,
        deleted_kinds=swept.outcomes.deleted_by_kind,
        commits=commit_counts(plan) | {"forgotten": swept.forgotten_count},
        by_ref=plan.by_ref,
        warnings=(
            *plan.own_warnings,
            *warnings_of(swept.retained, versions_deleted=swept.versions_deleted),
        ),
        seconds={**plan.seconds, **{f"sweep: {name}": s for name, s in seconds.items()}},
        mode=plan.mode,
        mode_reason=plan.mode_reason,
        previous_id=plan.previous_id,
        young_slices=plan.young_slices,
        inventory_url=plan.inventory_url,
        engine=engine,
        policy_sha256=plan.policy_sha256,
        retained=retained_json(swept.retained),
        versions_deleted=swept.versions_deleted,
        storage_classes=None if plan.classes is None else plan.classes.to_json(),
        quarantine=_held(until, held),
        error=None
        if complete
        else error_json(
            "incomplete",
            f"{count_text(failed, 'deletion')} failed, {swept.untried:,} not tried: look at the "
            f"parts under deleted/ for the reasons, then sweep the run again{_locked(swept)}",
        ),
    )
    return report.with_recovered(swept.recovered)


def stopped_report(
    plan: Plan,
    outcomes: Outcomes | None,
    *,
    run_path: str,
    until: datetime | None,
    message: str | None = None,
) -> RunReport:
    """Returns the report of a sweep that passed its fence and did not end. `outcomes` are those on
    record, or None if the record cannot be read; `until` is the end of its quarantine."""
    report = planned_report(plan, run_path=run_path, allow_share=True)
    if outcomes is not None:
        counts = {**plan.counts, **outcomes.by_outcome, LOCKED: outcomes.locked}
        held = _held(until, outcomes.by_outcome["quarantined"])
        report = replace(
            report, counts=counts, deleted_kinds=outcomes.deleted_by_kind, quarantine=held
        )
    return report.interrupted(message or INTERRUPTED)


def _held(until: datetime | None, held: Count) -> dict[str, Any] | None:
    """Returns the field `quarantine` of a report whose files are in quarantine until then."""
    if until is None:
        return None
    return {
        "state": "held",
        "until": until.isoformat(),
        "objects": held.objects,
        "bytes": held.bytes_total,
    }


def _locked(swept: Swept) -> str:
    """Returns what an error adds if object locks keep versions."""
    locked = swept.outcomes.locked.objects
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


def commit_counts(plan: Plan) -> dict[str, int]:
    """Returns numbers of commits. `active` commits keep their data, `expired` commits lose it by
    this plan, and `gone` commits lost it to earlier runs. `forgettable` commits also lose their
    records."""
    return {
        "active": plan.active_count,
        "expired": plan.expired_count,
        "gone": plan.gone_count,
        "forgettable": plan.forgettable_count,
    }


def error_json(kind: str, message: str) -> dict[str, str]:
    """Returns an error in the form that all reports use."""
    return {"kind": kind, "message": message}
