"""Runs that are dated in the future: a clock was ahead when they were made.

Such a run is told, and never counts as the latest one. Not for: the order of runs (`ids`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime

from ebbtide.errors import Refused
from ebbtide.gc.runs import FENCE_FILE, RunFolder
from ebbtide.ids import instant_of, is_ahead


def told_ahead(run_id: str) -> str:
    """Returns a clause about a run that is dated in the future."""
    return f"run {run_id} is dated {instant_of(run_id):%Y-%m-%d %H:%M} UTC, in the future"


def ahead_warnings(run_ids: Iterable[str], now: datetime) -> tuple[str, ...]:
    """Returns a warning for each run that is dated in the future."""
    return tuple(
        f"{told_ahead(each)}: a clock was ahead when it was made. It does not count as the latest "
        "run, and no run continues from it"
        for each in run_ids
        if is_ahead(each, now)
    )


def fence_epoch(places: Iterable[RunFolder]) -> int:
    """Returns the epoch of a run's last fence, or 0 if it has none. `places` are the folders that
    the run can have.

    Epochs tell the order of sweeps, whatever the clocks say. A fence that cannot be read counts as
    newer than all others.
    """
    try:
        fences = [folder.get_json(FENCE_FILE) for folder in places]
    except Refused:
        return sys.maxsize
    return max((int(each["run_epoch"]) for each in fences if each is not None), default=0)
