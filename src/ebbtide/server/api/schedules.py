"""Schedules of runs. lakeFS has none."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Response
from pydantic import Field

from ebbtide.api.schedules import set_schedule
from ebbtide.run_request import ScheduledOptions
from ebbtide.server.api.base import Pagination, Segment, Text, Wire
from ebbtide.server.api.lists import PageOf
from ebbtide.server.api.routes import Routes
from ebbtide.server.api.runs import CHARACTERS_MAX, body_of
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.schedules import Schedule

Period = Annotated[str, Field(max_length=CHARACTERS_MAX)]


class ScheduledRunRequest(body_of(ScheduledOptions)):  # type: ignore[misc]  # made from the options
    """The options of each run, as those of `POST gc/runs`. Without a `quarantine`, files are in
    quarantine for a week if a run of the repository can be undone. With `dry_run` runs only
    plan. There is no `accept_lost_commits`: each later run would accept losses too."""


class ScheduleRequest(Wire):
    """A schedule. `cron` has five fields, and `timezone` is a name of the IANA database. Each run
    starts later by a part of the `jitter`, a period."""

    cron: Annotated[Text, Field(max_length=1000)]
    timezone: Annotated[Text, Field(max_length=200)] = "UTC"
    jitter: Period | None = None
    enabled: bool = True
    run: ScheduledRunRequest = Field(default_factory=ScheduledRunRequest)


class ScheduleSwitch(Wire):
    """Whether the schedule has due times."""

    enabled: bool


routes = Routes("schedules")

_SCHEDULE: Final = "/repositories/{repository:segment}/schedule"


@routes.add("GET", "/schedules", Role.READER)
def list_schedules(served: ServedDep) -> PageOf[Schedule]:
    """Lists all schedules."""
    found, _ = served.store.schedules.all()
    count = len(found)
    whole = Pagination(has_more=False, next_offset="", results=count, max_per_page=count)
    return PageOf(whole, found)


@routes.add("GET", _SCHEDULE, Role.READER)
def get_schedule(repository: Segment, served: ServedDep) -> Schedule:
    """Returns the schedule of a repository."""
    found = served.collected(repository)
    return served.store.schedules.get(found.key, found.name)


@routes.add("PUT", _SCHEDULE, Role.ADMIN)
def put_schedule(repository: Segment, asked: ScheduleRequest, served: ServedDep) -> Schedule:
    """Sets the schedule of a repository, in place of an earlier one. Its counts begin again."""
    return set_schedule(
        served.store,
        served.collected(repository),
        cron=asked.cron,
        timezone=asked.timezone,
        jitter=asked.jitter,
        options=asked.run.model_dump(),
        by=served.committer,
        enabled=asked.enabled,
    )


@routes.add("PATCH", _SCHEDULE, Role.ADMIN)
def switch_schedule(repository: Segment, asked: ScheduleSwitch, served: ServedDep) -> Schedule:
    """Enables or disables the schedule. Due times while it is disabled are not missed."""
    found = served.collected(repository)
    return served.store.schedules.enable(found.key, found.name, enabled=asked.enabled)


@routes.add("DELETE", _SCHEDULE, Role.ADMIN, status=204)
def delete_schedule(repository: Segment, served: ServedDep) -> Response:
    """Deletes the schedule of a repository. A run that is going on continues."""
    found = served.collected(repository)
    served.store.schedules.remove(found.key, found.name)
    return Response(status_code=204)
