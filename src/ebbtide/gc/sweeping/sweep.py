"""Carrying out a plan: fence, re-check, forget, delete, record.

The order is the safety argument. The fence closes the expired commits, so that nothing new can come
to need a candidate; what became live before it is found by reading the trees that are live now and
that the plan's mark did not read; only then records, trees, nodes and objects go, in that order, so
that a crash leaves garbage and never a pointer into nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from ebbtide.errors import Conflict, EbbtideError, Failed, Incomplete, Refused
from ebbtide.formats.base import AMONG_MAX, Fencing, Reading, RepositoryFormat, RunHold
from ebbtide.gc import quarantine
from ebbtide.gc.engine import Engine
from ebbtide.gc.frames import Frame
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part, PartRows, read_part, split
from ebbtide.gc.planning.deciding import Fenced, Unread, decide_at_fence, decide_behind
from ebbtide.gc.planning.making import check_times
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.planning.planned_commits import commits_of
from ebbtide.gc.planning.subtract import flagged, placed
from ebbtide.gc.quarantine import Quarantine, keep_records
from ebbtide.gc.relations.keys import KeyArray, rows_of
from ebbtide.gc.relations.mark import Mark, write_trees
from ebbtide.gc.relations.places import Place
from ebbtide.gc.relations.protected import protected_among, write_protected
from ebbtide.gc.runs import FENCE_FILE, REPORT_FILE, RunFolder
from ebbtide.gc.steps import Steps
from ebbtide.gc.sweeping.outcomes import Outcomes, delete_parts, tally, write_todo
from ebbtide.retention.decision import Roots

ATTEMPTS: Final = 5
"""How often to look again when something came to need what was about to go."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did. `untried` counts candidates that it did not come to."""

    outcomes: Outcomes
    forgotten_count: int
    untried: int


@dataclass(slots=True)
class Sweep:
    """One attempt at carrying out one plan."""

    engine: Engine
    repository: RepositoryFormat
    plan: Plan
    folder: RunFolder
    hold: RunHold
    options: RunOptions
    steps: Steps
    _answers: list[Part] = field(default_factory=list)
    _closed: frozenset[str] = frozenset()

    def execute(self) -> Swept:
        """Do it. Refused by a gate, in which case nothing was deleted by this attempt.

        Incomplete when it was stopped later: what was deleted until then is on record.
        """
        with nothing_deleted():
            fenced, todo, aside = self._prepare()
        try:
            untried = self._delete(todo, aside=aside)
            with self.steps("count"):
                outcomes = tally(self.engine, self.folder, self._answers)
        except (Refused, Failed) as error:
            raise incomplete(error) from error
        return Swept(outcomes, len(fenced.forgettable | fenced.forgotten), untried)

    def _prepare(self) -> tuple[Fenced, list[Part], bool]:
        """All that comes before the first delete: what was closed, what to delete, and whether it
        is moved aside. Raises as `execute`."""
        with self.steps("check"):
            self._check_state()
            check_times(self.repository, self.options)
            planned = commits_of(self.folder, self.plan.commits)
            check_parts(self.engine, self.folder, [planned, *self.plan.candidates])
        aside = self._moves_aside()
        is_first = self.folder.get_json(FENCE_FILE) is None
        earlier = self.folder.names("deleted")
        for attempt in range(1, ATTEMPTS + 1):
            self._answers.clear()
            try:
                with self.steps("fence"):
                    fenced = self._fence()
                with self.steps("recheck"):
                    todo = self._todo(self._recheck(fenced), earlier)
            except (EbbtideError, KeyboardInterrupt):
                self._lift(is_first=is_first)
                raise
            try:
                with self.steps("forget"):
                    if aside:
                        records = self.repository.records(fenced.forgettable)
                        keep_records(self.folder, self.hold.run_epoch, records)
                    self.repository.forget(self.hold, self.plan.run_id, fenced.forgettable)
                return fenced, todo, aside
            except (Refused, Failed) as error:
                if error.kind != "repository_changed":
                    raise incomplete(error) from error
                # Nothing was dropped: look again at what is needed now.
                self._lift(is_first=is_first)
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt ends it")

    def _lift(self, *, is_first: bool) -> None:
        """Open again what this attempt closed, since it deleted nothing.

        Only that: what an earlier attempt closed may have been let go since, by it or by another
        run. And only while the lease is held: whoever took it may be deleting behind the same
        fence. Where it cannot be done, the next sweep of the run goes on from there; the first
        error is the one to tell.
        """
        with suppress(EbbtideError):
            self.repository.lift(self.hold, self.plan.run_id, self._closed)
            if is_first:
                self.folder.storage.delete([self.folder.address(FENCE_FILE)])

    def _check_state(self) -> None:
        report = self.folder.get_json(REPORT_FILE)
        state = None if report is None else report.get("state")
        if state in ("swept", "undone"):
            raise Conflict(
                "plan_used", f"run {self.plan.run_id} was {state} already: make a new plan"
            )
        if self.plan.refusal is not None and not self.options.allow_share:
            raise Refused(*self.plan.refusal)

    def _moves_aside(self) -> bool:
        """Whether candidates are moved aside: as an earlier attempt did, or as was asked for. That
        is on record before the first of them moves."""
        storage, lasts = self.repository.storage, self.options.quarantine
        if quarantine.read(storage, self.plan.run_id) is not None:
            return True
        if lasts is None:
            return False
        until = self.repository.now() + lasts
        record = Quarantine(self.plan.run_id, self.folder.path, "held", until)
        quarantine.write(storage, record)
        return True

    def _fence(self) -> Fenced:
        """Tombstone what the plan holds expired and what still is, in one transaction."""
        decided: list[Fenced] = []

        def choose(roots: Roots) -> Fencing:
            count = self.plan.counts["listed"].objects
            fenced = decide_at_fence(self.folder, roots, self.plan.commits, listed_count=count)
            decided.append(fenced)
            self._closed = fenced.closed
            return Fencing(tombstone=fenced.closed)

        self.repository.fence(self.hold, self.plan.run_id, choose, cutoff=self.plan.cutoff)
        fenced = decided[-1]
        self.folder.put_json(
            FENCE_FILE,
            {
                "fenced_at": fenced.unread.now.isoformat(),
                "run_epoch": self.hold.run_epoch,
                "kept_after_all": sorted(fenced.needed),
            },
        )
        return fenced

    def _recheck(self, fenced: Fenced) -> KeyArray:
        """The keys of candidates that are needed now, and that the plan's mark did not see."""
        # A copy of the database may have moved OWNER at the same moment as this run's first check.
        self.repository.check_storage()
        name = f"recheck-{self.hold.run_epoch:06d}"
        with self.repository.reading(self.plan.cutoff) as reading:
            roots = reading.roots()
            unread = decide_behind(self.folder, roots, self.plan.commits, fenced.unread)
            protected = write_protected(self.folder, self._kept(reading), name=f"{name}/kept")
        protected += quarantine.held_back(
            self.repository.storage, self.folder, now=unread.now, name=f"{name}/kept"
        )
        # What the plan protected in the same words is no candidate.
        before = {part.checksum for part in self.plan.protected}
        protected = [part for part in protected if part.checksum not in before]
        needed = self._needed(unread, protected, name)
        if needed is None:
            return np.empty(0, np.int64)
        candidates = placed(self.engine, self.folder, self.plan.candidates)
        back = candidates.select("judged").join(needed, "judged", "left_semi")
        keys: KeyArray = back.collect().column("judged").to_numpy()
        return keys

    def _needed(self, unread: Unread, protected: list[Part], name: str) -> Frame | None:
        """The keys (column `judged`) of what is protected, and of what trees that the plan did not
        read refer to; None where that is nothing."""
        found: Frame | None = None
        if protected:
            found = flagged(self.engine, self.folder, protected, "needed").select("judged")
        if unread.trees.recorded or unread.trees.companions:
            place = Place(self.repository.storage, self.repository.layout, self.folder, name)
            prefix = place.prefixed("known")
            known = write_trees(self.folder, prefix, unread.trees, unread.checksums)
            live = Mark.of(self.engine, place, known).live().select("key").named("judged")
            found = live if found is None else found.union(live)
        return found

    def _kept(self, reading: Reading) -> Iterator[pa.Table]:
        """What is protected now, of the candidates alone where they are few."""
        candidates = self.plan.candidates
        if rows_of(candidates) > AMONG_MAX:
            return reading.protected()
        return protected_among(reading, self.folder, candidates)

    def _todo(self, back: KeyArray, earlier: list[str]) -> list[Part]:
        """What to delete: the plan's candidates, less what came back and what was settled."""
        candidates = list(self.plan.candidates)
        if not (len(back) or earlier):
            return candidates
        todo, revived = write_todo(
            self.engine,
            folder=self.folder,
            epoch=self.hold.run_epoch,
            candidates=candidates,
            back=back,
            settled=earlier,
        )
        self._answers += revived
        return todo

    def _delete(self, todo: list[Part], *, aside: bool) -> int:
        """Delete kind by kind, or move aside, pointers first; how many candidates were not come to.

        A kind of which something failed holds back the kinds that it points at.
        """
        order = self.repository.layout.delete_order
        guard = self.repository.guard()
        meter, done = self.engine.meter, 0
        for position, kind in enumerate(order):
            parts = [part for part in todo if part.group == kind]
            if not parts:
                continue
            with self.steps(f"delete {kind}"):
                meter.begin("files", rows_of(todo), done=done)
                answers = delete_parts(
                    self.engine,
                    storage=self.repository.storage,
                    folder=self.folder,
                    parts=parts,
                    epoch=self.hold.run_epoch,
                    run_id=self.plan.run_id,
                    guard=guard,
                    looks_again=self.plan.inventory_url is not None,
                    aside=aside,
                )
            self._answers += answers
            done += rows_of(parts)
            if any(part.relation == "failed" for part in answers):
                return sum(p.rows for p in todo if p.group in order[position + 1 :])
        return 0


def check_parts(engine: Engine, folder: RunFolder, parts: Sequence[Part]) -> None:
    """Refused `plan_corrupt` unless each of `parts` is as it was written."""

    def work(_number: int, task: Sequence[Part], answer: PartRows) -> None:
        for part in task:
            assert part.name is not None
            try:
                read_part(folder, part.name, part.checksum)
            except Refused as error:
                answer.failed(error)

    engine.run(split(parts, tasks=engine.task_count), work)


@contextmanager
def nothing_deleted() -> Iterator[None]:
    """Says so of a block that comes to a full disk: who frees some wants to know."""
    try:
        yield
    except Failed as error:
        if error.kind != "disk_full":
            raise
        raise Failed(error.kind, f"{error.message}. The run deleted nothing") from error


def incomplete(error: EbbtideError) -> Incomplete:
    """Behind the first change that cannot be taken back, a failure leaves the sweep unfinished."""
    return Incomplete(
        "incomplete",
        f"the sweep was stopped: {error.message}. What it deleted until then is on "
        "record: sweep the run again, it goes on where it stopped",
    )
