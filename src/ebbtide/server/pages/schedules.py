"""The schedule of a repository: its state, and the form that sets it."""

from __future__ import annotations

from typing import Final, cast

from starlette.responses import Response

from ebbtide.api.schedules import set_schedule
from ebbtide.run_request import ScheduledOptions
from ebbtide.server.api.runs import CHARACTERS_MAX
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.runs import PROPOSED as PROPOSED_RUN
from ebbtide.server.pages.runs import options_in
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.schedules import Schedule

pages = Pages()

CRON: Final = "0 3 * * *"
"""The schedule that the form proposes: every night at three."""
PROPOSED: Final = PROPOSED_RUN | {
    "cron": CRON,
    "timezone": "UTC",
    "jitter": "15min",
    "action": "run",
}
"""The fields of the form that sets a schedule."""
_PATH: Final = "/repositories/{repository:segment}/runs/schedule"


@pages.add("GET", _PATH, Role.READER)
def show_schedule(visit: Visit) -> Response:
    """Shows the schedule, what became of its due times, and the form that sets it."""
    here = visit.collected
    schedule = visit.store.schedules.find(here.key)
    asked = {name: visit.form(name) for name in PROPOSED} if visit.error else _fields(schedule)
    return visit.page(
        "schedule.html",
        name=here.name,
        schedule=schedule,
        words=None if schedule is None else schedule.timetable.describe(),
        asked=asked,
        grace=here.options().grace,
        late_max=visit.served.settings.schedule_late_max,
        has_scheduler=visit.served.settings.schedules,
    )


@pages.add("POST", _PATH, Role.ADMIN, again=show_schedule)
def set_from_form(visit: Visit) -> Response:
    """Sets the schedule, in place of an earlier one."""
    here = visit.collected
    set_schedule(
        visit.store,
        here,
        cron=visit.form("cron"),
        timezone=visit.form("timezone").strip() or "UTC",
        jitter=visit.form("jitter").strip()[:CHARACTERS_MAX] or None,
        options=cast("ScheduledOptions", options_in(visit, ScheduledOptions)),
        by=visit.served.committer,
    )
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


def _fields(schedule: Schedule | None) -> dict[str, str]:
    """Returns the form's fields for a schedule; without one, those that the form proposes."""
    if schedule is None:
        return PROPOSED
    options, jitter = schedule.options, schedule.jitter_seconds
    run = {name: "yes" if value is True else str(value or "") for name, value in options.items()}
    return (
        PROPOSED
        | run
        | {
            "cron": schedule.cron,
            "timezone": schedule.timezone,
            "jitter": f"{jitter}s" if jitter else "",
            "action": "plan" if options["dry_run"] else "run",
        }
    )
