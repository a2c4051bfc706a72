"""Parts that branches and tags share: shapes, and the routes of a single branch or tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Body, Path, Response

from ebbtide.server.api.base import (
    ExpiryChange,
    Pagination,
    Restoration,
    Segment,
    Text,
    Wire,
)
from ebbtide.server.api.lifecycle import ExpiredQuery, next_after
from ebbtide.server.api.paging import Paging
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.lifecycle import ListFilter
from ebbtide.store.refs.refs import NamedCommit, Refs
from ebbtide.store.repository import Repository


class RefAnswer(Wire):
    """A branch or tag. `id` is its name, because lakeFS clients expect it; `ref_id` is its id."""

    id: str
    commit_id: str
    ref_id: str
    state: str
    expires_at: datetime | None = None

    @classmethod
    def of(cls, found: NamedCommit) -> RefAnswer:
        """Makes the answer for a branch or tag."""
        return cls(
            id=found.name,
            commit_id=found.commit_id,
            ref_id=found.ref_id,
            state=found.state.value,
            expires_at=found.expires_at,
        )


class RefList(Wire):
    """Branches or tags, sorted by name."""

    pagination: Pagination
    results: list[RefAnswer]


def ref_list(paging: Paging, listed: ListFilter, found: Sequence[NamedCommit]) -> RefList:
    """Returns a page of refs. `found` was read with `amount_and_one`."""
    page, more = paging.cut(found)
    last = next_after(page[-1].name, page[-1].ref_id, listed) if more else None
    return RefList(
        pagination=paging.pagination(len(page), last),
        results=[RefAnswer.of(each) for each in page],
    )


def add_ref_routes(
    routes: Routes,
    path: str,
    kind: str,
    refs_of: Callable[[Repository], Refs[Any, Any]],  # the branches or the tags of a repository
) -> None:
    """Adds the routes that a single branch and a single tag have in common. The last part of `path`
    names the ref."""
    name_path = Path(alias=kind)

    @routes.add("GET", path, Role.READER)
    def get_ref(
        repository: Segment,
        served: ServedDep,
        name: Text = name_path,
        include_expired: ExpiredQuery = False,
    ) -> RefAnswer:
        """Returns one branch or tag, by name or id."""
        found = refs_of(served.repository(repository)).get(name, include_expired=include_expired)
        return RefAnswer.of(found)

    @routes.add("DELETE", path, Role.WRITER, status=204)
    def delete_ref(repository: Segment, served: ServedDep, name: Text = name_path) -> Response:
        """Moves a branch or tag to the trash."""
        refs_of(served.repository(repository)).delete(name)
        return Response(status_code=204)

    @routes.add("PATCH", path, Role.WRITER)
    def change_ref(
        repository: Segment, asked: ExpiryChange, served: ServedDep, name: Text = name_path
    ) -> RefAnswer:
        """Sets when a branch or tag expires. If it is in the trash, it is restored,
        unless the date is past."""
        changed = refs_of(served.repository(repository)).set_expiry(
            name, asked.expires_at, ensure_unique_name=asked.ensure_unique_name
        )
        return RefAnswer.of(changed)

    @routes.add("POST", path + "/restore", Role.WRITER)
    def restore_ref(
        repository: Segment,
        served: ServedDep,
        name: Text = name_path,
        asked: Annotated[Restoration | None, Body()] = None,
    ) -> RefAnswer:
        """Restores a branch or tag from the trash."""
        unique = asked is not None and asked.ensure_unique_name
        restored = refs_of(served.repository(repository)).restore(name, ensure_unique_name=unique)
        return RefAnswer.of(restored)
