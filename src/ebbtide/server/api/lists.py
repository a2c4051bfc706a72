"""Lists: the parameters of a request for a page of one, and the page.

Items that expire are filtered by state and expiry, with or without the trash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

from fastapi import Depends, Query, Request

from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.api.base import Instant, Pagination, Text
from ebbtide.store.lifecycle import ListFilter

AMOUNT_DEFAULT = 100
_BEHIND_IDS = "z"
"""A text that sorts after every id."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class PageOf(Generic[Item]):
    """One page of a list."""

    pagination: Pagination
    results: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Paging:
    """The page of a list that a request asks for. The item `after` itself is not in it."""

    prefix: str
    after: str
    amount: int
    max_per_page: int

    @property
    def after_item(self) -> tuple[str, str]:
        """The name and id after which a list by name and id continues. `after` is a
        text from `item_place`, or only a name. A name stands for all items with this name."""
        name, slash, item_id = self.after.rpartition("/")
        return (name, item_id) if slash else (self.after, _BEHIND_IDS if self.after else "")

    @property
    def amount_and_one(self) -> int:
        """The number of items to read: one more than the page has, to find out whether more
        follow."""
        return self.amount + 1

    def cut(self, found: Sequence[Item], place: Callable[[Item], str]) -> PageOf[Item]:
        """Returns one page of the items that were read with `amount_and_one`. `place` returns the
        place of an item in the list."""
        page = found[: self.amount]
        last = place(page[-1]) if len(found) > self.amount else None
        return PageOf(self.pagination(len(page), last), page)

    def pagination(self, count: int, next_after: str | None) -> Pagination:
        """Returns the `pagination` part of an answer."""
        return Pagination(
            has_more=next_after is not None,
            next_offset=next_after or "",
            results=count,
            max_per_page=self.max_per_page,
        )


def next_after(name: str, thing_id: str, listed: ListFilter) -> str:
    """Returns the place where a list by name and id continues. If the trash is included, several
    items can have the same name, so that the place needs the id."""
    return f"{name} {thing_id}" if listed.include_expired else name


def item_place(name: str, item_id: str) -> str:
    """Returns a place in a list by name and id. The place needs the id, because several items in
    the trash can have the same name. Names contain no slash."""
    return f"{name}/{item_id}"


async def _paging(
    request: Request,
    prefix: Annotated[Text, Query()] = "",
    after: Annotated[Text, Query()] = "",
    amount: Annotated[int, Query(ge=-1)] = AMOUNT_DEFAULT,
) -> Paging:
    """Limits `amount` to a full page. 0 and -1 also mean a full page."""
    most: int = request.app.state.settings.server_list_max
    return Paging(prefix, after, min(amount, most) if amount > 0 else most, most)


PagingDep = Annotated[Paging, Depends(_paging)]

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
