"""Makes a plan: list, read, decide, mark, subtract. Writes only the run's own files and the index.

The order is rule 2 of the safety rules (docs/safety.md). The listing comes first. The protected
addresses and the commits are read afterwards, in one snapshot of the metadata. A file that is
written after the listing cannot be a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from ebbtide.formats.base import AMONG_MAX, Reading, RepositoryFormat, Slices
from ebbtide.formats.capabilities import SlicedReading, checked_kinds_of
from ebbtide.gc.candidates import (
    Relations,
    Subtracted,
    addresses_left,
    asked_keys,
    check_presence,
    find_absent,
    needed_of,
    subtract,
    unlisted,
)
from ebbtide.gc.committed import Mark
from ebbtide.gc.costs import bytes_by_class
from ebbtide.gc.decisions import Basis, Decided, absent_warning, write_decision
from ebbtide.gc.engines.base import Engine, Relation
from ebbtide.gc.gates import check_last_swept, check_not_empty, check_share
from ebbtide.gc.hold import clocks_of
from ebbtide.gc.incremental import (
    Chosen,
    EarlierRun,
    NeedsCleanRunError,
    Now,
    unlisted_files,
)
from ebbtide.gc.index import Index
from ebbtide.gc.inventory_report import InventoryReport, read_inventory
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Count, Part, total_by_kind
from ebbtide.gc.plan import Plan
from ebbtide.gc.quarantine import held_back
from ebbtide.gc.runs import RunFolder, RunFolders, TaskFiles, ahead_warnings
from ebbtide.gc.steps import Steps
from ebbtide.gc.store import POINTERS, InventoryListing, ListedFiles
from ebbtide.gc.uncommitted import protected_of, write_protected, write_unseen
from ebbtide.retention import Policy


@dataclass(frozen=True, slots=True)
class _Read:
    """All data that a plan reads: the relations of the subtraction.

    `untraced` are the parts of protected addresses whose protection may end without a report.
    `live` is set if the live keys among the files that the run looks at are already known.
    """

    decided: Decided
    listed: ListedFiles
    mark: Mark
    protected: list[Part]
    untraced: list[Part]
    live: Relation | None = None


@dataclass(frozen=True, slots=True)
class UnwrittenPlan:
    """The result of a plan that is not written: the counts by class, the candidates by kind
    (`kinds`), and their bytes by storage class (`classes`)."""

    basis: Basis
    counts: dict[str, Count]
    kinds: dict[str, Count]
    classes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What a plan reads before it marks. `relations` are those of its subtraction, without the live
    addresses. `files` names the places of parts of a mark."""

    basis: Basis
    listed: ListedFiles
    relations: Relations
    index: Index | None
    files: TaskFiles


def make_plan(
    engine: Engine,
    repository: RepositoryFormat,
    *,
    run_id: str,
    folder: RunFolder,
    options: RunOptions,
    steps: Steps,
    chosen: Chosen,
    given: InventoryReport | None = None,
    expected: int | None = None,
) -> Plan:
    """Makes the plan of a run. The caller writes the plan. Raises Refused if a gate refuses.

    If an inventory is `given`, nothing is listed. `expected` is the expected number of files.
    If an incremental run turns out not to be possible, the plan is that of a clean run.
    """
    planner = Planner(
        engine=engine,
        repository=repository,
        folder=folder,
        options=options,
        steps=steps,
        given=given,
        run_id=run_id,
        expected=expected,
    )
    try:
        return planner.make(chosen)
    except NeedsCleanRunError as error:
        return planner.make(Chosen(reason=str(error)))
    finally:
        engine.forget()  # also after a refusal: the engine's session may outlast the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """One plan while it is made."""

    engine: Engine
    repository: RepositoryFormat
    folder: RunFolder
    options: RunOptions
    steps: Steps
    given: InventoryReport | None = None
    run_id: str = ""
    expected: int | None = None

    def make(self, chosen: Chosen) -> Plan:
        """Makes the plan. Raises as `make_plan`, and NeedsCleanRunError."""
        earlier = chosen.earlier
        with self.steps("check"):
            started_at = check_times(self.repository, self.options)
        with self.steps("list"):
            listed = self._list(started_at, None if earlier is None else earlier.closed_after)
        index = self._index(listed, started_at)
        if earlier is None:
            read = self._read_all(listed, index)
        else:
            read = self._read_changes(listed, index, earlier)
        read, result = self._subtract_all(read)
        whole = read.listed.total
        if earlier is not None:
            whole = whole.or_more(earlier.left)
        return self._plan(read, result, chosen, started_at=started_at, whole=whole)

    def look_ahead(self, policies: Iterable[Policy]) -> Iterator[UnwrittenPlan]:
        """Yields the result of a clean plan with the repository's policy, then with each of
        `policies`.

        All results are from one listing and one reading of the metadata. At the end the folder has
        the files of the last one. Raises Refused as a plan does. It does not check the owner and
        the clock of the storage, because these checks need a write to it.
        """
        started_at = self.repository.now()
        with self.steps("list"):
            # No run continues from this one, so that it need not remember files.
            listed = replace(self._list(started_at), closed_after=None)
        index = self._index(listed, started_at)
        read = self._read_all(listed, index, keeps_basis=True)
        basis = read.decided.basis
        assert basis is not None
        yield self._outlook(read)
        for policy in policies:
            roots = replace(basis.roots, policy=policy.with_holds(basis.roots.holds))
            with self.steps("reach"):
                other = write_decision(self.folder, roots, keeps_basis=True)
                mark = self._mark(other, index)
            yield self._outlook(replace(read, decided=other, mark=mark))

    def survey(self) -> Surveyed:
        """Lists everything with all sizes, reads as a clean plan does, and marks nothing. Raises
        Refused as a plan does."""
        started_at = self.repository.now()
        with self.steps("list"):
            listed = replace(self._list(started_at, whole=True), closed_after=None)
        index = self._index(listed, started_at)
        read = self._read_all(listed, index, keeps_basis=True)
        basis = read.decided.basis
        assert basis is not None
        return Surveyed(
            basis, listed, self._relations(read, None), index, replace(self._place, name="labels")
        )

    def _outlook(self, read: _Read) -> UnwrittenPlan:
        basis = read.decided.basis
        assert basis is not None
        try:
            _, result = self._subtract_all(read)
        finally:
            self.engine.forget()
        classes = bytes_by_class(result.storage_classes, result.counts["candidate"])
        return UnwrittenPlan(basis, result.counts, total_by_kind(result.candidates), classes)

    def _list(
        self, started_at: datetime, settled_after: str | None = None, *, whole: bool = False
    ) -> ListedFiles:
        listing = InventoryListing(self.engine, self.repository, self.folder, self.options)
        if self.given is not None:
            answers = read_inventory(self.engine, self.repository, self.folder, self.given)
            return listing.given(answers, self.given.date, started_at)
        if whole:
            return listing.everything(started_at)
        return listing.make(started_at, settled_after=settled_after, expected=self.expected)

    def _index(self, listed: ListedFiles, started_at: datetime) -> Index | None:
        """Opens the index, or returns None if trees and nodes have no checksums. The index is not
        writable if the run's files go to another place (`run_dir`)."""
        if not checked_kinds_of(self.repository.layout):
            return None
        return Index.open(
            self.repository.storage,
            self.folder,
            [part for part in listed.parts if part.relation == POINTERS],
            read_at=started_at,
            writable=self.options.run_dir is None,
        )

    @property
    def _place(self) -> TaskFiles:
        return TaskFiles(self.repository.storage, self.repository.layout, self.folder, "live")

    def _read_all(
        self, listed: ListedFiles, index: Index | None, *, keeps_basis: bool = False
    ) -> _Read:
        """Reads everything, in one snapshot of the metadata."""
        with self.steps("read"), self.repository.reading(listed.cutoff) as reading:
            decided = self._decide(reading, listed, keeps_basis=keeps_basis)
            back = self._held_back(decided)
            untraced = self._untraced(reading) + back
            protected = write_protected(self.folder, reading.protected(), name="uncommitted") + back
        # What a listing leaves out is not required. Without an index, nothing else tells.
        looks = index is None or not keeps_basis
        mark = self._mark(decided, index, listed.slices if looks else None)
        return _Read(decided, listed, mark, protected, untraced)

    def _read_changes(self, listed: ListedFiles, index: Index | None, earlier: EarlierRun) -> _Read:
        """Reads the changes since an earlier run, in one snapshot of the metadata.

        The run looks at few of the protected files. If it looks at few files at all, it reads only
        the protections of these.
        """
        with self.repository.reading(listed.cutoff) as reading:
            with self.steps("read"):
                decided = self._decide(reading, listed)
                back = self._held_back(decided)
                untraced = self._untraced(reading) + back
                tables = reading.dropped() if isinstance(reading, SlicedReading) else ()
                dropped = write_protected(self.folder, tables, name="dropped")
            with self.steps("reach"):
                mark = self._mark(decided, index)
                nodes = mark.nodes
            with self.steps("revisit"):
                now = Now(
                    place=self._place,
                    cutoff=listed.cutoff,
                    trees=decided.trees,
                    nodes=nodes,
                    dropped=dropped,
                    index=index,
                )
                parts = unlisted_files(self.engine, self.repository, earlier, now)
                listed = listed.with_rows(parts)
            read = _Read(decided, listed, mark, [], untraced)
            kept: Iterable[pa.Table] | None = None
            if self.engine.holds(listed.parts):
                given = self._relations(read, None)
                with self.steps("mark"):
                    live = mark.live(asked_keys(self.engine, given)).kept()
                    read = replace(read, live=live)
                    left = addresses_left(self.engine, given, live)
                if len(left) <= AMONG_MAX:
                    kept = protected_of(reading, left)
            with self.steps("protect"):
                kept = reading.protected() if kept is None else kept
                protected = write_protected(self.folder, kept, name="uncommitted")
        return replace(read, protected=protected + back)

    @property
    def _folders(self) -> RunFolders:
        return RunFolders(self.repository, self.options.run_dir)

    def _decide(
        self, reading: Reading, listed: ListedFiles, *, keeps_basis: bool = False
    ) -> Decided:
        count, roots = listed.total.objects, reading.roots()
        check_not_empty(roots, listed_count=count)
        if not self.options.accept_lost_commits:
            check_last_swept(self._folders, roots)
        return write_decision(self.folder, roots, keeps_basis=keeps_basis)

    def _held_back(self, decided: Decided) -> list[Part]:
        """Writes the files that undos restored recently. They are protected, and their protection
        ends without a report."""
        return held_back(self._folders, self.folder, now=decided.now, name="uncommitted")

    def _untraced(self, reading: Reading) -> list[Part]:
        tables = reading.untraced() if isinstance(reading, SlicedReading) else ()
        return write_protected(self.folder, tables, name="untraced")

    def _mark(self, known: Decided, index: Index | None, slices: Slices | None = None) -> Mark:
        return Mark(self.engine, self._place, known.trees, index=index, slices=slices)

    def _relations(self, read: _Read, live: Relation | None) -> Relations:
        listed = read.listed
        return Relations(
            folder=self.folder,
            storage=self.repository.storage,
            inventory=listed.parts,
            listed=listed.total,
            live=live,
            protected=read.protected,
            kinds=self.repository.layout.delete_order,
            cutoff=listed.cutoff,
            now=listed.slices.now,
            closed_after=listed.closed_after,
            untraced=read.untraced,
        )

    def _subtract_all(self, read: _Read) -> tuple[_Read, Subtracted]:
        """Finds the candidates, without files that the format finds in use (`used_unseen`). Raises
        as `_subtract` does."""
        result = self._subtract(read)
        unseen = write_unseen(
            self.repository, self.folder, result.candidates, name="uncommitted/unseen"
        )
        if not unseen:
            return read, result
        read = replace(read, protected=read.protected + unseen)
        if not len(needed_of(self.engine, self.folder, result.candidates, protected=unseen)):
            return read, result
        # A reader of the folder must not take the parts of the first result for candidates.
        parts = (*result.candidates, *result.remaining)
        self.folder.storage.delete([self.folder.address(part.name) for part in parts])
        return read, self._subtract(read)

    def _subtract(self, read: _Read) -> Subtracted:
        """Finds the candidates. Raises Refused `missing_tree`, `missing_node` or `missing_object`
        if a required file does not exist."""
        layout, mark = self.repository.layout, read.mark
        live = mark.live() if read.live is None else read.live
        checks, looks = not checked_kinds_of(layout), mark.slices is not None
        with self.steps("subtract"):
            live = live.kept() if checks or looks else live
            given = self._relations(read, live)
            result = subtract(self.engine, given)
        if checks or looks:
            with self.steps("presence"):
                missing = unlisted(self.engine, given, live, kinds=given.kinds if checks else None)
                absent = find_absent(self.engine, self.repository, mark, missing)
                if checks:
                    check_presence(self.folder, self.repository.storage, absent)
                result = replace(result, absent=tuple(absent))
        mark.done()
        return result

    def _plan(
        self, read: _Read, result: Subtracted, chosen: Chosen, *, started_at: datetime, whole: Count
    ) -> Plan:
        known, listed = read.decided, read.listed
        earlier = None if chosen.earlier is None else chosen.earlier.plan
        over = check_share(result.counts["candidate"], whole, share_max=self.options.share_max)
        absent = list(result.absent)
        return Plan(
            run_id=self.run_id,
            identity=self.repository.identity,
            started_at=started_at,
            cutoff=listed.cutoff,
            grace_seconds=self.options.grace.total_seconds(),
            policy=known.policy,
            counts={"listed": listed.total, **result.counts},
            kinds=listed.kinds,
            candidates=result.candidates,
            protected=tuple(read.protected),
            commits=known.commits,
            refs=known.refs,
            active_count=known.active_count,
            expired_count=known.expired_count,
            gone_count=known.gone_count,
            forgettable_count=known.forgettable_count,
            by_ref=known.by_ref,
            warnings=(
                *known.warnings,
                *(listed.warnings or result.warnings),
                *ahead_warnings(self._folders.paths(), known.now),
            ),
            seconds=self.steps.seconds(),
            mode="clean" if earlier is None else "incremental",
            mode_reason=chosen.reason,
            previous_id=None if earlier is None else earlier.run_id,
            clean_at=started_at if earlier is None else earlier.clean_at,
            read_at=known.now,
            closed_after=listed.closed_after,
            young_slices=listed.young_slices,
            remaining=result.remaining,
            whole=whole,
            inventory_url=None if self.given is None else self.given.url,
            engine=self.engine.name,
            refusal=(over.kind, over.message) if over else None,
            absent=result.absent,
            absent_warning=(
                absent_warning(self.repository, self.folder, known, absent) if absent else None
            ),
            retained=self.repository.storage.retained(),
            storage_classes=result.storage_classes,
        )


def check_times(repository: RepositoryFormat, options: RunOptions) -> datetime:
    """Checks the gate on clocks. Returns the time of the earliest clock, from which ages are
    counted. Raises Refused `clock_skew`."""
    clocks = clocks_of(repository, options)
    clocks.check(skew_max=options.skew_max)
    return clocks.earliest
