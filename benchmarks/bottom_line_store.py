"""Makes the history of the bottom-line case, and writes it through the store's own writers of
ranges and trees.

A history refers to everything by numbers, so that the objects that nothing needs are known. It is
kept beside the store, for more runs over it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.pool import Pool, ThreadPool
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa

from benchmarks.prepare_uncommitted import insert_staged
from ebbtide.arrow import make_schema
from ebbtide.ids import descending_id
from ebbtide.model import EPOCH, ONE_MICROSECOND, Commit, Ref
from ebbtide.retention import Policy, select_commits
from ebbtide.settings import Settings
from ebbtide.storage import LocalStorage, Storage
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.content.ranges import RangeInfo, checksum_of, write_range
from ebbtide.store.content.trees import Tree, write_tree
from ebbtide.store.database.commit_rows import CommitRecord, insert_commit
from ebbtide.store.database.schema import branches
from ebbtide.store.embedded import Store
from ebbtide.store.refs.ref_rows import BranchRow, insert_branch
from ebbtide.store.repository import Repository

SEED: Final = 20_240_607
OBJECTS, COMMITS, BRANCHES = 20_000_000, 30_000, 1_000
UNCOMMITTED, UNREFERRED = 5_000_000, 500_000
TREE_RANGES: Final = 100
RANGE_ENTRIES: Final = 417
RANGES_PER_COMMIT: Final = 4
REPLACED: Final = 121
WHOLE_TREES: Final = 0.002
"""Below this scale, trees and changes are smaller too."""
SLICE_OBJECTS: Final = 10_000
PROCESSES: Final = 2
THREADS: Final = 32
CHANGE: Final = 0.01
NOTHING: Final = checksum_of(b"")
INVENTORY_ROWS: Final = 1_000_000
INVENTORY: Final = make_schema(
    ("key", pa.string()),
    ("size", pa.int64()),
    ("last_modified_date", pa.timestamp("ms", "UTC")),
)
_MASK: Final = 2**128 - 1
_ODD: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835


@dataclass(slots=True)
class Made:
    """One commit: the numbers of its parent, its branch and the ranges of its tree, and its
    date."""

    parent: int | None
    branch: int
    date: datetime
    ranges: np.ndarray[Any, np.dtype[np.int32]]


@dataclass(slots=True)
class History:
    """Everything that was made so far. Objects, ranges, commits and branches are numbered, each
    kind from 0.

    `slice_of` has the slice of each object, `contents` the objects of each range, `positions` the
    place of each range in its tree, `heads` the newest commit of each branch. `staged` and
    `unreferred` are runs of object numbers. The numbers below `…_written` are in the store.
    """

    scale: float
    rng: np.random.Generator
    commits: list[Made] = field(default_factory=list)
    contents: list[np.ndarray[Any, np.dtype[np.int32]]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    slices: list[str] = field(default_factory=list)
    slice_of: np.ndarray[Any, np.dtype[np.int32]] = field(
        default_factory=lambda: np.empty(0, np.int32)
    )
    staged: list[tuple[int, int]] = field(default_factory=list)  # runs of objects
    unreferred: list[tuple[int, int]] = field(default_factory=list)
    infos: list[RangeInfo] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)  # objects that a run has deleted
    objects_written: int = 0
    commits_written: int = 0
    branches_written: int = 1  # main exists from the beginning
    has_files: bool = True  # else only an inventory lists the objects
    changes: int = 0  # after the first history was made
    is_collected: bool = False  # since the last change

    def part(self, count: int) -> int:
        """Returns how many of the ranges of a tree, or of the entries of a range, there are."""
        return max(RANGES_PER_COMMIT, round(count * min(1.0, self.scale / WHOLE_TREES)))

    def grow(self, share: float, start: datetime, end: datetime) -> None:
        """Adds this share of all commits and objects, dated between two instants."""
        first = len(self.slice_of)
        when: list[float] = []
        count = round(COMMITS * self.scale * share)
        number = first
        for step in range(count):
            at = (step + 1) / count
            number = self._commit(start + (end - start) * at, number)
            when += [at] * (number - first - len(when))
        for amount, runs in ((UNCOMMITTED, self.staged), (UNREFERRED, self.unreferred)):
            more = round(amount * self.scale * share)
            runs.append((number, number + more))
            when += list(self.rng.random(more))
            number += more
        order = np.empty(len(when), np.int64)
        order[np.argsort(when, kind="stable")] = np.arange(len(when))
        slices = -(-len(when) // SLICE_OBJECTS)
        base = len(self.slices)
        self.slices += [
            descending_id(start + (end - start) * each / slices) for each in range(slices)
        ]
        of_new = (order // SLICE_OBJECTS + base).astype(np.int32)
        self.slice_of = np.concatenate([self.slice_of, of_new])

    def _commit(self, date: datetime, number: int) -> int:
        """Adds a commit, and sometimes a branch. Returns the number of the next object."""
        rng = self.rng
        place = len(self.commits)
        if not self.heads:
            ranges = np.arange(self.part(TREE_RANGES), dtype=np.int32)
            entries = self.part(RANGE_ENTRIES)
            for position in ranges:
                self.positions.append(int(position))
                self.contents.append(np.arange(number, number + entries, dtype=np.int32))
                number += entries
            self.commits.append(Made(None, 0, date, ranges))
            self.heads.append(place)
            return number
        branch = 0
        due = round(BRANCHES * self.scale * min(1.0, place / (COMMITS * self.scale)))
        if len(self.heads) < max(due, 2):
            branch = len(self.heads)
            self.heads.append(self.heads[0])
        elif rng.random() < 0.5:
            branch = int(rng.integers(len(self.heads)))
        parent = self.heads[branch]
        ranges = self.commits[parent].ranges.copy()
        for position in rng.choice(len(ranges), RANGES_PER_COMMIT, replace=False):
            objects = self.contents[ranges[position]].copy()
            slots = rng.choice(len(objects), self.part(REPLACED), replace=False)
            objects[slots] = np.arange(number, number + len(slots))
            number += len(slots)
            ranges[position] = len(self.contents)
            self.contents.append(objects)
            self.positions.append(int(position))
        self.commits.append(Made(parent, branch, date, ranges))
        self.heads[branch] = place
        return number

    def policy(self, change: int) -> dict[str, Any]:
        """Returns a policy of counting rules, so that the time of a run does not matter. With each
        `change` some more commits of the trunk expire."""
        trunk = round(COMMITS * self.scale * (0.3 - CHANGE * change / 2))
        return {"default": {"keep_last": 10}, "branches": {"main": {"keep_last": trunk}}}

    def useless(self, policy: dict[str, Any]) -> set[int]:
        """Returns the objects that no kept commit needs by a policy, and that no branch has
        staged."""
        commits = [
            Commit(_id(place), tuple([] if m.parent is None else [_id(m.parent)]), m.date, "")
            for place, m in enumerate(self.commits)
        ]
        refs = [Ref(_name(n), "branch", _id(head)) for n, head in enumerate(self.heads)]
        found = select_commits(commits, refs, Policy.parse(policy), datetime.now(UTC))
        needed = np.zeros(len(self.slice_of), np.bool_)
        ranges = np.unique(
            np.concatenate([self.commits[int(each[:8], 16)].ranges for each in found.active])
        )
        for number in ranges:
            needed[self.contents[number]] = True
        for first, last in self.staged:
            needed[first:last] = True
        return set(np.flatnonzero(~needed).tolist()) - self.gone

    def address(self, number: int) -> str:
        """Returns the address of an object."""
        return f"data/{self.slices[self.slice_of[number]]}/{(number + 1) * _ODD & _MASK:032x}"


def _id(place: int) -> str:
    return f"{place:08x}{place * _ODD & (2**96 - 1):024x}"


def _name(branch: int) -> str:
    return "main" if branch == 0 else f"branch-{branch:05d}"


# Writes it

_now: History
"""The history that the processes of a pool inherit."""
_storage: Storage


def write(
    history: History, lake: Repository, store: Store, *, storage: Storage | None = None
) -> None:
    """Writes everything of the history that is not in the store yet: its files to another `storage`
    than the repository's, if that is a faster way to the same place."""
    global _now, _storage
    _now, _storage = history, storage or lake.context.storage
    first_range, last_range = len(history.infos), len(history.contents)
    first, last = history.objects_written, len(history.slice_of)
    with _pool(_storage) as pool:
        history.infos += pool.map(_write_range, range(first_range, last_range), chunksize=50)
        if history.has_files:
            pool.map(_write_objects, list(_by_slices(history, np.arange(first, last))), chunksize=4)
    places = range(history.commits_written, len(history.commits))
    with _pool(_storage) as pool:  # its processes inherit the ranges
        checksums = pool.map(_write_tree, places, chunksize=50)
    now = datetime.now(UTC)
    repository_id = lake.info.repository_id
    rng = random.Random(SEED + last)
    with store.metadata.transaction() as tx:
        for place, checksum in zip(places, checksums, strict=True):
            made = history.commits[place]
            record = CommitRecord(
                commit_id=_id(place),
                parent_ids=() if made.parent is None else (_id(made.parent),),
                created_at=made.date,
                written_at=now,
                tree_id=_tree_id(place),
                tree_checksum=checksum,
            )
            insert_commit(tx, repository_id, record)
        tokens = []
        for number, head in enumerate(history.heads):
            tokens.append(f"{number:032x}")
            if number < history.branches_written:
                named = sa.update(branches).where(branches.c.name == _name(number))
                tx.execute(named.values(commit_id=_id(head)))
            else:
                row = BranchRow(
                    branch_id=tokens[-1],
                    name=_name(number),
                    commit_id=_id(head),
                    staging_token=tokens[-1],
                    created_at=now,
                    expires_at=None,
                )
                insert_branch(tx, repository_id, row)
        insert_staged(tx, _staged_rows(history, tokens, repository_id, first, rng))
    with store.metadata.engine.connect() as connection:
        # This is the state some time after so many writes.
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    history.objects_written, history.commits_written = last, len(history.commits)
    history.branches_written = len(history.heads)


def begun(scale: float, *, has_files: bool = True) -> History:
    """Returns a history of one year that ends a few hours ago."""
    now = datetime.now(UTC)
    history = History(scale, np.random.default_rng(SEED), has_files=has_files)
    history.grow(1.0, now - timedelta(days=365), now - timedelta(hours=3))
    return history


def change(history: History, lake: Repository, store: Store) -> None:
    """Adds 1 % to the history, and writes it to the store."""
    history.changes += 1
    now = datetime.now(UTC)
    history.grow(CHANGE, now, now + timedelta(seconds=1))
    write(history, lake, store)


def put_back(
    history: History, numbers: Iterable[int], lake: Repository, *, storage: Storage | None = None
) -> None:
    """Writes deleted objects again, as `write` does."""
    global _now, _storage
    _now, _storage = history, storage or lake.context.storage
    with _pool(_storage) as pool:
        groups = _by_slices(history, np.array(sorted(numbers), np.int64))
        pool.map(_write_objects, list(groups), chunksize=4)


def _pool(storage: Storage) -> Pool:
    """Returns a pool of processes for a directory, and of threads for a server. Forked processes
    inherit the history; threads mostly wait."""
    if isinstance(storage, LocalStorage):
        return multiprocessing.get_context("fork").Pool(PROCESSES)
    return ThreadPool(THREADS)


def _staged_rows(
    history: History, tokens: Sequence[str], repository_id: str, first: int, rng: random.Random
) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of the staged objects from `first` on, in the order of STAGED_COLUMNS."""
    micros = (datetime.now(UTC) - EPOCH) // ONE_MICROSECOND
    for start, end in history.staged:
        for number in range(max(start, first), end):
            yield (
                repository_id,
                tokens[1 + rng.randrange(len(tokens) - 1)],
                f"new/part-{number:09d}",
                history.address(number),
                *(0, NOTHING, micros, "application/octet-stream", "{}"),
            )


def _write_range(number: int) -> RangeInfo:
    objects, table = _now.contents[number].tolist(), _now.positions[number]
    entries = [
        Entry(f"table-{table:03d}/part-{slot:04d}", _now.address(each), 0, NOTHING, EPOCH)
        for slot, each in enumerate(objects)
    ]
    return write_range(_storage, entries, range_id=f"{number:08x}{number * _ODD & 2**96 - 1:024x}")


def _tree_id(place: int) -> str:
    return f"{place:08x}{(place + 7) * _ODD & (2**96 - 1):024x}"


def _write_tree(place: int) -> str:
    infos = tuple(_now.infos[number] for number in _now.commits[place].ranges)
    return write_tree(_storage, Tree(_tree_id(place), infos))


def _by_slices(
    history: History, numbers: np.ndarray[Any, np.dtype[np.int64]]
) -> Iterator[list[int]]:
    """Yields these objects, given in ascending order, slice by slice."""
    of_each = history.slice_of[numbers]
    order = np.argsort(of_each, kind="stable")
    ends = np.flatnonzero(np.diff(of_each[order])) + 1
    for piece in np.split(numbers[order], ends):
        yield piece.tolist()


def _write_objects(numbers: list[int]) -> None:
    if not isinstance(_storage, LocalStorage):
        for number in numbers:
            _storage.put(_now.address(number), b"")
        return
    root = Path(_storage.url.removeprefix("file://"))
    (root / _now.address(numbers[0])).parent.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        os.close(os.open(root / _now.address(number), os.O_CREAT | os.O_WRONLY, 0o644))


def saved(directory: Path) -> Path:
    """Returns the path of a store's history, for more runs over it."""
    return directory.with_name(f"{directory.name}.history")


def save(history: History, directory: Path) -> None:
    """Stores a history beside its store."""
    with saved(directory).open("wb") as file:
        pickle.dump(history, file, protocol=pickle.HIGHEST_PROTOCOL)


@contextmanager
def built(
    directory: Path, scale: float, *, has_files: bool = True
) -> Iterator[tuple[History, Store, Repository]]:
    """Opens the store in a directory, or makes it. Without `has_files` its objects are only in
    inventories."""
    settings = Settings(lease_ttl="0s", trash_time="0s")
    if saved(directory).exists():
        with saved(directory).open("rb") as file:
            history: History = pickle.load(file)
        with Store.open(directory, settings=settings) as store:
            yield history, store, store.repository("lake")
        return
    started = time.monotonic()
    history = begun(scale, has_files=has_files)
    with Store.init(directory, settings=settings) as store:
        lake = store.create_repository("lake")
        store.metadata.engine.dispose()
        write(history, lake, store)
        save(history, directory)
        print(
            f"made {len(history.slice_of):,} objects, {len(history.contents):,} ranges, "
            f"{len(history.commits):,} commits on {len(history.heads):,} branches "
            f"in {time.monotonic() - started:.0f} s",
            flush=True,
        )
        yield history, store, lake


def write_inventory(history: History, lake: Repository, directory: Path) -> datetime:
    """Writes an inventory of all objects, which may not exist as files, and of all other files, as
    Parquet files in the form of S3 Inventory. Returns the instant at which it was begun."""
    begun_at = datetime.now(UTC)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for number, first in enumerate(range(0, len(history.slice_of), INVENTORY_ROWS)):
        numbers = range(first, min(first + INVENTORY_ROWS, len(history.slice_of)))
        there = [history.address(each) for each in numbers if each not in history.gone]
        dates = [begun_at - timedelta(hours=1)] * len(there)
        columns: list[Any] = [there, [0] * len(there), dates]
        table = pa.table(columns, schema=INVENTORY)
        pq.write_table(table, directory / f"objects-{number:05d}.parquet", compression="zstd")
    for number, batch in enumerate(lake.context.storage.list()):
        columns = [batch.column(name) for name in ("address", "size_bytes", "last_modified")]
        files = pa.table(columns, names=INVENTORY.names).cast(INVENTORY, safe=False)
        others = files.filter(pc.invert(pc.starts_with(files.column("key"), DATA_PREFIX)))
        pq.write_table(others, directory / f"files-{number:05d}.parquet", compression="zstd")
    return begun_at
