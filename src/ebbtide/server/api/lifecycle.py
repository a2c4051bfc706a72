"""Filters for lists of items that expire: by state, by expiry, with or without the trash."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Query

from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.api.base import Instant
from ebbtide.store.lifecycle import ListFilter

ExpiredQuery = Annotated[bool, Query(description="Includes the trash.")]


async def _listed(
    include_expired: ExpiredQuery = False,
    state: Annotated[Literal["persistent", "expiring", "trashed"] | None, Query()] = None,
    expires_after: Annotated[
        Instant | None, Query(description="Expires at this instant or later.")
    ] = None,
    expires_before: Annotated[Instant | None, Query()] = None,
) -> ListFilter:
    return ListFilter(
        include_expired=include_expired,
        state=None if state is None else LifecycleState(state),
        expires_after=expires_after,
        expires_before=expires_before,
    )


ListedDep = Annotated[ListFilter, Depends(_listed)]


def next_after(name: str, thing_id: str, listed: ListFilter) -> str:
    """Returns the place where a list by name and id continues. If the trash is included, several
    items can have the same name, so that the place needs the id."""
    return f"{name} {thing_id}" if listed.include_expired else name
