"""The files of one table's log, and the versions that they can rebuild.

The listing alone decides: `_last_checkpoint`, checksums and compacted files are hints and are not
read here. A version can be rebuilt if a complete checkpoint at or before it, or version 0, begins
an unbroken row of commits up to it.

Source: Delta Transaction Log Protocol, "File Types".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

from ebbtide.arrow import rows_in
from ebbtide.errors import NotFound, Refused
from ebbtide.formats import base
from ebbtide.formats.delta.actions import read_checkpoint, sidecars_of
from ebbtide.formats.delta.places import DamagedLogError
from ebbtide.storage import Storage

LOG: Final = "_delta_log/"
SIDECARS: Final = "_sidecars/"
_VERSION_MAX: Final = 1 << 60

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_COMPACTED: Final = re.compile(r"([0-9]{20})\.([0-9]{20})\.compacted\.json")
_WHOLE: Final = re.compile(
    r"([0-9]{20})\.checkpoint(?:\.[0-9A-Fa-f-]{36}\.(?:json|parquet)|\.parquet)"
)
_PART: Final = re.compile(r"([0-9]{20})\.checkpoint\.([0-9]{10})\.([0-9]{10})\.parquet")

Stamp = tuple[int, datetime]
"""Size and date of a file of the log: a commit never changes."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: its version, and its files without sidecars, in order. Without files, the
    beginning of the log, at version -1."""

    version: int
    names: tuple[str, ...]


def checkpoint_of(name: str) -> Checkpoint:
    """Returns the checkpoint of which a name is the first file."""
    part = _PART.fullmatch(name)
    if part is None:
        return Checkpoint(int(name[:20]), (name,))
    count = int(part[3])
    names = (
        f"{part[1]}.checkpoint.{each:010d}.{count:010d}.parquet" for each in range(1, count + 1)
    )
    return Checkpoint(int(part[1]), tuple(names))


BEGINNING: Final = Checkpoint(-1, ())


def commit_name(version: int) -> str:
    """Returns the name of a commit's file."""
    return f"{version:020d}.json"


@dataclass(frozen=True, slots=True)
class TableLog:
    """The log of the table with the prefix `table`: commits, checkpoints by their version, and
    compacted files by their first and last version. `sizes` has the sizes of all files."""

    storage: Storage
    table: str
    commits: Mapping[int, Stamp]
    checkpoints: Mapping[int, list[Checkpoint]]
    compacted: Mapping[tuple[int, int], str]
    sizes: Mapping[str, int]
    _complete: dict[Checkpoint, bool] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The newest version of which the log has a file; -1 without any."""
        return max([*self.commits, *self.checkpoints], default=-1)

    def rows(self) -> Iterator[tuple[int, int]]:
        """Yields the unbroken rows of commits, each as its first and last version."""
        numbers = sorted(self.commits)
        edges = [n for n, each in enumerate(numbers) if n == 0 or numbers[n - 1] != each - 1]
        for start, end in pairwise([*edges, len(numbers)]):
            yield numbers[start], numbers[end - 1]

    def versions(self) -> list[int]:
        """Returns the versions that the log can rebuild and that have their commit, in order.
        Raises as `base`."""
        found: list[int] = []
        for first, last in self.rows():
            near = sorted(v for v in self.checkpoints if first - 1 <= v <= last)
            bases = (v for v in near if self._checkpoint(v) is not None)
            start = 0 if first == 0 else next(bases, None)
            found += [] if start is None else range(max(start, first), last + 1)
        return found

    def base(self, version: int) -> Checkpoint | None:
        """Returns the newest complete checkpoint that can begin the replay of a version, or
        BEGINNING, or None if the version cannot be rebuilt. Raises Refused `corrupt_tree` if a
        checkpoint cannot be read."""
        for first, last in self.rows():
            if first <= version <= last:
                near = (v for v in self.checkpoints if first - 1 <= v <= version)
                found = (self._checkpoint(v) for v in sorted(near, reverse=True))
                return next(filter(None, found), BEGINNING if first == 0 else None)
        return None

    def _checkpoint(self, version: int) -> Checkpoint | None:
        """Returns a checkpoint of a version that has all of its sidecars, or None."""
        for each in self.checkpoints.get(version, ()):
            if each not in self._complete:
                self._complete[each] = all(map(self._has_sidecars, each.names))
            if self._complete[each]:
                return each
        return None

    def _has_sidecars(self, name: str) -> bool:
        prefix = f"{self.table}{LOG}"
        with base.refusing(self.storage, prefix + name, what="tree", damaged=DamagedLogError):
            try:
                data = self.storage.get(prefix + name)
            except NotFound:
                return False
            cars = sidecars_of(read_checkpoint(data, name, tops=["sidecar"]))
        return all(self.storage.head(f"{prefix}{SIDECARS}{each}") is not None for each in cars)


def list_log(storage: Storage, table: str) -> TableLog:
    """Lists the log of the table with this prefix. Checkpoints of which a part is missing are left
    out. Raises Refused `corrupt_tree` for a version that no writer can make."""
    prefix = f"{table}{LOG}"
    found: dict[str, Stamp] = {
        str(address).removeprefix(prefix): (size, date)
        for batch in storage.list(prefix, recursive=False)
        for address, size, date, regular, _ in rows_in(batch)
        if regular
    }
    commits: dict[int, Stamp] = {}
    compacted: dict[tuple[int, int], str] = {}
    checkpoints = defaultdict[int, list[Checkpoint]](list)
    parts = defaultdict[tuple[int, int], list[str]](list)
    for name in sorted(found):
        if match := _COMMIT.fullmatch(name):
            commits[int(match[1])] = found[name]
        elif match := _COMPACTED.fullmatch(name):
            compacted[int(match[1]), int(match[2])] = name
        elif match := _WHOLE.fullmatch(name):
            checkpoints[int(match[1])].append(Checkpoint(int(match[1]), (name,)))
        elif match := _PART.fullmatch(name):
            parts[int(match[1]), int(match[3])].append(name)
    for (version, count), names in parts.items():
        # Counted first: a number in a name is no amount of work.
        if len(names) == count and checkpoint_of(names[0]).names == tuple(names):
            checkpoints[version].append(Checkpoint(version, tuple(names)))
    highest = max([*commits, *checkpoints], default=0)
    if highest > _VERSION_MAX:
        where = f"{storage.url}/{prefix}"
        raise Refused("corrupt_tree", f"{where} has a file of version {highest}: delete the file")
    sizes = {name: size for name, (size, _) in found.items()}
    return TableLog(storage, table, commits, checkpoints, compacted, sizes)
