"""Listings in parts, of whatever has a path: entries of a revision, changes between two.

Not for: where they come from.
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
        """Where."""


Item = TypeVar("Item", bound=HasPath)


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Part of a listing, by path. `next_after` is the `after` of the next part; None at the end."""

    entries: tuple[Item, ...]
    common_prefixes: tuple[str, ...]
    next_after: str | None


def page_of(
    walk: Callable[[str], Iterator[Item]], *, prefix: str, delimiter: str, after: str, amount: int
) -> Page[Item]:
    """At most `amount` items and common prefixes, by path.

    `walk` gives the items with the prefix behind a path. With a delimiter, paths that hold it
    behind the prefix are shown once, as the common prefix up to and with it. Raises InvalidInput
    `invalid_argument`.
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
            # A directory is left behind in one step, whatever it holds.
            found = walk(_behind(common))
        else:
            items.append(item)
            last = item.path
    return Page(tuple(items), tuple(prefixes), None)


def check_amount(amount: int) -> None:
    """Raises InvalidInput `invalid_argument`."""
    if not 1 <= amount <= PAGE_MAX:
        raise InvalidInput("invalid_argument", f"amount is from 1 to {PAGE_MAX}: {amount}")


def _common_prefix(path: str, prefix: str, delimiter: str) -> str:
    """Up to and with the first delimiter behind the prefix; "" where there is none."""
    index = path.find(delimiter, len(prefix))
    return "" if index < 0 else path[: index + len(delimiter)]


def _behind(common_prefix: str) -> str:
    """Behind nearly all that begins with the prefix; what still comes, the caller leaves out."""
    return common_prefix + "\U0010ffff"
