"""Finds the branch and the directory that held a plan's candidates last.

It reads the trees of the expired commits, the newest first, up to a limit. Only the page of a run
uses it: a plan does not need it. Commits that a run has forgotten since cannot be read. Not for:
why a single file was deleted (`audit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import counts, texts
from ebbtide.audit.candidate_names import expired_commits
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.formats.file_names import NodeScan
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.plan import COMMITS_FILE, REFS_FILE, Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.server.pages.charts import Bar, bars
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.text import count_text

OBJECTS_MAX: Final = 1_000_000
"""If a plan has more objects, no trees are read, because all objects are held in memory."""
RANGES_MAX: Final = 4_000
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


def find_last_holders(
    form: EmbeddedRepository, plan: Plan, folder: RunFolder, *, default_branch: str
) -> LastHolders | None:
    """Returns the last holders of a plan's objects; None if the plan has no objects, more than
    OBJECTS_MAX, or no list of commits. Raises Refused `plan_corrupt`."""
    parts = [part for part in plan.candidates if part.kind == OBJECT]
    if not parts or sum(part.rows for part in parts) > OBJECTS_MAX or plan.commits is None:
        return None
    held = _Held(folder, parts)
    labels = _labels(folder, plan, default_branch)
    scan = NodeScan(
        expired_commits(plan, folder),
        nodes_of=form.ranges_of,
        read=form.entries_of,
        nodes_max=RANGES_MAX,
    )
    for commit, table in scan:
        label = COLLECTION if commit.is_content else labels.get(commit.commit_id, NO_BRANCH)
        held.take(table, label)
        if held.is_done:
            break
    return held.answer(complete=held.is_done or scan.complete)


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


def _labels(folder: RunFolder, plan: Plan, default_branch: str) -> dict[str, str]:
    """Returns the branch on whose main ancestry each commit lies. If there are several, the default
    branch comes first, then the others by name."""
    assert plan.commits is not None and plan.refs is not None  # a plan has both lists or neither
    columns = ("commit_id", "parent_ids")
    rows = read_part(folder, COMMITS_FILE, plan.commits.checksum, columns=columns).to_pylist()
    refs = read_part(folder, REFS_FILE, plan.refs.checksum).to_pylist()
    return _by_branch(
        {row["commit_id"]: next(iter(row["parent_ids"]), None) for row in rows},
        sorted(
            ((ref["name"], ref["commit_id"]) for ref in refs if ref["kind"] == "branch"),
            key=lambda ref: (ref[0] != default_branch, ref[0]),
        ),
    )


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
