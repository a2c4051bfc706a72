"""Sets the schedule of a repository, for the command line and the server."""

from __future__ import annotations

from ebbtide.api.collected import Collected
from ebbtide.durations import format_duration, parse_duration
from ebbtide.formats.schemes import ASKED
from ebbtide.gc.options import NO_QUARANTINE
from ebbtide.run_request import ScheduledOptions, request_of
from ebbtide.store.embedded import Store
from ebbtide.store.schedules import Schedule
from ebbtide.timetable import Timetable

CALLER_MAX = 200
"""The most characters of a name that a schedule records."""


def set_schedule(
    store: Store,
    found: Collected,
    *,
    cron: str,
    timezone: str = "UTC",
    jitter: str | None = None,
    options: ScheduledOptions,
    by: str,
    enabled: bool = True,
) -> Schedule:
    """Sets the schedule of a repository, in place of an earlier one, and returns it.

    `jitter` is a period. Without a quarantine in the options, files are in quarantine as for
    `ebbtide gc run --yes`. `by` names the caller.

    Raises InvalidInput `invalid_schedule`, `invalid_duration`, `unsafe_grace`, `invalid_argument`.
    """
    with store.metadata.snapshot() as tx:
        now = tx.now()
    timetable = Timetable.parse(
        cron,
        timezone=timezone,
        jitter=parse_duration(jitter or "0s"),
        now=now,
    )
    asked = request_of(options)
    asked["quarantine"] = asked.get("quarantine") or ASKED
    kept = found.options(**asked).quarantine
    told = NO_QUARANTINE if kept is None else format_duration(kept)
    return store.schedules.put(
        found.key,
        found.name,
        timetable,
        {**options, "quarantine": told},
        by=by[:CALLER_MAX],
        enabled=enabled,
    )
