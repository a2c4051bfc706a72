"""The bottom-line case: 20 M objects, 30,000 commits on 1,000 branches, 1 M to delete.

    .venv/bin/python -m benchmarks.bottom_line [--scale 0.1] [--directory DIR] [--peers ...]

Writes a repository through the store's own writers of ranges and trees (this takes a while, and is
not part of the figures), then runs `ebbtide gc run`, each time as a program of its own:

1. a clean run from cold: nothing is known of the repository;
2. an incremental run after 1 % of everything has changed;
3. a clean run after 1 % more has changed: its address index is warm.

A directory that was built before is used again, each run after a change of 1 %. Each must delete
exactly the objects that are known, from how the history was made, to be of no use
to anybody. Prints the ratio of each to a bare listing of the same files. With `--peers` the first
run is compared with what `benchmarks.peers` has: the method in common use on a copy of the store
(its files linked), DuckDB on what the run read, and deleting as many files in a loop; or with those
of them that are named. Figures go to `benchmarks/results/`, beside those of earlier runs of other
kinds.

At scale 1 there are 120,000 ranges with 50 M pairs of range and address, 5 M staged objects in the
same 2,000 slices as the others, and 1 M to delete, half of which nothing ever referred to. Objects
are empty files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import pickle
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.pool import Pool, ThreadPool
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from benchmarks import results
from benchmarks.prepare_uncommitted import insert_staged
from ebbtide.arrow import texts
from ebbtide.formats.base import INDEX_PREFIX
from ebbtide.gc.parts import read_part
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import descending_id
from ebbtide.model import EPOCH, Commit, Ref
from ebbtide.retention import Policy, select_commits
from ebbtide.settings import Settings
from ebbtide.storage import LocalStorage, Storage
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.files import checksum_of
from ebbtide.store.content.ranges import RangeInfo, write_range
from ebbtide.store.content.trees import Tree, write_tree
from ebbtide.store.embedded import Store
from ebbtide.store.metadata.branches import BranchRow, insert_branch
from ebbtide.store.metadata.commits import CommitRecord, insert_commit
from ebbtide.store.metadata.schema import ONE_MICROSECOND, branches
from ebbtide.store.repository import Repository

SEED: Final = 20_240_607
OBJECTS, COMMITS, BRANCHES = 20_000_000, 30_000, 1_000
UNCOMMITTED, UNREFERRED = 5_000_000, 500_000
TREE_RANGES: Final = 100
RANGE_ENTRIES: Final = 417
RANGES_PER_COMMIT: Final = 4
SLICE_OBJECTS: Final = 10_000
PROCESSES: Final = 2
THREADS: Final = 32
CHANGE: Final = 0.01
NAMES: Final = {
    "cold": "clean run, cold",
    "incremental": "incremental run after 1 %",
    "warm": "clean run, warm",
}
NOTHING: Final = checksum_of(b"")
_MASK: Final = 2**128 - 1
_ODD: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835


@dataclass(slots=True)
class Made:
    """One commit: its number's parent, branch and date, and the numbers of its tree's ranges."""

    parent: int | None
    branch: int
    date: datetime
    ranges: np.ndarray[Any, np.dtype[np.int32]]


@dataclass(slots=True)
class History:
    """What was made so far, by numbers: objects, ranges, commits and branches have each their own.

    `slice_of` has the slice of each object, `contents` the objects of each range, `positions` where
    in a tree it stands, `heads` the newest commit of each branch. `staged` and `unreferred` are
    runs of objects, those `written` are in the store already, and `gone` were deleted.
    """

    scale: float
    rng: np.random.Generator
    replaced: int  # objects of a range that a commit replaces
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
    branches_written: int = 1  # main is there from the beginning
    changes: int = 0  # after what was made first
    is_collected: bool = False  # since the last of them

    def grow(self, share: float, start: datetime, end: datetime) -> None:
        """Let as much happen between two instants as is this share of everything."""
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
        """Add a commit, and a branch now and then; the number of the next object."""
        rng = self.rng
        place = len(self.commits)
        if not self.heads:
            ranges = np.arange(TREE_RANGES, dtype=np.int32)
            for position in range(TREE_RANGES):
                self.positions.append(position)
                self.contents.append(np.arange(number, number + RANGE_ENTRIES, dtype=np.int32))
                number += RANGE_ENTRIES
            self.commits.append(Made(None, 0, date, ranges))
            self.heads.append(place)
            return number
        branch = 0
        due = round(BRANCHES * self.scale * min(1.0, place / (COMMITS * self.scale)))
        if len(self.heads) < max(due, 1):
            branch = len(self.heads)
            self.heads.append(self.heads[0])
        elif rng.random() < 0.5:
            branch = int(rng.integers(len(self.heads)))
        parent = self.heads[branch]
        ranges = self.commits[parent].ranges.copy()
        for position in rng.choice(TREE_RANGES, RANGES_PER_COMMIT, replace=False):
            objects = self.contents[ranges[position]].copy()
            slots = rng.choice(RANGE_ENTRIES, self.replaced, replace=False)
            objects[slots] = np.arange(number, number + self.replaced)
            number += self.replaced
            ranges[position] = len(self.contents)
            self.contents.append(objects)
            self.positions.append(int(position))
        self.commits.append(Made(parent, branch, date, ranges))
        self.heads[branch] = place
        return number

    def policy(self, change: int) -> dict[str, Any]:
        """Rules that count, so that it does not matter when a run begins; each change of
        everything lets a share of the trunk's commits go."""
        trunk = round(COMMITS * self.scale * (0.3 - CHANGE * change / 2))
        return {"default": {"keep_last": 10}, "branches": {"main": {"keep_last": trunk}}}

    def useless(self, policy: dict[str, Any]) -> set[int]:
        """The objects that nothing needs by a policy: no commit that it keeps, and no branch."""
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
        """Where an object lies."""
        return f"data/{self.slices[self.slice_of[number]]}/{(number + 1) * _ODD & _MASK:032x}"


def _id(place: int) -> str:
    return f"{place:08x}{place * _ODD & (2**96 - 1):024x}"


def _name(branch: int) -> str:
    return "main" if branch == 0 else f"branch-{branch:05d}"


# Writing it

_now: History
"""What the processes of a pool inherit."""
_storage: Storage


def write(history: History, lake: Repository, store: Store) -> None:
    """Bring the store up to what has happened."""
    global _now, _storage
    _now, _storage = history, lake.context.storage
    first_range, last_range = len(history.infos), len(history.contents)
    first, last = history.objects_written, len(history.slice_of)
    with _pool(_storage) as pool:
        history.infos += pool.map(_write_range, range(first_range, last_range), chunksize=50)
        pool.map(_write_objects, list(_by_slices(history, first, last)), chunksize=4)
    places = range(history.commits_written, len(history.commits))
    with _pool(_storage) as pool:  # which knows the ranges
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
                row = BranchRow(tokens[-1], _name(number), _id(head), tokens[-1], (), now, None)
                insert_branch(tx, repository_id, row)
        insert_staged(tx, _staged_rows(history, tokens, repository_id, first, rng))
    with store.metadata.engine.connect() as connection:
        # As it is some time after so much was written.
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    history.objects_written, history.commits_written = last, len(history.commits)
    history.branches_written = len(history.heads)


def begun(scale: float) -> History:
    """What happens until a few hours ago."""
    now = datetime.now(UTC)
    history = History(scale, np.random.default_rng(SEED), replaced=121)
    history.grow(1.0, now - timedelta(days=365), now - timedelta(hours=3))
    return history


def change(history: History, lake: Repository, store: Store) -> None:
    """Let 1 % more happen, and bring the store up to it."""
    history.changes += 1
    now = datetime.now(UTC)
    history.grow(CHANGE, now, now + timedelta(seconds=1))
    write(history, lake, store)


def _pool(storage: Storage) -> Pool:
    """Processes that inherit what there is, for a directory; threads that wait, for a server."""
    if isinstance(storage, LocalStorage):
        return multiprocessing.get_context("fork").Pool(PROCESSES)
    return ThreadPool(THREADS)


def _staged_rows(
    history: History, tokens: Sequence[str], repository_id: str, first: int, rng: random.Random
) -> Iterator[tuple[Any, ...]]:
    """Of all objects from `first` on that are staged, in the order of STAGED_COLUMNS."""
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


def _by_slices(history: History, first: int, last: int) -> Iterator[list[int]]:
    """The objects of each slice."""
    of_new = history.slice_of[first:last]
    order = np.argsort(of_new, kind="stable") + first
    ends = np.flatnonzero(np.diff(history.slice_of[order])) + 1
    for piece in np.split(order, ends):
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


# Running


@dataclass(slots=True)
class Figures:
    """A run as seen from outside, memory in bytes: of the program, and of all its processes, but
    for files that they have mapped."""

    name: str
    report: dict[str, Any]
    seconds: float
    program: int = 0
    everything: int = 0

    def to_json(self) -> dict[str, Any]:
        """What is kept of it."""
        counted = ("listed_count", "live_count", "candidate_count", "deleted_count")
        return {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": self.seconds,
            "steps": self.report["seconds"],
            **{name: self.report[name] for name in counted},
            "program_bytes_max": self.program,
            "all_processes_bytes_max": self.everything,
        }


def run(name: str, directory: Path, mode: str, more: Mapping[str, str]) -> Figures:
    """Run the program, with more in its environment."""
    command = [
        *(str(Path(sys.executable).with_name("ebbtide")), "--store", str(directory)),
        *("gc", "run", "lake", "--yes", "--json", "--mode", mode),
        *("--grace", "1s", "--unsafe", "--allow-share"),
    ]
    environment = {
        **os.environ,
        "EBBTIDE_LEASE_TTL": "0s",
        "EBBTIDE_TRASH_TIME": "0s",
        # Each run closes what changed before it off, as if changes were days apart.
        "EBBTIDE_SLICE_AGE_MAX": "1s",
        **more,
    }
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        found = Figures(name, {}, 0)
        watcher = threading.Thread(target=_watch, args=(psutil.Process(program.pid), found))
        watcher.start()
        assert program.stdout is not None
        found.report = json.loads(program.stdout.read())
        program.wait()
        found.seconds = time.monotonic() - started
    watcher.join()
    return found


def _watch(process: psutil.Process, figures: Figures) -> None:
    with contextlib.suppress(psutil.Error):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            own = _memory(process.pid)
            figures.program = max(figures.program, own)
            children = 0
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    children += _memory(child.pid)
            figures.everything = max(figures.everything, own + children)
            time.sleep(0.1)


def _memory(pid: int) -> int:
    """Bytes that a process has for itself: a file that is mapped is the system's cache."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def deleted_objects(report: dict[str, Any]) -> set[str]:
    """What a run says that it deleted."""
    folder = RunFolder.at(report["run_path"])
    found: set[str] = set()
    for name in folder.names("deleted"):
        table = read_part(folder, name)
        wanted = pc.and_(
            pc.equal(table.column("kind"), pa.scalar("object", pa.string())),
            pc.equal(table.column("outcome"), pa.scalar("deleted", pa.string())),
        )
        found.update(texts(table.filter(wanted).column("address")))
    return found


def bare_listing(directory: Path) -> float:
    """Seconds that looking at each file takes without anything else, in one process."""
    started = time.monotonic()
    waiting = [str(directory)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
    return time.monotonic() - started


def show(figures: Figures, limit: float | None) -> None:
    """Print a run's figures."""
    report = figures.report
    share = "" if limit is None else f", {figures.seconds / limit:.1f} x a bare listing"
    print(f"{figures.name}: {figures.seconds:.1f} s{share}")
    print(f"  {report['state']}, {report['mode']} {report['mode_reason'] or ''}")
    for name in ("listed", "live", "candidate", "deleted"):
        print(f"  {name:<10}{report[f'{name}_count']:>12,} files")
    print("  " + ", ".join(f"{step} {spent:.1f}" for step, spent in report["seconds"].items()))
    print(
        f"  peak memory: the program {figures.program / 2**20:.0f} MiB, "
        f"all its processes {figures.everything / 2**20:.0f} MiB",
        flush=True,
    )


def saved(directory: Path) -> Path:
    """Where the history of a store is kept, for more runs of it."""
    return directory.with_name(f"{directory.name}.history")


def save(history: History, directory: Path) -> None:
    """Keep it."""
    with saved(directory).open("wb") as file:
        pickle.dump(history, file, protocol=pickle.HIGHEST_PROTOCOL)


@contextmanager
def built(directory: Path, scale: float) -> Iterator[tuple[History, Store, Repository]]:
    """The store in a directory: as it was left, or made."""
    settings = Settings(lease_ttl="0s", trash_time="0s")
    if saved(directory).exists():
        with saved(directory).open("rb") as file:
            history: History = pickle.load(file)
        with Store.open(directory, settings=settings) as store:
            yield history, store, store.repository("lake")
        return
    started = time.monotonic()
    history = begun(scale)
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


def clone(directory: Path) -> Path:
    """A copy of a store whose files are links to the same ones."""
    target = directory.with_name(f"{directory.name}.clone")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    subprocess.run(["cp", "-al", directory / "storage", target / "storage"], check=True)
    # By another process: to close a SQLite file is to drop the locks that this one has on it.
    subprocess.run(["cp", *directory.glob("*.*"), target], check=True)
    with sqlite3.connect(target / "metadata.db") as database:
        database.execute(
            "UPDATE repositories SET storage_url = replace(storage_url, ?, ?)",
            (f"{directory.absolute()}/", f"{target.absolute()}/"),
        )
    return target


PEERS: Final = ("duckdb", "deletes", "common")
LEFT: Final = {"duckdb": "left", "common": "deleted"}
"""What each says of how many files it found to be of no use."""


def compared(
    figures: Figures, directory: Path, peers: Sequence[str], copy: Path | None
) -> dict[str, Any]:
    """What the peers do of the same, each as a program of its own, the common method on a copy of
    the store; and the ratios."""

    def peer(*arguments: object) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.peers", *map(str, arguments)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        print(f"{arguments[0]}: {found}", flush=True)
        return found

    count = figures.report["deleted_count"]
    arguments: dict[str, tuple[object, ...]] = {
        "duckdb": (directory, figures.report["run_id"]),
        "deletes": (directory.with_name(f"{directory.name}.deletes"), count),
        "common": (copy,),
    }
    found = {name: peer(name, *arguments[name]) for name in PEERS if name in peers}
    if copy is not None:
        shutil.rmtree(copy)
    if len({found[p][left] for p, left in LEFT.items() if p in found} | {count}) > 1:
        sys.exit(f"the peers do not agree: {found}")
    spent = figures.report["seconds"]
    ratios = {}
    if "duckdb" in found:
        limit = found["duckdb"]["seconds"]["subtract"]
        mark = spent["mark"] + spent["subtract"]
        ratios["mark and subtract / duckdb"] = mark / limit
        ratios["reach, mark and subtract / duckdb"] = (mark + spent["reach"]) / limit
    if "deletes" in found:
        own = sum(s for step, s in spent.items() if step.startswith("sweep: delete"))
        ratios["rate of deletes / obstore's"] = found["deletes"]["seconds"]["delete"] / own
    if "common" in found:
        ratios["common / cold run"] = found["common"]["total_seconds"] / figures.seconds
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}", flush=True)
    return found | {"ratios": ratios}


def measure(
    directory: Path, scale: float, kinds: Sequence[str], *, is_listed: bool, peers: Sequence[str]
) -> None:
    """Build, run, check, change, run again."""
    with built(directory, scale) as (history, store, lake):
        content: dict[str, Any] = {"scale": history.scale, "files": len(history.slice_of)}
        limit = None
        if is_listed:
            limit = bare_listing(directory / "storage")
            print(f"bare listing: {limit:.1f} s", flush=True)
            content["bare_listing_seconds"] = limit
        seconds: dict[str, float] = {}
        for kind in kinds:
            if history.is_collected:
                change(history, lake, store)
                save(history, directory)
            if kind == "cold":
                shutil.rmtree(directory / "storage" / "lake" / INDEX_PREFIX, ignore_errors=True)
            policy = history.policy(history.changes)
            lake.retention.set(Policy.parse(policy))
            peers_now = peers if kind == "cold" else ()
            copy = clone(directory) if "common" in peers_now else None
            figures = collect(kind, history, policy, directory)
            seconds[kind] = figures.seconds
            content[kind] = figures.to_json()
            if peers_now:
                content["peers"] = compared(figures, directory, peers_now, copy)
            show(figures, limit)
            save(history, directory)
        if seconds:
            name = f"bottom-line-{history.scale:g}"
            content = results.read(name) | content
            if "incremental" in content:
                for kind in {"cold", "warm"} & content.keys():
                    ratio = content["incremental"]["seconds"] / content[kind]["seconds"]
                    print(f"incremental / {kind}: {ratio:.3f}")
                    content[f"incremental / {kind}"] = ratio
            print(results.write(name, content))


def collect(
    kind: str,
    history: History,
    policy: dict[str, Any],
    directory: Path,
    more: Mapping[str, str] | None = None,
) -> Figures:
    """A run, of which what it deleted is what is of no use. The program has `more` in its
    environment."""
    expected = history.useless(policy)
    time.sleep(2)  # the grace is one second
    mode = "incremental" if kind == "incremental" else "clean"
    figures = run(NAMES[kind], directory, mode, more or {})
    deleted = deleted_objects(figures.report)
    wanted = {history.address(number) for number in expected}
    if deleted != wanted:
        show(figures, None)
        sys.exit(f"{len(deleted - wanted)} too many, {len(wanted - deleted)} too few")
    history.gone |= expected
    history.is_collected = True
    return figures


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--directory", type=Path, help="where to build, or what was built; kept")
    parser.add_argument("--runs", nargs="*", choices=NAMES, default=list(NAMES), help="none: build")
    parser.add_argument("--no-listing", action="store_true", help="measure no bare listing")
    parser.add_argument(
        *("--peers", "-p"), nargs="*", choices=PEERS, help="compare the cold run with these, or all"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary:
        directory = options.directory or Path(temporary) / "store"
        measure(
            directory,
            options.scale,
            options.runs,
            is_listed=not options.no_listing,
            peers=() if options.peers is None else options.peers or PEERS,
        )


if __name__ == "__main__":
    main()
