"""Stores and repositories for programs: policy, plans, sweeps, explanations and undo.

A program gets a plan as its figures, and its candidates as Arrow or Spark rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack

import pyarrow as pa

from ebbtide.api.collected import Collected, open_collected
from ebbtide.api.engines import Hidden, engine_on, make_engine
from ebbtide.errors import Incomplete, Refused
from ebbtide.gc.candidates import CANDIDATE_SCHEMA
from ebbtide.gc.parts import Count, read_batches
from ebbtide.gc.plan import Plan
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.whatif import WhatIf
from ebbtide.retention import Policy
from ebbtide.run_request import (
    Period,
    PlanAndSweepOptions,
    PlanOptions,
    SweepOptions,
    require_known,
)
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ebbtide.audit.answers import ExplainedAddress, ExplainedCommit
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.engines.base import Engine


COLUMNS: Final = ("kind", "address", "size_bytes", "last_modified")
"""The columns of candidates."""
SCHEMA: Final = pa.schema([CANDIDATE_SCHEMA.field(name) for name in COLUMNS])
ROWS_PER_BATCH: Final = 20_000

EXPLAINED_MAX: Final = 20


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
        from ebbtide.gc.engines.spark.engine import frame_of_parts

        return frame_of_parts(spark, self.folder, self.plan.candidates, SCHEMA)


def require_done(report: RunReport) -> RunReport:
    """Returns the report of a run that did its work. Raises Refused with the kind of the gate if
    the run was refused; the detail `run_id` names the run."""
    if report.state == "refused" and report.error is not None:
        raise Refused(report.error["kind"], report.error["message"], run_id=report.run_id)
    return report


Run = str | RunReport | PlannedRun
"""A run: its id, the beginning of its id, `"latest"`, its report, or its plan."""


def open_store(place: str | Path | None = None, *, settings: Settings | None = None) -> Store:
    """Opens a store: in a directory, or in the database of a URL (`postgresql://…`).

    Without `place`, `EBBTIDE_STORE` or `EBBTIDE_DATABASE_URL` names it. The store is a context
    manager, and `Store.repository` returns a repository for reading, writing and committing.

    Raises NotFound `store_not_found`, InvalidInput `invalid_argument`, Failed `schema_outdated` or
    `database_error`.
    """
    settings = Settings() if settings is None else settings
    if isinstance(place, str) and "://" in place:
        chosen = settings.model_copy(update={"database_url": place})
        return Store.open(None, settings=chosen)
    return Store.open(None if place is None else Path(place), settings=settings)


def open_repository(
    name: str,
    *,
    store: Store | str | Path | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    run_dir: str | None = None,
    quiet: bool = False,
    settings: Settings | None = None,
) -> CollectedRepository:
    """Opens a repository, to collect it: `"lake"`, `"icechunk:PATH"` or `"lakefs:NAME"`.

    - `store`: for a repository of a store, the store, or the argument of `open_store`. A store that
      this function opens is closed with the repository.
    - `spark`: the Spark session for plans and sweeps, which stays open.
    - `master`: without `spark`, a Spark master, or `"duckdb"` for DuckDB in this process. The
      default is that of `EBBTIDE_ENGINE` and `EBBTIDE_SPARK_MASTER`.
    - `run_dir`: a directory or URL for the files of runs. The default is the repository's storage.
    - `quiet`: for Icechunk, no session is open: files that were reachable within the grace can be
      deleted too.

    Raises NotFound `repository_not_found` or `store_not_found`, InvalidInput `invalid_argument` or
    `invalid_setting`, Refused, Failed.
    """
    settings = Settings() if settings is None else settings
    with ExitStack() as opened:

        def open_its_store() -> Store:
            if isinstance(store, Store):
                return store
            return opened.enter_context(open_store(store, settings=settings))

        found = open_collected(
            name, settings=settings, store=open_its_store, run_dir=run_dir, quiet=quiet
        )

        def engine() -> Engine:
            if spark is not None:
                return engine_on(spark, found.settings)
            return make_engine(found.settings, master, Hidden())

        return CollectedRepository(
            found, engine=engine, run_dir=run_dir, until_closed=opened.pop_all()
        )


class CollectedRepository:
    """A repository of any format, with its policy and its runs. `open_repository` returns it.

    A context manager: at the end of the block, it closes what it opened. Methods that delete take a
    lease, so that two processes never sweep one repository at the same time.
    """

    def __init__(
        self,
        collected: Collected,
        *,
        engine: Callable[[], Engine],
        run_dir: str | None,
        until_closed: ExitStack,
    ) -> None:
        self._collected = collected
        self._make_engine = engine
        self._run_dir = run_dir
        self._until_closed = until_closed

    @property
    def name(self) -> str:
        """The name, as `open_repository` takes it."""
        return self._collected.name

    @property
    def policy(self) -> Policy | None:
        """The retention policy in force. None: everything is kept.

        Raises NotFound `policy_not_found` for Icechunk and Iceberg, which have no policy.
        """
        return self._collected.with_policy.policy()

    def set_policy(self, policy: Policy | Mapping[str, object] | None) -> tuple[str, ...]:
        """Sets the policy, or removes it (None). A mapping has the form of a policy's JSON.

        Returns the patterns that match no branch now. Raises InvalidInput `invalid_policy` or
        `invalid_duration`, and NotFound `policy_not_found` for Icechunk and Iceberg.
        """
        chosen = None if policy is None else _policy(policy)
        return self._collected.with_policy.set_policy(chosen)

    def plan(self, **options: Unpack[PlanOptions]) -> PlannedRun:
        """Plans which files to delete, and deletes nothing, by `run_request.PlanOptions`.

        Raises Refused if a gate refuses; the kind and the message name it, and the detail `run_id`
        names the run. Raises InvalidInput `unsafe_grace`, `invalid_inventory`, `invalid_argument`
        or `invalid_duration`, and Failed.
        """
        require_known(options, PlanOptions)
        collector = self._collector(**options)
        return _planned(collector, require_done(collector.plan()))

    def sweep(self, run: Run | None = None, **options: Unpack[SweepOptions]) -> RunReport:
        """Carries out a plan: deletes its candidates, except those that are needed again.
        Its options are `run_request.SweepOptions`.

        Without `run`, the newest plan that was not swept. Without a `quarantine` the files are
        deleted at once, except for lakeFS, where the default is 7 days.

        Raises Incomplete `incomplete` if part of the files is left: sweep the same run again.
        Raises Refused if a gate refuses; nothing is deleted then. Raises NotFound `run_not_found`
        and Conflict `plan_used`.
        """
        require_known(options, SweepOptions)
        collector = self._collector(**options)
        return _whole(collector.sweep(None if run is None else _found(collector, run)))

    def run(
        self,
        *,
        confirm: Callable[[PlannedRun], bool] | None = None,
        **options: Unpack[PlanAndSweepOptions],
    ) -> RunReport:
        """Plans a run and sweeps it, with the options of `plan` and `sweep`.

        `confirm` is called with the plan. If it returns False, nothing is deleted, and the state of
        the report is `planned`. Raises as `plan` and `sweep` do.
        """
        require_known(options, PlanAndSweepOptions)
        collector = self._collector(**options)
        planned = _planned(collector, require_done(collector.plan()))
        if confirm is not None and not confirm(planned):
            return planned.report
        return _whole(collector.sweep(planned.run_id))

    def explain(
        self,
        what: str,
        path: str | None = None,
        *,
        grace: Period | None = None,
        limit: int = EXPLAINED_MAX,
    ) -> ExplainedAddress | ExplainedCommit:
        """Explains why a file or commit exists and until when, or which run deleted it.

        `what` is an address within the storage root, a commit id, or a ref. With a `path`, the
        answer is for the object of the ref or commit there. Lists have at most `limit` rows.
        Changes nothing, and needs no Spark.

        Raises NotFound `ref_not_found`, `commit_not_found` or `object_not_found`, InvalidInput
        `invalid_argument`, and Refused if a file that the answer depends on cannot be read.
        """
        return self._collected.explainer(limit=limit, grace=grace).explain(what, path)

    def what_if(
        self, *policies: Policy | Mapping[str, object], grace: Period | None = None
    ) -> WhatIf:
        """Compares plans with other policies and with the present one. Changes nothing.

        The result has `present`, and `others` in the order of `policies`: each with `reclaimable`,
        the count of files and bytes that a plan would delete. Raises as `plan` and `set_policy` do.
        """
        _ = self._collected.with_policy  # raises for a repository that has none
        chosen = [_policy(each) for each in policies]
        return self._collector(grace=grace, unsafe=True, mode="clean").what_if(chosen)

    def runs(self) -> list[RunReport]:
        """Returns the reports of all recorded runs, newest first. Needs no Spark."""
        return self._reading().runs()

    def show(self, run: Run) -> RunReport:
        """Returns the report of a run. Raises NotFound `run_not_found`, and Refused if its files
        are damaged. Needs no Spark."""
        collector = self._reading()
        return collector.show(_found(collector, run))

    def planned(self, run: Run) -> PlannedRun:
        """Returns the plan of an earlier run, swept or not. Raises as `show` does. Needs no
        Spark."""
        collector = self._reading()
        run_id = _found(collector, run)
        return _planned(collector, collector.show(run_id))

    def undo(self, run: Run, *, under: str = "", sweeps_ended: bool = False) -> RunReport:
        """Restores the files that a sweep quarantined, and opens the commits that it closed.

        With `under`, only files whose addresses begin with it, and no commit. `sweeps_ended` states
        that no process of any sweep exists any more: it also restores files that an interrupted
        sweep was about to delete. If files are left in quarantine, the state of the report is not
        `undone`.

        Raises NotFound `run_not_found` or `not_quarantined`, Conflict `plan_used`, InvalidInput
        `invalid_argument` if the format has no undo, Refused, and Failed `storage_error`.
        """
        collector = self._collector()
        run_id = _found(collector, run)
        return require_done(collector.undo(run_id, under=under, sweeps_ended=sweeps_ended))

    def close(self) -> None:
        """Closes the store, if `open_repository` opened it. Spark runs until the program ends."""
        self._until_closed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def _engine(self) -> Engine:
        return self._make_engine()

    def _collector(self, **options: Unpack[PlanAndSweepOptions]) -> Collector:
        chosen = self._collected.options(run_dir=self._run_dir, **options)
        return self._collected.collector(self._engine, chosen)

    def _reading(self) -> Collector:
        return self._collected.collector(options=self._collected.options(run_dir=self._run_dir))


def _policy(given: Policy | Mapping[str, object]) -> Policy:
    return given if isinstance(given, Policy) else Policy.parse(given)


def _planned(collector: Collector, report: RunReport) -> PlannedRun:
    run_id = report.run_id
    return PlannedRun(report, collector.plan_of(run_id), collector.folder_of(run_id))


def _found(collector: Collector, run: Run) -> str:
    return collector.find_run(run) if isinstance(run, str) else run.run_id


def _whole(report: RunReport) -> RunReport:
    """Returns the report of a complete sweep. Raises Refused and Incomplete."""
    if report.state == "incomplete" and report.error is not None:
        raise Incomplete("incomplete", report.error["message"], run_id=report.run_id)
    return require_done(report)
