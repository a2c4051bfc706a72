"""Making a plan: list, read, decide, mark, subtract. Changes nothing but the run's own files.

The order is rule 2 of the safety rules: the inventory first, then, in one snapshot of the metadata,
what is protected and what is committed. What is written after the listing cannot be a candidate.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from ebbtide.formats.base import RepositoryFormat, Slices
from ebbtide.gc.candidates import Relations
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.gates import check_clocks, check_not_empty, check_share
from ebbtide.gc.given import GivenInventory, read_inventory
from ebbtide.gc.incremental import NeedsCleanRunError, Now, in_question, recall
from ebbtide.gc.index import Index
from ebbtide.gc.inventory import POINTERS, list_inventory
from ebbtide.gc.mark import MarkedTrees, Reached, mark_reached, reach
from ebbtide.gc.modes import Chosen
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part
from ebbtide.gc.places import Place
from ebbtide.gc.plan import Plan, write_commits
from ebbtide.gc.presence import check_presence
from ebbtide.gc.protected import write_protected
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Steps
from ebbtide.gc.subtract import subtract
from ebbtide.ids import latest_id
from ebbtide.retention.decision import Decision, Roots, decide

UNCHANGED_PER_ROW: Final = 50
"""How much less than a listed file one costs an incremental run that is only remembered."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """What was listed: parts of INVENTORY_SCHEMA, counts by kind, and of what can be collected."""

    parts: list[Part]
    kinds: dict[str, Count]
    total: Count
    young_slices: int

    def with_rows(self, parts: list[Part]) -> _Listed:
        """This, and what an incremental run looks at besides."""
        more = (Count(part.rows, part.bytes_total) for part in parts)
        return replace(self, parts=self.parts + parts, total=sum(more, self.total))


@dataclass(frozen=True, slots=True)
class _Read:
    """What the metadata said, and what follows from it: for each commit, and the trees and nodes
    that are reached."""

    roots: Roots
    decision: Decision
    commits: Part
    protected: list[Part]
    purged: list[Part]
    trees: MarkedTrees
    reached: Reached


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
) -> Plan:
    """Make the plan of a run; the caller writes it. Refused by any gate. Nothing is listed where
    an inventory is `given`.

    An incremental run that turns out to be none becomes a clean one.
    """
    make = partial(
        _make,
        engine,
        repository,
        run_id=run_id,
        folder=folder,
        options=options,
        steps=steps,
        given=given,
    )
    try:
        return make(chosen=chosen)
    except NeedsCleanRunError as error:
        return make(chosen=Chosen(reason=str(error)))


def _make(
    engine: Engine,
    repository: RepositoryFormat,
    *,
    run_id: str,
    folder: RunFolder,
    options: RunOptions,
    steps: Steps,
    chosen: Chosen,
    given: GivenInventory | None,
) -> Plan:
    earlier = chosen.earlier
    engine.expect(None if earlier is None else earlier.left.objects // UNCHANGED_PER_ROW)
    with steps("check"):
        started_at = check_times(repository, options)
        cutoff = started_at - options.grace
    with steps("list"):
        if given is None:
            # First: what ends while the listing goes on may have been listed or not.
            closed_after = _closed_after(repository, cutoff)
            slices = Slices(
                cutoff=cutoff,
                now=started_at,
                closed_after=None if earlier is None else earlier.run.closed_after,
            )
            listed = _list(engine, repository, folder, slices)
        else:
            closed_after = None  # nobody knows what came into a slice at its end
            cutoff = min(cutoff, given.date)
            listed = _listed(repository, read_inventory(engine, repository, folder, given))
    place = Place(repository.storage, repository.layout, folder, "live")
    index = _index(repository, options, folder, listed, started_at)
    read = _read(
        engine, repository, place, index, steps, cutoff=cutoff, listed_count=listed.total.objects
    )
    if earlier is not None and read.purged:
        raise NeedsCleanRunError("a purge was not finished, and a listing finds what it left")
    if earlier is not None:
        with steps("recall"):
            now = Now(
                folder=folder,
                storage=repository.storage,
                layout=repository.layout,
                data_trees=read.trees.data,
                checksums=read.roots.tree_checksums,
                node_parts=read.reached.nodes,
            )
            listed = listed.with_rows(recall(engine, earlier.run, now))
    with steps("mark"):
        asked = None
        if earlier is not None and engine.holds_keys([*listed.parts, *read.protected]):
            asked = in_question(folder, listed.parts, read.protected)
        marked = mark_reached(engine, place, read.reached, index=index, asked=asked)
    with steps("subtract"):
        relations = Relations(
            folder=folder,
            inventory=listed.parts,
            live=marked.live,
            required=marked.required,
            protected=read.protected,
            kinds=repository.layout.delete_order,
            cutoff=cutoff,
            closed_after=closed_after,
            purged=read.purged,
        )
        result = subtract(engine, relations)
    if marked.required and not result.all_listed:
        with steps("presence"):
            check_presence(
                engine,
                storage=repository.storage,
                folder=folder,
                inventory=listed.parts,
                required=marked.required,
            )
    whole = listed.total if earlier is None else listed.total.or_more(earlier.left)
    over = check_share(result.counts["candidate"], whole, share_max=options.share_max)
    policy = read.roots.policy
    gone_count = sum(commit.tombstoned for commit in read.roots.commits)
    return Plan(
        run_id=run_id,
        identity=repository.identity,
        started_at=started_at,
        cutoff=cutoff,
        grace_seconds=options.grace.total_seconds(),
        policy=None if policy is None else policy.to_mapping(),
        counts={"listed": listed.total, **result.counts},
        kinds=listed.kinds,
        candidates=result.candidates,
        protected=tuple(read.protected),
        commits=read.commits,
        active_count=len(read.decision.active),
        expired_count=len(read.decision.expired) - gone_count,
        gone_count=gone_count,
        forgettable_count=len(read.decision.forgettable),
        by_ref=tuple(asdict(summary) for summary in read.decision.by_ref),
        warnings=read.decision.warnings,
        seconds=steps.seconds(),
        mode="clean" if earlier is None else "incremental",
        mode_reason=chosen.reason,
        previous_id=None if earlier is None else earlier.run.plan.run_id,
        clean_at=started_at if earlier is None else earlier.run.plan.clean_at,
        read_at=read.roots.now,
        closed_after=closed_after,
        young_slices=listed.young_slices,
        remaining=result.remaining,
        whole=whole,
        inventory_url=None if given is None else given.url,
        refusal=(over.kind, over.message) if over else None,
    )


def _index(
    repository: RepositoryFormat,
    options: RunOptions,
    folder: RunFolder,
    listed: _Listed,
    started_at: datetime,
) -> Index | None:
    """The index of a repository whose trees and nodes have checksums; read only by a run that
    leaves the storage unwritten."""
    if not repository.layout.checked_kinds:
        return None
    return Index(
        storage=repository.storage,
        folder=folder,
        pointers=tuple(part for part in listed.parts if part.group == POINTERS),
        read_at=started_at,
        writable=options.run_dir is None,
    )


def _closed_after(repository: RepositoryFormat, cutoff: datetime) -> str | None:
    """Slices that sort behind this one get no more files, and are listed by this run unless an
    earlier one did: they were opened before the cutoff."""
    closed_after = repository.closed_after()
    return None if closed_after is None else max(closed_after, latest_id(cutoff))


def _list(
    engine: Engine, repository: RepositoryFormat, folder: RunFolder, slices: Slices
) -> _Listed:
    answers, young_slices = list_inventory(
        engine, repository.storage, repository.layout, folder, slices
    )
    return _listed(repository, answers, young_slices)


def _listed(repository: RepositoryFormat, answers: list[Part], young_slices: int = 0) -> _Listed:
    kinds = total_by_group(part for part in answers if part.name is None)
    return _Listed(
        parts=[part for part in answers if part.name is not None],
        kinds=kinds,
        total=sum((kinds.get(k, Count()) for k in repository.layout.delete_order), Count()),
        young_slices=young_slices,
    )


def _read(
    engine: Engine,
    repository: RepositoryFormat,
    place: Place,
    index: Index | None,
    steps: Steps,
    *,
    cutoff: datetime,
    listed_count: int,
) -> _Read:
    """All in one snapshot of the metadata. What is protected is much to read, and is read while
    tasks read trees; behind them where those are this process's own, whose steps keep an order."""
    folder = place.folder
    with ExitStack() as until_read:
        with steps("read"):
            reading = until_read.enter_context(repository.reading(cutoff))
            tables = reading.protected()  # what has ended is judged first
            roots = reading.roots()
            purged = write_protected(folder, reading.purged(), name="purged")
            write = partial(write_protected, folder, tables, name="uncommitted")
            beside: Future[list[Part]] | None = None
            if engine.cores > 1:
                beside = until_read.enter_context(ThreadPoolExecutor(1)).submit(write)
            check_not_empty(roots, listed_count=listed_count)
            decision = decide(roots)
            commits = write_commits(folder, roots, decision)
            trees = trees_of(roots, decision)
        with steps("reach"):
            checksums = roots.tree_checksums
            reached = reach(engine, place, trees=trees, checksums=checksums, index=index)
            protected = write() if beside is None else beside.result()
            return _Read(roots, decision, commits, protected, purged, trees, reached)


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
        totals[part.group] = totals.get(part.group, Count()) + Count(part.rows, part.bytes_total)
    return totals
