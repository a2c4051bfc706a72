"""What projects and collections share: lifecycle, partial updates, names within a project.

An item ends at the earliest date of the item and the projects above it. The records of the items in
a trashed project do not change.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeVar

from ebbtide.errors import Conflict
from ebbtide.retention.lifecycle import LifecycleState, earliest
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.lifecycle import TRASH, ExpiringRow, Find, Lifecycle, Place, SeenItem, missing
from ebbtide.store.names import ITEM_BYTES_MAX, check_item_name, check_properties, check_text
from ebbtide.text import shown

DESCRIPTION_BYTES_MAX: Final = 64 * 1024


class Omitted(Enum):
    """The value of a field that was not given. For fields in which None has a meaning."""

    KEEP = "keep"


Keep = Literal[Omitted.KEEP]
KEEP: Final = Omitted.KEEP


def given(**values: Any) -> dict[str, Any]:  # values of any field
    """Returns the values that were given."""
    return {name: value for name, value in values.items() if value is not KEEP}


def check_asked(asked: Mapping[str, Any]) -> None:  # values by the columns' names
    """Checks the fields that projects and collections share, if they are given.

    Raises InvalidInput `invalid_name`, `invalid_argument`.
    """
    if "name" in asked:
        check_item_name(asked["name"])
    if "description" in asked:
        check_text("the description", asked["description"], bytes_max=DESCRIPTION_BYTES_MAX)
    if "properties" in asked:
        check_properties(asked["properties"])


class ItemRow(ExpiringRow, Protocol):
    """A row of a project or collection."""

    @property
    def modified_at(self) -> datetime:
        """When it was last changed."""


Row = TypeVar("Row", bound=ItemRow)
Found = TypeVar("Found")


class Items(Lifecycle[Row, Found]):
    """The projects, or the collections, of one repository, by their ids."""

    length_max = ITEM_BYTES_MAX
    form = "{} ({})"
    advice = ": choose another name, or ask for a unique one"

    def __init__(self, context: RepositoryContext, rows: Rows[Row]) -> None:
        self._context = context
        self._repository_id = context.repository_id
        mine = rows.table.c.repository_id == context.repository_id
        super().__init__(context.metadata, context.trash_time, rows, mine)

    @abstractmethod
    def _see(self, tx: Transaction, row: Row) -> SeenItem[Row]:
        """Returns a row with the projects above it."""

    @abstractmethod
    def _named(self, tx: Transaction, place: Place) -> Sequence[Row]:
        """Returns all items of a name at a place, also trashed and gone ones."""

    def trash(
        self, *, after: tuple[str, str] = ("", ""), amount: int = 1000
    ) -> builtins.list[Found]:
        """Returns at most `amount` trashed items of all projects, sorted by name and id.

        They sort behind `after`. Only the items' own `expires_at` counts: the content of a trashed
        project is restored with it. Raises InvalidInput `invalid_argument`.
        """
        with self._metadata.snapshot() as tx:
            rows = self._page(tx, listed=TRASH, after=after, amount=amount)
            return [self._found(tx, self._see(tx, row)) for row in rows]

    def _read(self, tx: Transaction, item_id: str) -> SeenItem[Row] | None:
        """Returns an item in any state, or None."""
        row = self._rows.by_id(tx, item_id, *self._scope)
        return None if row is None else self._see(tx, row)

    def _require(
        self, tx: Transaction, ref: str, *, include_expired: bool = False
    ) -> SeenItem[Row]:
        seen = self._read(tx, ref)
        state = LifecycleState.GONE if seen is None else self._state(tx, seen)
        if seen is None or not state.is_visible(include_expired=include_expired):
            raise missing(self.kind, ref, is_trashed=state is LifecycleState.TRASHED)
        return seen

    def _require_trashed(self, tx: Transaction, ref: str) -> SeenItem[Row]:
        seen = self._require(tx, ref, include_expired=True)
        if self._state(tx, seen) is not LifecycleState.TRASHED:
            raise self._not_trashed(tx, seen)
        self._require_changeable(tx, seen, ())
        return seen

    def _not_trashed(self, tx: Transaction, seen: SeenItem[Row]) -> Conflict:
        """Returns the error for a restore of an item that is not in the trash. It names the items
        in the trash with its name at its place."""
        named = self._named(tx, self._place(seen.row))
        ids = [each for each, state in self._states(tx, named) if state is LifecycleState.TRASHED]
        hint = ""
        if ids:
            hint = (
                f". The trash holds {self.kind} {' and '.join(ids)} of that name: restore it by "
                "its id, and ask for a unique name (--ensure-unique-name)"
            )
        return Conflict(
            f"{self.kind}_exists",
            f"{self.kind} {shown(seen.path)} is not in the trash: nothing was restored{hint}",
            ids=ids,
        )

    def _require_changeable(
        self, tx: Transaction, seen: SeenItem[Row], asked: Iterable[str]
    ) -> None:
        """Raises Conflict `trashed` if the fields `asked` of an item cannot be changed.

        If an item is in the trash, only `expires_at` can be changed. If it is in a trashed project,
        no field can be changed.
        """
        what = f"{self.kind} {shown(seen.row.name)}"
        above = earliest(*(project.expires_at for project in seen.above))
        if self._state_at(tx, above) is LifecycleState.TRASHED:
            raise Conflict(
                "trashed",
                f"{what} lies in a project that is in the trash: restore the project first",
            )
        own = self._state_at(tx, seen.row.expires_at)
        refused = sorted(field for field in asked if not own.can_change(field))
        if refused:
            raise Conflict(
                "trashed",
                f"{what} is in the trash: restore it before you change its {' and '.join(refused)}",
            )

    @contextmanager
    def _changing(self, ref: str, find: Find[Row]) -> Iterator[tuple[Transaction, SeenItem[Row]]]:
        with self._context.changing("exclusive") as tx:
            yield tx, find(tx, ref)

    def _changed(self, tx: Transaction, row: Row, changed: Row) -> Row:
        """Dates a restore. A deletion is not dated: `expires_at` has its date."""
        if self._is_over(tx, row.expires_at) and not self._is_over(tx, changed.expires_at):
            return replace(changed, modified_at=tx.now())
        return changed

    def _holder(self, tx: Transaction, place: Place, own_id: str | None) -> str | None:
        is_held = any(
            self._rows.id_of(other) != own_id and not self._is_over(tx, other.expires_at)
            for other in self._named(tx, place)
        )
        return self.kind if is_held else None

    def _states(
        self, tx: Transaction, rows: Iterable[Row]
    ) -> builtins.list[tuple[str, LifecycleState]]:
        """Returns the id and the state of each item, by its own date."""
        return [(self._rows.id_of(row), self._state_at(tx, row.expires_at)) for row in rows]

    def _one_of(
        self, tx: Transaction, named: Iterable[Row], path: str, *, include_expired: bool
    ) -> str:
        """Returns the id of the item that a path means, of all with its last name at its place.

        This is the live item. With `include_expired`, if no item is live, it is the item in the
        trash. Raises NotFound `KIND_not_found`, Conflict `ref_ambiguous`.
        """
        found = self._states(tx, named)
        live = [item_id for item_id, state in found if state.is_visible()]
        if live:
            return live[0]
        trashed = [item_id for item_id, state in found if state is LifecycleState.TRASHED]
        if not trashed or not include_expired:
            raise missing(self.kind, path, is_trashed=bool(trashed))
        if len(trashed) > 1:
            raise Conflict(
                "ref_ambiguous",
                f"the trash holds {len(trashed)} of {self.kind} {shown(path)}: name one by its id, "
                f"{', '.join(trashed)}",
                ids=trashed,
            )
        return trashed[0]
