"""Pages of lists: the parameters of a request, and the part of an answer that says whether more
follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request

from ebbtide.server.api.base import Pagination, Text

AMOUNT_DEFAULT = 100
_BEHIND_IDS = "z"
"""A text that sorts after every id."""

Item = TypeVar("Item")


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

    def cut(self, found: Sequence[Item]) -> tuple[Sequence[Item], bool]:
        """Returns one page of the items that were read with `amount_and_one`, and whether more
        follow."""
        return found[: self.amount], len(found) > self.amount

    def pagination(self, count: int, next_after: str | None) -> Pagination:
        """Returns the `pagination` part of an answer."""
        return Pagination(
            has_more=next_after is not None,
            next_offset=next_after or "",
            results=count,
            max_per_page=self.max_per_page,
        )


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
