"""Rows that the store keeps for doors: wire formats of other programs, such as Arvados's.

The rows of a door are an entry point of the group `ebbtide.doors.store`, which leads to a subclass
of `DoorRows`. Their tables are in the one schema. They say nothing about what is kept: data lasts
by rows that the store itself knows, such as commits, leases and upload tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from typing import Final

import sqlalchemy as sa

from ebbtide.plugins import plugins_of
from ebbtide.store.database.engine import Transaction

GROUP: Final = "ebbtide.doors.store"


class DoorRows(ABC):
    """The rows of one door. Made without arguments. Each function works in a transaction of its
    caller."""

    @abstractmethod
    def collections_named(self, repository_id: str, name: str) -> sa.Select[tuple[str]] | None:
        """Returns the query for the store's ids of the collections that `name` means to clients of
        the door, in any state; None if it has not the form of such an id."""

    @abstractmethod
    def clients_ids(self, tx: Transaction, collection_ids: Iterable[str]) -> dict[str, str]:
        """Returns the ids that clients of the door know, by the store's ids. Collections that these
        clients did not make are left out."""

    @abstractmethod
    def drop_ended(self, tx: Transaction, repository_id: str) -> None:
        """Deletes the rows that are of no use any more. The fence of a run calls it last in its
        transaction, after it has closed commits and dropped what has ended."""


@cache
def all_door_rows() -> tuple[DoorRows, ...]:
    """Returns the rows of each door that is installed."""
    return tuple(each.load()() for each in plugins_of(GROUP).values())
