"""Imports: one commit whose objects stay where they are, outside the repository."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Response

from ebbtide.errors import InvalidInput
from ebbtide.server.api.answers import model_of, plain
from ebbtide.server.api.base import ErrorAnswer, Segment, Text, Wire
from ebbtide.server.api.commits import CommitCreation
from ebbtide.server.api.routes import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.publication import CommitDetails
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.import_sources import ImportSource
from ebbtide.store.imports import ImportRequest, ImportState

Commit: Any = model_of(CommitRecord)


class ImportLocation(Wire):
    """One object, or all objects below a prefix, and their place on the branch."""

    type: Literal["common_prefix", "object"]
    path: Text
    destination: Text


class ImportCreation(Wire):
    """What to import, and the commit to make, which has no `date` of its own. If two locations have
    the same path, the later one counts."""

    paths: list[ImportLocation]
    commit: CommitCreation


class ImportBegun(Wire):
    """An import that has begun."""

    id: str


class ImportStatus(Wire):
    """How an import stands. It is `completed` when it has committed. If it failed or was cancelled,
    it has an `error`."""

    completed: bool
    update_time: datetime
    ingested_objects: int
    metarange_id: str | None = None
    commit: Commit | None = None
    error: ErrorAnswer | None = None

    @classmethod
    def of(cls, state: ImportState) -> ImportStatus:
        """Makes the answer for an import."""
        commit, error = state.commit, state.error
        return cls(
            completed=commit is not None,
            update_time=state.updated_at,
            ingested_objects=state.object_count,
            metarange_id=None if commit is None else commit.tree_id,
            commit=None if commit is None else Commit(**plain(commit)),
            error=None if error is None else ErrorAnswer(kind=error[0], message=error[1]),
        )


routes = Routes("imports")

IdQuery = Annotated[Text, Query(alias="id")]

_IMPORT: Final = "/repositories/{repository:segment}/branches/{branch:segment}/import"


@routes.add("POST", _IMPORT, Role.WRITER, status=202)
def start_import(
    repository: Segment, branch: Segment, asked: ImportCreation, served: ServedDep
) -> ImportBegun:
    """Starts an import. `EBBTIDE_IMPORT_PREFIXES` must allow the places of all objects, because the
    server reads them for all users, with its own credentials."""
    if asked.commit.date is not None:
        raise InvalidInput(
            "not_supported", "date is not supported: an import is committed now. Leave it out"
        )
    imports = served.repository(repository).imports
    request = ImportRequest(
        branch=branch,
        sources=tuple(
            ImportSource(each.path, each.destination, each.type == "common_prefix")
            for each in asked.paths
        ),
        details=CommitDetails(
            asked.commit.message, served.committer, None, asked.commit.metadata or {}
        ),
        allowed_prefixes=served.import_prefixes,
    )
    import_id = imports.begin(request)
    served.import_threads.start(imports, import_id, request)
    return ImportBegun(id=import_id)


@routes.add("GET", _IMPORT, Role.READER)
def get_import(
    repository: Segment, branch: Segment, import_id: IdQuery, served: ServedDep
) -> ImportStatus:
    """Returns how an import stands. Any server of the store answers."""
    return ImportStatus.of(served.repository(repository).imports.state(branch, import_id))


@routes.add("DELETE", _IMPORT, Role.WRITER, status=204)
def cancel_import(
    repository: Segment, branch: Segment, import_id: IdQuery, served: ServedDep
) -> Response:
    """Cancels an import that has not committed."""
    served.repository(repository).imports.cancel(branch, import_id)
    return Response(status_code=204)
