"""The schedule of a repository: its state, and the form that sets it."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.api.scheduling import set_schedule
from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.runs import ACTIONS, MODES, QUARANTINE
from ebbtide.server.pages.visit import Visit, mendable
from ebbtide.store.access.keys import Role
from ebbtide.store.schedules.schedules import Schedule, ScheduledOptions

pages = Pages()

FIELD_MAX: Final = 64
FIELDS: Final = (
    "cron",
    "timezone",
    "jitter",
    "action",
    "mode",
    "grace",
    "quarantine",
    "allow_share",
)
CRON: Final = "0 3 * * *"
"""The schedule that the form proposes: every night at three."""
_PATH: Final = "/repositories/{repository:segment}/runs/schedule"


@pages.add("GET", _PATH, Role.READER)
def show_schedule(visit: Visit) -> Response:
    """Shows the schedule, what became of its due times, and the form that sets it."""
    return _page(visit)


@pages.add("POST", _PATH, Role.ADMIN)
def set_from_form(visit: Visit) -> Response:
    """Sets the schedule, in place of an earlier one."""
    here, action, mode = visit.collected, visit.form("action", "run"), visit.form("mode", "auto")
    try:
        if action not in ACTIONS or mode not in MODES:
            raise InvalidInput("invalid_argument", "choose the action and the mode of the runs")
        options = ScheduledOptions(
            mode=mode,
            dry_run=action == "plan",
            grace=visit.form("grace").strip()[:FIELD_MAX] or None,
            allow_share=visit.form("allow_share") == "yes",
            quarantine=visit.form("quarantine").strip()[:FIELD_MAX] or None,
        )
        set_schedule(
            visit.store,
            here,
            cron=visit.form("cron"),
            timezone=visit.form("timezone").strip() or "UTC",
            jitter=visit.form("jitter").strip()[:FIELD_MAX] or None,
            options=options,
            by=visit.served.committer,
        )
    except EbbtideError as error:
        return _page(visit, error=error, status=mendable(error))
    return visit.to("repositories", here.name, "runs", "schedule", notice="schedule_set")


@pages.add("POST", _PATH + "/switch", Role.ADMIN)
def switch(visit: Visit) -> Response:
    """Enables or disables the schedule."""
    here, enabled = visit.collected, visit.form("enabled") == "yes"
    visit.store.schedules.enable(here.key, here.name, enabled=enabled)
    notice = "schedule_enabled" if enabled else "schedule_disabled"
    return visit.to("repositories", here.name, "runs", "schedule", notice=notice)


@pages.add("POST", _PATH + "/delete", Role.ADMIN)
def delete(visit: Visit) -> Response:
    """Deletes the schedule."""
    here = visit.collected
    visit.store.schedules.remove(here.key, here.name)
    return visit.to("repositories", here.name, "runs", "schedule", notice="schedule_deleted")


def _page(visit: Visit, *, error: EbbtideError | None = None, status: int = 200) -> Response:
    here = visit.collected
    schedule = visit.store.schedules.find(here.key)
    asked = {name: visit.form(name) for name in FIELDS} if error else _fields(schedule)
    return visit.page(
        "schedule.html",
        status=status,
        name=here.name,
        schedule=schedule,
        words=None if schedule is None else schedule.timetable.describe(),
        asked=asked,
        error=error,
        modes=MODES,
        grace=here.options().grace,
        late_max=visit.served.settings.schedule_late_max,
        has_scheduler=visit.served.settings.schedules,
    )


def _fields(schedule: Schedule | None) -> dict[str, str]:
    """Returns the form's fields for a schedule; without one, those that the form proposes."""
    if schedule is None:
        proposed = (CRON, "UTC", "15min", "run", "auto", "", QUARANTINE, "")
        return dict(zip(FIELDS, proposed, strict=True))
    options, jitter = schedule.options, schedule.row.jitter_seconds
    return {
        "cron": schedule.timetable.cron,
        "timezone": schedule.timetable.timezone,
        "jitter": f"{jitter}s" if jitter else "",
        "action": "plan" if options.dry_run else "run",
        "mode": options.mode,
        "grace": options.grace or "",
        "quarantine": options.quarantine or "",
        "allow_share": "yes" if options.allow_share else "",
    }
