"""Makes a plan: list, read, decide, mark, subtract. Writes only the run's own files and the index.

The order is rule 2 of the safety rules (docs/safety.md). The listing comes first. The protected
addresses and the commits are read afterwards, in one snapshot of the metadata. A file that is
written after the listing cannot be a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from ebbtide.formats.base import AMONG_MAX, Reading, RepositoryFormat, Slices
from ebbtide.formats.capabilities import SlicedReading
from ebbtide.gc.ahead import ahead_warnings
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine, Relation
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part, total_by_kind
from ebbtide.gc.planning.absent import find_absent, warning_of
from ebbtide.gc.planning.classes import look_at_classes
from ebbtide.gc.planning.deciding import Basis, Decided, write_decision
from ebbtide.gc.planning.gates import check_not_empty, check_presence, check_share
from ebbtide.gc.planning.incremental import (
    Chosen,
    EarlierRun,
    NeedsCleanRunError,
    Now,
    unlisted_files,
)
from ebbtide.gc.planning.known import check_last_swept
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.planning.subtract import (
    Relations,
    Subtracted,
    addresses_left,
    asked_keys,
    needed_of,
    subtract,
    unlisted,
)
from ebbtide.gc.quarantine import held_back
from ebbtide.gc.relations.index import Index
from ebbtide.gc.relations.inventory import POINTERS
from ebbtide.gc.relations.inventory_report import InventoryReport
from ebbtide.gc.relations.listing import InventoryListing, ListedFiles
from ebbtide.gc.relations.live import Mark
from ebbtide.gc.relations.protected import protected_of, write_protected, write_unseen
from ebbtide.gc.runs import RunFolder, RunFolders, TaskFiles
from ebbtide.gc.steps import Steps
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots


@dataclass(frozen=True, slots=True)
class _Roots:
    """The decision on commits, and the parts of untraced addresses."""

    decided: Decided
    untraced: list[Part]


@dataclass(frozen=True, slots=True)
class _Read:
    """All data that a plan reads: the relations of the subtraction.

    `protected` includes `back`, the files that undos restored recently. `live` is set if the live
    keys among the files that the run looks at are already known.
    """

    roots: _Roots
    listed: ListedFiles
    mark: Mark
    protected: list[Part]
    back: list[Part]
    live: Relation | None = None


@dataclass(frozen=True, slots=True)
class UnwrittenPlan:
    """The result of a plan that is not written: the counts by class, and the candidates by kind
    (`kinds`)."""

    basis: Basis
    counts: dict[str, Count]
    kinds: dict[str, Count]


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
    planning = _Planning(engine, repository, run_id, folder, options, steps, given, expected)
    try:
        return planning.make(chosen)
    except NeedsCleanRunError as error:
        return planning.make(Chosen(reason=str(error)))
    finally:
        engine.forget()  # also after a refusal: the engine's session may outlast the run


def look_ahead(
    engine: Engine,
    repository: RepositoryFormat,
    policies: Iterable[Policy],
    *,
    folder: RunFolder,
    options: RunOptions,
    steps: Steps,
    given: InventoryReport | None = None,
) -> Iterator[UnwrittenPlan]:
    """Yields the result of a clean plan with the repository's policy, then with each of `policies`.

    All results are from one listing and one reading of the metadata. At the end `folder` has the
    files of the last one. Raises Refused as a plan does. It does not check the owner and the clock
    of the storage, because these checks need a write to it.
    """
    planning = _Planning(engine, repository, "", folder, options, steps, given)
    yield from planning.look_ahead(policies)


@dataclass(frozen=True, slots=True)
class _Planning:
    """One plan while it is made."""

    engine: Engine
    repository: RepositoryFormat
    run_id: str
    folder: RunFolder
    options: RunOptions
    steps: Steps
    given: InventoryReport | None
    expected: int | None = None

    def make(self, chosen: Chosen) -> Plan:
        """Makes the plan. Raises as `make_plan`, and NeedsCleanRunError."""
        earlier = chosen.earlier
        with self.steps("check"):
            started_at = check_times(self.repository, self.options)
        with self.steps("list"):
            listed = self._list(started_at, None if earlier is None else earlier.run.closed_after)
        index = self._index(listed, started_at)
        if earlier is None:
            read = self._read_all(listed, index)
        else:
            read = self._read_changes(listed, index, earlier.run)
        read, result = self._subtract_all(read)
        whole = read.listed.total
        if earlier is not None:
            whole = whole.or_more(earlier.left)
        return self._plan(read, result, chosen, started_at=started_at, whole=whole)

    def look_ahead(self, policies: Iterable[Policy]) -> Iterator[UnwrittenPlan]:
        """Yields the results of the function `look_ahead`."""
        started_at = self.repository.now()
        with self.steps("list"):
            # No run continues from this one, so that it need not remember files.
            listed = replace(self._list(started_at), closed_after=None)
        index = self._index(listed, started_at)
        present = self._read_all(listed, index, keeps_basis=True)
        basis = present.roots.decided.basis
        assert basis is not None
        yield self._outlook(present, basis)
        for policy in policies:
            roots = replace(basis.roots, policy=policy.with_holds(basis.roots.holds))
            yield self._under(roots, present, index)

    def _under(self, roots: Roots, present: _Read, index: Index | None) -> UnwrittenPlan:
        """Returns the result of the same plan with other roots."""
        with self.steps("reach"):
            other = write_decision(self.folder, roots, keeps_basis=True)
            mark = self._mark(other, index)
        read = replace(present, roots=replace(present.roots, decided=other), mark=mark)
        assert other.basis is not None
        return self._outlook(read, other.basis)

    def _outlook(self, read: _Read, basis: Basis) -> UnwrittenPlan:
        try:
            _, result = self._subtract_all(read)
        finally:
            self.engine.forget()
        return UnwrittenPlan(basis, result.counts, total_by_kind(result.candidates))

    def _list(self, started_at: datetime, settled_after: str | None = None) -> ListedFiles:
        listing = InventoryListing(self.engine, self.repository, self.folder, self.options)
        if self.given is not None:
            return listing.read(self.given, started_at)
        return listing.make(started_at, settled_after=settled_after, expected=self.expected)

    def _index(self, listed: ListedFiles, started_at: datetime) -> Index | None:
        """Opens the index, or returns None if trees and nodes have no checksums. The index is not
        writable if the run's files go to another place (`run_dir`)."""
        if not self.repository.layout.checked_kinds:
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
            roots = self._read_roots(reading, listed, keeps_basis=keeps_basis)
            back = self._held_back(roots)
            protected = write_protected(self.folder, reading.protected(), name="uncommitted")
        looks = not keeps_basis and index is not None
        mark = self._mark(roots.decided, index, listed.slices if looks else None)
        return _Read(roots, listed, mark, protected + back, back)

    def _read_changes(self, listed: ListedFiles, index: Index | None, earlier: EarlierRun) -> _Read:
        """Reads the changes since an earlier run, in one snapshot of the metadata.

        The run looks at few of the protected files. If it looks at few files at all, it reads only
        the protections of these.
        """
        folder = self.folder
        with self.repository.reading(listed.cutoff) as reading:
            with self.steps("read"):
                roots = self._read_roots(reading, listed)
                assert isinstance(reading, SlicedReading)
                dropped = write_protected(folder, reading.dropped(), name="dropped")
            with self.steps("reach"):
                mark = self._mark(roots.decided, index)
                nodes = mark.nodes
            with self.steps("revisit"):
                now = Now(
                    place=self._place,
                    cutoff=listed.cutoff,
                    trees=roots.decided.trees,
                    nodes=nodes,
                    dropped=dropped,
                    index=index,
                )
                listed = listed.with_rows(unlisted_files(self.engine, earlier, now))
            read = _Read(roots, listed, mark, [], [])
            live: Relation | None = None
            left: pa.ChunkedArray[Any] | None = None
            if self.engine.holds(listed.parts):
                given = self._relations(read, None)
                with self.steps("mark"):
                    live = mark.live(asked_keys(self.engine, given)).kept()
                    left = addresses_left(self.engine, given, live)
            with self.steps("protect"):
                if left is None or len(left) > AMONG_MAX:
                    tables = reading.protected()
                else:
                    tables = protected_of(reading, left)
                protected = write_protected(folder, tables, name="uncommitted")
                back = self._held_back(roots)
        return replace(read, live=live, protected=protected + back, back=back)

    @property
    def _folders(self) -> RunFolders:
        return RunFolders(self.repository, self.options.run_dir)

    def _held_back(self, roots: _Roots) -> list[Part]:
        return held_back(self._folders, self.folder, now=roots.decided.now, name="uncommitted")

    def _read_roots(
        self, reading: Reading, listed: ListedFiles, *, keeps_basis: bool = False
    ) -> _Roots:
        count, roots = listed.total.objects, reading.roots()
        check_not_empty(roots, listed_count=count)
        if not self.options.accept_lost_commits:
            check_last_swept(self._folders, roots)
        known = write_decision(self.folder, roots, keeps_basis=keeps_basis)
        untraced = reading.untraced() if isinstance(reading, SlicedReading) else ()
        return _Roots(known, write_protected(self.folder, untraced, name="untraced"))

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
            closed_after=listed.closed_after,
            # The protection of a restored file ends without a report.
            untraced=read.roots.untraced + read.back,
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
        checks, looks = not layout.checked_kinds, mark.slices is not None
        with self.steps("subtract"):
            live = live.kept() if checks or looks else live
            given = self._relations(read, live)
            result = subtract(self.engine, given)
        if checks:
            with self.steps("presence"):
                missing = unlisted(self.engine, given, live, kinds=given.kinds)
                check_presence(mark, missing)
        elif looks:
            with self.steps("presence"):
                missing = unlisted(self.engine, given, live)
                found = find_absent(self.engine, self.repository, mark, missing)
                result = replace(result, absent=tuple(found))
        mark.done()
        return result

    def _plan(
        self, read: _Read, result: Subtracted, chosen: Chosen, *, started_at: datetime, whole: Count
    ) -> Plan:
        known, listed = read.roots.decided, read.listed
        earlier = None if chosen.earlier is None else chosen.earlier.run.plan
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
                *ahead_warnings(self.repository.run_paths(), known.now),
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
                warning_of(self.repository, self.folder, known, absent) if absent else None
            ),
            retained=self.repository.storage.retained(),
            classes=look_at_classes(
                self.repository.storage,
                self.folder,
                result.candidates,
                self.options,
                now=started_at,
            ),
        )


def check_times(repository: RepositoryFormat, options: RunOptions) -> datetime:
    """Checks the gate on clocks. Returns the time of the earliest clock, from which ages are
    counted. Raises Refused `clock_skew`."""
    clocks = repository.clocks()
    clocks.check(skew_max=options.skew_max)
    return clocks.earliest
