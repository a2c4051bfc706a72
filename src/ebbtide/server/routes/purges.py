"""Purges: delete the named data at once and for good, with a signed record.

A purge continues after the answer to its request; `get_purge` returns its progress. If the server
ends meanwhile, the purge can be resumed.
"""

from __future__ import annotations

from typing import Final

from fastapi import BackgroundTasks

from ebbtide.errors import NotFound
from ebbtide.purge.purger import PurgeReport, Purges
from ebbtide.purge.request import require_confirmed
from ebbtide.purge.verifying import verify
from ebbtide.server.paging import PagingDep
from ebbtide.server.routing import Routes
from ebbtide.server.serving import Served, ServedDep
from ebbtide.server.wire.base import Segment
from ebbtide.server.wire.purges import (
    PurgeAnswer,
    PurgeCreation,
    PurgeList,
    PurgeResumption,
    PurgeVerification,
)
from ebbtide.store.access.keys import Role
from ebbtide.store.purges.queries import PurgeRow

routes = Routes("purges")

_PURGES: Final = "/repositories/{repository:segment}/purges"
_PURGE: Final = _PURGES + "/{purge_id:segment}"


@routes.add("POST", _PURGES, Role.ADMIN, status=202)
def start_purge(
    repository: Segment, asked: PurgeCreation, served: ServedDep, after: BackgroundTasks
) -> PurgeAnswer:
    """Starts a purge; with `dry_run`, only its plan."""
    purges = Purges(served.store)
    name = served.repository(repository).info.name
    if not asked.dry_run:
        require_confirmed(name, asked.confirmation)
    row = purges.begin(name, asked.request(served.key))
    after.add_task(purges.carry_out_alone, row.purge_id, dry_run=asked.dry_run)
    return PurgeAnswer.short(PurgeReport(row))


@routes.add("GET", _PURGES, Role.ADMIN)
def list_purges(repository: Segment, paging: PagingDep, served: ServedDep) -> PurgeList:
    """Lists the purges of the repository, and of earlier repositories with the same name, the
    newest first."""
    found = [row for row in Purges(served.store).list(repository) if row.purge_id > paging.after]
    page, more = paging.cut(found[: paging.amount_and_one])
    last = page[-1].purge_id if more else None
    results = [PurgeAnswer.short(PurgeReport(row)) for row in page]
    return PurgeList(pagination=paging.pagination(len(page), last), results=results)


@routes.add("GET", _PURGE, Role.ADMIN)
def get_purge(repository: Segment, purge_id: Segment, served: ServedDep) -> PurgeAnswer:
    """Returns one purge: its progress, or its outcome."""
    row = _find(served, repository, purge_id)
    return PurgeAnswer.of(Purges(served.store).show(row.purge_id))


@routes.add("POST", _PURGE + "/resume", Role.ADMIN, status=202)
def resume_purge(
    repository: Segment,
    purge_id: Segment,
    asked: PurgeResumption,
    served: ServedDep,
    after: BackgroundTasks,
) -> PurgeAnswer:
    """Continues a purge that was stopped, that failed in part, or that was only planned."""
    row = _find(served, repository, purge_id)
    require_confirmed(row.repository_name, asked.confirmation)
    purges = Purges(served.store)
    purges.require_open(row)
    after.add_task(purges.carry_out_alone, row.purge_id)
    return PurgeAnswer.short(PurgeReport(row))


@routes.add("GET", _PURGE + "/verify", Role.ADMIN)
def verify_purge(repository: Segment, purge_id: Segment, served: ServedDep) -> PurgeVerification:
    """Compares a purge with its record, the database and the storage."""
    row = _find(served, repository, purge_id)
    return PurgeVerification.of(verify(served.store, row.purge_id))


def _find(served: Served, repository: str, purge_id: str) -> PurgeRow:
    """Returns a purge, also of a repository that does not exist any more. Raises NotFound
    `purge_not_found`."""
    row = Purges(served.store).find(purge_id)
    if row.repository_name != repository:
        raise NotFound("purge_not_found", f"{repository!r} has no purge with that id")
    return row
