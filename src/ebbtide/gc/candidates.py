"""What a subtraction finds: its classes, its figures, and the parts of what may go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import split_by
from ebbtide.errors import Refused
from ebbtide.gc.counts import Count
from ebbtide.gc.inventory import INVENTORY_SCHEMA, check_keys
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_rows
from ebbtide.gc.runs import RunFolder
from ebbtide.model import EPOCH
from ebbtide.storage import Storage

CANDIDATE_SCHEMA: Final = INVENTORY_SCHEMA
"""Candidates keep every column of the inventory."""

ROWS_PER_PART: Final = 50_000
CLASSES: Final = ("live", "protected", "young", "candidate")
"""What becomes of a listed file: the first of these that applies. What was purged is neither live
nor young.

A temporary file is protected with its target, but a live target does not need it any more. A file
that may have been written at or after the cutoff is young: a time in whole seconds may stand for
any instant of that second, and what vanished before anybody asked for its date counts too.
"""


UNKNOWN_MICROS: Final = 2**62
"""Later than any date: what nobody knows the date of is young."""


def micros_of(cutoff: datetime) -> int:
    """Microseconds since 1970."""
    return (cutoff - EPOCH) // timedelta(microseconds=1)


def latest_micros(last_modified: pa.ChunkedArray[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The latest instants that dates may stand for, in microseconds since 1970: a date in whole
    seconds stands for any instant of that second, and none for any."""
    micros = (
        last_modified.cast(pa.int64()).fill_null(pa.scalar(UNKNOWN_MICROS, pa.int64())).to_numpy()
    )
    return np.where(micros % 1_000_000 == 0, micros + 999_999, micros)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """What a subtraction is of: parts in `folder` of what was listed in the storage, is live, and
    is protected. What was listed without size and date, and does not stay, is looked at.

    Of the live, `required` must be among the listed, or be there all the same. Of the listed, those
    of `kinds` and older than `cutoff` may go. What stays without being live, in slices that sort
    behind `closed_after`, the next run will not list: it is remembered.

    Of what is protected and is not `untraced`, the format tells when it is dropped: it is settled.

    `purged` (parts of ADDRESS_SCHEMA) may go however young and whatever refers to it. Addresses,
    not keys: two that have one key must not go for each other."""

    folder: RunFolder
    storage: Storage
    inventory: list[Part]
    live: list[Part]
    required: list[Part]
    protected: list[Part]
    kinds: tuple[str, ...]
    cutoff: datetime
    closed_after: str | None = None
    untraced: list[Part] = field(default_factory=list)
    purged: list[Part] = field(default_factory=list)

    def read_purged(self) -> pa.ChunkedArray[Any]:
        """The purged addresses. Refused `plan_corrupt`."""
        return read_rows(self.folder, self.purged, ADDRESS_SCHEMA).column("address")


@dataclass(frozen=True, slots=True)
class Subtracted:
    """The candidates as parts (CANDIDATE_SCHEMA, one kind each), what is remembered as parts of the
    same schema with the key by which each row is judged, what of it is settled apart from the
    others, and the counts of each class.

    `all_listed` is true where everything required was seen among what was listed.
    """

    candidates: tuple[Part, ...]
    remaining: tuple[Part, ...]
    settled: tuple[Part, ...]
    counts: dict[str, Count]
    all_listed: bool


REMAINING: Final = "remaining"
"""The group of parts of what is remembered, and looked at by the next run."""
SETTLED: Final = "settled"
"""The group of parts of what is remembered, and looked at once it is dropped."""


def by_use(parts: Iterable[Part]) -> dict[str, tuple[Part, ...]]:
    """The parts that were written, as the fields of Subtracted that they are for."""
    found: dict[str, list[Part]] = {"candidates": [], REMAINING: [], SETTLED: []}
    for part in parts:
        if part.name is not None:
            found[part.group if part.group in found else "candidates"].append(part)
    return {name: tuple(of_use) for name, of_use in found.items()}


class CandidateWriter:
    """Gathers the candidates of one task into parts of one kind and a bounded size; and what is
    remembered, in parts of its own."""

    def __init__(
        self, folder: RunFolder, kinds: tuple[str, ...], number: int, answer: PartRows
    ) -> None:
        self._folder = folder
        self._number = number
        self._answer = answer
        self._gathered: dict[str, list[pa.Table]] = {
            kind: [] for kind in (*kinds, REMAINING, SETTLED)
        }
        self._written = dict.fromkeys(self._gathered, 0)

    def add(self, table: pa.Table) -> None:
        """Take candidates, rows of CANDIDATE_SCHEMA with keys, which are checked."""
        try:
            check_keys(table)
        except Refused as error:
            self._answer.failed(error)
            return
        for kind, of_kind in split_by(table.drop_columns("key"), "kind"):
            self._gather(kind, of_kind)

    def remember(self, table: pa.Table) -> None:
        """Take what stays: rows of CANDIDATE_SCHEMA with keys, and `settled`, which says what of it
        is."""
        settled: Any = table.column("settled")
        rows = table.drop_columns("settled")
        self._gather(SETTLED, rows.filter(settled))
        self._gather(REMAINING, rows.filter(pc.invert(settled)))

    def _gather(self, group: str, table: pa.Table) -> None:
        if not table.num_rows:
            return
        gathered = self._gathered[group]
        gathered.append(table)
        if sum(part.num_rows for part in gathered) >= ROWS_PER_PART:
            self._flush(group)

    def finish(self) -> None:
        """Write what is left."""
        for kind, tables in self._gathered.items():
            if tables:
                self._flush(kind)

    def _flush(self, kind: str) -> None:
        table = pa.concat_tables(self._gathered[kind])
        is_remembered = kind in (REMAINING, SETTLED)
        place = kind if is_remembered else "candidates"
        if not is_remembered:
            # What was written together lies together on a disk, and goes faster together.
            table = table.sort_by("last_modified")
        for start in range(0, table.num_rows, ROWS_PER_PART):
            name = f"{place}/{kind}-{self._number:05d}-{self._written[kind]:03d}.parquet"
            piece = table.slice(start, ROWS_PER_PART)
            self._answer.wrote(self._folder, name, piece, group=kind, durable=not is_remembered)
            self._written[kind] += 1
        self._gathered[kind] = []
