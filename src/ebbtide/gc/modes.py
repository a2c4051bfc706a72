"""The choice between the kinds of run: a clean run lists everything, an incremental run continues
from an earlier run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ebbtide.durations import format_duration

if TYPE_CHECKING:
    from ebbtide.gc.report import RunReport


def newest_swept(runs: Iterable[tuple[str, RunReport | None]]) -> RunReport | str:
    """Returns the run that an incremental run can continue from, or why a clean run is needed.

    `runs` are pairs of id and report, newest first. The report is None if the run's files cannot be
    read. Plans that were not swept are passed over, because they changed nothing. If a later sweep
    is incomplete or cannot be read, it may have deleted pointers, but not the files that they refer
    to. Only a listing finds these files.
    """
    for run_id, report in runs:
        if report is None:
            return f"the files of run {run_id} are missing or damaged"
        if report.state == "swept":
            return report
        if report.state == "incomplete":
            return f"the sweep of run {run_id} is incomplete"
    return "no run was swept before"


def is_due(last_clean: datetime, now: datetime, *, every: timedelta) -> str | None:
    """Returns why a clean run is due in mode `auto`, or None if it is not due."""
    if now - last_clean < every:
        return None
    return f"the last clean run is more than {format_duration(every)} ago"
