"""What a test knows of projects, collections and locators: who is where, until when, and what that
keeps.

Written from the table of states in the Arvados wiki's "Expiring collections" and from
docs/design/007-collections.md; shares no code with the store or the collector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from tests.gc.uncommitted_model import UncommittedModel

State = Literal["persistent", "expiring", "trashed", "gone"]


@dataclass(slots=True)
class Folder:
    """A project. `parent_id` is None for one that is in no other."""

    item_id: str
    parent_id: str | None
    name: str
    expires_at: datetime | None = None


@dataclass(slots=True)
class Bundle:
    """A collection: the content that it has, and by their numbers that of versions it keeps."""

    item_id: str
    parent_id: str
    name: str
    content_id: str
    version: int = 1
    versions: dict[int, str] = field(default_factory=dict)
    copies: int = 1
    expires_at: datetime | None = None

    @property
    def content_ids(self) -> set[str]:
        """All content that it has or keeps."""
        return {self.content_id, *self.versions.values()}


@dataclass(frozen=True, slots=True)
class Given:
    """A locator that somebody has: where the object is, and until when it was promised."""

    token: str
    address: str
    until: datetime


@dataclass
class LifecycleModel(UncommittedModel):
    """The repository with its projects and collections.

    Content is among `commits`, without parents; `content_ids` tells it from history. `leased` has
    until when commits and contents are promised, whatever refs and the reflog keep; `uploads` are
    addresses that nothing but a locator refers to.
    """

    folders: dict[str, Folder] = field(default_factory=dict)
    bundles: dict[str, Bundle] = field(default_factory=dict)
    content_ids: set[str] = field(default_factory=set)
    leased: dict[str, datetime] = field(default_factory=dict)
    uploads: dict[str, datetime] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)

    # States.

    def line(self, item: Folder | Bundle) -> Iterator[Folder | Bundle]:
        """It, and all that it lies in."""
        inner: Folder | Bundle | None = item
        while inner is not None:
            yield inner
            inner = None if inner.parent_id is None else self.folders[inner.parent_id]

    def ends_at(self, item: Folder | Bundle) -> datetime | None:
        """When the first of them expires."""
        dates = [each.expires_at for each in self.line(item) if each.expires_at is not None]
        return min(dates) if dates else None

    def state_of(self, ends_at: datetime | None, now: datetime) -> State:
        """By the table."""
        if ends_at is None:
            return "persistent"
        if now < ends_at:
            return "expiring"
        return "trashed" if now < ends_at + self.trash_time else "gone"

    def state(self, item: Folder | Bundle, now: datetime) -> State:
        """With all that it lies in."""
        return self.state_of(self.ends_at(item), now)

    def own_state(self, item: Folder | Bundle, now: datetime) -> State:
        """By itself."""
        return self.state_of(item.expires_at, now)

    def state_above(self, item: Folder | Bundle, now: datetime) -> State:
        """Of what it lies in."""
        if item.parent_id is None:
            return "persistent"
        return self.state(self.folders[item.parent_id], now)

    def is_visible(self, item: Folder | Bundle, now: datetime, *, expired: bool = False) -> bool:
        """Whether it can be got and is listed."""
        state = self.state(item, now)
        return state in ("persistent", "expiring") or (expired and state == "trashed")

    def is_taken(
        self, item: Folder | Bundle, parent_id: str | None, name: str, now: datetime
    ) -> bool:
        """Whether something of the kind of `item` has that name there, by itself not expired."""
        others = self.folders if isinstance(item, Folder) else self.bundles
        return any(
            each.parent_id == parent_id
            and each.name == name
            and each is not item
            and self.own_state(each, now) in ("persistent", "expiring")
            for each in others.values()
        )

    def instants(self) -> set[datetime]:
        """Every instant at which something changes by itself."""
        found = {given.until for given in self.given} | set(self.leased.values())
        found |= {at + self.lease_ttl for _, at in self.left}
        items: list[Folder | Bundle] = [*self.folders.values(), *self.bundles.values()]
        for ends_at in (item.expires_at for item in items if item.expires_at is not None):
            found |= {ends_at, ends_at + self.trash_time, ends_at + self.lease_ttl}
        for head in [*self.trash, *self.trashed_tags]:
            assert head.expired_at is not None
            found.add(head.expired_at + self.trash_time)
        return found

    # What is kept.

    def promised(self, now: datetime) -> set[str]:
        """The addresses that a locator promises."""
        return {given.address for given in self.given if now < given.until}

    def active(self, now: datetime) -> set[str]:
        """See `Model.active`; and what collections keep, and leases."""
        kept = super().active(now)
        kept |= {commit_id for commit_id, until in self.leased.items() if now < until}
        for bundle in self.bundles.values():
            ends_at = self.ends_at(bundle)
            is_gone = self.state_of(ends_at, now) == "gone"
            # What was signed on its last day lasts a lease, even where the trash does not.
            is_promised = ends_at is not None and now < ends_at + self.lease_ttl
            if bundle.copies and (not is_gone or is_promised):
                kept |= bundle.content_ids
        return kept - set(self.closed)

    def recorded(self, now: datetime) -> set[str]:
        """See `Model.recorded`; and what collections have, whether they keep the data or not."""
        kept = super().recorded(now)
        for bundle in self.bundles.values():
            if self.state(bundle, now) != "gone":
                kept |= bundle.content_ids
        return kept - self.forgotten.keys()

    def uncommitted(self, now: datetime) -> set[str]:
        """See above; and what was uploaded for a locator."""
        uploaded = {address for address, until in self.uploads.items() if now < until}
        return super().uncommitted(now) | uploaded

    def needed(self, now: datetime) -> set[str]:
        """See above. What a locator promises is needed whatever else is said of it."""
        return super().needed(now) | self.promised(now)

    def _dangling(self, branch_heads: set[str]) -> set[str]:
        found = super()._dangling(branch_heads)
        return found - self.content_ids

    # Content.

    def content_hash(self, contents: dict[str, str]) -> str:
        """Of paths and addresses: what the files are, wherever they lie."""
        lines = []
        for path in sorted(contents):
            data = self.files[contents[path]]
            lines.append(f"{path}\0{len(data)}\0{hashlib.sha256(data).hexdigest()}\0")
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def hash_of(self, bundle: Bundle) -> str:
        """Of what a collection has."""
        return self.content_hash(dict(self.commits[bundle.content_id].contents))

    def lease(self, commit_id: str, now: datetime, *, ends_at_most: datetime | None = None) -> None:
        """Something of a commit or content is signed: it is promised for a lease, and half of one
        more, but not beyond the end of what it was signed through."""
        ends, longer = now + self.lease_ttl, now + self.lease_ttl * 3 / 2
        if ends_at_most is not None:
            ends, longer = min(ends, ends_at_most), min(longer, ends_at_most)
        self.raise_lease(commit_id, until=ends, raised_to=longer)

    def raise_lease(self, commit_id: str, *, until: datetime, raised_to: datetime) -> None:
        """One that is not leased until an instant is leased to the other."""
        if commit_id not in self.leased or self.leased[commit_id] < until:
            self.leased[commit_id] = raised_to


def shifted(instant: datetime, number: int) -> datetime:
    """Just before an instant, at it, or just after."""
    return instant + timedelta(microseconds=number % 3 - 1)
