"""A preview of a change of history: the files that the change would make collectable.

It makes two plans, before and after the change, and sweeps neither of them. The result is the
candidates that only the second plan has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ebbtide.errors import Refused
from ebbtide.formats.base import RepositoryFormat
from ebbtide.gc.candidates import CANDIDATE_SCHEMA, NOT_COMMITTED, by_part, placed, rows_at
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.base import Batches, Engine, Query, answers_of
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import (
    ANSWERS_SCHEMA,
    Count,
    Part,
    PartRows,
    read_tables,
    total_by_kind,
)
from ebbtide.gc.plan import Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Observer, silent

FREED: Final = Query(
    """
    SELECT /*+ SHUFFLE_HASH(b) */ a.part, a.row
    FROM {after} a ANTI JOIN {before} b ON a.judged = b.judged
    """,
    NOT_COMMITTED.schema,
)
"""The candidates that only the second plan has."""
FILE_COLUMNS: Final = ("kind", "address", "size_bytes", "last_modified")


@dataclass(frozen=True, slots=True)
class Preview:
    """The counts by kind, and the first files in order of kind and address, as rows of
    FILE_COLUMNS."""

    kinds: dict[str, Count]
    files: list[dict[str, Any]]

    @property
    def total(self) -> Count:
        """The count of all kinds together."""
        return sum(self.kinds.values(), Count())


def preview(
    before: RepositoryFormat,
    after: RepositoryFormat,
    *,
    engine: Engine,
    options: RunOptions,
    files_max: int,
    observer: Observer = silent,
) -> Preview:
    """Plans for the repository as it is (`before`) and as it would be (`after`), and compares the
    candidates. Raises Refused if a gate refuses a plan."""

    def plan_of(repository: RepositoryFormat) -> tuple[Plan, RunFolder]:
        collector = Collector(repository, engine=engine, options=options, observer=observer)
        report = collector.plan()
        if report.error is not None:
            raise Refused(report.error["kind"], report.error["message"])
        return collector.plan_of(report.run_id), collector.folder_of(report.run_id)

    first, second = plan_of(before), plan_of(after)
    folder = second[1]
    freed = _freed(engine, first, second)
    kinds = dict(sorted(total_by_kind(freed).items()))
    return Preview(kinds, _first_files(folder, freed, files_max))


def _freed(
    engine: Engine, before: tuple[Plan, RunFolder], after: tuple[Plan, RunFolder]
) -> list[Part]:
    """Returns the candidates that only the second plan has, as parts (CANDIDATE_SCHEMA, one kind
    each)."""
    (old, old_folder), (new, folder) = before, after
    freed = engine.query(
        FREED,
        after=placed(engine, folder, new.candidates, by_target=False),
        before=placed(engine, old_folder, old.candidates, by_target=False),
    )

    def write(batches: Batches) -> Batches:
        answer = PartRows()
        for number, places in by_part(batches):
            part = new.candidates[number]
            rows = rows_at(folder, part, places, CANDIDATE_SCHEMA)
            name = f"freed/{part.kind}-{number:05d}.parquet"
            answer.wrote(folder, name, rows, relation="freed", kind=part.kind)
        yield answer.batch()

    tasks = engine.task_count
    return answers_of(freed.map(write, ANSWERS_SCHEMA, by=("part", "row"), tasks=tasks)).parts


def _first_files(folder: RunFolder, parts: list[Part], files_max: int) -> list[dict[str, Any]]:
    """Returns the first rows of `parts` in order of kind and address."""
    first = CANDIDATE_SCHEMA.empty_table()
    if not files_max:
        return []
    for table in read_tables(folder, parts, CANDIDATE_SCHEMA):
        both = pa.concat_tables([first, table])
        first = (
            both.sort_by([("kind", "ascending"), ("address", "ascending")])
            .slice(0, files_max)
            .combine_chunks()
        )
    return first.select(FILE_COLUMNS).to_pylist()
