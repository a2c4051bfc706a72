"""Making a plan: list, read, decide, mark, subtract. Changes nothing but the run's own files.

The order is rule 2 of the safety rules: the inventory first, then, in one snapshot of the metadata,
what is protected and what is committed. What is written after the listing cannot be a candidate.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final

from ebbtide.formats.base import AMONG_MAX, Reading, RepositoryFormat, Slices
from ebbtide.gc.candidates import Relations, Subtracted
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.gates import check_clocks, check_not_empty, check_share
from ebbtide.gc.given import GivenInventory, read_inventory
from ebbtide.gc.incremental import (
    EarlierRun,
    NeedsCleanRunError,
    Now,
    Question,
    Recalled,
    recall,
)
from ebbtide.gc.index import Index
from ebbtide.gc.inventory import POINTERS, list_inventory
from ebbtide.gc.mark import Marked, MarkedTrees, Reached, mark_reached, reach
from ebbtide.gc.modes import Chosen
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part
from ebbtide.gc.places import Place
from ebbtide.gc.plan import Plan, Settled, write_commits, write_refs
from ebbtide.gc.presence import check_presence
from ebbtide.gc.protected import write_protected
from ebbtide.gc.quarantine import held_back
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Steps
from ebbtide.gc.subtract import subtract
from ebbtide.ids import latest_id
from ebbtide.retention import Policy
from ebbtide.retention.decision import Decision, Roots, decide

UNCHANGED_PER_ROW: Final = 50
"""How much less than a listed file one costs an incremental run that is only remembered."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """What was listed: parts of INVENTORY_SCHEMA, counts by kind, and of what can be collected;
    and until when it speaks for the storage."""

    parts: list[Part]
    kinds: dict[str, Count]
    total: Count
    cutoff: datetime
    young_slices: int = 0
    closed_after: str | None = None

    def with_rows(self, parts: list[Part]) -> _Listed:
        """This, and what an incremental run looks at besides."""
        more = (part.count for part in parts)
        return replace(self, parts=self.parts + parts, total=sum(more, self.total))


@dataclass(frozen=True, slots=True)
class _Roots:
    """What decides on commits, and what that means for the trees; `purged` and `untraced` are
    parts."""

    roots: Roots
    decision: Decision
    commits: Part
    refs: Part
    trees: MarkedTrees
    purged: list[Part]
    untraced: list[Part]


@dataclass(frozen=True, slots=True)
class _Read:
    """What is known once everything was read: the relations of the subtraction, and what an earlier
    run left to this one. `back` is what was undone lately, a part of what is protected."""

    roots: _Roots
    listed: _Listed
    marked: Marked
    protected: list[Part]
    back: list[Part]
    recalled: Recalled = field(default_factory=lambda: Recalled([], (), []))


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a plan would come to: `counts` by class, and of candidates by `kinds`."""

    roots: Roots
    decision: Decision
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
    an inventory is `given`. `expected` is how many files a clean run may find.

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
            listed = self._list(started_at, None if earlier is None else earlier.run)
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
            listed = replace(self._list(started_at, None), closed_after=None)
        index = self._index(listed, started_at)
        present = self._read_all(listed, index)
        yield self._outlook(present)
        for policy in policies:
            yield self._outlook(self._under(policy, present, index))

    def _under(self, policy: Policy, present: _Read, index: Index | None) -> _Read:
        """What was read, as it would be with another policy."""
        read = present.roots
        with self.steps("reach"):
            other = replace(read.roots, policy=policy.with_holds(read.roots.holds))
            roots = self._decided(other, read.purged, read.untraced)
            reached = self._reach(roots, index)
        with self.steps("mark"):
            marked = mark_reached(self.engine, self._place, reached, index=index)
        return replace(present, roots=roots, marked=marked)

    def _outlook(self, read: _Read) -> Outlook:
        result = self._subtract(read)
        kinds = total_by_group(result.candidates)
        return Outlook(read.roots.roots, read.roots.decision, result.counts, kinds)

    def _list(self, started_at: datetime, earlier: EarlierRun | None) -> _Listed:
        repository, folder = self.repository, self.folder
        cutoff = started_at - self.options.grace
        if self.given is not None:
            # Nobody knows what came into a slice at its end.
            parts = read_inventory(self.engine, repository, folder, self.given)
            return _listed(repository, parts, cutoff=min(cutoff, self.given.date))
        # First: what ends while the listing goes on may have been listed or not.
        closed_after = _closed_after(repository, cutoff)
        slices = Slices(
            cutoff=cutoff,
            now=started_at,
            closed_after=None if earlier is None else earlier.closed_after,
            sized=self.options.sizes == "all",
        )
        parts, young = list_inventory(
            self.engine,
            repository.storage,
            repository.layout,
            folder,
            slices,
            expected=self.expected if earlier is None else None,
        )
        return replace(
            _listed(repository, parts, cutoff=cutoff), young_slices=young, closed_after=closed_after
        )

    def _index(self, listed: _Listed, started_at: datetime) -> Index | None:
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

    def _read_all(self, listed: _Listed, index: Index | None) -> _Read:
        """All in one snapshot of the metadata. What is protected is much to read, and is read while
        tasks read trees; behind them where those are this process's own, whose steps keep an
        order."""
        with ExitStack() as until_read:
            with self.steps("read"):
                reading = until_read.enter_context(self.repository.reading(listed.cutoff))
                tables = reading.protected()
                roots = self._read_roots(reading, listed)
                back = self._held_back(roots)
                write = partial(write_protected, self.folder, tables, name="uncommitted")
                beside: Future[list[Part]] | None = None
                if self.engine.cores > 1:
                    beside = until_read.enter_context(ThreadPoolExecutor(1)).submit(write)
            with self.steps("reach"):
                reached = self._reach(roots, index)
                protected = write() if beside is None else beside.result()
        with self.steps("mark"):
            marked = mark_reached(self.engine, self._place, reached, index=index)
        return _Read(roots, listed, marked, protected + back, back)

    def _read_changes(self, listed: _Listed, index: Index | None, earlier: EarlierRun) -> _Read:
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
                reached = self._reach(roots, index)
            with self.steps("recall"):
                now = Now(
                    folder=folder,
                    storage=self.repository.storage,
                    layout=self.repository.layout,
                    data_trees=roots.trees.data,
                    checksums=roots.roots.tree_checksums,
                    node_parts=reached.nodes,
                    dropped=dropped,
                )
                recalled = recall(self.engine, earlier, now)
                listed = listed.with_rows(recalled.parts)
            with self.steps("mark"):
                few = self.engine.holds(listed.parts)
                question = Question.of(folder, listed.parts) if few else None
                asked = None if question is None else question.key_parts(folder)
                marked = mark_reached(self.engine, self._place, reached, index=index, asked=asked)
            with self.steps("protect"):
                left = None if question is None else question.left(folder, marked.live)
                among = left if left is None or len(left) <= AMONG_MAX else None
                tables = reading.protected(among)
                protected = write_protected(folder, tables, name="uncommitted")
                back = self._held_back(roots)
        return _Read(roots, listed, marked, protected + back, back, recalled)

    def _held_back(self, roots: _Roots) -> list[Part]:
        storage, now = self.repository.storage, roots.roots.now
        return held_back(storage, self.folder, now=now, name="uncommitted")

    def _read_roots(self, reading: Reading, listed: _Listed) -> _Roots:
        roots = reading.roots()
        purged = write_protected(self.folder, reading.purged(), name="purged")
        untraced = write_protected(self.folder, reading.untraced(), name="untraced")
        check_not_empty(roots, listed_count=listed.total.objects)
        return self._decided(roots, purged, untraced)

    def _decided(self, roots: Roots, purged: list[Part], untraced: list[Part]) -> _Roots:
        decision = decide(roots)
        commits = write_commits(self.folder, roots, decision)
        refs = write_refs(self.folder, roots)
        return _Roots(roots, decision, commits, refs, trees_of(roots, decision), purged, untraced)

    def _reach(self, roots: _Roots, index: Index | None) -> Reached:
        checksums = roots.roots.tree_checksums
        return reach(self.engine, self._place, trees=roots.trees, checksums=checksums, index=index)

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
        roots, decision, listed = read.roots.roots, read.roots.decision, read.listed
        earlier = None if chosen.earlier is None else chosen.earlier.run.plan
        over = check_share(result.counts["candidate"], whole, share_max=self.options.share_max)
        gone_count = sum(commit.tombstoned for commit in roots.commits)
        settled = tuple(Settled(self.folder.path, part) for part in result.settled)
        return Plan(
            run_id=self.run_id,
            identity=self.repository.identity,
            started_at=started_at,
            cutoff=listed.cutoff,
            grace_seconds=self.options.grace.total_seconds(),
            policy=None if roots.policy is None else roots.policy.to_mapping(),
            counts={"listed": listed.total, **result.counts},
            kinds=listed.kinds,
            candidates=result.candidates,
            protected=tuple(read.protected),
            commits=read.roots.commits,
            refs=read.roots.refs,
            active_count=len(decision.active),
            expired_count=len(decision.expired) - gone_count,
            gone_count=gone_count,
            forgettable_count=len(decision.forgettable),
            by_ref=tuple(asdict(summary) for summary in decision.by_ref),
            warnings=decision.warnings,
            seconds=self.steps.seconds(),
            mode="clean" if earlier is None else "incremental",
            mode_reason=chosen.reason,
            previous_id=None if earlier is None else earlier.run_id,
            clean_at=started_at if earlier is None else earlier.clean_at,
            read_at=roots.now,
            closed_after=listed.closed_after,
            young_slices=listed.young_slices,
            remaining=result.remaining,
            settled=read.recalled.settled + settled,
            unsettled=tuple(read.recalled.unsettled),
            whole=whole,
            inventory_url=None if self.given is None else self.given.url,
            refusal=(over.kind, over.message) if over else None,
        )


def _closed_after(repository: RepositoryFormat, cutoff: datetime) -> str | None:
    """Slices that sort behind this one get no more files, and are listed by this run unless an
    earlier one did: they were opened before the cutoff."""
    closed_after = repository.closed_after()
    return None if closed_after is None else max(closed_after, latest_id(cutoff))


def _listed(repository: RepositoryFormat, answers: list[Part], *, cutoff: datetime) -> _Listed:
    kinds = total_by_group(part for part in answers if part.name is None)
    return _Listed(
        parts=[part for part in answers if part.name is not None],
        kinds=kinds,
        total=sum((kinds.get(k, Count()) for k in repository.layout.delete_order), Count()),
        cutoff=cutoff,
    )


def check_times(repository: RepositoryFormat, options: RunOptions) -> datetime:
    """The gate on clocks; the earliest clock's now, from which ages are counted."""
    clocks = repository.clocks()
    check_clocks(clocks, skew_max=options.skew_max)
    return min(clocks.host, clocks.database, clocks.storage)


def trees_of(roots: Roots, decision: Decision) -> MarkedTrees:
    """The trees that a decision keeps, and those whose data it keeps.

    A commit that an operator gave up has no checksum of its tree: the tree is not read.
    """

    def trees(commit_ids: Container[str]) -> frozenset[str]:
        return frozenset(
            commit.tree_id
            for commit in roots.commits
            if commit.commit_id in commit_ids and commit.tree_id in roots.tree_checksums
        )

    return MarkedTrees(
        recorded=trees(decision.recorded),
        data=trees(decision.active),
        lenient=roots.lenient_trees,
        companions=frozenset(
            address
            for commit_id in decision.recorded
            for address in roots.companions.get(commit_id, ())
        ),
    )


def total_by_group(parts: Iterable[Part]) -> dict[str, Count]:
    """Rows and bytes of `parts` by their group."""
    totals: dict[str, Count] = {}
    for part in parts:
        totals[part.group] = totals.get(part.group, Count()) + part.count
    return totals
