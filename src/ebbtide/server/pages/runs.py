"""Runs: list, start, watch and read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from ebbtide.errors import InvalidInput
from ebbtide.formats.schemes import ASKED
from ebbtide.gc import FOUND, OUTCOMES
from ebbtide.gc.costs import StorageClasses, bytes_by_class
from ebbtide.gc.report import RunReport, without_contents
from ebbtide.ids import instant_of
from ebbtide.prices import Prices
from ebbtide.run_request import ServedOptions, SweepOptions, options_of
from ebbtide.server.api import runs
from ebbtide.server.api.runs import CHARACTERS_MAX, RunAnswer, RunCreation, UndoRequest
from ebbtide.server.pages.charts import Bar, bars, shares
from ebbtide.server.pages.html import link
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role

pages = Pages()

RUNS_PER_PAGE: Final = 25
ACTIONS: Final = ("plan", "run")
BRANCHES_CHARTED: Final = 25
QUARANTINE: Final = "7d"
"""The quarantine that the forms propose."""
PROPOSED: Final = dict.fromkeys(options_of(ServedOptions), "") | {
    "action": "plan",
    "mode": "auto",
    "quarantine": QUARANTINE,
}
"""The fields of the form that starts a run."""
_RUNS: Final = "/repositories/{repository:segment}/runs"
_RUN: Final = _RUNS + "/{run_id:segment}"

SWEPT: Final = ("swept", "incomplete", "undone")
MEANINGS: Final[Mapping[str, str]] = {
    "listed": "in the storage, when the run looked at it",
    "live": "a kept commit or collection refers to them",
    "protected": "such as uploads and staged files",
    "candidate": "named by the plan",
    "quarantined": "an undo restores them",
    "failed": "the storage refused the delete",
    "locked": "of the failed ones: hidden, and an object lock keeps their versions",
}


@dataclass(frozen=True, slots=True)
class CountRow:
    """A row of a run's figures."""

    name: str
    meaning: str
    count: int
    size_bytes: int | None


@pages.add("GET", _RUNS, Role.READER)
def list_runs(visit: Visit) -> Response:
    """Shows the runs of a repository, the newest first, and the form that starts one."""
    here = visit.collected
    found, more = runs.page(visit.served, here, after=visit.query("after"), amount=RUNS_PER_PAGE)
    return visit.page(
        "runs.html",
        runs=[(run, instant_of(run.run_id)) for run in found],
        more=more,
        is_starting=visit.query("form") in (START_FORM, ACCEPTING_FORM),
        is_accepting=visit.query("form") == ACCEPTING_FORM,
        grace=here.options().grace,
        asked=PROPOSED if visit.error is None else {name: visit.form(name) for name in PROPOSED},
        now=visit.now(),
    )


@pages.add("POST", _RUNS, Role.ADMIN, again=list_runs)
def start_run(visit: Visit) -> Response:
    """Starts a run as a job of this server: plan, or plan and sweep."""
    name = visit.collected.name
    asked = RunCreation(**options_in(visit, ServedOptions, action="plan"))
    run = runs.start(visit.served, visit.collected, asked)
    return visit.to("repositories", name, "runs", run.run_id, notice="run_started")


@pages.add("GET", _RUN, Role.READER)
def show_run(visit: Visit) -> Response:
    """Shows one run: its steps while it is in progress, then its outcome."""
    name, run_id = visit.collected.name, visit.segment("run_id")
    run = runs.get(visit.served, visit.collected, run_id)
    if run.state != "running":
        visit.without_notice()
    report = run.report
    known = None if report is None else RunReport.from_json(report)
    has_plan = known is not None and known.has_plan
    can_sweep = has_plan and _can_sweep(run) and _has_effect(report)
    attempt, is_refused = (None, False) if run.error else _last_attempt(visit, run)
    told = run.error or attempt
    return visit.page(
        "run.html",
        name=name,
        run=run,
        made_at=instant_of(run_id),
        report=report,
        has_plan=has_plan,
        counts=[] if report is None else _counts(report),
        commits=() if known is None else without_contents(known.by_ref, *_states(known)),
        kinds=[] if report is None else _kinds(report["kinds"]),
        deleted_kinds=[] if report is None else _kinds(report["deleted_kinds"]),
        shares=_branches(() if report is None else report["by_ref"]),
        can_sweep=can_sweep,
        has_effect=has_plan and _has_effect(report),
        told=told,
        is_refused=is_refused,
        advice=None if told is None else advice_of(told["kind"], name, can_sweep=can_sweep),
        held=None if known is None else known.quarantine,
        saves_month=None if known is None else _saves_month(visit.prices, known),
        held_until=None if known is None else _quarantine_until(known),
        quarantine=QUARANTINE,
        is_over_share=run.state == "refused",
        now=visit.now(),
    )


@pages.add("POST", _RUN + "/sweep", Role.ADMIN, again=show_run)
def sweep_run(visit: Visit) -> Response:
    """Sweeps the plan of a run, or continues a sweep that was interrupted."""
    name, run_id = visit.collected.name, visit.segment("run_id")
    _require_confirmed(visit, "a sweep deletes files: ")
    asked = RunCreation(**options_in(visit, SweepOptions), sweep=run_id)
    runs.start(visit.served, visit.collected, asked)
    return visit.to("repositories", name, "runs", run_id, notice="run_started")


@pages.add("POST", _RUN + "/undo", Role.ADMIN, again=show_run)
def undo_run(visit: Visit) -> Response:
    """Restores the files in a run's quarantine."""
    name, run_id = visit.collected.name, visit.segment("run_id")
    runs.undo(visit.served, visit.collected, run_id, UndoRequest())
    return visit.to("repositories", name, "runs", run_id, notice="undo_started")


@pages.add("POST", _RUN + "/purge", Role.ADMIN, again=show_run)
def purge_run(visit: Visit) -> Response:
    """Deletes the files in a run's quarantine for good."""
    name, run_id = visit.collected.name, visit.segment("run_id")
    _require_confirmed(visit)
    runs.purge(visit.served, visit.collected, run_id)
    return visit.to("repositories", name, "runs", run_id, notice="aside_purged")


def _saves_month(prices: Prices | None, report: RunReport) -> float | None:
    """Returns what the candidates of a plan cost a month; None if it is unknown."""
    if prices is None or not report.has_plan:
        return None
    found = report.storage_classes
    classes = None if found is None else StorageClasses.from_json(found)
    return prices.month(bytes_by_class(classes, report.counts["candidate"]))


def _require_confirmed(visit: Visit, why: str = "") -> None:
    """Checks that the form has the repository's name. Raises InvalidInput `invalid_argument`."""
    name = visit.collected.name
    if visit.form("confirmation").strip() != name:
        raise InvalidInput(
            "invalid_argument",
            f"{why}type the name of the repository, {name}, to confirm. Nothing was deleted",
        )


def options_in(visit: Visit, asked: type, *, action: str = "run") -> dict[str, Any]:
    """Returns the options that a form gives. Without a field for it, the `action` is this one.

    An empty quarantine means the usual one, as a command without the option does: only
    NO_QUARANTINE deletes at once. Raises InvalidInput `invalid_argument`.
    """
    chosen = visit.form("action", action)
    if chosen not in ACTIONS:
        raise InvalidInput("invalid_argument", "choose the action of the run")
    given: dict[str, Any] = {}
    for name, option in options_of(asked).items():
        text = visit.form(name).strip()[:CHARACTERS_MAX]
        given[name] = text == "yes" if option.is_flag else text or option.default
        if option.choices and text:
            option.parse(text)
    return given | {"dry_run": chosen == "plan", "quarantine": given["quarantine"] or ASKED}


@pages.add("GET", _RUN + "/progress", Role.READER)
def progress(visit: Visit) -> Response:
    """Returns the progress of a run for the page that watches it."""
    run = runs.get(visit.served, visit.collected, visit.segment("run_id"))
    return visit.json(
        {
            "state": run.state,
            "ended": run.state != "running",
            "html": visit.render("steps.html", steps=run.steps, running=run.state == "running"),
        }
    )


def _last_attempt(visit: Visit, run: RunAnswer) -> tuple[Mapping[str, str] | None, bool]:
    """Returns the error of the newest sweep or undo of a run, if this server started it, and
    whether that attempt was refused. The record of the run does not have it, because a refused
    sweep changes nothing."""
    job = visit.served.jobs.find(visit.collected.key, run.run_id)
    if job is None or not job.ended:
        return None, False
    if job.report is None:
        return job.error, False
    return job.report["error"], job.report["state"] == "refused"


def _quarantine_until(report: RunReport) -> datetime | None:
    """Returns when the quarantine of a run ends; None if it has none, or if an undo would change
    nothing."""
    held = report.quarantine or {}
    if not (held.get("objects") or report.commits.get("expired")):
        return None
    until = (report.quarantine or {}).get("until")
    return None if until is None else datetime.fromisoformat(until)


def _can_sweep(run: RunAnswer) -> bool:
    """Whether a sweep of the run has anything left to do."""
    is_over_share = run.error is not None and run.error["kind"] == "over_share"
    return run.state in ("planned", "incomplete") or (run.state == "refused" and is_over_share)


def _has_effect(report: Mapping[str, Any] | None) -> bool:
    """Whether a sweep of the plan would delete a file, close a commit or forget one."""
    if report is None:
        return False
    commits = report["commits"]
    return bool(report["candidate_count"] or commits.get("expired") or commits.get("forgettable"))


def _counts(report: Mapping[str, Any]) -> list[CountRow]:
    """Returns the rows of a run's figures. Rows about the sweep are included only after a sweep."""
    names = FOUND | (OUTCOMES if report["state"] in SWEPT else {})
    if report.get("locked_count"):
        names |= {"locked": "kept by a lock"}
    return [
        CountRow(
            text,
            MEANINGS.get(name, ""),
            report.get(f"{name}_count", 0),
            report.get(f"{name}_bytes", 0),
        )
        for name, text in names.items()
    ]


def _states(report: RunReport) -> tuple[int, int, int]:
    kept, expiring, closed = (report.commits.get(name, 0) for name in ("active", "expired", "gone"))
    return kept, expiring, closed


def _kinds(kinds: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    return bars(
        (kind, count["objects"], count["bytes_total"])
        for kind, count in sorted(kinds.items(), key=lambda item: -(item[1]["bytes_total"] or 0))
    )


def _branches(by_ref: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Returns how many commits of each branch keep and lose their data. Branches that lose the most
    come first."""
    most = sorted(by_ref, key=lambda each: (-each["expired_count"], each["name"]))
    return shares(
        (each["name"], each["rule"], each["kept_count"], each["expired_count"])
        for each in most[:BRANCHES_CHARTED]
    )


SWEEP_FORM: Final = "#sweep"
START_FORM: Final = "start"
"""The ids of the forms that sweep a plan, and that start a run."""
ACCEPTING_FORM: Final = "accepting"
"""The form that starts a run, with the choice to accept lost commits."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One sentence, and the link that leads to the next step."""

    text: str
    url: str
    label: str


_NEW_PLAN: Final = ("This plan cannot be swept any more.", START_FORM, "Make a new plan")
_WAIT: Final = ("Wait until the other run ends, and try again.", "", "Look at the runs")
_RESTORE: Final = (
    "Restore the named file from a backup. Then make a new plan.",
    START_FORM,
    "Make a new plan",
)
_BY_KIND: Final[Mapping[str, tuple[str, str, str]]] = {
    "over_share": (
        "Look at the candidates. If all of them may go, allow the share below, and sweep.",
        SWEEP_FORM,
        "Sweep all the same",
    ),
    "run_in_progress": _WAIT,
    "lease_lost": _WAIT,
    "plan_used": _NEW_PLAN,
    "plan_missing": _NEW_PLAN,
    "plan_corrupt": _NEW_PLAN,
    "plan_foreign": _NEW_PLAN,
    "missing_object": _RESTORE,
    "missing_tree": _RESTORE,
    "missing_node": _RESTORE,
    "corrupt_tree": _RESTORE,
    "corrupt_node": _RESTORE,
    "lost_commits": (
        "Restore the newer database, and try again. If the named commits are lost for good, accept "
        "this in a new plan: their data can then be deleted.",
        ACCEPTING_FORM,
        "Make a plan that accepts the loss",
    ),
    "zero_refs": (
        "Create a branch, or restore one from the trash. Then make a new plan.",
        "refs",
        "Branches and tags",
    ),
}
_SWEEP_AGAIN: Final = (
    "Correct the cause that the message names. The plan can be swept again.",
    SWEEP_FORM,
    "Sweep again",
)
_PLAN_AGAIN: Final = (
    "Correct the cause that the message names. Then make a new plan.",
    START_FORM,
    "Make a new plan",
)


def advice_of(kind: str, repository: str, *, can_sweep: bool) -> Advice:
    """Returns the advice for an error of a run, by the error's kind. `can_sweep` says whether the
    page of the run has the form that sweeps its plan."""
    text, place, label = _BY_KIND.get(kind, _SWEEP_AGAIN if can_sweep else _PLAN_AGAIN)
    if place == SWEEP_FORM and not can_sweep:
        text, place, label = _PLAN_AGAIN
    if place == SWEEP_FORM:
        return Advice(text, SWEEP_FORM, label)
    if place in (START_FORM, ACCEPTING_FORM):
        url = link("repositories", repository, "runs", form=place)
        return Advice(text, f"{url}#{START_FORM}", label)
    return Advice(text, link("repositories", repository, place or "runs"), label)
