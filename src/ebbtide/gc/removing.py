"""The collection of a gone repository as a whole: the plan of all its files, and the sweep.

A repository is gone when its time in the trash is over. Such a run has no mark, no gate on the
share and no grace, and revives no file. Safety rests on one fact instead: the repository is gone,
and every lease, write and token of it has ended. The plan checks this. The fence checks it again,
in the transaction that closes the repository, before the first delete.

The end of the sweep consists of steps that can be repeated. When all other files are deleted, a
record is written to the database. Then the run's own files are deleted, then OWNER is closed, and
last the repository's rows are deleted. The record is not one of these rows, and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from ebbtide.arrow import split_by, texts
from ebbtide.errors import Conflict, EbbtideError, Incomplete, InvalidInput, Refused
from ebbtide.formats.base import FOREIGN, RECORD, Layout, RunHold, Slices
from ebbtide.formats.capabilities import GoneFormat
from ebbtide.gc.collector import Collector, Confirm, always
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part
from ebbtide.gc.planning.classes import look_at_classes
from ebbtide.gc.planning.making import check_times
from ebbtide.gc.planning.plan import REMOVAL, AuditedRun, Plan
from ebbtide.gc.planning.subtract import Relations, subtract
from ebbtide.gc.planning.whatif import Alternative, WhatIf
from ebbtide.gc.relations.inventory import classified, list_inventory
from ebbtide.gc.relations.inventory_report import InventoryReport
from ebbtide.gc.relations.listing import listed_kinds
from ebbtide.gc.report import RunReport, swept_report
from ebbtide.gc.runs import FENCE_FILE, RunFolder
from ebbtide.gc.steps import Observer, Steps, silent
from ebbtide.gc.sweeping.outcomes import tally
from ebbtide.gc.sweeping.sweep import Sweep, Swept, check_parts, incomplete
from ebbtide.retention import Policy
from ebbtide.storage import Storage
from ebbtide.text import count_text

KEPT_SHOWN: Final = 20
_EVERYTHING: Final = datetime.max.replace(tzinfo=UTC)
"""A cutoff that is later than the date of any file."""


class Remover(Collector):
    """Collects a repository that is gone: deletes all its files, then its metadata."""

    def __init__(
        self,
        repository: GoneFormat,
        *,
        engine: Engine,
        options: RunOptions,
        observer: Observer = silent,
        preserve: Callable[[], None] = lambda: None,
    ) -> None:
        """`preserve` copies records that must outlast the storage to another place. It is called
        after the fence and before the first delete, and may be called again."""
        super().__init__(repository, engine=engine, options=options, observer=observer)
        self._gone = repository
        self._preserve = preserve

    def plan(self) -> RunReport:
        """Makes a plan as `Collector.plan` does. Raises Conflict `plan_used` if a sweep has emptied
        the storage and only its end is left to do."""
        removal = self._gone.emptied()
        if removal is not None:
            raise Conflict(
                "plan_used",
                f"run {removal.run_id} has emptied the storage: sweep it again, it continues "
                "where it stopped",
            )
        return super().plan()

    def run(self, confirm: Confirm = always) -> RunReport:
        """Makes and sweeps a plan as `Collector.run` does. If a sweep has emptied the storage,
        finishes that sweep instead."""
        return super().run(confirm) if self._gone.emptied() is None else self.sweep()

    def sweep(self, run_id: str | None = None) -> RunReport:
        """Carries out a plan as `Collector.sweep` does. If a sweep has emptied the storage,
        finishes that sweep instead."""
        removal = self._gone.emptied()
        if removal is None:
            return super().sweep(run_id)
        report = RunReport.from_json(removal.report)
        try:
            with self._gone.hold(report.run_id, deletes=True) as hold:
                return self._ended(report, hold)
        except Refused as error:
            return self._refused(report.run_id, self._folders.inside(report.run_id), error, {})

    def newest_unswept(self) -> str:
        """Returns the run that emptied the storage, if there is one. Otherwise returns the run of
        `Collector.newest_unswept`."""
        removal = self._gone.emptied()
        return super().newest_unswept() if removal is None else removal.run_id

    def plan_to_confirm(self, run_id: str) -> Plan | None:
        """Returns the plan to show before a sweep, or None if a sweep has emptied the storage and
        only its end is left to do."""
        return super().plan_to_confirm(run_id) if self._gone.emptied() is None else None

    def audited(self, run_id: str) -> AuditedRun:
        """Returns a run as `Collector.audited` does. A gone repository needs none of its files.

        Raises Refused `plan_foreign` if the plan was made before the repository was gone.
        """
        found = super().audited(run_id)
        _require_removal(found.plan)
        return replace(
            found,
            layout=self._gone.layout_of(run_id),
            check_removable=self._gone.check_removable,
        )

    def what_if(
        self,
        policies: Sequence[Policy],
        *,
        found: Callable[[Alternative], None] = lambda _each: None,
    ) -> WhatIf:
        """Raises InvalidInput `invalid_argument`: no policy applies to a gone repository."""
        del policies, found
        raise InvalidInput(
            "invalid_argument",
            f"{self._gone.identity.repository_name} is gone, and no policy applies to it: "
            "'ebbtide gc plan' shows the files that would be deleted",
        )

    def _check_grace(self) -> None:
        """Accepts any grace: no file is too young, because all writes have ended."""

    def _open_inventory(self, now: datetime) -> None:
        del now
        if self._options.inventory is not None:
            raise InvalidInput(
                "invalid_argument",
                "a run of a repository that is gone always lists the whole storage: give no "
                "inventory",
            )

    def _make_plan(
        self, run_id: str, folder: RunFolder, steps: Steps, given: InventoryReport | None
    ) -> Plan:
        del given  # there is none
        return make_removal_plan(
            self._engine,
            self._gone,
            run_id=run_id,
            folder=folder,
            options=self._options,
            steps=steps,
        )

    def _attempt(self, plan: Plan, folder: RunFolder, hold: RunHold, steps: Steps) -> Sweep:
        sweep = RemovalSweep(self._engine, self._gone, plan, folder, hold, self._options, steps)
        sweep.preserve = self._preserve
        return sweep

    def _conclude(
        self, plan: Plan, swept: Swept, folder: RunFolder, hold: RunHold, steps: Steps
    ) -> RunReport:
        """Ends the sweep if all deletes succeeded. Returns the report."""
        report = swept_report(
            plan,
            swept,
            run_path=folder.path,
            seconds=steps.seconds(),
            engine=self._engine.name,
        )
        if report.state != "swept":
            self._runs.finish(folder, report)
            return report
        with steps("look"):
            kept = self._look_at_rest(plan.run_id)
        if folder.storage == self._gone.storage:
            # The end deletes the run's files, and with them the outcome of each address.
            report = replace(report, run_path="")
        else:
            self._runs.finish(folder, report)
        report = replace(report, warnings=(*report.warnings, *kept))
        self._gone.record_emptied(hold, plan.run_id, report.to_json())
        return self._ended(report, hold)

    def _look_at_rest(self, run_id: str) -> tuple[str, ...]:
        """Lists the remaining files, without the run's own. Returns a warning if there are foreign
        files. Raises Incomplete if there are other files: they came after the plan."""
        try:
            # A client that opened the repository before it was gone may have begun a write.
            self._gone.check_removable()
        except Refused as error:
            raise incomplete(error) from error
        layout = self._gone.layout_of(run_id)
        counts: Counter[str] = Counter()
        kept: list[str] = []
        for batch in self._gone.storage.list():
            for kind, rows in split_by(classified(batch, layout), "kind"):
                addresses = texts(rows.column("address"))
                counts[kind] += len(addresses)
                if kind == FOREIGN:
                    kept += addresses[: KEPT_SHOWN - len(kept)]
        came = sum(counts[kind] for kind in layout.delete_order if kind != RECORD)
        if came:
            raise Incomplete(
                "incomplete",
                f"{count_text(came, 'file was', 'files were')} written to the storage after the "
                "plan was made: plan and sweep the repository again",
            )
        if not counts[FOREIGN]:
            return ()
        kept_text = count_text(
            counts[FOREIGN],
            "file that is not Ebbtide's is kept",
            "files that are not Ebbtide's are kept",
        )
        more = ", …" if counts[FOREIGN] > len(kept) else ""
        return (
            f"{self._gone.storage.url} is not empty: {kept_text} ({', '.join(sorted(kept))}{more})",
        )

    def _ended(self, report: RunReport, hold: RunHold) -> RunReport:
        """Ends a sweep that has emptied the storage. Returns its report, which is incomplete if a
        step failed: the storage has no place for it any more."""
        try:
            return self._end(report, hold)
        except EbbtideError as error:
            return report.interrupted(incomplete(error).message)

    def _end(self, report: RunReport, hold: RunHold) -> RunReport:
        """Deletes the files of runs, closes OWNER, and deletes the repository's rows in the
        database. Returns the report."""
        if self._gone.owns_storage():
            storage = self._gone.storage
            for addresses in self._records():
                if not self._gone.owns_storage():
                    break  # the remaining files belong to the new owner of the storage
                _delete(storage, addresses)
            else:
                for address in self._gone.last_addresses:
                    _delete(storage, [address])
                self._gone.close_storage()
        self._gone.drop_rows(hold)
        return report

    def _records(self) -> Iterator[list[str]]:
        """Yields the addresses of the files of all runs. Some are newer than the plan: refused runs
        leave files too."""
        layout = self._gone.layout_of("")
        for batch in self._gone.storage.list():
            for kind, rows in split_by(classified(batch, layout), "kind"):
                if kind == RECORD:
                    yield texts(rows.column("address"))


def _delete(storage: Storage, addresses: Sequence[str]) -> None:
    """Deletes files. Raises Incomplete if a file could not be deleted."""
    for found in storage.delete(addresses):
        if found.outcome == "failed":
            raise Incomplete(
                "incomplete",
                f"{found.address} could not be deleted ({found.error}). The files before it were "
                "deleted: sweep the run again",
            )


def _require_removal(plan: Plan) -> None:
    if plan.mode != REMOVAL:
        raise Refused(
            "plan_foreign",
            f"the plan of run {plan.run_id} was made before the repository was gone: plan again",
        )


def make_removal_plan(
    engine: Engine,
    repository: GoneFormat,
    *,
    run_id: str,
    folder: RunFolder,
    options: RunOptions,
    steps: Steps,
) -> Plan:
    """Makes the plan of a run that collects a gone repository. The caller writes the plan.

    Raises Refused `repository_not_gone`, `repository_in_use` or `clock_skew`.
    """
    layout = repository.layout_of(run_id)
    with steps("check"):
        repository.check_removable()
        started_at = check_times(repository, options)
    with steps("list"):
        slices = Slices(cutoff=started_at, now=started_at)
        answers, _ = list_inventory(engine, repository.storage, layout, folder, slices)
        kinds = listed_kinds(repository.storage, answers)
        listed = sum((kinds.get(kind, Count()) for kind in layout.delete_order), Count())
    relations = _all_listed(folder, repository.storage, answers.parts, listed, layout)
    with steps("subtract"):
        result = subtract(engine, relations)
    return Plan(
        run_id=run_id,
        identity=repository.identity,
        started_at=started_at,
        cutoff=_EVERYTHING,
        grace_seconds=0.0,
        policy=None,
        counts={"listed": listed, **result.counts},
        kinds=kinds,
        candidates=result.candidates,
        protected=(),
        commits=None,
        refs=None,
        active_count=0,
        expired_count=0,
        gone_count=0,
        forgettable_count=0,
        by_ref=(),
        warnings=(),
        seconds=steps.seconds(),
        mode=REMOVAL,
        mode_reason=None,
        previous_id=None,
        clean_at=started_at,
        read_at=started_at,
        closed_after=None,
        young_slices=0,
        remaining=(),
        whole=listed,
        engine=engine.name,
        retained=repository.storage.retained(),
        classes=look_at_classes(
            repository.storage, folder, result.candidates, options, now=started_at
        ),
    )


def _all_listed(
    folder: RunFolder, storage: Storage, inventory: list[Part], listed: Count, layout: Layout
) -> Relations:
    """Returns relations in which nothing is live or protected, and no grace holds."""
    return Relations(
        folder=folder,
        storage=storage,
        inventory=inventory,
        listed=listed,
        live=None,
        protected=[],
        kinds=layout.delete_order,
        cutoff=_EVERYTHING,
    )


@dataclass(slots=True)
class RemovalSweep(Sweep):
    """One attempt to carry out the plan of a gone repository."""

    repository: GoneFormat
    preserve: Callable[[], None] = lambda: None

    def execute(self) -> Swept:
        """Carries out the plan. Raises Refused if a gate refuses, before any delete, and Incomplete
        if the sweep was stopped later."""
        with self.steps("check"):
            _require_removal(self.plan)
            self._check_state()
            check_times(self.repository, self.options)
            check_parts(self.engine, self.folder, self.plan.candidates)
            retained = self.repository.storage.retained()
        earlier = self.folder.names("deleted")
        with self.steps("fence"):
            fenced_at = self.repository.fence_whole(self.hold, self.plan.run_id)
        with self.steps("recheck"):
            self.folder.put_json(
                FENCE_FILE,
                {"fenced_at": fenced_at.isoformat(), "run_epoch": self.hold.run_epoch},
            )
            # A copy of the database may have changed OWNER at the moment of the first check.
            self.repository.check_storage()
            self.preserve()
            todo = self._todo(np.empty(0, np.int64), earlier)
        try:
            untried = self._delete(todo, quarantined=False)
            with self.steps("count"):
                outcomes = tally(self.engine, self.folder, self._answers)
        except EbbtideError as error:
            raise incomplete(error) from error
        return Swept(outcomes, 0, untried, retained, self.options.delete_versions)
