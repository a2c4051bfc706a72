"""What projects and collections are there, and what an operation on them should do, exactly.

Written from the table of states in the Arvados wiki's "Expiring collections" and from
docs/design/007-collections.md; shares no code with the store. Not for: the operations (`projects`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal

from tests.simulation.exact import Contents
from tests.simulation.knowledge import Checker, micros

NOW: Final = -1
"""The date of an operation."""
EITHER: Final = -2
"""A version that is the one before it or the next one."""
Kind = Literal["project", "collection"]
ItemState = Literal["persistent", "expiring", "trashed", "gone"]
LIVE: Final = ("persistent", "expiring")
OVER: Final = ("trashed", "gone")


@dataclass(frozen=True, slots=True)
class Item:
    """A project, or a collection. Dates are in microseconds. `contents` is None where the data was
    let go; `versions` has the numbers of those that are kept, with their contents."""

    kind: Kind
    item_id: str
    parent_id: str | None
    name: str
    expires_at: int | None = None
    version: int = 1
    copies: int = 1
    contents: Contents | None = None
    versions: Mapping[int, Contents | None] = field(default_factory=dict)
    content_hash: str = field(default="", compare=False)

    def with_contents(
        self, contents: Contents, versions: Mapping[int, Contents | None], *, is_kept: bool
    ) -> Item:
        """It with other content. If the one before is kept, this is a new version."""
        version = self.version + 1 if is_kept else EITHER
        return replace(self, contents=contents, versions=versions, version=version)


class Declined(Exception):
    """An operation is refused with an error of one of these kinds."""


@dataclass(frozen=True, slots=True)
class Shelves:
    """All projects and collections at an instant."""

    now: int
    trash: int
    items: Mapping[str, Item]

    def line(self, item: Item) -> Iterator[Item]:
        """It, and all that it lies in."""
        inner: Item | None = item
        while inner is not None:
            yield inner
            inner = None if inner.parent_id is None else self.items[inner.parent_id]

    def ends_at(self, item: Item) -> int | None:
        """When the first of them expires."""
        dates = (each.expires_at for each in self.line(item))
        return min((each for each in dates if each is not None), default=None)

    def state_of(self, ends_at: int | None) -> ItemState:
        if ends_at is None:
            return "persistent"
        if self.now < ends_at:
            return "expiring"
        return "trashed" if self.now < ends_at + self.trash else "gone"

    def state(self, item: Item) -> ItemState:
        """With all that it lies in."""
        return self.state_of(self.ends_at(item))

    def is_hidden(self, item: Item, *, expired: bool = False) -> bool:
        """Whether it can neither be got nor is listed."""
        state = self.state(item)
        return not (state in LIVE or (expired and state == "trashed"))

    def is_taken(self, item: Item) -> bool:
        """Whether another item of its kind has its name there, and has not expired by itself."""
        return any(
            (each.kind, each.parent_id, each.name) == (item.kind, item.parent_id, item.name)
            and each.item_id != item.item_id
            and self.state_of(each.expires_at) in LIVE
            for each in self.items.values()
        )

    def free_name(self, item: Item) -> Item:
        """With the first of its names that is free."""
        number, found = 1, item
        while self.is_taken(found):
            number += 1
            found = replace(item, name=f"{item.name} ({number})")
        return found

    def children(self, parent_id: str | None, kind: Kind, *, expired: bool) -> list[str]:
        """What is listed in a project, in the order of names."""
        found = [
            (each.name, each.item_id)
            for each in self.items.values()
            if (each.kind, each.parent_id) == (kind, parent_id)
            and not self.is_hidden(each, expired=expired)
        ]
        return [item_id for _, item_id in sorted(found)]

    # Operations

    def made(self, item: Item, *, unique: bool) -> Item:
        kinds = []
        if item.parent_id is not None and self.is_hidden(self.items[item.parent_id]):
            kinds.append("project_not_found")
        if self.is_taken(item) and not unique:
            kinds.append(f"{item.kind}_exists")
        return self._done(self.free_name(item), kinds)

    def changed(self, item: Item, asked: Mapping[str, Any], *, unique: bool) -> Item:
        wanted = replace(item, **asked)
        was_over = self.state_of(item.expires_at) in OVER
        will_be_over = self.state_of(self._date(wanted)) in OVER
        is_moved = wanted.parent_id != item.parent_id
        is_placed = not will_be_over and (was_over or is_moved or wanted.name != item.name)
        parent = self.items[wanted.parent_id] if wanted.parent_id is not None else None
        above = "persistent" if item.parent_id is None else self.state(self.items[item.parent_id])
        hidden = self.is_hidden(item, expired=True)
        kinds = [f"{item.kind}_not_found"] if hidden else []
        if above == "trashed" or (was_over and set(asked) - {"expires_at"}):
            kinds.append("trashed")
        if is_moved and parent is not None:
            kinds += ["project_not_found"] if self.is_hidden(parent) else []
            kinds += ["project_cycle"] if item in self.line(parent) else []
        if is_placed and self.is_taken(wanted) and not unique:
            kinds.append(f"{item.kind}_exists")
        if wanted.copies and not item.copies and item.contents is None:
            kinds.append("commit_expired")
        return self._done(self.free_name(wanted) if is_placed else wanted, kinds)

    def trashed(self, item: Item) -> Item:
        kinds = [f"{item.kind}_not_found"] if self.is_hidden(item) else []
        return self._done(replace(item, expires_at=NOW), kinds)

    def restored(self, item: Item, *, unique: bool) -> Item:
        """An item that came back from the trash; one that is not there is said to exist."""
        kinds = [f"{item.kind}_not_found"] if self.is_hidden(item, expired=True) else []
        above = item.parent_id is not None and self.state(self.items[item.parent_id]) == "trashed"
        own = self.state_of(item.expires_at) in OVER
        if self.state(item) != "trashed":
            kinds.append(f"{item.kind}_exists")
        elif above:
            kinds.append("trashed")
        elif own and self.is_taken(item) and not unique:
            kinds.append(f"{item.kind}_exists")
        return self._done(replace(self.free_name(item), expires_at=None), kinds)

    def _date(self, item: Item) -> int | None:
        """Nobody expires in the past."""
        return None if item.expires_at is None else max(item.expires_at, self.now)

    def _done(self, item: Item, kinds: list[str]) -> Item:
        if kinds:
            raise Declined(*kinds)
        return item if item.expires_at == NOW else replace(item, expires_at=self._date(item))


def hash_of(contents: Contents, sizes: Mapping[str, int]) -> str:
    """Of paths and bytes: what the files are, wherever they lie. `sizes` are by SHA-256."""
    lines = [
        f"{path}\0{sizes[contents[path][0]]}\0{contents[path][0]}\0" for path in sorted(contents)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_shelves(checker: Checker, repository_id: str) -> Shelves:
    """What is there, as the database has it."""
    plain, prefix = checker.world.database.plain, checker.prefix_of(repository_id)

    def rows(statement: str) -> list[tuple[Any, ...]]:
        given = f"{statement} WHERE repository_id = ?"
        return plain.execute(given, (repository_id,)).fetchall()

    contents: dict[str, Contents | None] = {}
    for content_id, tree_id, checksum, closed, forgotten in rows(
        "SELECT commit_id, tree_id, tree_checksum, tombstoned_by, forgotten_by FROM commits"
    ):
        is_there = closed is None and forgotten is None
        found = checker.content(prefix, tree_id, checksum).values if is_there else None
        contents[content_id] = found
    versions: dict[str, dict[int, Contents | None]] = {}
    for collection_id, version, content_id in rows(
        "SELECT collection_id, version, content_id FROM collection_versions"
    ):
        versions.setdefault(collection_id, {})[version] = contents.get(content_id)
    items = [
        Item("project", project_id, parent_id, name, end)
        for project_id, parent_id, name, end in rows(
            "SELECT project_id, parent_id, name, expires_at FROM projects"
        )
    ]
    for row in rows(
        "SELECT collection_id, project_id, name, expires_at, version, replication_desired,"
        " content_id, content_hash FROM collections"
    ):
        collection_id, project_id, name, end, version, copies, content_id, content_hash = row
        held, kept = contents.get(content_id), versions.get(collection_id, {})
        made = Item("collection", collection_id, project_id, name, end, version, copies)
        items.append(replace(made, contents=held, versions=kept, content_hash=content_hash))
    trash = checker.world.trash // timedelta.resolution
    return Shelves(micros(checker.world.clock.now), trash, {each.item_id: each for each in items})
