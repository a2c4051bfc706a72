"""What a change of history would make collectable: two plans that nobody sweeps, and the files that
only the second one lets go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from ebbtide.errors import Refused
from ebbtide.formats.base import RepositoryFormat
from ebbtide.gc.candidates import CANDIDATE_SCHEMA
from ebbtide.gc.collector import Collector
from ebbtide.gc.counts import Count
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import read_frame
from ebbtide.gc.plan import Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Observer, silent

FILE_COLUMNS: Final = ("kind", "address", "size_bytes", "last_modified")


@dataclass(frozen=True, slots=True)
class Preview:
    """Counts by kind, and the first files by kind and address as rows of FILE_COLUMNS."""

    kinds: dict[str, Count]
    files: list[dict[str, Any]]

    @property
    def total(self) -> Count:
        """All kinds together."""
        return sum(self.kinds.values(), Count())


def preview(
    before: RepositoryFormat,
    after: RepositoryFormat,
    *,
    session: Callable[[], SparkSession],
    options: RunOptions,
    files_max: int,
    observer: Observer = silent,
) -> Preview:
    """Plan for the repository as it is and as it would be. Refused as a plan is."""

    def plan_of(repository: RepositoryFormat) -> tuple[Plan, RunFolder]:
        collector = Collector(repository, session=session, options=options, observer=observer)
        report = collector.plan()
        if report.error is not None:
            raise Refused(report.error["kind"], report.error["message"])
        return collector.plan_of(report.run_id), RunFolder.at(report.run_path)

    spark = session()
    first, second = plan_of(before), plan_of(after)
    old, new = (
        read_frame(spark, folder, plan.candidates, CANDIDATE_SCHEMA)
        for plan, folder in (first, second)
    )
    freed = new.join(old.select("address"), "address", "left_anti").cache()
    totals = freed.groupBy("kind").agg({"*": "count", "size_bytes": "sum"})
    kinds = {
        row["kind"]: Count(row["count(1)"], row["sum(size_bytes)"])
        for row in totals.orderBy("kind").collect()
    }
    rows = freed.select(*FILE_COLUMNS).orderBy("kind", "address")
    files = rows.limit(files_max).toArrow() if files_max else None
    freed.unpersist()
    return Preview(kinds, [] if files is None else files.to_pylist())
