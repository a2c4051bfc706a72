"""Runs: listed, started, watched while they go on, and read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from ebbtide.errors import InvalidInput
from ebbtide.gc.report import RunReport
from ebbtide.ids import instant_of
from ebbtide.server import runs
from ebbtide.server.pages.charts import Bar, bars, shares
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.server.wire.collecting import RunAnswer, RunCreation, UndoRequest
from ebbtide.store.keys import Role

pages = Pages()

RUNS_PER_PAGE: Final = 25
MODES: Final = ("auto", "clean", "incremental")
ACTIONS: Final = ("plan", "run")
BRANCHES_CHARTED: Final = 25
QUARANTINE: Final = "7d"
"""What the forms propose."""
_RUNS: Final = "/repositories/{repository:segment}/runs"
_RUN: Final = _RUNS + "/{run_id:segment}"

SWEPT: Final = ("swept", "incomplete", "undone")
PLANNED: Final = ("listed", "live", "protected", "young", "candidate")
MEANINGS: Final[Mapping[str, str]] = {
    "listed": "Files in the storage that the run looked at",
    "live": "Kept, since a commit or collection that stays refers to them",
    "protected": "Kept, since something uncommitted needs them",
    "young": "Kept, since they are younger than the grace",
    "candidate": "May go, by the plan",
    "deleted": "Deleted",
    "quarantined": "Moved aside: an undo brings them back",
    "revived": "Kept after all: something came to need them",
    "missing": "Gone already",
    "failed": "Not deleted: the storage refused",
}


@dataclass(frozen=True, slots=True)
class CountRow:
    """A line of a run's figures."""

    name: str
    meaning: str
    count: int
    size_bytes: int | None


@pages.add("GET", _RUNS, Role.READER)
def list_runs(visit: Visit) -> Response:
    """The runs of a repository, the newest first, and the form that starts one."""
    return _list(visit)


@pages.add("POST", _RUNS, Role.ADMIN)
def start_run(visit: Visit) -> Response:
    """Plan, or plan and sweep, as a job of this server."""
    name = visit.repository().info.name
    action, mode = visit.form("action", "plan"), visit.form("mode", "auto")
    try:
        if action not in ACTIONS or mode not in MODES:
            raise InvalidInput("invalid_argument", "choose what the run is to do")
        asked = RunCreation.model_validate(
            {
                "mode": mode,
                "grace": visit.form("grace").strip()[:64] or None,
                "dry_run": action == "plan",
                "allow_share": visit.form("allow_share") == "yes",
                "quarantine": _quarantine(visit),
            }
        )
        run = runs.start(visit.served, name, asked)
    except InvalidInput as error:
        return _list(visit, error=error, status=400)
    return visit.to("repositories", name, "runs", run.run_id, notice="run_started")


@pages.add("GET", _RUN, Role.READER)
def show_run(visit: Visit) -> Response:
    """One run: its steps while it goes on, then what it found and did."""
    return _show(visit)


@pages.add("POST", _RUN + "/sweep", Role.ADMIN)
def sweep_run(visit: Visit) -> Response:
    """Carry the plan of a run out, or go on where that was broken off."""
    name, run_id = visit.repository().info.name, visit.segment("run_id")
    if visit.form("confirmation").strip() != name:
        error = InvalidInput(
            "invalid_argument",
            f"what is deleted does not come back: type the name of the repository, {name}, to "
            "confirm. Nothing was deleted",
        )
        return _show(visit, error=error, status=400)
    try:
        allow_share, aside = visit.form("allow_share") == "yes", _quarantine(visit)
        asked = RunCreation(sweep=run_id, allow_share=allow_share, quarantine=aside)
        runs.start(visit.served, name, asked)
    except InvalidInput as error:
        return _show(visit, error=error, status=400)
    return visit.to("repositories", name, "runs", run_id, notice="run_started")


@pages.add("POST", _RUN + "/undo", Role.ADMIN)
def undo_run(visit: Visit) -> Response:
    """Bring back what a run moved aside."""
    name, run_id = visit.repository().info.name, visit.segment("run_id")
    runs.undo(visit.served, name, run_id, UndoRequest())
    return visit.to("repositories", name, "runs", run_id, notice="undo_started")


@pages.add("POST", _RUN + "/purge", Role.ADMIN)
def purge_run(visit: Visit) -> Response:
    """Delete for good what a run moved aside."""
    name, run_id = visit.repository().info.name, visit.segment("run_id")
    if visit.form("confirmation").strip() != name:
        error = InvalidInput(
            "invalid_argument",
            f"type the name of the repository, {name}, to confirm. Nothing was deleted",
        )
        return _show(visit, error=error, status=400)
    runs.purge(visit.served, name, run_id)
    return visit.to("repositories", name, "runs", run_id, notice="aside_purged")


def _quarantine(visit: Visit) -> str | None:
    """For how long is kept what goes; None where it is to be deleted at once."""
    period = visit.form("quarantine").strip()[:64]
    return None if period in ("", "none") else period


@pages.add("GET", _RUN + "/progress", Role.READER)
def progress(visit: Visit) -> Response:
    """How far a run is, for the page that watches it."""
    run = runs.get(visit.served, visit.repository().info.name, visit.segment("run_id"))
    return visit.json(
        {
            "state": run.state,
            "ended": run.state != "running",
            "html": visit.render("steps.html", steps=run.steps, running=run.state == "running"),
        }
    )


def _list(visit: Visit, *, error: InvalidInput | None = None, status: int = 200) -> Response:
    name = visit.repository().info.name
    found, more = runs.page(visit.served, name, after=visit.query("after"), amount=RUNS_PER_PAGE)
    return visit.page(
        "runs.html",
        status=status,
        runs=[(run, instant_of(run.run_id)) for run in found],
        more=more,
        error=error,
        modes=MODES,
        grace=visit.served.settings.grace,
        quarantine=QUARANTINE,
        asked={name: visit.form(name) for name in ("action", "mode", "grace", "allow_share")},
        now=visit.now(),
    )


def _show(visit: Visit, *, error: InvalidInput | None = None, status: int = 200) -> Response:
    name, run_id = visit.repository().info.name, visit.segment("run_id")
    run = runs.get(visit.served, name, run_id)
    report = run.report
    known = None if report is None else RunReport.from_json(report)
    has_plan = known is not None and known.has_plan
    return visit.page(
        "run.html",
        status=status,
        name=name,
        run=run,
        made_at=instant_of(run_id),
        report=report,
        has_plan=has_plan,
        counts=[] if report is None else _counts(report),
        kinds=[] if report is None else _kinds(report["kinds"]),
        deleted_kinds=[] if report is None else _kinds(report["deleted_kinds"]),
        shares=_branches(() if report is None else report["by_ref"]),
        can_sweep=has_plan and _can_sweep(run),
        aside=None if known is None else known.quarantine,
        aside_until=None if known is None else _aside_until(known),
        quarantine=QUARANTINE,
        is_over_share=run.state == "refused",
        error=error,
        now=visit.now(),
    )


def _aside_until(report: RunReport) -> datetime | None:
    """Until when is kept what a run has aside; None where it has nothing."""
    until = (report.quarantine or {}).get("until")
    return None if until is None else datetime.fromisoformat(until)


def _can_sweep(run: RunAnswer) -> bool:
    """Whether there is something left that a sweep would do."""
    is_over_share = run.error is not None and run.error["kind"] == "over_share"
    return run.state in ("planned", "incomplete") or (run.state == "refused" and is_over_share)


def _counts(report: Mapping[str, Any]) -> list[CountRow]:
    """The figures; those of a sweep only once there was one."""
    names = list(MEANINGS) if report["state"] in SWEPT else PLANNED
    return [
        CountRow(
            name, MEANINGS[name], report.get(f"{name}_count", 0), report.get(f"{name}_bytes", 0)
        )
        for name in names
    ]


def _kinds(kinds: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    return bars(
        (kind, count["objects"], count["bytes_total"])
        for kind, count in sorted(kinds.items(), key=lambda item: -(item[1]["bytes_total"] or 0))
    )


def _branches(by_ref: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Commits of each branch that keep their data and lose it; most of those that lose any."""
    most = sorted(by_ref, key=lambda each: (-each["expired_count"], each["name"]))
    return shares(
        (each["name"], each["rule"], each["kept_count"], each["expired_count"])
        for each in most[:BRANCHES_CHARTED]
    )
