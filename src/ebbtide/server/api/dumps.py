"""Dumps of refs and commits to the storage, and refs that are restored from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from fastapi import Query, Response
from fastapi.responses import JSONResponse
from starlette.background import BackgroundTask

from ebbtide.server.api.base import Segment, Text, Wire
from ebbtide.server.api.collecting import TaskAnswer
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.gc.dumps import Dump


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


routes = Routes("dumps")

TaskQuery = Annotated[Text, Query()]

_R: Final = "/repositories/{repository:segment}"


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
