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
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ebbtide.arrow import split_by, texts
from ebbtide.errors import Conflict, EbbtideError, Incomplete, InvalidInput, Refused
from ebbtide.formats.base import EPOCH_ADDRESS, FOREIGN, RECORD, Layout, RunHold
from ebbtide.gc.candidates import Relations, subtract
from ebbtide.gc.collector import Collector, Confirm, always
from ebbtide.gc.curve import Curve
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.hold import check_storage
from ebbtide.gc.inventory_report import InventoryReport
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Count
from ebbtide.gc.plan import REMOVAL, AuditedRun, Plan
from ebbtide.gc.planner import check_times
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import FENCE_FILE, RunFolder
from ebbtide.gc.steps import Observer, Steps, silent
from ebbtide.gc.store import EVERYTHING, classified, list_inventory, listed_kinds
from ebbtide.gc.sweep import Sweep, Swept, check_parts, incomplete
from ebbtide.gc.usage import Usage
from ebbtide.gc.whatif import Alternative, WhatIf
from ebbtide.retention import Policy
from ebbtide.storage import Storage
from ebbtide.text import count_text

if TYPE_CHECKING:
    from ebbtide.formats.gone import GoneRepository

KEPT_SHOWN: Final = 20


class Remover(Collector):
    """Collects a repository that is gone: deletes all its files, then its metadata."""

    def __init__(
        self,
        repository: GoneRepository,
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
            with self._holding(report.run_id) as hold:
                return self._ended(report, hold)
        except Refused as error:
            return self._runs.refused(report.run_id, self._folders.inside(report.run_id), error)

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
        raise self._no_policy()

    def usage(self) -> Usage:
        """Raises InvalidInput `invalid_argument`: nothing holds files of a gone repository."""
        raise self._no_policy()

    def curve(self, rule: str | None = None) -> Curve:
        """Raises InvalidInput `invalid_argument`: no policy applies to a gone repository."""
        del rule
        raise self._no_policy()

    def _no_policy(self) -> InvalidInput:
        return InvalidInput(
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
        """Makes the plan of all files: nothing is live or protected, and no grace holds.

        Raises Refused `repository_not_gone`, `repository_in_use` or `clock_skew`.
        """
        del given  # there is none
        engine, repository, storage = self._engine, self._gone, self._gone.storage
        layout = repository.layout_of(run_id)
        with steps("check"):
            repository.check_removable()
            started_at = check_times(repository, self._options)
        with steps("list"):
            answers, _ = list_inventory(engine, storage, layout, folder, EVERYTHING)
            kinds = listed_kinds(storage, answers)
            listed = sum((kinds.get(kind, Count()) for kind in layout.delete_order), Count())
        everything = Relations(
            folder=folder,
            storage=storage,
            inventory=answers.parts,
            listed=listed,
            live=None,
            protected=[],
            kinds=layout.delete_order,
            cutoff=EVERYTHING.cutoff,
            now=started_at,
        )
        with steps("subtract"):
            result = subtract(engine, everything)
        return Plan(
            run_id=run_id,
            identity=repository.identity,
            started_at=started_at,
            cutoff=EVERYTHING.cutoff,
            counts={"listed": listed, **result.counts},
            kinds=kinds,
            candidates=result.candidates,
            seconds=steps.seconds(),
            mode=REMOVAL,
            clean_at=started_at,
            read_at=started_at,
            whole=listed,
            engine=engine.name,
            retained=storage.retained(),
            storage_classes=result.storage_classes,
        )

    def _attempt(self, plan: Plan, folder: RunFolder, hold: RunHold, steps: Steps) -> Sweep:
        sweep = RemovalSweep(self._engine, self._gone, plan, folder, hold, self._options, steps)
        sweep.preserve = self._preserve
        return sweep

    def _conclude(
        self, plan: Plan, swept: Swept, folder: RunFolder, hold: RunHold, steps: Steps
    ) -> RunReport:
        """Ends the sweep if all deletes succeeded. Returns the report."""
        report = self._runs.swept(plan, swept, folder, steps.seconds())
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
        for kind, addresses in self._listed(layout):
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
        """Ends a sweep that has emptied the storage: deletes the files of runs, closes OWNER, and
        deletes the repository's rows in the database. Returns the sweep's report, which is
        incomplete if a step failed: the storage has no place for it any more."""
        try:
            if self._gone.owns_storage():
                self._close_storage()
            self._gone.drop_rows(hold)
        except EbbtideError as error:
            return report.interrupted(incomplete(error).message)
        return report

    def _close_storage(self) -> None:
        """Deletes the files of runs, and closes OWNER, while the storage has no new owner."""
        # Some files of runs are newer than the plan: refused runs leave files too.
        for kind, addresses in self._listed(self._gone.layout_of("")):
            if kind == RECORD:
                if not self._gone.owns_storage():
                    return
                _delete(self._gone.storage, addresses)
        _delete(self._gone.storage, [EPOCH_ADDRESS])
        self._gone.close_storage()

    def _listed(self, layout: Layout) -> Iterator[tuple[str, list[str]]]:
        """Lists the storage. Yields addresses of one kind, with the kind."""
        for batch in self._gone.storage.list():
            for kind, rows in split_by(classified(batch, layout), "kind"):
                yield kind, texts(rows.column("address"))


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


@dataclass(slots=True)
class RemovalSweep(Sweep):
    """One attempt to carry out the plan of a gone repository."""

    repository: GoneRepository
    preserve: Callable[[], None] = lambda: None

    def _prepare(self) -> tuple[int, bool]:
        """Does all steps before the first delete. No commits are forgotten, and no files are
        quarantined."""
        with self.steps("check"):
            _require_removal(self.plan)
            self._check_state()
            check_times(self.repository, self.options)
            check_parts(self.engine, self.folder, self.plan.candidates)
        with self.steps("fence"):
            fenced_at = self.repository.fence_whole(self.hold, self.plan.run_id)
        with self.steps("recheck"):
            self.folder.put_json(
                FENCE_FILE,
                {"fenced_at": fenced_at.isoformat(), "run_epoch": self.hold.run_epoch},
            )
            # A copy of the database may have changed OWNER at the moment of the first check.
            check_storage(self.repository)
            self.preserve()
        return 0, False
