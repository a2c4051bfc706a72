"""Pages of a listing by path: of the entries of a revision, or of changes between two revisions.

Not for: reading the entries or changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ebbtide.errors import InvalidInput

PAGE_MAX: Final = 10_000


class HasPath(Protocol):
    """Anything that lies at a path."""

    @property
    def path(self) -> str:
        """The path."""


Item = TypeVar("Item", bound=HasPath)


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A page of a listing, by path. `next_after` is the `after` of the next page; None at the
    end."""

    entries: tuple[Item, ...]
    common_prefixes: tuple[str, ...]
    next_after: str | None


def page_of(
    walk: Callable[[str], Iterator[Item]], *, prefix: str, delimiter: str, after: str, amount: int
) -> Page[Item]:
    """Returns at most `amount` items and common prefixes, sorted by path.

    `walk(path)` yields the items with the prefix that sort after `path`. With a delimiter, all
    paths that are equal up to the first delimiter after the prefix are one common prefix. It ends
    with the delimiter. Raises InvalidInput `invalid_argument`.
    """
    check_amount(amount)
    if delimiter and after.startswith(prefix) and delimiter in after[len(prefix) :]:
        after = _behind(_common_prefix(after, prefix, delimiter))
    items: list[Item] = []
    prefixes: list[str] = []
    last = ""
    found = walk(after)
    while (item := next(found, None)) is not None:
        common = _common_prefix(item.path, prefix, delimiter) if delimiter else ""
        if common and prefixes and prefixes[-1] == common:
            continue
        if len(items) + len(prefixes) == amount:
            return Page(tuple(items), tuple(prefixes), last)
        if common:
            prefixes.append(common)
            last = common
            # A directory is skipped in one step, however much it contains.
            found = walk(_behind(common))
        else:
            items.append(item)
            last = item.path
    return Page(tuple(items), tuple(prefixes), None)


def check_amount(amount: int) -> None:
    """Raises InvalidInput `invalid_argument` unless `amount` is from 1 to PAGE_MAX."""
    if not 1 <= amount <= PAGE_MAX:
        raise InvalidInput("invalid_argument", f"amount is from 1 to {PAGE_MAX}: {amount}")


def _common_prefix(path: str, prefix: str, delimiter: str) -> str:
    """Returns the path up to and including the first delimiter behind the prefix, or "" without
    one."""
    index = path.find(delimiter, len(prefix))
    return "" if index < 0 else path[: index + len(delimiter)]


def _behind(common_prefix: str) -> str:
    """Returns a text that sorts after nearly all paths with the prefix. `page_of` skips others."""
    return common_prefix + "\U0010ffff"
