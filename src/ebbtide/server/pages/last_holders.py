"""Finds the branch and the directory that held a plan's candidates last, and the paths of single
candidates.

It reads the trees of the expired commits, the newest first, up to a limit. Only the page of a run
uses it: a plan does not need it. Commits that a run has forgotten since cannot be read. Not for:
why a single file was deleted (`audit`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import counts, texts
from ebbtide.errors import Refused
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.plan import COMMITS_FILE, REFS_FILE, Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.server.pages.charts import Bar, bars
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.content.ranges import RangeInfo, read_range_columns
from ebbtide.store.content.trees import Tree, read_tree
from ebbtide.store.database.commit_rows import find_commits
from ebbtide.store.repository import Repository
from ebbtide.text import count_text

OBJECTS_MAX: Final = 1_000_000
"""If a plan has more objects, no trees are read, because all objects are held in memory."""
TREES_MAX: Final = 1_000
RANGES_MAX: Final = 4_000
PATH_RANGES_MAX: Final = 1_000
"""The most ranges that are read for the paths of one page of candidates."""
READERS: Final = 16
BARS_SHOWN: Final = 12
OBJECT: Final = "object"
COLLECTION: Final = "(a collection)"
NO_BRANCH: Final = "(on no branch any more)"
NEVER: Final = "(never committed)"
UNKNOWN: Final = "(not known)"


@dataclass(frozen=True, slots=True)
class LastHolders:
    """The objects among a plan's candidates, by the branch that held them last, and by directory.

    If the answer is not `complete`, some commits were left out. They may have held the objects
    under `UNKNOWN`.
    """

    branches: Sequence[Bar]
    places: Sequence[Bar]
    complete: bool


@dataclass(frozen=True, slots=True)
class _Commit:
    commit_id: str
    label: str


def find_last_holders(repository: Repository, plan: Plan, folder: RunFolder) -> LastHolders | None:
    """Returns the last holders of a plan's objects; None if the plan has no objects, more than
    OBJECTS_MAX, or no list of commits. Raises Refused `plan_corrupt`."""
    parts = [part for part in plan.candidates if part.kind == OBJECT]
    if not parts or sum(part.rows for part in parts) > OBJECTS_MAX or plan.commits is None:
        return None
    held = _Held(folder, parts)
    commits = _expired(folder, plan, repository.info.default_branch)
    scan = _Scan(repository, commits, ranges_max=RANGES_MAX)
    for commit, table in scan.tables():
        held.take(table, commit.label)
        if held.is_done:
            break
    return held.answer(complete=held.is_done or scan.complete)


@dataclass(frozen=True, slots=True)
class LastPath:
    """The path of an object in the newest expired commit that has it."""

    path: str
    commit_id: str
    label: str


@dataclass(frozen=True, slots=True)
class LastPaths:
    """The last paths of some objects, by address. If the answer is not `complete`, other commits
    may have had the objects that are missing here; otherwise no commit had them."""

    by_address: Mapping[str, LastPath]
    complete: bool


def find_last_paths(
    repository: Repository, plan: Plan, folder: RunFolder, addresses: Collection[str]
) -> LastPaths:
    """Returns where some of a plan's objects were last. It reads at most TREES_MAX trees and
    PATH_RANGES_MAX ranges. Raises Refused `plan_corrupt`."""
    found: dict[str, LastPath] = {}
    if not addresses or plan.commits is None:
        return LastPaths(found, complete=not addresses)
    wanted = pa.array(sorted(addresses), pa.string())
    commits = _expired(folder, plan, repository.info.default_branch)
    scan = _Scan(repository, commits, ranges_max=PATH_RANGES_MAX)
    for commit, table in scan.tables():
        rows = table.filter(pc.is_in(table.column("address"), value_set=wanted))
        for address, path in zip(texts(rows["address"]), texts(rows["path"]), strict=True):
            found.setdefault(address, LastPath(path, commit.commit_id, commit.label))
        if len(found) == len(wanted):
            break
    return LastPaths(found, complete=len(found) == len(wanted) or scan.complete)


class _Scan:
    """Reads the entries of commits, in order, each range once. After `tables` has ended,
    `complete` says whether every entry of every commit was read."""

    def __init__(
        self, repository: Repository, commits: Sequence[_Commit], *, ranges_max: int
    ) -> None:
        self._repository = repository
        self._commits = commits
        self._ranges_max = ranges_max
        self.complete = len(commits) <= TREES_MAX

    def tables(self) -> Iterator[tuple[_Commit, pa.Table]]:
        """Yields the entries of each range (columns `path` and `address`), with the first commit
        that has the range."""
        seen: set[str] = set()
        with ThreadPoolExecutor(READERS) as readers:
            for commit, tree in _trees(self._repository, self._commits[:TREES_MAX], readers):
                if tree is None:
                    self.complete = False
                    continue
                fresh = [info for info in tree.ranges if info.range_id not in seen]
                if len(seen) + len(fresh) > self._ranges_max:
                    self.complete = False
                    return
                seen.update(info.range_id for info in fresh)
                for table in readers.map(lambda info: _range(self._repository, info), fresh):
                    if table is None:
                        self.complete = False
                    else:
                        yield commit, table


class _Held:
    """The objects among the candidates, each with its branch and directory as far as known."""

    def __init__(self, folder: RunFolder, parts: Sequence[Part]) -> None:
        tables = [
            read_part(folder, part.name, part.checksum, columns=("address", "size_bytes"))
            for part in parts
        ]
        table = pa.concat_tables(tables)
        addresses = np.array(texts(table.column("address")), dtype=np.bytes_)
        order = np.argsort(addresses)
        self._addresses = addresses[order]
        self._sizes = np.asarray(counts(table.column("size_bytes")), dtype=np.int64)[order]
        self._labels: list[str] = []
        self._label = np.full(len(addresses), -1, dtype=np.int32)
        self._places: dict[str, int] = {}
        self._place = np.full(len(addresses), -1, dtype=np.int32)

    @property
    def is_done(self) -> bool:
        return bool((self._label >= 0).all())

    def take(self, table: pa.Table, label: str) -> None:
        """Records the label and directory of each object in a range, unless a newer commit referred
        to the object."""
        inside = pc.starts_with(table.column("address"), DATA_PREFIX)
        table = table.filter(inside)
        asked = np.array(texts(table.column("address")), dtype=np.bytes_)
        if not len(asked):
            return
        found = np.searchsorted(self._addresses, asked).clip(max=len(self._addresses) - 1)
        rows = np.flatnonzero((self._addresses[found] == asked) & (self._label[found] < 0))
        if not len(rows):
            return
        if label not in self._labels:
            self._labels.append(label)
        self._label[found[rows]] = self._labels.index(label)
        for row, path in zip(rows, texts(table.column("path").take(rows)), strict=True):
            place = _place_of(path)
            self._place[found[row]] = self._places.setdefault(place, len(self._places))

    def answer(self, *, complete: bool) -> LastHolders:
        rest = NEVER if complete else UNKNOWN
        return LastHolders(
            bars(self._rows(self._label, self._labels, rest)),
            bars(self._rows(self._place, list(self._places), rest)),
            complete,
        )

    def _rows(
        self, numbers: np.ndarray[Any, np.dtype[np.int32]], names: Sequence[str], rest: str
    ) -> list[tuple[str, int, int]]:
        """Returns rows of name, file count and bytes: the names with the most bytes, one row for
        all other names, and one row `rest` for objects without a name."""
        files = np.bincount(numbers + 1, minlength=len(names) + 1)
        sizes = np.zeros(len(names) + 1, dtype=np.int64)
        np.add.at(sizes, numbers + 1, self._sizes)
        rows = [
            (name, int(count), int(size))
            for name, count, size in zip(names, files[1:], sizes[1:], strict=True)
        ]
        rows.sort(key=lambda row: (-row[2], row[0]))
        shown, others = rows[:BARS_SHOWN], rows[BARS_SHOWN:]
        if others:
            total = sum(size for _, _, size in others)
            shown.append(
                (count_text(len(others), "other"), sum(count for _, count, _ in others), total)
            )
        if files[0]:
            shown.append((rest, int(files[0]), int(sizes[0])))
        return shown


def _place_of(path: str) -> str:
    """Returns the directory of a path, two levels deep."""
    parts = path.split("/")[:-1][:2]
    return "/".join(parts) + "/" if parts else "(top)"


def _expired(folder: RunFolder, plan: Plan, default_branch: str) -> list[_Commit]:
    """Returns the commits that the plan expires, the newest first, then the commits that had
    expired before.

    Each commit is labelled with the branch on whose main ancestry it lies. If there are several,
    the default branch comes first, then the others by name.
    """
    assert plan.commits is not None and plan.refs is not None  # a plan has both lists or neither
    columns = ("commit_id", "created_at", "active", "parent_ids", "tombstoned", "is_content")
    rows = read_part(folder, COMMITS_FILE, plan.commits.checksum, columns=columns).to_pylist()
    refs = read_part(folder, REFS_FILE, plan.refs.checksum).to_pylist()
    first_parents = {row["commit_id"]: next(iter(row["parent_ids"]), None) for row in rows}
    labels = _by_branch(
        first_parents,
        sorted(
            ((ref["name"], ref["commit_id"]) for ref in refs if ref["kind"] == "branch"),
            key=lambda ref: (ref[0] != default_branch, ref[0]),
        ),
    )
    gone = [row for row in rows if not row["active"]]
    gone.sort(key=lambda row: (row["tombstoned"], -row["created_at"].timestamp()))
    return [
        _Commit(
            row["commit_id"],
            COLLECTION if row["is_content"] else labels.get(row["commit_id"], NO_BRANCH),
        )
        for row in gone
    ]


def _by_branch(
    first_parents: Mapping[str, str | None], heads: Iterable[tuple[str, str]]
) -> dict[str, str]:
    labels: dict[str, str] = {}
    for name, head in heads:
        place: str | None = head
        while place is not None and place not in labels:
            labels[place] = name
            place = first_parents.get(place)
    return labels


def _trees(
    repository: Repository, commits: Sequence[_Commit], readers: ThreadPoolExecutor
) -> Iterator[tuple[_Commit, Tree | None]]:
    """Yields commits with their trees, in order; None if the tree cannot be read any more."""
    context = repository.context
    for start in range(0, len(commits), READERS):
        some = commits[start : start + READERS]
        with context.metadata.snapshot() as tx:
            ids = [commit.commit_id for commit in some]
            records = find_commits(tx, context.repository_id, ids)

        def read(commit: _Commit, records: Mapping[str, Any] = records) -> Tree | None:
            record = records.get(commit.commit_id)
            if record is None or record.tree_id is None:
                return None
            try:
                return read_tree(repository.storage, record.tree_id, record.tree_checksum)
            except Refused:
                return None

        yield from zip(some, readers.map(read, some), strict=True)


def _range(repository: Repository, info: RangeInfo) -> pa.Table | None:
    try:
        return read_range_columns(
            repository.storage,
            info.range_id,
            info.checksum,
            entry_count=info.entry_count,
            columns=["path", "address"],
        )
    except Refused:
        return None
