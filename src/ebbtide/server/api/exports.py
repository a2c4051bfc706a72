"""Exports: commits and addresses for other collectors, dumps of refs, and symlink files."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from fastapi import Body, Query, Response
from fastapi.responses import JSONResponse
from starlette.background import BackgroundTask

from ebbtide.server.api.base import Segment, Text, Wire
from ebbtide.server.api.routes import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.gc.dumps import Dump
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


class RefsDump(Wire):
    """The three files of a dump, under the names that clients give them. Each is the SHA-256 of a
    file under `_ebbtide/gc/dumps/`."""

    branches_meta_range_id: Text
    tags_meta_range_id: Text
    commits_meta_range_id: Text

    @classmethod
    def of(cls, dump: Dump) -> RefsDump:
        """Makes the answer for a dump."""
        return cls(
            branches_meta_range_id=dump.branches_id,
            tags_meta_range_id=dump.tags_id,
            commits_meta_range_id=dump.commits_id,
        )

    @property
    def dump(self) -> Dump:
        """The dump that a request names."""
        return Dump(
            self.branches_meta_range_id, self.tags_meta_range_id, self.commits_meta_range_id
        )


class DumpStatus(Wire):
    """The progress of a dump."""

    id: str
    done: bool
    update_time: datetime
    error: str | None = None
    refs: RefsDump | None = None


class RestoreStatus(Wire):
    """The progress of a restore."""

    id: str
    done: bool
    update_time: datetime
    error: str | None = None


class SymlinkLocation(Wire):
    """The URL below which the files are, at `REPOSITORY/BRANCH/DIRECTORY/symlink.txt`."""

    location: str


routes = Routes("exports")

TaskQuery = Annotated[Text, Query()]

_R: Final = "/repositories/{repository:segment}"
_GC: Final = _R + "/gc"


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


@routes.add(
    "POST",
    _R + "/dump",
    Role.ADMIN,
    status=202,
    response_model=TaskAnswer,
    response_class=JSONResponse,
)
def begin_dump(repository: Segment, served: ServedDep) -> JSONResponse:
    """Starts a task that dumps refs and commits."""
    dumps = served.repository(repository).dumps
    task_id = dumps.begin()
    task = BackgroundTask(dumps.carry_out_dump, task_id)
    return JSONResponse({"id": task_id}, status_code=202, background=task)


@routes.add("GET", _R + "/dump", Role.ADMIN)
def get_dump(repository: Segment, task_id: TaskQuery, served: ServedDep) -> DumpStatus:
    """Returns the progress of a dump."""
    state = served.repository(repository).dumps.state(task_id)
    return DumpStatus(
        id=state.task_id,
        done=state.done,
        update_time=state.updated_at,
        error=state.error,
        refs=None if state.dump is None else RefsDump.of(state.dump),
    )


@routes.add(
    "POST",
    _R + "/restore",
    Role.ADMIN,
    status=202,
    response_model=TaskAnswer,
    response_class=JSONResponse,
)
def begin_restore(repository: Segment, asked: RefsDump, served: ServedDep) -> JSONResponse:
    """Starts a task that makes the branches and tags of a dump again."""
    dumps = served.repository(repository).dumps
    task_id = dumps.begin()
    task = BackgroundTask(dumps.carry_out_restore, task_id, asked.dump)
    return JSONResponse({"id": task_id}, status_code=202, background=task)


@routes.add("GET", _R + "/restore", Role.ADMIN)
def get_restore(repository: Segment, task_id: TaskQuery, served: ServedDep) -> RestoreStatus:
    """Returns the progress of a restore."""
    state = served.repository(repository).dumps.state(task_id)
    return RestoreStatus(
        id=state.task_id, done=state.done, update_time=state.updated_at, error=state.error
    )


@routes.add("PUT", _R + "/refs/dump", Role.ADMIN, status=201)
def dump_refs(repository: Segment, served: ServedDep) -> RefsDump:
    """Dumps refs and commits. The answer comes when the dump is complete."""
    return RefsDump.of(served.repository(repository).dumps.dump())


@routes.add("PUT", _R + "/refs/restore", Role.ADMIN)
def restore_refs(repository: Segment, asked: RefsDump, served: ServedDep) -> Response:
    """Makes the branches and tags of a dump again, all of them or none."""
    served.repository(repository).dumps.restore(asked.dump)
    return Response()


@routes.add("POST", _R + "/refs/{branch:segment}/symlink", Role.WRITER, status=201)
def write_symlinks(
    repository: Segment, branch: Segment, served: ServedDep, location: Annotated[Text, Query()] = ""
) -> SymlinkLocation:
    """Writes the symlink files of a branch's last commit, and tags the commit."""
    files = served.repository(repository).symlinks.write(branch, location)
    return SymlinkLocation(location=files.url)
