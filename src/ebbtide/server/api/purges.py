"""Purges: delete the named data at once and for good, with a signed record.

A purge continues after the answer to its request; `get_purge` returns its progress. If the server
ends meanwhile, the purge can be resumed.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import BackgroundTasks
from pydantic import Field

from ebbtide.errors import NotFound
from ebbtide.purge.plan import PurgeReport
from ebbtide.purge.purger import Purges
from ebbtide.purge.request import (
    REASON_BYTES_MAX,
    TARGETS_MAX,
    PathTarget,
    Request,
    require_confirmed,
)
from ebbtide.purge.verifying import PurgeFindings, verify
from ebbtide.server.api.base import Segment, Text, Wire
from ebbtide.server.api.lists import PageOf, PagingDep
from ebbtide.server.api.routes import Routes
from ebbtide.server.serving import Served, ServedDep
from ebbtide.store.access.access_keys import AccessKey, Role
from ebbtide.store.purge_records import PurgeRow


class PathNamed(Wire):
    """A path at a branch, tag or commit. If `ref` is the plain name of a branch, the object that is
    staged at the path is included."""

    ref: Text
    path: Text


class PurgeCreation(Wire):
    """The reason of a purge and the data that it names. `confirmation` must repeat the name of the
    repository, unless `dry_run` is set. With `keep_shared`, objects that other data needs stay, and
    do not prevent the purge. `delete_versions` includes the versions that a bucket keeps."""

    reason: Annotated[Text, Field(max_length=REASON_BYTES_MAX)]
    paths: Annotated[list[PathNamed], Field(max_length=TARGETS_MAX)] = Field(default_factory=list)
    commits: Annotated[list[Text], Field(max_length=TARGETS_MAX)] = Field(default_factory=list)
    collections: Annotated[list[Text], Field(max_length=TARGETS_MAX)] = Field(default_factory=list)
    repository: bool = False
    all_history: bool = False
    keep_shared: bool = False
    delete_versions: bool = False
    dry_run: bool = False
    confirmation: Text = ""

    def request(self, key: AccessKey) -> Request:
        """Returns the request in the name of the access key. Raises InvalidInput."""
        request = Request(
            reason=self.reason,
            who={"access_key_id": key.access_key_id, "name": key.name},
            paths=tuple(PathTarget.of(each.ref, each.path) for each in self.paths),
            commits=tuple(self.commits),
            collections=tuple(self.collections),
            repository=self.repository,
            all_history=self.all_history,
            keep_shared=self.keep_shared,
            delete_versions=self.delete_versions,
        )
        request.check()
        return request


class PurgeResumption(Wire):
    """`confirmation` must repeat the name of the repository."""

    confirmation: Text = ""


routes = Routes("purges")

_PURGES: Final = "/repositories/{repository:segment}/purges"
_PURGE: Final = _PURGES + "/{purge_id:segment}"


@routes.add("POST", _PURGES, Role.ADMIN, status=202)
def start_purge(
    repository: Segment, asked: PurgeCreation, served: ServedDep, after: BackgroundTasks
) -> PurgeRow:
    """Starts a purge; with `dry_run`, only its plan."""
    purges = Purges(served.store)
    name = served.repository(repository).info.name
    if not asked.dry_run:
        require_confirmed(name, asked.confirmation)
    row = purges.begin(name, asked.request(served.key))
    after.add_task(purges.carry_out_alone, row.purge_id, dry_run=asked.dry_run)
    return row


@routes.add("GET", _PURGES, Role.ADMIN)
def list_purges(repository: Segment, paging: PagingDep, served: ServedDep) -> PageOf[PurgeRow]:
    """Lists the purges of the repository, and of earlier repositories with the same name, the
    newest first."""
    found = [row for row in Purges(served.store).list(repository) if row.purge_id > paging.after]
    return paging.cut(found[: paging.amount_and_one], lambda each: each.purge_id)


@routes.add("GET", _PURGE, Role.ADMIN)
def get_purge(repository: Segment, purge_id: Segment, served: ServedDep) -> PurgeReport:
    """Returns one purge: its progress, or its outcome."""
    row = _find(served, repository, purge_id)
    return Purges(served.store).show(row.purge_id)


@routes.add("POST", _PURGE + "/resume", Role.ADMIN, status=202)
def resume_purge(
    repository: Segment,
    purge_id: Segment,
    asked: PurgeResumption,
    served: ServedDep,
    after: BackgroundTasks,
) -> PurgeRow:
    """Continues a purge that was stopped, that failed in part, or that was only planned."""
    row = _find(served, repository, purge_id)
    require_confirmed(row.repository_name, asked.confirmation)
    purges = Purges(served.store)
    purges.require_open(row)
    after.add_task(purges.carry_out_alone, row.purge_id)
    return row


@routes.add("GET", _PURGE + "/verify", Role.ADMIN)
def verify_purge(repository: Segment, purge_id: Segment, served: ServedDep) -> PurgeFindings:
    """Compares a purge with its record, the database and the storage."""
    row = _find(served, repository, purge_id)
    return verify(served.store, row.purge_id)


def _find(served: Served, repository: str, purge_id: str) -> PurgeRow:
    """Returns a purge, also of a repository that does not exist any more. Raises NotFound
    `purge_not_found`."""
    row = Purges(served.store).find(purge_id)
    if row.repository_name != repository:
        raise NotFound("purge_not_found", f"{repository!r} has no purge with that id")
    return row
