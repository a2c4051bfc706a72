"""What a test knows of a repository by itself: every commit's content, refs, and the definition.

The definition is lakeFS issue 1932's, walked naively: chain by chain, no sharing, no cleverness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from tests.gc.lines import Contents

Staged = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Made:
    """A commit as it was made."""

    parent_ids: tuple[str, ...]
    created_at: datetime
    contents: Contents


@dataclass(slots=True)
class Head:
    """A branch or tag; `expired_at` when it went to the trash. What a commit that failed had
    sealed stays beneath what is staged, until the next one takes it up."""

    name: str
    commit_id: str
    staged: Staged = field(default_factory=dict)
    sealed: set[bytes] = field(default_factory=set)
    expired_at: datetime | None = None


@dataclass(slots=True)
class Model:
    """The repository. `closed` maps tombstoned commits to the run, `forgotten` those of which a
    stub is left."""

    trash_time: timedelta
    lease_ttl: timedelta
    commits: dict[str, Made] = field(default_factory=dict)
    branches: dict[str, Head] = field(default_factory=dict)
    tags: dict[str, Head] = field(default_factory=dict)
    trash: list[Head] = field(default_factory=list)
    trashed_tags: list[Head] = field(default_factory=list)
    left: list[tuple[str, datetime]] = field(default_factory=list)
    holds: set[str] = field(default_factory=set)
    rules: Mapping[str, int] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    forgotten: dict[str, str] = field(default_factory=dict)

    def shown(self, head: Head) -> Contents:
        """What a branch shows: what is staged over what is committed."""
        over = {**self.commits[head.commit_id].contents, **head.staged}
        return {path: data for path, data in over.items() if data is not None}

    def runs(self, commit_id: str) -> set[str]:
        """The runs that may be named as the one that let a commit go."""
        return {runs[commit_id] for runs in (self.closed, self.forgotten) if commit_id in runs}

    def drop(self, head: Head, now: datetime) -> None:
        """Put a branch in the trash."""
        head.expired_at = now
        self.trash.append(self.branches.pop(head.name))
        self.left.append((head.commit_id, now))

    def drop_tag(self, tag: Head, now: datetime) -> None:
        """Put a tag in the trash."""
        tag.expired_at = now
        self.trashed_tags.append(self.tags.pop(tag.name))
        self.left.append((tag.commit_id, now))

    def restorable(self, name: str, now: datetime) -> Head | None:
        """The branch of that name that was trashed last and is not gone."""
        found = [h for h in self.living(self.trash, now) if h.name == name]
        return max(found, key=lambda head: head.expired_at or now, default=None)

    def living(self, trash: list[Head], now: datetime) -> list[Head]:
        """What is in the trash and not gone."""
        return [h for h in trash if h.expired_at and now < h.expired_at + self.trash_time]

    def heads(self, now: datetime) -> list[Head]:
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

    def kept_bytes(self, now: datetime) -> set[bytes]:
        """What the files under `data/` hold when everything else was collected."""
        kept = [self.commits[commit_id].contents for commit_id in self.active(now)]
        found = {data for contents in kept for data in contents.values()}
        for head in self.heads(now):
            found |= head.sealed | {data for data in head.staged.values() if data is not None}
        return found

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
