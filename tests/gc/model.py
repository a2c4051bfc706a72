"""What a test knows of a repository by itself: every commit's content, refs, and the definition.

The definition is lakeFS issue 1932's, walked naively: chain by chain, no sharing, no cleverness.
An object is its bytes to one test and its address to another: `Value` is what it is known by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Made(Generic[Value]):
    """A commit as it was made."""

    parent_ids: tuple[str, ...]
    created_at: datetime
    contents: Mapping[str, Value]


@dataclass(slots=True)
class Head(Generic[Value]):
    """A branch or tag; `expired_at` when it went to the trash. `layers` is what is staged, the
    newest first: a commit seals them, and one that fails leaves them for the next."""

    name: str
    commit_id: str
    layers: list[dict[str, Value | None]] = field(default_factory=lambda: [{}])
    expired_at: datetime | None = None

    @property
    def staged(self) -> dict[str, Value | None]:
        """Where changes go; None hides a path."""
        return self.layers[0]

    def seal(self) -> None:
        """What a commit does first: changes go elsewhere from now on."""
        if self.staged:
            self.layers.insert(0, {})

    def values(self) -> Iterator[Value]:
        """All that is staged, what is overwritten too."""
        return (value for layer in self.layers for value in layer.values() if value is not None)


@dataclass(slots=True)
class Model(Generic[Value]):
    """The repository. `closed` maps tombstoned commits to the run, `forgotten` those of which a
    stub is left."""

    trash_time: timedelta
    lease_ttl: timedelta
    commits: dict[str, Made[Value]] = field(default_factory=dict)
    branches: dict[str, Head[Value]] = field(default_factory=dict)
    tags: dict[str, Head[Value]] = field(default_factory=dict)
    trash: list[Head[Value]] = field(default_factory=list)
    trashed_tags: list[Head[Value]] = field(default_factory=list)
    left: list[tuple[str, datetime]] = field(default_factory=list)
    holds: set[str] = field(default_factory=set)
    rules: Mapping[str, int] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    forgotten: dict[str, str] = field(default_factory=dict)

    def shown(self, head: Head[Value], *, beneath: int = 0) -> dict[str, Value]:
        """What a branch shows: what is staged over what is committed, without the newest layers
        if it is what lies `beneath` so many."""
        over: dict[str, Value | None] = {**self.commits[head.commit_id].contents}
        for layer in reversed(head.layers[beneath:]):
            over.update(layer)
        return {path: value for path, value in over.items() if value is not None}

    def delete(self, head: Head[Value], path: str) -> None:
        """Delete a path that a branch shows."""
        if path in self.shown(head, beneath=1):
            head.staged[path] = None
        else:  # nothing to hide: a merge may bring the path later
            del head.staged[path]

    def runs(self, commit_id: str) -> set[str]:
        """The runs that may be named as the one that let a commit go."""
        return {runs[commit_id] for runs in (self.closed, self.forgotten) if commit_id in runs}

    def drop(self, head: Head[Value], now: datetime) -> None:
        """Put a branch in the trash."""
        head.expired_at = now
        self.trash.append(self.branches.pop(head.name))
        self.left.append((head.commit_id, now))

    def drop_tag(self, tag: Head[Value], now: datetime) -> None:
        """Put a tag in the trash."""
        tag.expired_at = now
        self.trashed_tags.append(self.tags.pop(tag.name))
        self.left.append((tag.commit_id, now))

    def restorable(self, name: str, now: datetime) -> Head[Value] | None:
        """The branch of that name that was trashed last and is not gone."""
        found = [h for h in self.living(self.trash, now) if h.name == name]
        return max(found, key=lambda head: head.expired_at or now, default=None)

    def living(self, trash: list[Head[Value]], now: datetime) -> list[Head[Value]]:
        """What is in the trash and not gone."""
        return [h for h in trash if h.expired_at and now < h.expired_at + self.trash_time]

    def heads(self, now: datetime) -> list[Head[Value]]:
        """All branches that are not gone."""
        return [*self.branches.values(), *self.living(self.trash, now)]

    def tagged(self, now: datetime) -> set[str]:
        """The commits of all tags that are not gone."""
        tags = [*self.tags.values(), *self.living(self.trashed_tags, now)]
        return {tag.commit_id for tag in tags}

    def period(self, name: str) -> timedelta:
        """The period of a branch: the exact name, or the glob, or the default."""
        for pattern, days in self.rules.items():
            if pattern != "default" and fnmatchcase(name, pattern):
                return timedelta(days=days)
        return timedelta(days=self.rules["default"])

    def active(self, now: datetime) -> set[str]:
        """The commits whose data stays."""
        heads = self.heads(now)
        kept = {head.commit_id for head in heads} | self.tagged(now) | self.holds
        kept |= {commit_id for commit_id, at in self.left if now < at + self.lease_ttl}
        for head in heads:
            kept |= set(self._kept_on(head.commit_id, self.period(head.name), now))
        for commit_id in self._dangling({head.commit_id for head in heads}):
            kept |= set(self._kept_on(commit_id, self.period(""), now))
        return kept - set(self.closed)

    def expired(self, now: datetime) -> set[str]:
        """All others that are still on record."""
        return set(self.commits) - self.active(now) - self.forgotten.keys()

    def recorded(self, now: datetime) -> set[str]:
        """The commits whose record stays: what refs and active commits reach."""
        waiting = [head.commit_id for head in self.heads(now)]
        waiting += [*self.tagged(now), *self.active(now)]
        found: set[str] = set()
        while waiting:
            commit_id = waiting.pop()
            if commit_id not in found and commit_id not in self.forgotten:
                found.add(commit_id)
                waiting += self.commits[commit_id].parent_ids
        return found

    def committed(self, now: datetime) -> set[Value]:
        """The objects that commits keep."""
        kept = [self.commits[commit_id].contents for commit_id in self.active(now)]
        return {value for contents in kept for value in contents.values()}

    def kept(self, now: datetime) -> set[Value]:
        """The objects that stay when everything else was collected."""
        return self.committed(now).union(*(head.values() for head in self.heads(now)))

    def _kept_on(self, head_id: str, period: timedelta, now: datetime) -> Iterator[str]:
        for commit_id in self._chain(head_id):
            if self.commits[commit_id].created_at > now - period:
                yield commit_id
                yield from self._first_parent(commit_id)

    def _chain(self, head_id: str) -> Iterator[str]:
        rest = [head_id]
        while rest:
            yield rest[0]
            rest = self._first_parent(rest[0])

    def _first_parent(self, commit_id: str) -> list[str]:
        parent_ids = self.commits[commit_id].parent_ids[:1]
        return [parent_id for parent_id in parent_ids if parent_id not in self.forgotten]

    def _dangling(self, branch_heads: set[str]) -> set[str]:
        known = set(self.commits) - self.forgotten.keys()
        parents = {parent for commit_id in known for parent in self._first_parent(commit_id)}
        return known - parents - branch_heads
