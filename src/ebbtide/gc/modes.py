"""Which kind of run to make: clean, which lists everything, or incremental, which goes on from an
earlier run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ebbtide.durations import format_duration

if TYPE_CHECKING:
    from ebbtide.gc.report import RunReport


def newest_swept(runs: Iterable[tuple[str, RunReport | None]]) -> RunReport | str:
    """The run to go on from among all runs, the newest first; or why there is none.

    `runs` are ids with what is known of the run, None for one whose files can't be read. A plan
    that nobody swept changed nothing. Whatever else came later may have deleted pointers before
    what they point at, and the rest is found by a listing only.
    """
    for run_id, report in runs:
        if report is None:
            return f"the files of run {run_id} are not there, or damaged"
        if report.state == "swept":
            return report
        if report.state == "incomplete":
            return f"run {run_id} was not swept to its end"
    return "no run was swept before"


def is_due(last_clean: datetime, now: datetime, *, every: timedelta) -> str | None:
    """Why a clean run is due, in mode `auto`; None when it is not."""
    if now - last_clean < every:
        return None
    return f"the last clean run is more than {format_duration(every)} ago"
