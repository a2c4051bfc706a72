"""Making a plan: list, read, decide, mark, subtract. Changes nothing but the run's own files.

The order is rule 2 of the safety rules: the inventory first, then, in one snapshot of the metadata,
what is protected and what is committed. What is written after the listing cannot be a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final

from ebbtide.formats.base import AMONG_MAX, Reading, RepositoryFormat
from ebbtide.gc.candidates import Relations, Subtracted
from ebbtide.gc.counts import Count
from ebbtide.gc.decided import Basis, Decided, decided
from ebbtide.gc.deciding import decide_plan, spooled
from ebbtide.gc.engine import Engine
from ebbtide.gc.gates import check_clocks, check_not_empty, check_share
from ebbtide.gc.given import GivenInventory
from ebbtide.gc.incremental import (
    EarlierRun,
    NeedsCleanRunError,
    Now,
    Recalled,
    recall,
)
from ebbtide.gc.index import Index
from ebbtide.gc.inventory import POINTERS
from ebbtide.gc.keys import rows_of
from ebbtide.gc.listed import Listed, Listing
from ebbtide.gc.mark import Marked, Reached, mark_reached, reach
from ebbtide.gc.modes import Chosen
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part, total_by_group
from ebbtide.gc.places import Place
from ebbtide.gc.plan import Plan, Settled
from ebbtide.gc.presence import check_presence
from ebbtide.gc.protected import write_protected
from ebbtide.gc.quarantine import held_back
from ebbtide.gc.question import Question, protected_among
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Steps
from ebbtide.gc.subtract import subtract
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots

UNCHANGED_PER_ROW: Final = 50
"""How much less than a listed file one costs an incremental run that is only remembered."""


@dataclass(frozen=True, slots=True)
class _Roots:
    """What was decided on commits; `purged` and `untraced` are parts."""

    decided: Decided
    purged: list[Part]
    untraced: list[Part]


@dataclass(frozen=True, slots=True)
class _Read:
    """What is known once everything was read: the relations of the subtraction, and what an earlier
    run left to this one. `back` is what was undone lately, a part of what is protected."""

    roots: _Roots
    listed: Listed
    marked: Marked
    protected: list[Part]
    back: list[Part]
    recalled: Recalled = field(default_factory=lambda: Recalled([], (), []))


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a plan would come to: `counts` by class, and of candidates by `kinds`."""

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
    given: GivenInventory | None = None,
    expected: int | None = None,
) -> Plan:
    """Make the plan of a run; the caller writes it. Refused by any gate. Nothing is listed where
    an inventory is `given`. `expected` is how many files there may be.

    An incremental run that turns out to be none becomes a clean one.
    """
    planning = _Planning(engine, repository, run_id, folder, options, steps, given, expected)
    try:
        return planning.make(chosen)
    except NeedsCleanRunError as error:
        return planning.make(Chosen(reason=str(error)))


def look_ahead(
    engine: Engine,
    repository: RepositoryFormat,
    policies: Iterable[Policy],
    *,
    folder: RunFolder,
    options: RunOptions,
    steps: Steps,
    given: GivenInventory | None = None,
) -> Iterator[Outlook]:
    """What a clean plan would come to now: with the policy that the repository has, then with each
    of `policies` in its place. One listing, and one reading of the metadata, serve all of them.

    What is in `folder` is of the last one. Refused as a plan is; but whose the storage is, and what
    its clock says, is known only to a run that writes to it.
    """
    planning = _Planning(engine, repository, "", folder, options, steps, given)
    yield from planning.look_ahead(policies)


@dataclass(frozen=True, slots=True)
class _Planning:
    """One plan in the making."""

    engine: Engine
    repository: RepositoryFormat
    run_id: str
    folder: RunFolder
    options: RunOptions
    steps: Steps
    given: GivenInventory | None
    expected: int | None = None

    def make(self, chosen: Chosen) -> Plan:
        """As `make_plan`; raises NeedsCleanRunError besides."""
        earlier = chosen.earlier
        self.engine.expect(None if earlier is None else earlier.left.objects // UNCHANGED_PER_ROW)
        with self.steps("check"):
            started_at = check_times(self.repository, self.options)
        with self.steps("list"):
            listed = self._list(started_at, None if earlier is None else earlier.run.closed_after)
        index = self._index(listed, started_at)
        if earlier is None:
            read = self._read_all(listed, index)
        else:
            read = self._read_changes(listed, index, earlier.run)
        result = self._subtract(read)
        whole = read.listed.total
        if earlier is not None:
            whole = whole.or_more(earlier.left)
        return self._plan(read, result, chosen, started_at=started_at, whole=whole)

    def look_ahead(self, policies: Iterable[Policy]) -> Iterator[Outlook]:
        """As the function of that name."""
        self.engine.expect(None)
        started_at = self.repository.now()
        with self.steps("list"):
            # No run goes on from this one: nothing is to be remembered.
            listed = replace(self._list(started_at), closed_after=None)
        index = self._index(listed, started_at)
        present = self._read_all(listed, index, keeps_basis=True)
        basis = present.roots.decided.basis
        assert basis is not None
        yield self._outlook(present, basis)
        for policy in policies:
            roots = replace(basis.roots, policy=policy.with_holds(basis.roots.holds))
            yield self._under(roots, present, index)

    def _under(self, roots: Roots, present: _Read, index: Index | None) -> Outlook:
        """What it would come to with other roots."""
        with self.steps("reach"):
            other = decided(self.folder, roots, keeps_basis=True)
            reached = self._reach(other, index)
        with self.steps("mark"):
            marked = mark_reached(self.engine, self._place, reached, index=index)
        read = replace(present, roots=replace(present.roots, decided=other), marked=marked)
        assert other.basis is not None
        return self._outlook(read, other.basis)

    def _outlook(self, read: _Read, basis: Basis) -> Outlook:
        result = self._subtract(read)
        return Outlook(basis, result.counts, total_by_group(result.candidates))

    def _list(self, started_at: datetime, settled_after: str | None = None) -> Listed:
        listing = Listing(self.engine, self.repository, self.folder, self.options)
        if self.given is not None:
            return listing.read(self.given, started_at)
        return listing.make(started_at, settled_after=settled_after, expected=self.expected)

    def _index(self, listed: Listed, started_at: datetime) -> Index | None:
        """The index of a repository whose trees and nodes have checksums; read only by a run that
        leaves the storage unwritten."""
        if not self.repository.layout.checked_kinds:
            return None
        return Index(
            storage=self.repository.storage,
            folder=self.folder,
            pointers=tuple(part for part in listed.parts if part.group == POINTERS),
            read_at=started_at,
            writable=self.options.run_dir is None,
        )

    @property
    def _place(self) -> Place:
        return Place(self.repository.storage, self.repository.layout, self.folder, "live")

    def _read_all(self, listed: Listed, index: Index | None, *, keeps_basis: bool = False) -> _Read:
        """All in one snapshot of the metadata. What is protected is much to read, and is read while
        tasks read trees."""
        with ExitStack() as until_read:
            with self.steps("read"):
                reading = until_read.enter_context(self.repository.reading(listed.cutoff))
                tables = reading.protected()
                roots = self._read_roots(reading, listed, keeps_basis=keeps_basis)
                back = self._held_back(roots)
                write = partial(write_protected, self.folder, tables, name="uncommitted")
                written = until_read.enter_context(self.engine.beside(write))
            with self.steps("reach"):
                reached = self._reach(roots.decided, index)
                protected = written()
        with self.steps("mark"):
            marked = mark_reached(self.engine, self._place, reached, index=index)
        return _Read(roots, listed, marked, protected + back, back)

    def _read_changes(self, listed: Listed, index: Index | None, earlier: EarlierRun) -> _Read:
        """All in one snapshot too. What is protected is asked for by name, once it is known what is
        looked at: nearly all of it is settled."""
        folder = self.folder
        with self.repository.reading(listed.cutoff) as reading:
            with self.steps("read"):
                roots = self._read_roots(reading, listed)
                if roots.purged:
                    reason = "a purge was not finished, and a listing finds what it left"
                    raise NeedsCleanRunError(reason)
                dropped = write_protected(folder, reading.dropped(), name="dropped")
            with self.steps("reach"):
                reached = self._reach(roots.decided, index)
            with self.steps("recall"):
                now = Now(
                    folder=folder,
                    storage=self.repository.storage,
                    layout=self.repository.layout,
                    trees=roots.decided.trees,
                    node_parts=reached.nodes,
                    dropped=dropped,
                )
                recalled = recall(self.engine, earlier, now)
                listed = listed.with_rows(recalled.parts)
            with self.steps("mark"):
                few = self.engine.holds(listed.parts)
                question = Question.of(self.engine, folder, listed.parts) if few else None
                asked = None if question is None else question.keys
                marked = mark_reached(self.engine, self._place, reached, index=index, asked=asked)
            with self.steps("protect"):
                left = None if question is None else question.left(self.engine, marked.live)
                if left is None or rows_of(left) > AMONG_MAX:
                    tables = reading.protected()
                else:
                    tables = protected_among(reading, folder, left)
                protected = write_protected(folder, tables, name="uncommitted")
                back = self._held_back(roots)
        return _Read(roots, listed, marked, protected + back, back, recalled)

    def _held_back(self, roots: _Roots) -> list[Part]:
        storage, now = self.repository.storage, roots.decided.now
        return held_back(storage, self.folder, now=now, name="uncommitted")

    def _read_roots(self, reading: Reading, listed: Listed, *, keeps_basis: bool = False) -> _Roots:
        count = listed.total.objects
        if keeps_basis:
            roots = reading.roots()
            check_not_empty(roots, listed_count=count)
            known = decided(self.folder, roots, keeps_basis=True)
        else:
            with spooled(reading.root_tables()) as read:
                known = decide_plan(self.engine, self.folder, read, listed_count=count)
        purged = write_protected(self.folder, reading.purged(), name="purged")
        untraced = write_protected(self.folder, reading.untraced(), name="untraced")
        return _Roots(known, purged, untraced)

    def _reach(self, known: Decided, index: Index | None) -> Reached:
        return reach(self.engine, self._place, known.trees, index=index)

    def _subtract(self, read: _Read) -> Subtracted:
        """Refused `missing_…` where something is not there that must be."""
        listed, marked = read.listed, read.marked
        with self.steps("subtract"):
            relations = Relations(
                folder=self.folder,
                storage=self.repository.storage,
                inventory=listed.parts,
                live=marked.live,
                required=marked.required,
                protected=read.protected,
                kinds=self.repository.layout.delete_order,
                cutoff=listed.cutoff,
                closed_after=listed.closed_after,
                # What is settled once more would not count; what is back ends without a trace.
                untraced=read.roots.untraced + read.recalled.unsettled + read.back,
                purged=read.roots.purged,
            )
            result = subtract(self.engine, relations)
        if marked.required and not result.all_listed:
            with self.steps("presence"):
                check_presence(
                    self.engine,
                    storage=self.repository.storage,
                    folder=self.folder,
                    inventory=listed.parts,
                    required=marked.required,
                )
        return result

    def _plan(
        self, read: _Read, result: Subtracted, chosen: Chosen, *, started_at: datetime, whole: Count
    ) -> Plan:
        known, listed = read.roots.decided, read.listed
        earlier = None if chosen.earlier is None else chosen.earlier.run.plan
        over = check_share(result.counts["candidate"], whole, share_max=self.options.share_max)
        settled = tuple(Settled(self.folder.path, part) for part in result.settled)
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
            warnings=known.warnings,
            seconds=self.steps.seconds(),
            mode="clean" if earlier is None else "incremental",
            mode_reason=chosen.reason,
            previous_id=None if earlier is None else earlier.run_id,
            clean_at=started_at if earlier is None else earlier.clean_at,
            read_at=known.now,
            closed_after=listed.closed_after,
            young_slices=listed.young_slices,
            remaining=result.remaining,
            settled=read.recalled.settled + settled,
            unsettled=tuple(read.recalled.unsettled),
            whole=whole,
            inventory_url=None if self.given is None else self.given.url,
            refusal=(over.kind, over.message) if over else None,
        )


def check_times(repository: RepositoryFormat, options: RunOptions) -> datetime:
    """The gate on clocks; the earliest clock's now, from which ages are counted."""
    clocks = repository.clocks()
    check_clocks(clocks, skew_max=options.skew_max)
    return min(clocks.host, clocks.database, clocks.storage)
