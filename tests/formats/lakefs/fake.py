"""A lakeFS server in this process: what clients do, and what its API answers to runs.

Files are those of a real server: ranges and metaranges as tables, dumps of refs, Parquet files of
uncommitted addresses. As on a real one, an entry with the bytes that its path has already is no
change: its commit keeps the address before it, and it is not listed as uncommitted.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.errors import NotFound
from ebbtide.formats.lakefs.server import (
    Account,
    AnsweredCommit,
    AnsweredRepository,
    AnsweredRules,
    DumpedRefs,
    LakefsServer,
)
from ebbtide.model import EPOCH
from ebbtide.storage import Storage
from tests.formats.lakefs.tables import Pair, message, partition, range_row, value, written
from tests.support.clock import ManualClock

NAMESPACE: Final = "s3://lake/repo/"
ACCOUNT: Final = Account("http://lakefs.test", "key", "secret")
RANGE_ENTRIES: Final = 3


@dataclass(frozen=True)
class Entry:
    address: str
    size: int
    etag: str
    is_full: bool = False

    @property
    def identity(self) -> bytes:
        return hashlib.sha256(f"{self.size} {self.etag}".encode()).digest()


@dataclass(frozen=True)
class FakeCommit:
    commit_id: str
    parents: tuple[str, ...]
    created: datetime
    metarange_id: str
    entries: Mapping[str, Entry]


@dataclass
class Branch:
    head: str
    staged: dict[str, Entry | None] = field(default_factory=dict)


class FakeLakefs(LakefsServer):
    # The methods that ask over HTTP are replaced: nothing of the parent's is left but its type.

    def __init__(self, storage: Storage, clock: ManualClock, namespace: str = NAMESPACE) -> None:
        object.__setattr__(self, "account", ACCOUNT)
        object.__setattr__(self, "name", "repo")
        object.__setattr__(self, "state", State(storage, clock, namespace))

    __slots__ = ("state",)
    state: State

    def repository(self) -> AnsweredRepository:
        return AnsweredRepository(self.name, self.state.namespace, 0)

    def rules(self) -> AnsweredRules | None:
        return self.state.rules

    def dump(self) -> DumpedRefs:
        return self.state.dump()

    def branches(self) -> dict[str, str]:
        return {name: each.head for name, each in self.state.branches.items()}

    def tags(self) -> dict[str, str]:
        return dict(self.state.tags)

    def commit(self, commit_id: str) -> AnsweredCommit:
        found = self.state.commits.get(self.state.resolve(commit_id))
        if found is None:
            raise NotFound("commit_not_found", commit_id)
        created = (found.created - EPOCH) // timedelta(seconds=1)
        return AnsweredCommit(found.commit_id, found.parents, created, found.metarange_id, 1)

    def uncommitted(self) -> list[str]:
        return self.state.uncommitted()

    def address_at(self, ref: str, path: str) -> str:
        found = self.state.view(ref).get(path)
        if found is None:
            raise NotFound("object_not_found", path)
        return found.address if found.is_full else self.state.namespace + found.address

    def view(self, branch: str) -> Iterator[tuple[str, str]]:
        for path in self.state.view(branch):
            yield path, self.address_at(branch, path)


@dataclass(frozen=True)
class Backup:
    rules: AnsweredRules | None
    commits: dict[str, FakeCommit]
    branches: dict[str, Branch]
    tags: dict[str, str]


class State:
    """What the server has, and what clients do to it."""

    def __init__(self, storage: Storage, clock: ManualClock, namespace: str = NAMESPACE) -> None:
        self.storage = storage
        self.clock = clock
        self.namespace = namespace
        self.rules: AnsweredRules | None = AnsweredRules(7, {})
        self.commits: dict[str, FakeCommit] = {}
        self.tags: dict[str, str] = {}
        self.partition = partition(self.clock.now, 0x1234)
        self.count = 0
        storage.put("_lakefs/dummy", b"")
        first = self._commit((), {}, clock.now)
        self.branches = {"main": Branch(first)}

    # Clients

    def upload(self, branch: str, path: str, data: bytes) -> Entry:
        address = self.address()
        self.storage.put(address, data)
        return self.link(branch, path, address, data)

    def address(self) -> str:
        """A fresh address, for a client that uploads there and links it later."""
        self.count += 1
        return f"data/{self.partition}/{self.count:019d}0"

    def link(self, branch: str, path: str, address: str, data: bytes) -> Entry:
        entry = Entry(address, len(data), hashlib.md5(data).hexdigest())
        self.branches[branch].staged[path] = entry
        return entry

    def stage(self, branch: str, path: str, entry: Entry) -> None:
        """By the deprecated call that checks nothing, or as an import."""
        self.branches[branch].staged[path] = entry

    def delete(self, branch: str, path: str) -> None:
        self.branches[branch].staged[path] = None

    def commit(self, branch: str, *, dated: datetime | None = None) -> str:
        found = self.branches[branch]
        entries = dict(self.commits[found.head].entries)
        for path, entry in found.staged.items():
            if entry is None:
                entries.pop(path, None)
            elif path not in entries or entries[path].identity != entry.identity:
                entries[path] = entry
        head = self._commit((found.head,), entries, dated or self.clock.now)
        self.branches[branch] = Branch(head)
        return head

    def branch(self, name: str, source: str) -> None:
        self.branches[name] = Branch(self.resolve(source))

    def reset(self, branch: str, commit_id: str) -> None:
        self.branches[branch].head = commit_id

    def revert(self, branch: str, commit_id: str) -> str:
        """What the commit has changed is as its first parent has it."""
        commit = self.commits[commit_id]
        before = self.commits[commit.parents[0]].entries if commit.parents else {}
        entries = dict(self.commits[self.branches[branch].head].entries)
        for path in commit.entries.keys() | before.keys():
            if commit.entries.get(path) != before.get(path):
                entries.pop(path, None)
                if path in before:
                    entries[path] = before[path]
        return self._onto(branch, (self.branches[branch].head,), entries)

    def merge(self, branch: str, source: str) -> str:
        """The source's entries win."""
        other = self.resolve(source)
        head = self.branches[branch].head
        entries = {**self.commits[head].entries, **self.commits[other].entries}
        return self._onto(branch, (head, other), entries)

    def _onto(self, branch: str, parents: tuple[str, ...], entries: dict[str, Entry]) -> str:
        head = self._commit(parents, entries, self.clock.now)
        self.branches[branch].head = head
        return head

    def rotate(self) -> None:
        self.partition = partition(self.clock.now, 0x1234)

    # Its database

    def backup(self) -> Backup:
        branches = {name: Branch(it.head, dict(it.staged)) for name, it in self.branches.items()}
        return Backup(self.rules, dict(self.commits), branches, dict(self.tags))

    def restore(self, backup: Backup) -> None:
        """Addresses and partitions stay new: a server makes them by its clock and by chance."""
        self.rules, self.commits, self.tags = backup.rules, dict(backup.commits), dict(backup.tags)
        found = backup.branches.items()
        self.branches = {name: Branch(it.head, dict(it.staged)) for name, it in found}

    # What it answers

    def resolve(self, ref: str) -> str:
        if ref in self.branches:
            return self.branches[ref].head
        return self.tags.get(ref, ref)

    def view(self, ref: str) -> dict[str, Entry]:
        found = dict(self.commits[self.resolve(ref)].entries)
        staged = self.branches[ref].staged if ref in self.branches else {}
        for path, entry in staged.items():
            if entry is None:
                found.pop(path, None)
            else:
                found[path] = entry
        return dict(sorted(found.items()))

    def uncommitted(self) -> list[str]:
        rows = [
            entry.address
            for each in self.branches.values()
            for path, entry in each.staged.items()
            if entry is not None
            and not entry.is_full
            and entry.identity
            != getattr(self.commits[each.head].entries.get(path), "identity", None)
        ]
        if not rows:
            return []
        self.count += 1
        folder = f"_lakefs/retention/gc/uncommitted/{self.count}/uncommitted"
        columns = {"physical_address": rows, "creation_date": pa.array([0] * len(rows), pa.int64())}
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, compression="gzip")
        self.storage.put(f"{folder}/part", sink.getvalue())
        return [f"{self.namespace}{folder}"]

    def dump(self) -> DumpedRefs:
        messages = [
            (
                each.commit_id.encode(),
                message(
                    (1, each.commit_id.encode()),
                    (4, _instant(each.created)),
                    (5, each.metarange_id.encode()),
                    *((7, parent.encode()) for parent in each.parents),
                    (8, 1),
                ),
            )
            for each in sorted(self.commits.values(), key=lambda each: each.commit_id)
        ]
        pairs = [(key, value(key, data)) for key, data in messages]
        commits = self._metarange([pairs], {b"entity": b"commit"})
        return DumpedRefs(commits, "", "")

    # Files

    def _commit(
        self, parents: tuple[str, ...], entries: Mapping[str, Entry], created: datetime
    ) -> str:
        metarange_id = self._tree(entries) if parents else ""
        content = f"{parents} {metarange_id} {created} {len(self.commits)}"
        commit_id = hashlib.sha256(content.encode()).hexdigest()
        self.commits[commit_id] = FakeCommit(
            commit_id, parents, created, metarange_id, dict(entries)
        )
        return commit_id

    def _tree(self, entries: Mapping[str, Entry]) -> str:
        pairs = [
            (path.encode(), value(entry.identity, _entry(entry)))
            for path, entry in sorted(entries.items(), key=lambda item: item[0].encode())
        ]
        # Ranges end at some keys, so that trees share them.
        ranges: list[list[Pair]] = [[]]
        for pair in pairs:
            ranges[-1].append(pair)
            if hashlib.sha256(pair[0]).digest()[0] % RANGE_ENTRIES == 0:
                ranges.append([])
        return self._metarange([each for each in ranges if each], {})

    def _metarange(self, ranges: list[list[Pair]], more: Mapping[bytes, bytes]) -> str:
        rows = []
        for pairs in ranges:
            range_id = self._put(pairs, {b"type": b"ranges", **more})
            rows.append(range_row(range_id.encode(), pairs))
        return self._put(rows, {b"type": b"metaranges", **more})

    def _put(self, pairs: list[Pair], properties: Mapping[bytes, bytes]) -> str:
        file_id, data = written(pairs, properties)
        name = file_id.decode()
        self.storage.put(f"_lakefs/{name}", data)
        return name


def _instant(date: datetime) -> bytes:
    """Seconds and nanoseconds, as in a dump. In its other answers the server has no fractions."""
    seconds, rest = divmod((date - EPOCH) // timedelta(microseconds=1), 1_000_000)
    return message((1, seconds), (2, rest * 1_000))


def _entry(entry: Entry) -> bytes:
    return message(
        (1, entry.address.encode()),
        (2, message((1, 1))),
        (3, entry.size),
        (4, entry.etag.encode()),
        (6, 2 if entry.is_full else 1),
        (7, b"text/plain"),
    )


def needed(state: State, active: set[str]) -> set[str]:
    found = {entry.address for each in active for entry in state.commits[each].entries.values()}
    return found | {
        entry.address for branch in state.branches for entry in state.view(branch).values()
    }
