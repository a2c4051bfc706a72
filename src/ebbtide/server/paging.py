"""Lists in parts: what a client may ask for, and how an answer says that there is more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request

from ebbtide.server.wire.base import Pagination, Text

AMOUNT_DEFAULT = 100
_BEHIND_IDS = "z"
"""Sorts behind every id."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Paging:
    """The part of a list that was asked for. `after` is not in it."""

    prefix: str
    after: str
    amount: int
    max_per_page: int

    @property
    def after_item(self) -> tuple[str, str]:
        """The name and id behind which a list by both goes on: `after` as `item_place` writes it,
        or a name alone, which stands for all of that name."""
        name, slash, item_id = self.after.rpartition("/")
        return (name, item_id) if slash else (self.after, _BEHIND_IDS if self.after else "")

    @property
    def amount_and_one(self) -> int:
        """One more than asked for tells whether there is more."""
        return self.amount + 1

    def cut(self, found: Sequence[Item]) -> tuple[Sequence[Item], bool]:
        """What was found, of `amount_and_one`, as one page; and whether there is more."""
        return found[: self.amount], len(found) > self.amount

    def pagination(self, count: int, next_after: str | None) -> Pagination:
        """What the answer says of itself."""
        return Pagination(
            has_more=next_after is not None,
            next_offset=next_after or "",
            results=count,
            max_per_page=self.max_per_page,
        )


def item_place(name: str, item_id: str) -> str:
    """A place in a list by name and id: of what is in the trash, several may have one name, which
    has no slash in it."""
    return f"{name}/{item_id}"


async def _paging(
    request: Request,
    prefix: Annotated[Text, Query()] = "",
    after: Annotated[Text, Query()] = "",
    amount: Annotated[int, Query(ge=-1)] = AMOUNT_DEFAULT,
) -> Paging:
    """More than a page holds is a full page; so are 0 and -1."""
    most: int = request.app.state.settings.server_list_max
    return Paging(prefix, after, min(amount, most) if amount > 0 else most, most)


PagingDep = Annotated[Paging, Depends(_paging)]
