"""Sets the schedule of a repository, for the command line and the server."""

from __future__ import annotations

from dataclasses import replace

from ebbtide.api.collected import Collected
from ebbtide.durations import format_duration, parse_duration
from ebbtide.formats.schemes import ASKED
from ebbtide.gc.options import NO_QUARANTINE
from ebbtide.store.embedded import Store
from ebbtide.store.schedules.schedules import Schedule, ScheduledOptions
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
    checked = found.options(
        grace=options.grace,
        unsafe=options.unsafe,
        allow_share=options.allow_share,
        mode=options.mode,
        sizes=options.sizes,
        quarantine=options.quarantine or ASKED,
    )
    kept = checked.quarantine
    quarantine = NO_QUARANTINE if kept is None else format_duration(kept)
    return store.schedules.put(
        found.key,
        found.name,
        timetable,
        replace(options, quarantine=quarantine),
        by=by[:CALLER_MAX],
        enabled=enabled,
    )
