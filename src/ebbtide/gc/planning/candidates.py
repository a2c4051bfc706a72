"""The result of a subtraction: the classes of files, their counts, and the parts of candidates."""

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
"""Candidates have all columns of the inventory."""

ROWS_PER_PART: Final = 50_000
CLASSES: Final = ("live", "protected", "young", "candidate")
"""The classes of listed files. A file has the first class that applies to it.

A purged file is neither live nor young. A temporary file is protected if its target is protected.
It is not live if its target is live, because a live target does not need it any more. A file is
young if it may have been written at or after the cutoff. A date in whole seconds can mean any
instant of that second. A file that was deleted before its date could be read counts as young.
"""


@dataclass(frozen=True, slots=True)
class Subtracted:
    """The result of a subtraction.

    `candidates` are parts of CANDIDATE_SCHEMA, one kind each. `remaining` and `settled` are parts
    of the files to remember. They have one more column, `key`: the key of the address that a row is
    judged by. `counts` has the count of each class.
    """

    candidates: tuple[Part, ...]
    remaining: tuple[Part, ...]
    settled: tuple[Part, ...]
    counts: dict[str, Count]


CANDIDATES: Final = "candidates"
REMAINING: Final = "remaining"
"""The relation of remembered files that the next run looks at."""
SETTLED: Final = "settled"
"""The relation of remembered files that a run looks at only after they are reported as dropped."""


def by_use(parts: Iterable[Part]) -> dict[str, tuple[Part, ...]]:
    """Returns the written parts by their relation, which is the name of a field of Subtracted."""
    found: dict[str, list[Part]] = {CANDIDATES: [], REMAINING: [], SETTLED: []}
    for part in parts:
        found[part.relation].append(part)
    return {name: tuple(of_use) for name, of_use in found.items()}


class CandidateWriter:
    """Writes the candidates of one task as parts of one kind and a bounded size. Writes the files
    to remember as parts of their own."""

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
        """Adds candidates: rows of CANDIDATE_SCHEMA with a column `key`. If a key is wrong, adds an
        error to the answer instead (`check_keys`)."""
        try:
            check_keys(table)
        except Refused as error:
            self._answer.failed(error)
            return
        for kind, of_kind in split_by(table.drop_columns("key"), "kind"):
            self._gather((CANDIDATES, kind), of_kind)

    def remember(self, table: pa.Table) -> None:
        """Adds files to remember: rows of CANDIDATE_SCHEMA with a column `key`, and a column
        `settled` that is true for settled files."""
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
        """Writes the rows that are not written yet."""
        for share, tables in self._gathered.items():
            if tables:
                self._flush(share)

    def _flush(self, share: tuple[str, str]) -> None:
        (relation, kind), table = share, pa.concat_tables(self._gathered[share])
        is_candidate = relation == CANDIDATES
        if is_candidate:
            # Files written at the same time lie close together on a disk: deletes in this order
            # take less time.
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
                kind=kind,
                durable=is_candidate,
            )
            self._written[share] += 1
        self._gathered[share] = []
