"""What was promised in a history, as operations answered, and whether it is kept.

A promise is a set of files and a time until which they stay. It is given by an answer, and lessened
when somebody begins to take it back, whatever comes of that. Besides, whatever the database says
can be opened has all of its files. Not for: what the store should answer, which other tests know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from ebbtide.errors import EbbtideError
from ebbtide.store.access.signed_tokens import verify
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import range_address, tree_address
from ebbtide.store.content.trees import iterate_entries, read_tree
from ebbtide.store.repositories.repository_rows import repository_by_id
from tests.simulation.exact import Value
from tests.simulation.scheduler import Violation
from tests.simulation.world import LEASE, Process, World

STAGED: Final = "what is staged"
EPOCH_START: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class Content:
    """The files of a commit: all of their keys in the bucket, and those of the entries by path."""

    keys: frozenset[str]
    by_path: dict[str, str]
    values: dict[str, Value]
    """What people see of the entries."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Files that stay until a time, or for good."""

    repository_id: str
    keys: frozenset[str]
    until: datetime | None = None

    def lessened(self, until: datetime) -> Promise:
        """The same for no longer than that."""
        return replace(self, until=until if self.until is None else min(self.until, until))


@dataclass(frozen=True, slots=True)
class Given:
    """A locator that somebody has."""

    token: str
    path: str
    until: datetime
    value: Value


@dataclass(slots=True)
class Use:
    """An operation that gives or takes back a promise of that name, and when it began and ended."""

    name: str
    number: int
    began: datetime
    ended: datetime | None = None


@dataclass(slots=True)
class Known:
    """All that the answers of a history say."""

    promises: dict[str, Promise] = field(default_factory=dict)
    branches: list[str] = field(default_factory=lambda: ["main"])
    trashed: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    locators: list[Given] = field(default_factory=list)
    collections: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    """Of these the ones that were to move aside what they take."""
    purges: list[str] = field(default_factory=list)
    purged_paths: set[str] = field(default_factory=set)
    repositories: list[str] = field(default_factory=list)
    """Those that were made, and that nobody began to end."""
    ended: set[str] = field(default_factory=set)
    """Those that somebody began to end, perhaps before it was known that they were made."""
    doomed: dict[str, frozenset[str]] = field(default_factory=dict)
    """By run: the commits that had expired when its plan was made, if it was made alone."""
    uploads: list[Any] = field(default_factory=list)
    reading: Any = None
    signatures: list[Any] = field(default_factory=list)
    manifests: list[tuple[str, list[Any]]] = field(default_factory=list)
    arvados: dict[str, str] = field(default_factory=dict)
    """The ids of collections by Arvados's ones; `preserved` has whether their version is kept, and
    `refilled` the ids of collections whose files other programs changed."""
    refilled: set[str] = field(default_factory=set)
    preserved: dict[str, bool] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)
    """Files that are nobody's to delete."""
    copied_run: bool = False
    """Whether a run over a copy of the database may have made the store's own one wrong."""
    contents: dict[tuple[str, str], Content] = field(default_factory=dict)

    def copy(self) -> Known:
        """One that goes on from here. What is in trees never changes."""
        copied = deepcopy(replace(self, contents={}))
        copied.contents = dict(self.contents)
        return copied

    def ends(self) -> list[datetime]:
        return [each.until for each in self.promises.values() if each.until is not None]

    # Promises

    def begin(self, name: str, number: int, now: datetime) -> None:
        """An operation begins that may give or take back a promise."""
        self.uses.append(Use(name, number, now))

    def end(self, number: int, now: datetime) -> None:
        """An operation is over, in whatever way."""
        for use in self.uses:
            if use.number == number and use.ended is None:
                use.ended = now

    def since(self, name: str, number: int) -> datetime | None:
        """When an operation began, if another one was under way beside it since, of which nobody
        knows whether it was before or after; else None."""
        began = next(use.began for use in self.uses if (use.name, use.number) == (name, number))
        beside = any(
            use.name == name and use.number != number and (use.ended is None or use.ended >= began)
            for use in self.uses
        )
        return began if beside else None

    def promise(
        self, name: str, repository_id: str, keys: Iterable[str], until: datetime | None = None
    ) -> None:
        """These files stay, if nobody has begun to end the repository."""
        if repository_id in self.repositories:
            self.promises[name] = Promise(repository_id, frozenset(keys), until)

    def lessen(self, name: str, until: datetime) -> None:
        """Somebody begins to take a promise back: it holds no longer than that."""
        if name in self.promises:
            self.promises[name] = self.promises[name].lessened(until)

    def moving(self, name: str, number: int, now: datetime) -> None:
        """A ref is about to point at something else: what it pointed at stays for a lease."""
        self.begin(name, number, now)
        if name in self.promises:
            before = self.promises.pop(name)
            self.promises[f"{name} before {number}"] = before.lessened(now + LEASE)

    def points_at(self, name: str, number: int, repository_id: str, keys: Iterable[str]) -> None:
        """A ref has these files: for good, or for a lease if others moved it meanwhile."""
        since = self.since(name, number)
        self.promise(name, repository_id, keys, None if since is None else since + LEASE)

    def lessen_all(self, repository_id: str, until: datetime) -> None:
        """A repository is about to end."""
        self.ended.add(repository_id)
        if repository_id in self.repositories:
            self.repositories.remove(repository_id)
        for name, promise in self.promises.items():
            if promise.repository_id == repository_id:
                self.promises[name] = promise.lessened(until)


@dataclass(slots=True)
class Checker:
    """Compares a world with what is known."""

    world: World
    known: Known

    def check(self) -> None:
        """Raises Violation."""
        there, now = self.world.bucket.objects.keys(), self.world.clock.now
        # After a run over a copy the database may name trees that were never acknowledged.
        open_keys = {} if self.known.copied_run else self._open()
        excused = self._purged_keys() if self.known.purged_paths else frozenset()
        for name, promise in self.known.promises.items():
            if promise.until is None or now < promise.until:
                self._require(promise.keys - there - excused, "promise", name)
        self._require(frozenset(self.known.outside - there), "outside", "whoever put it there")
        for name, keys in open_keys.items():
            self._require(keys - there - excused, "open", name)
        self._check_tokens()

    def _check_tokens(self) -> None:
        """Locators are good until their end."""
        good = [each for each in self.known.locators if each.until > self.world.clock.now]
        if not good:
            return
        rows = self.world.database.plain.execute("SELECT key_id, secret FROM signing_keys")
        keys = dict(rows.fetchall())
        for each in good:
            try:
                verify(keys, each.token)
            except EbbtideError as error:
                raise Violation("promise", f"a locator of {each.path}: {error}") from error

    def _require(self, missing: frozenset[str], kind: str, name: str) -> None:
        if missing:
            raise Violation(kind, f"{name} lacks {', '.join(sorted(missing))}")

    def check_owners(self) -> None:
        """Repositories can be used. Raises Violation."""
        if self.known.copied_run:
            return
        store = Process(self.world, self.world.database).store
        for repository_id in self.known.repositories:
            try:
                with store.metadata.snapshot() as tx:
                    info = repository_by_id(tx, repository_id)
                if info is None:
                    raise Violation("owner", f"repository {repository_id} is no more")
                store.context_of(info).ownership.check()
            except EbbtideError as error:
                raise Violation("owner", error.message) from error

    def content(self, prefix: str, tree_id: str, checksum: str) -> Content:
        """The files of a tree. Raises Violation where it cannot be read."""
        found = self.known.contents.get((prefix + tree_id, checksum))
        if found is None:
            storage = self.world.bucket.plain(f"{self.world.bucket.url}/{prefix}")
            try:
                tree = read_tree(storage, tree_id, checksum)
                entries = [*iterate_entries(storage, tree)]
            except EbbtideError as error:
                raise Violation("open", f"a tree cannot be read: {error.message}") from error
            by_path = {entry.path: self._key(prefix, entry.address) for entry in entries}
            ranges = [prefix + range_address(each.range_id) for each in tree.ranges]
            keys = frozenset([prefix + tree_address(tree_id), *ranges, *by_path.values()])
            values = {entry.path: value_of(entry) for entry in entries}
            found = Content(keys, by_path, values)
            self.known.contents[(prefix + tree_id, checksum)] = found
            self._check_bytes(found)
        return found

    def _key(self, prefix: str, address: str) -> str:
        """Where in the bucket an object is, also one that was imported."""
        outside = f"{self.world.bucket.url}/"
        return address.removeprefix(outside) if "://" in address else prefix + address

    def _check_bytes(self, content: Content) -> None:
        """What is there is what its entries say. Raises Violation."""
        for path, key in content.by_path.items():
            stored, checksum = self.world.bucket.objects.get(key), content.values[path][0]
            if stored and checksum and hashlib.sha256(stored.data).hexdigest() != checksum:
                raise Violation("open", f"{path} has other bytes than it should: {key}")

    def prefix_of(self, repository_id: str) -> str:
        """What the keys of a repository's files begin with."""
        row = self.world.database.plain.execute(
            "SELECT storage_url FROM repositories WHERE repository_id = ?", (repository_id,)
        ).fetchone()
        return self._prefix(row[0])

    def content_of(self, repository_id: str, commit_id: str) -> Content | None:
        """The files of a commit that can be opened; None for any other."""
        row = self.world.database.plain.execute(
            "SELECT storage_url, tree_id, tree_checksum FROM commits JOIN repositories"
            " USING (repository_id) WHERE repository_id = ? AND commit_id = ?"
            " AND commits.tombstoned_by IS NULL AND forgotten_by IS NULL",
            (repository_id, commit_id),
        ).fetchone()
        return None if row is None else self.content(self._prefix(row[0]), row[1], row[2])

    def needed(self, *, staged: bool = True) -> set[str]:
        """The keys of what can be opened or is staged; of closed commits, trees and ranges."""
        found: set[str] = set()
        for name, keys in self._open(with_purged_paths=True).items():
            if staged or name != STAGED:
                found |= keys
        for url, tree_id, checksum in self.world.database.plain.execute(
            "SELECT storage_url, tree_id, tree_checksum FROM commits JOIN repositories"
            " USING (repository_id) WHERE forgotten_by IS NULL AND expires_at IS NULL"
        ).fetchall():
            content = self.content(self._prefix(url), tree_id, checksum)
            found |= content.keys - frozenset(content.by_path.values())
        return found

    def _open(self, *, with_purged_paths: bool = False) -> dict[str, frozenset[str]]:
        """Returns the keys that can be opened or are staged according to the database. A staged
        file at a purged path may be missing, or may have been written after the purge."""
        found: dict[str, frozenset[str]] = {}
        gone = micros(self.world.clock.now - self.world.trash)
        plain = self.world.database.plain
        for repository_id, url in plain.execute(
            "SELECT repository_id, storage_url FROM repositories"
            " WHERE expires_at IS NULL OR expires_at > ?",
            (gone,),
        ).fetchall():
            prefix = self._prefix(url)
            for commit_id, tree_id, checksum in plain.execute(
                "SELECT commit_id, tree_id, tree_checksum FROM commits WHERE repository_id = ?"
                " AND tombstoned_by IS NULL AND forgotten_by IS NULL",
                (repository_id,),
            ).fetchall():
                content = self.content(prefix, tree_id, checksum)
                found[f"commit {commit_id}"] = content.keys
            purged = frozenset() if with_purged_paths else self.known.purged_paths
            found[STAGED] = self._staged(repository_id, prefix, gone, purged)
        return found

    def staged(self, repository_id: str) -> frozenset[str]:
        """The keys of all that is staged in a repository."""
        gone = micros(self.world.clock.now - self.world.trash)
        return self._staged(repository_id, self.prefix_of(repository_id), gone, ())

    def _staged(
        self, repository_id: str, prefix: str, gone: int, without: Collection[str]
    ) -> frozenset[str]:
        plain = self.world.database.plain
        tokens = {
            token
            for staging, sealed in plain.execute(
                "SELECT staging_token, sealed_tokens FROM branches WHERE repository_id = ?"
                " AND (expires_at IS NULL OR expires_at > ?)",
                (repository_id, gone),
            ).fetchall()
            for token in (staging, *sealed.split())
        }
        return frozenset(
            self._key(prefix, address)
            for token, path, address in plain.execute(
                "SELECT token, path, address FROM staged WHERE repository_id = ?"
                " AND address IS NOT NULL",
                (repository_id,),
            ).fetchall()
            if token in tokens and path not in without
        )

    def _prefix(self, url: str) -> str:
        return url.removeprefix(self.world.bucket.url).strip("/") + "/"

    def _purged_keys(self) -> frozenset[str]:
        """What an administrator asked to have deleted, where it is and where runs have it aside."""
        found = {
            key
            for content in self.known.contents.values()
            for path, key in content.by_path.items()
            if path in self.known.purged_paths
        }
        aside = {
            key
            for key in set().union(*(each.keys for each in self.known.promises.values()))
            if "/quarantine/" in key
            and f"{key.split('/')[0]}/{key.partition('/quarantine/')[2]}" in found
        }
        return frozenset(found | aside)


def value_of(entry: Entry) -> Value:
    """What people see of an entry."""
    return entry.checksum, frozenset(entry.metadata.items())


def micros(instant: datetime) -> int:
    return round((instant - EPOCH_START).total_seconds() * 1_000_000)
