"""Garbage collection: exports for other collectors, and runs of Ebbtide's collector."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from fastapi import Body, Query
from fastapi.responses import JSONResponse
from starlette.background import BackgroundTask

from ebbtide.server.api import runs
from ebbtide.server.api.base import Segment, Text, Wire
from ebbtide.server.api.paging import PagingDep
from ebbtide.server.api.routing import Routes
from ebbtide.server.api.runs import RunAnswer, RunCreation, RunList, UndoRequest
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.gc.exports import CommitsExport


class PreparedCommits(Wire):
    """The locations of an export: a CSV file of the commits that keep their data, and a location
    where the other collector can write addresses."""

    run_id: str
    gc_commits_location: str
    gc_addresses_location: str

    @classmethod
    def of(cls, export: CommitsExport) -> PreparedCommits:
        """Makes the answer for an export."""
        return cls(
            run_id=export.export_id,
            gc_commits_location=export.commits_url,
            gc_addresses_location=export.addresses_url,
        )


class TaskAnswer(Wire):
    """A task that has begun."""

    id: str


class TaskError(Wire):
    """The reason why a task failed."""

    message: str


class TaskStatus(Wire):
    """The progress of a task."""

    task_id: str
    completed: bool
    update_time: datetime
    result: PreparedCommits | None = None
    error: TaskError | None = None


class UncommittedRequest(Wire):
    """A request for one part of the uncommitted addresses; without a token, the first part."""

    continuation_token: Text | None = None


class PreparedUncommitted(Wire):
    """The location of one part of the uncommitted addresses. A token means that more parts
    follow."""

    run_id: str
    gc_uncommitted_location: str
    continuation_token: str | None = None


routes = Routes("gc")

_GC: Final = "/repositories/{repository:segment}/gc"


@routes.add("POST", _GC + "/prepare_commits", Role.ADMIN, status=201)
def prepare_commits(repository: Segment, served: ServedDep) -> PreparedCommits:
    """Exports the list of the commits that keep their data."""
    return PreparedCommits.of(served.repository(repository).exports.commits())


@routes.add(
    "POST",
    _GC + "/prepare_commits/async",
    Role.ADMIN,
    status=202,
    response_model=TaskAnswer,
    response_class=JSONResponse,
)
def prepare_commits_async(repository: Segment, served: ServedDep) -> JSONResponse:
    """Starts a task that exports the list of the commits that keep their data."""
    exports = served.repository(repository).exports
    task_id = exports.begin()
    return JSONResponse(
        {"id": task_id}, status_code=202, background=BackgroundTask(exports.carry_out, task_id)
    )


@routes.add("GET", _GC + "/prepare_commits/status", Role.ADMIN)
def prepare_commits_status(
    repository: Segment,
    served: ServedDep,
    task_id: Annotated[Text, Query(alias="id")],
) -> TaskStatus:
    """Returns the progress of an export task."""
    state = served.repository(repository).exports.state(task_id)
    return TaskStatus(
        task_id=state.task_id,
        completed=state.completed,
        update_time=state.updated_at,
        result=None if state.result is None else PreparedCommits.of(state.result),
        error=None if state.error is None else TaskError(message=state.error),
    )


@routes.add("POST", _GC + "/prepare_uncommited", Role.ADMIN, status=201)
def prepare_uncommitted(
    repository: Segment,
    served: ServedDep,
    asked: Annotated[UncommittedRequest | None, Body()] = None,
) -> PreparedUncommitted:
    """Exports the uncommitted addresses, one part for each request. Clients spell the path with one
    `t`."""
    token = None if asked is None else asked.continuation_token or None
    part = served.repository(repository).exports.uncommitted(token)
    return PreparedUncommitted(
        run_id=part.export_id,
        gc_uncommitted_location=part.url,
        continuation_token=part.continuation,
    )


@routes.add("POST", _GC + "/runs", Role.ADMIN, status=202)
def start_run(
    repository: Segment,
    served: ServedDep,
    asked: Annotated[RunCreation | None, Body()] = None,
) -> RunAnswer:
    """Starts a run. The answer comes when the run has the lease of the repository."""
    return runs.start(served, served.collected(repository), asked or RunCreation())


@routes.add("POST", _GC + "/runs/{run_id:segment}/undo", Role.ADMIN, status=202)
def undo_run(
    repository: Segment,
    run_id: Segment,
    served: ServedDep,
    asked: Annotated[UndoRequest | None, Body()] = None,
) -> RunAnswer:
    """Restores the files in a run's quarantine. The answer comes when the undo has the lease
    of the repository."""
    return runs.undo(served, served.collected(repository), run_id, asked or UndoRequest())


@routes.add("POST", _GC + "/runs/{run_id:segment}/purge", Role.ADMIN, status=202)
def purge_run(repository: Segment, run_id: Segment, served: ServedDep) -> RunAnswer:
    """Deletes the files in a run's quarantine for good."""
    return runs.purge(served, served.collected(repository), run_id)


@routes.add("GET", _GC + "/runs", Role.READER)
def list_runs(repository: Segment, paging: PagingDep, served: ServedDep) -> RunList:
    """Lists the runs, also those in progress, the newest first."""
    found = served.collected(repository)
    page, last = runs.page(served, found, after=paging.after, amount=paging.amount)
    return RunList(pagination=paging.pagination(len(page), last), results=page)


@routes.add("GET", _GC + "/runs/{run_id:segment}", Role.READER)
def get_run(repository: Segment, run_id: Segment, served: ServedDep) -> RunAnswer:
    """Returns one run: its progress, or its outcome."""
    return runs.get(served, served.collected(repository), run_id)
