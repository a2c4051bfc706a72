"""The choice between the kinds of run: a clean run lists everything, an incremental run continues
from an earlier run."""

from __future__ import annotations

from datetime import datetime

from ebbtide.durations import format_duration
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.capabilities import Releasing, Sliced
from ebbtide.gc.incremental import Chosen, EarlierRun
from ebbtide.gc.options import RunOptions
from ebbtide.gc.plan import Plan
from ebbtide.gc.quarantines import Quarantines
from ebbtide.gc.report import RecordedRuns, RunReport
from ebbtide.gc.runs import fence_epoch, told_ahead
from ebbtide.ids import instant_of


def choose(runs: RecordedRuns, quarantines: Quarantines, options: RunOptions) -> Chosen:
    """Returns the run that a plan continues from, by the options and the recorded runs; or why the
    plan is clean."""
    repository = runs.repository
    if options.mode == "clean" or not isinstance(repository, Sliced | Releasing):
        return Chosen()
    if options.inventory is not None:
        return Chosen(reason="an inventory was given")
    recorded, now = runs.folders.recorded(), repository.now()
    ahead = [each for each in recorded if (instant_of(each) or now) > now]
    newest = _newest_swept(runs, [each for each in recorded if each not in ahead])
    if isinstance(newest, str):
        return Chosen(reason=newest)
    last = fence_epoch(recorded[newest.run_id])
    for each in ahead:
        if fence_epoch(recorded[each]) > last:
            return Chosen(reason=f"{told_ahead(each)}, and no clean run was swept after it")
    try:
        folder = runs.folders.of(newest.run_id)
        plan = runs.plan(folder)
    except (NotFound, Refused) as error:
        return Chosen(reason=error.message)
    reason = _not_from(plan, now, options) or quarantines.undone_since(plan.clean_at)
    if reason is not None:
        return Chosen(reason=reason)
    return Chosen(EarlierRun(plan, folder, plan.whole - newest.counts["deleted"]))


def _newest_swept(runs: RecordedRuns, run_ids: list[str]) -> RunReport | str:
    """Returns the run that an incremental run can continue from, or why a clean run is needed.

    `run_ids` are newest first. Plans that were not swept are passed over, because they changed
    nothing. If a later sweep is incomplete or cannot be read, it may have deleted pointers, but not
    the files that they refer to. Only a listing finds these files.
    """
    for run_id in run_ids:
        try:
            report = runs.report(runs.folders.of(run_id))
        except (NotFound, Refused):
            return f"the files of run {run_id} are missing or damaged"
        if report.state == "swept":
            return report
        if report.state == "incomplete":
            return f"the sweep of run {run_id} is incomplete"
    return "no run was swept before"


def _not_from(plan: Plan, now: datetime, options: RunOptions) -> str | None:
    """Returns why no run continues from a plan that was swept, or None."""
    if plan.absent:
        return f"run {plan.run_id} did not find files that commits need"
    if plan.closed_after is None:
        return f"run {plan.run_id} used an inventory, or an earlier version of Ebbtide made it"
    if plan.clean_at > now:
        return f"the last clean run before run {plan.run_id} is dated in the future"
    if options.mode == "auto" and now - plan.clean_at >= options.clean_every:
        return f"the last clean run is more than {format_duration(options.clean_every)} ago"
    return None
