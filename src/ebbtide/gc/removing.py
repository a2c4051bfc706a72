"""Collecting a gone repository whole: a plan of all that is its own, and its sweep.

There is no mark, no share and no grace here, and nothing comes back to life. What stands in their
place is one fact: the repository is gone for good, and everything that was given out has ended. The
plan looks, and the fence looks again, in the transaction that closes the repository, before the
first delete.

The end goes in steps each of which can be taken again. When everything else went, a record is made
in the database, which outlasts the repository; then the run's own files go, then OWNER, and last
the rows of the database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from ebbtide.arrow import split_by, texts
from ebbtide.errors import Conflict, Failed, Incomplete, InvalidInput, Refused
from ebbtide.formats.base import FOREIGN, RECORD, GoneFormat, RunHold, Slices
from ebbtide.gc.collector import Collector, Confirm, always
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import total_by_group
from ebbtide.gc.planning.making import check_times
from ebbtide.gc.planning.plan import REMOVAL, Plan
from ebbtide.gc.planning.subtract import Relations, subtract
from ebbtide.gc.planning.whatif import Alternative, WhatIf
from ebbtide.gc.relations.given import GivenInventory
from ebbtide.gc.relations.inventory import classified, list_inventory
from ebbtide.gc.report import RunReport, swept_report
from ebbtide.gc.runs import FENCE_FILE, RunFolder
from ebbtide.gc.steps import Observer, Steps, Unheld, silent
from ebbtide.gc.sweeping.outcomes import tally
from ebbtide.gc.sweeping.sweep import Sweep, Swept, check_parts, incomplete
from ebbtide.gc.verifying.findings import Verification
from ebbtide.gc.verifying.verify import verify_removal
from ebbtide.retention import Policy
from ebbtide.storage import Storage
from ebbtide.wording import counted

KEPT_SHOWN: Final = 20
_EVERYTHING: Final = datetime.max.replace(tzinfo=UTC)
"""A cutoff that no file is younger than."""


class Remover(Collector):
    """Collects a repository that is gone: everything of it, then what is known of it."""

    def __init__(
        self,
        repository: GoneFormat,
        *,
        engine: Engine,
        options: RunOptions,
        observer: Observer = silent,
        preserve: Callable[[], None] = lambda: None,
    ) -> None:
        """`preserve` is called behind the fence, before the first delete: it keeps elsewhere what
        outlasts the storage, and may be called again."""
        super().__init__(repository, engine=engine, options=options, observer=observer)
        self._gone = repository
        self._preserve = preserve

    def plan(self) -> RunReport:
        """As `Collector.plan`. Conflict `plan_used` where only the end of a sweep is left to do."""
        removal = self._gone.emptied()
        if removal is not None:
            raise Conflict(
                "plan_used",
                f"run {removal.run_id} has emptied the storage: sweep it again, it goes on where "
                "it stopped",
            )
        return super().plan()

    def run(self, confirm: Confirm = always) -> RunReport:
        """As `Collector.run`; where only the end of a sweep is left to do, that."""
        return super().run(confirm) if self._gone.emptied() is None else self.sweep()

    def sweep(self, run_id: str | None = None) -> RunReport:
        """As `Collector.sweep`; where only its end is left to do, that."""
        removal = self._gone.emptied()
        if removal is None:
            return super().sweep(run_id)
        report = RunReport.from_json(removal.report)
        try:
            with self._gone.hold(report.run_id, deletes=True) as hold:
                return self._end(report, hold)
        except Refused as error:
            return self._refused(
                report.run_id, RunFolder.inside(self._gone.storage, report.run_id), error, {}
            )
        except Incomplete as error:
            return report.interrupted(error.message)

    def newest_unswept(self) -> str:
        """As `Collector.newest_unswept`; the run of which only the end is left to do."""
        removal = self._gone.emptied()
        return super().newest_unswept() if removal is None else removal.run_id

    def plan_to_confirm(self, run_id: str) -> Plan | None:
        """As `Collector.plan_to_confirm`; None where the plan was carried out but for its end."""
        return super().plan_to_confirm(run_id) if self._gone.emptied() is None else None

    def verify(self, run_id: str) -> Verification:
        """As `Collector.verify`: there is nothing that a gone repository needs. Refused
        `plan_foreign` for a plan from before it was gone."""
        folder = self._folder(run_id)
        plan = self._read_plan(folder, run_id)
        _require_removal(plan)
        return verify_removal(
            self._gone,
            plan,
            folder,
            layout=self._gone.layout_of(run_id),
            check_removable=self._gone.check_removable,
            steps=self._steps(Unheld(), run_id),
            meter=self._engine.meter,
        )

    def what_if(
        self,
        policies: Sequence[Policy],
        *,
        found: Callable[[Alternative], None] = lambda _each: None,
    ) -> WhatIf:
        """InvalidInput `invalid_argument`: no policy has a say here."""
        del policies, found
        raise InvalidInput(
            "invalid_argument",
            f"{self._gone.identity.repository_name} is gone, and no policy keeps anything of it: "
            "'ebbtide gc plan' shows what would go",
        )

    def _check_grace(self) -> None:
        """No file is too young: what was being written when the repository ended has ended."""

    def _open_inventory(self, now: datetime) -> None:
        del now
        if self._options.inventory is not None:
            raise InvalidInput(
                "invalid_argument",
                "a repository that is gone is collected by a listing, which leaves nothing out: "
                "give no inventory",
            )

    def _make_plan(
        self, run_id: str, folder: RunFolder, steps: Steps, given: GivenInventory | None
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
        """The end of the sweep, if all went well."""
        report = swept_report(
            plan,
            swept,
            run_path=folder.path,
            seconds=steps.seconds(),
            engine=self._engine.name,
        )
        if report.state != "swept":
            self._finish(folder, report)
            return report
        with steps("look"):
            kept = self._look_at_rest(plan.run_id)
        if folder.storage == self._gone.storage:
            # Its files go now; what they say of each address goes with them.
            report = replace(report, run_path="")
        else:
            self._finish(folder, report)
        report = replace(report, warnings=(*report.warnings, *kept))
        self._gone.record_emptied(hold, plan.run_id, report.to_json())
        return self._end(report, hold)

    def _look_at_rest(self, run_id: str) -> tuple[str, ...]:
        """What is left in the storage but for the run's own files: a warning, where others than
        Ebbtide wrote it. Incomplete when there is anything that may go: it came after the plan."""
        try:
            # Who had the repository in hands since before it was gone may have begun a write.
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
                f"{counted(came, 'file')} came to the storage since the plan was made: plan and "
                "sweep the repository again",
            )
        if not counts[FOREIGN]:
            return ()
        kept_text = counted(
            counts[FOREIGN],
            "file that is not Ebbtide's is kept",
            "files that are not Ebbtide's are kept",
        )
        more = ", …" if counts[FOREIGN] > len(kept) else ""
        return (
            f"{self._gone.storage.url} is not empty: {kept_text} ({', '.join(sorted(kept))}{more})",
        )

    def _end(self, report: RunReport, hold: RunHold) -> RunReport:
        """Delete the run's own files, close OWNER, and drop what the database knows."""
        if self._gone.owns_storage():
            storage = self._gone.storage
            for addresses in self._records():
                if not self._gone.owns_storage():
                    break  # whoever else owns it by now took what was left of it
                _delete(storage, addresses)
            else:
                for address in self._gone.last_addresses:
                    _delete(storage, [address])
                self._gone.close_storage()
        self._gone.drop_rows(hold)
        return report

    def _records(self) -> Iterator[list[str]]:
        """The files of all runs, those too that came since the plan: refused ones leave some."""
        layout = self._gone.layout_of("")
        for batch in self._gone.storage.list():
            for kind, rows in split_by(classified(batch, layout), "kind"):
                if kind == RECORD:
                    yield texts(rows.column("address"))


def _delete(storage: Storage, addresses: Sequence[str]) -> None:
    """Incomplete where one of the addresses was not deleted."""
    for found in storage.delete(addresses):
        if found.outcome == "failed":
            raise Incomplete(
                "incomplete",
                f"{found.address} could not be deleted ({found.error}), all before it was: sweep "
                "the run again",
            )


def _require_removal(plan: Plan) -> None:
    if plan.mode != REMOVAL:
        raise Refused(
            "plan_foreign",
            f"the plan of run {plan.run_id} is from before the repository was gone: plan again",
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
    """Make the plan of a run that collects a gone repository; the caller writes it.

    Refused `repository_not_gone`, `repository_in_use`, `clock_skew`.
    """
    layout = repository.layout_of(run_id)
    with steps("check"):
        repository.check_removable()
        started_at = check_times(repository, options)
    with steps("list"):
        slices = Slices(cutoff=started_at, now=started_at)
        answers, _ = list_inventory(engine, repository.storage, layout, folder, slices)
        kinds = total_by_group(part for part in answers if part.name is None)
        listed = sum((kinds.get(kind, Count()) for kind in layout.delete_order), Count())
    with steps("subtract"):
        result = subtract(
            engine,
            Relations(
                folder=folder,
                storage=repository.storage,
                inventory=[part for part in answers if part.name is not None],
                listed=listed,
                live=None,
                protected=[],
                kinds=layout.delete_order,
                cutoff=_EVERYTHING,
            ),
        )
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
    )


@dataclass(slots=True)
class RemovalSweep(Sweep):
    """One attempt at carrying out the plan of a gone repository."""

    repository: GoneFormat
    preserve: Callable[[], None] = lambda: None

    def execute(self) -> Swept:
        """As `Sweep.execute`."""
        with self.steps("check"):
            _require_removal(self.plan)
            self._check_state()
            check_times(self.repository, self.options)
            check_parts(self.engine, self.folder, self.plan.candidates)
        earlier = self.folder.names("deleted")
        with self.steps("fence"):
            fenced_at = self.repository.fence_whole(self.hold, self.plan.run_id)
        with self.steps("recheck"):
            self.folder.put_json(
                FENCE_FILE,
                {"fenced_at": fenced_at.isoformat(), "run_epoch": self.hold.run_epoch},
            )
            # A copy of the database may have moved OWNER at the same moment as the first check.
            self.repository.check_storage()
            self.preserve()
            todo = self._todo(np.empty(0, np.int64), earlier)
        try:
            untried = self._delete(todo, aside=False)
            with self.steps("count"):
                outcomes = tally(self.engine, self.folder, self._answers)
        except (Refused, Failed) as error:
            raise incomplete(error) from error
        return Swept(outcomes, 0, untried)
