"""A plan as a program gets it: its figures, and its candidates as Arrow or Spark rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ebbtide.errors import Refused
from ebbtide.gc.counts import Count
from ebbtide.gc.parts import read_batches
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.planning.subtract import CANDIDATE_SCHEMA
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = ("kind", "address", "size_bytes", "last_modified")
"""The columns of candidates."""
SCHEMA: Final = pa.schema([CANDIDATE_SCHEMA.field(name) for name in COLUMNS])
ROWS_PER_BATCH: Final = 20_000


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A plan that `CollectedRepository.plan` made, with its `report`, in `folder`. Nothing is
    deleted yet.

    `plan` has everything that the plan's file has, such as `by_ref`, `warnings` and `mode`.
    """

    report: RunReport
    plan: Plan
    folder: RunFolder

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.plan.run_id

    @property
    def file_count(self) -> int:
        """The number of files that a sweep would delete: the candidates."""
        return self.plan.candidate_total.objects

    @property
    def bytes_total(self) -> int | None:
        """The bytes of the candidates. None if the size of some was not read (option `sizes`)."""
        return self.plan.candidate_total.known_bytes

    @property
    def kinds(self) -> Mapping[str, Count]:
        """The counts of the candidates by kind, such as `data`. A Count has `objects` and
        `bytes_total`."""
        return self.plan.kinds

    @property
    def counts(self) -> Mapping[str, Count]:
        """The counts of all files by class: listed, live, protected, young and candidate."""
        return self.plan.counts

    @property
    def expired_count(self) -> int:
        """The number of commits that lose their data."""
        return self.plan.expired_count

    def candidates(self) -> pa.RecordBatchReader:
        """Returns the candidates as an Arrow reader, part by part; `read_all()` makes a table.

        Columns: `kind` (text), `address` (text, relative to the storage root), `size_bytes` (int64)
        and `last_modified` (timestamp in UTC, by the storage's clock). Sizes and dates are null if
        they were not read (option `sizes`). The order is by kind and then arbitrary. While rows are
        read, raises Refused `plan_corrupt` if a file of the plan is missing or damaged, and Failed
        `storage_error`.
        """
        return pa.RecordBatchReader.from_batches(SCHEMA, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for table in read_batches(
            self.folder, self.plan.candidates, SCHEMA, rows_max=ROWS_PER_BATCH
        ):
            yield from table.to_batches()

    def candidates_spark(self, spark: SparkSession) -> DataFrame:
        """Returns the candidates as a Spark DataFrame, with the columns of `candidates`.

        The executors read the plan's files, one part in each partition. They need this package, and
        access to the storage. Nothing is read before an action of the DataFrame.
        """
        from ebbtide.gc.engines.spark.parts import frame_of_parts

        return frame_of_parts(spark, self.folder, self.plan.candidates, SCHEMA)


def require_done(report: RunReport) -> RunReport:
    """Returns the report of a run that did its work. Raises Refused with the kind of the gate if
    the run was refused; the detail `run_id` names the run."""
    if report.state == "refused" and report.error is not None:
        raise Refused(report.error["kind"], report.error["message"], run_id=report.run_id)
    return report
