"""What a subtraction finds: its classes, its figures, and the parts of what may go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import split_by
from ebbtide.errors import Refused
from ebbtide.gc.counts import Count
from ebbtide.gc.parts import Part, PartRows
from ebbtide.gc.relations.inventory import INVENTORY_SCHEMA, check_keys
from ebbtide.gc.runs import RunFolder

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


@dataclass(frozen=True, slots=True)
class Subtracted:
    """The candidates as parts (CANDIDATE_SCHEMA, one kind each), what is remembered as parts of the
    same schema with the key by which each row is judged, what of it is settled apart from the
    others, and the counts of each class."""

    candidates: tuple[Part, ...]
    remaining: tuple[Part, ...]
    settled: tuple[Part, ...]
    counts: dict[str, Count]


CANDIDATES: Final = "candidates"
REMAINING: Final = "remaining"
"""The relation of what is remembered, and looked at by the next run."""
SETTLED: Final = "settled"
"""The relation of what is remembered, and looked at once it is dropped."""


def by_use(parts: Iterable[Part]) -> dict[str, tuple[Part, ...]]:
    """The parts that were written, as the fields of Subtracted that they are for."""
    found: dict[str, list[Part]] = {CANDIDATES: [], REMAINING: [], SETTLED: []}
    for part in parts:
        if part.name is not None:
            found[part.relation].append(part)
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
        relations = [(CANDIDATES, kind) for kind in kinds] + [(REMAINING, ""), (SETTLED, "")]
        self._gathered: dict[tuple[str, str], list[pa.Table]] = {each: [] for each in relations}
        self._written = dict.fromkeys(self._gathered, 0)

    def add(self, table: pa.Table) -> None:
        """Take candidates, rows of CANDIDATE_SCHEMA with keys, which are checked."""
        try:
            check_keys(table)
        except Refused as error:
            self._answer.failed(error)
            return
        for kind, of_kind in split_by(table.drop_columns("key"), "kind"):
            self._gather((CANDIDATES, kind), of_kind)

    def remember(self, table: pa.Table) -> None:
        """Take what stays: rows of CANDIDATE_SCHEMA with keys, and `settled`, which says what of it
        is."""
        settled: Any = table.column("settled")
        rows = table.drop_columns("settled")
        self._gather((SETTLED, ""), rows.filter(settled))
        self._gather((REMAINING, ""), rows.filter(pc.invert(settled)))

    def _gather(self, share: tuple[str, str], table: pa.Table) -> None:
        if not table.num_rows:
            return
        gathered = self._gathered[share]
        gathered.append(table)
        if sum(part.num_rows for part in gathered) >= ROWS_PER_PART:
            self._flush(share)

    def finish(self) -> None:
        """Write what is left."""
        for share, tables in self._gathered.items():
            if tables:
                self._flush(share)

    def _flush(self, share: tuple[str, str]) -> None:
        (relation, kind), table = share, pa.concat_tables(self._gathered[share])
        is_candidate = relation == CANDIDATES
        if is_candidate:
            # What was written together lies together on a disk, and goes faster together.
            table = table.sort_by("last_modified")
        for start in range(0, table.num_rows, ROWS_PER_PART):
            number = f"{self._number:05d}-{self._written[share]:03d}"
            name = f"{relation}/{kind or relation}-{number}.parquet"
            piece = table.slice(start, ROWS_PER_PART)
            self._answer.wrote(
                self._folder,
                name,
                piece,
                relation=relation,
                group=kind or relation,
                durable=is_candidate,
            )
            self._written[share] += 1
        self._gathered[share] = []
