"""The files that an incremental run looks at, without listing the whole storage.

An incremental run continues from an earlier run that was swept. The earlier run knew of each file
whether a commit needed it, whether it stayed for another reason, or whether it was deleted. The
incremental run looks at four groups of files, as at any listing:

- files in slices that were not closed then, and files outside slices. It lists these.
- files that the earlier run considered and did not delete, if the format may not report the end of
  their protection: its remaining files, and revived files.
- files that the format reports as dropped.
- files of commits that were kept then, or were made since, and are not kept now. They are read from
  nodes that no kept commit has.

All other files are needed by commits that are still kept, or are still protected, or were deleted.
New commits, trees and nodes are found by differences between sets of ids, never by dates.

A format can name the files that its commits release (`capabilities.Releasing`). Then the run lists
nothing: it looks up these files, and those that the earlier run left.

If a run looks at too few files, some garbage stays until the next clean run. It cannot delete a
file that is needed, because it knows of each file that it looks at whether it is live or protected.
Not for: choosing between the two kinds of run (`modes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import counts, first_of_each, numbered, rows_in, texts, without
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import NODES_SCHEMA, Layout, RepositoryFormat, absent_among
from ebbtide.formats.capabilities import Releasing, SlicedLayout, left_out_of, slices_of
from ebbtide.gc.candidates import ROWS_PER_PART
from ebbtide.gc.committed import KnownTrees, MarkedTrees, tree_nodes, write_trees
from ebbtide.gc.decisions import released_since
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.index import Index
from ebbtide.gc.parts import ADDRESS_SCHEMA, Count, Part, PartRows, read_part, read_rows, split
from ebbtide.gc.plan import Plan
from ebbtide.gc.runs import RunFolder, TaskFiles
from ebbtide.gc.store import EVERYTHING, INVENTORY_SCHEMA, classified, in_closed_slices
from ebbtide.gc.uncommitted import SIZED_SCHEMA
from ebbtide.text import count_text

REVIVED: Final = "-revived-"
"""A part of the name of each record part that lists revived files."""


class NeedsCleanRunError(Exception):
    """Raised if an incremental run is not possible. The text says why."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run that was swept to its end, from which another run can continue. `left` counts the files
    that its sweep left on the storage."""

    plan: Plan
    folder: RunFolder
    left: Count

    @property
    def closed_after(self) -> str:
        """A slice; slices that sort after it were closed when the run listed them."""
        assert self.plan.closed_after is not None
        return self.plan.closed_after


@dataclass(frozen=True, slots=True)
class Chosen:
    """The run to continue from, or None for a clean run. `reason` says why a run is clean although
    its mode is not."""

    earlier: EarlierRun | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The data of the run that is being planned."""

    place: TaskFiles
    cutoff: datetime
    trees: KnownTrees
    nodes: pa.Table  # FLAGGED, of the trees that stay
    dropped: list[Part]  # of the addresses that the format reports as dropped, with sizes
    index: Index | None

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return self.place.folder


@dataclass(frozen=True, slots=True)
class _Unlisted:
    """Makes rows for files in slices that were closed at the earlier run (`closed_after`).

    They were complete when that run read the metadata, at `read_at`. If this is before the cutoff,
    it is their date. Otherwise they have no date, so that the storage is asked for it."""

    layout: Layout
    closed_after: str
    read_at: datetime | None

    @classmethod
    def since(cls, earlier: EarlierRun, now: Now) -> _Unlisted:
        """Returns the one for the files that an earlier run leaves to this one."""
        read_at = earlier.plan.read_at
        return cls(
            now.place.layout, earlier.closed_after, read_at if read_at < now.cutoff else None
        )

    def rows(self, found: pa.Table) -> pa.Table:
        """Returns INVENTORY_SCHEMA for a table with the columns `address` and `size_bytes`."""
        addresses: Any = found.column("address").combine_chunks()
        sizes = found.column("size_bytes").cast(pa.int64())
        date = pa.scalar(self.read_at, pa.timestamp("us", "UTC"))
        columns: list[Any] = [  # an array for each column of INVENTORY_SCHEMA
            addresses,
            sizes,
            # The storage is asked for a size together with the date.
            pc.if_else(pc.is_valid(sizes), date, pa.scalar(None, date.type)),
            self.layout.classify(addresses),
            slices_of(self.layout, addresses),
            pa.nulls(len(addresses), pa.string()),
        ]
        return in_closed_slices(pa.table(columns, schema=INVENTORY_SCHEMA), self.closed_after)


def unlisted_files(
    engine: Engine, repository: RepositoryFormat, earlier: EarlierRun, now: Now
) -> list[Part]:
    """Returns the files that the earlier run leaves to this one, each once: parts of
    INVENTORY_SCHEMA.

    Raises NeedsCleanRunError, also if files are damaged or missing: files of the earlier run, or
    trees and nodes of commits that expired.
    """
    try:
        if isinstance(repository, Releasing):
            return _named_files(engine, repository, earlier, now)
        left = _left(engine, earlier, now)
        return left + _others(engine, earlier, now, left)
    except Refused as error:
        raise NeedsCleanRunError(error.message) from error


def _left(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """Returns the remaining and the revived files of the earlier run, in slices that were closed
    then, as parts."""
    tasks: list[Part | str] = [*earlier.plan.remaining, *_revived(earlier)]
    # `work` is pickled with these variables, and not with all of `now` and `earlier`.
    folder, before, unlisted = now.folder, earlier.folder, _Unlisted.since(earlier, now)

    def work(number: int, task: Part | str, answer: PartRows) -> None:
        name = f"inventory/left-{number:05d}.parquet"
        if isinstance(task, Part):
            answer.copied(folder, name, before, task, relation="inventory")
        else:
            rows = unlisted.rows(read_part(before, task))
            answer.wrote(folder, name, rows, relation="inventory")

    return engine.run(tasks, work).parts


def _revived(earlier: EarlierRun) -> list[str]:
    """Returns the names of the parts with files that the earlier sweep found to be needed."""
    return [name for name in earlier.folder.names("deleted") if REVIVED in name]


def _others(engine: Engine, earlier: EarlierRun, now: Now, left: list[Part]) -> list[Part]:
    """Returns the dropped files and those of expired commits, each once and without those in
    `left`, as parts."""
    if not engine.holds(now.dropped):
        raise NeedsCleanRunError("so many files were dropped that a full listing is as fast")
    expired = _expired(engine, earlier, now)
    folder, dropped, unlisted = now.folder, now.dropped, _Unlisted.since(earlier, now)
    if not (dropped or expired):
        return []

    def work(_number: int, _task: None, answer: PartRows) -> None:
        rows = unlisted.rows(read_rows(folder, dropped, SIZED_SCHEMA))
        found = pa.concat_tables([rows, read_rows(folder, expired, INVENTORY_SCHEMA)])
        for part in left:
            found = without(found, "address", read_rows(folder, [part], ADDRESS_SCHEMA))
        each = found.filter(pa.array(first_of_each(numbered(found.column("address")))))
        for start in range(0, each.num_rows, ROWS_PER_PART):
            name = f"inventory/unlisted-{start // ROWS_PER_PART:05d}.parquet"
            answer.wrote(folder, name, each.slice(start, ROWS_PER_PART), relation="inventory")

    return engine.run([None], work).parts


def _expired(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """Returns the files of commits that were kept at the earlier run, or were made since, and are
    not kept now. Leaves out files in slices that were not closed at the earlier run.

    They are parts of INVENTORY_SCHEMA; an address comes once for each node that has it.
    """
    before = (earlier.folder, earlier.plan.commits)
    released = released_since(now.folder, now.trees, earlier=before)
    if released.unknown:
        raise NeedsCleanRunError(
            f"the checksums of {count_text(len(released.unknown), 'tree')} are not known any more"
        )
    if not released.trees:
        return []
    nodes = _lost_nodes(engine, released.trees, now)
    if sum(count for _, _, count in nodes) > engine.held_max:
        raise NeedsCleanRunError("so many files have expired that a full listing is as fast")
    folder, layout, storage = now.folder, now.place.layout, now.place.storage
    assert isinstance(layout, SlicedLayout)
    unlisted = _Unlisted.since(earlier, now)

    def work(number: int, task: Sequence[tuple[str, str, int]], answer: PartRows) -> None:
        tables: list[pa.Table] = []
        for node_id, checksum, count in task:
            try:
                tables.append(layout.read_files(storage, node_id, checksum, entry_count=count))
            except EbbtideError as error:
                answer.failed(error)
        if not tables:
            return
        rows = unlisted.rows(pa.concat_tables(tables))
        answer.wrote(folder, f"expired/part-{number:05d}.parquet", rows, relation="inventory")

    return engine.run(split(nodes, tasks=engine.task_count), work).parts


def _named_files(
    engine: Engine, repository: Releasing, earlier: EarlierRun, now: Now
) -> list[Part]:
    """Returns the files that trees have released since the earlier run, and those that it left, as
    parts. The storage is asked for each: clients can write such a file again, and delete it."""
    before = (earlier.folder, earlier.plan.commits)
    found = released_since(now.folder, now.trees, earlier=before)
    ids = [*(tree_id for tree_id, _ in found.trees), *found.unknown]
    changes = repository.changes(found.earlier, ids, found.kept)
    for nodes in (changes.released, changes.needed):
        if sum(counts(nodes.column("entry_count"))) > engine.held_max:
            raise NeedsCleanRunError("so many files have changed that a full listing is as fast")
    place = now.place
    _check_present(engine, place, _addresses(engine, place, changes.needed, "needed"))
    named = _addresses(engine, place, changes.released, "released")
    left = [*earlier.plan.remaining, *(Part(name, 0, 0, None) for name in _revived(earlier))]
    folder, source = now.folder, earlier.folder

    def gather(_number: int, _task: None, answer: PartRows) -> None:
        tables = (read_rows(folder, named, ADDRESS_SCHEMA), read_rows(source, left, ADDRESS_SCHEMA))
        rows = pa.concat_tables(tables)
        once = rows.filter(pa.array(first_of_each(numbered(rows.column("address")))))
        for start in range(0, once.num_rows, ROWS_PER_PART):
            name = f"expired/once-{start // ROWS_PER_PART:05d}.parquet"
            answer.wrote(folder, name, once.slice(start, ROWS_PER_PART), relation="expired")

    def look(number: int, part: Part, answer: PartRows) -> None:
        addresses = texts(read_part(folder, part.name, part.checksum).column("address"))
        there = place.storage.sizes(addresses)
        is_file: Any = there.column("regular").fill_null(False)
        rows = classified(there.filter(is_file), place.layout)
        answer.wrote(folder, f"inventory/unlisted-{number:05d}.parquet", rows, relation="inventory")

    return engine.run(engine.run([None], gather).parts, look).parts


def _addresses(engine: Engine, place: TaskFiles, nodes: pa.Table, name: str) -> list[Part]:
    """Returns the addresses that nodes (NODES_SCHEMA) name, without those that no listing has, as
    parts of ADDRESS_SCHEMA."""
    folder, layout, storage = place.folder, place.layout, place.storage
    rows: list[tuple[str, str, int]] = [row for each in nodes.to_batches() for row in rows_in(each)]

    def work(number: int, task: Sequence[tuple[str, str, int]], answer: PartRows) -> None:
        for place_in_task, (node_id, checksum, count) in enumerate(task):
            found = layout.read_node(storage, node_id, checksum, entry_count=count)
            listed = found.filter(pc.invert(left_out_of(layout, found, EVERYTHING)))
            target = f"expired/{name}-{number:05d}-{place_in_task:05d}.parquet"
            table = pa.table([listed], schema=ADDRESS_SCHEMA)
            answer.wrote(folder, target, table, relation="expired")

    return engine.run(split(rows, tasks=engine.task_count), work).parts


def _check_present(engine: Engine, place: TaskFiles, needed: list[Part]) -> None:
    """Raises NeedsCleanRunError if a file of `needed` (parts of ADDRESS_SCHEMA) does not exist. A
    clean run tells more, and refuses."""
    folder, storage = place.folder, place.storage

    def work(_number: int, part: Part, answer: PartRows) -> None:
        addresses = texts(read_part(folder, part.name, part.checksum).column("address"))
        for address in absent_among(storage, addresses):
            answer.counted(Count(1), of=address)

    absent = engine.run(needed, work).counts
    if absent:
        raise NeedsCleanRunError(f"{absent[0].of}, which a new commit needs, is not there")


def _lost_nodes(
    engine: Engine, trees: Sequence[tuple[str, str]], now: Now
) -> list[tuple[str, str, int]]:
    """Returns the nodes (rows of NODES_SCHEMA) of released trees, without the nodes of trees whose
    data stays. `trees` has the id and checksum of each released tree.

    The nodes are held in memory. If they have more addresses than the engine can hold, the caller
    makes a clean run.
    """
    place = replace(now.place, name="expired")
    released = MarkedTrees(
        recorded=frozenset(tree_id for tree_id, _ in trees),
        data=frozenset(tree_id for tree_id, _ in trees),
    )
    known = write_trees(place.folder, place.prefixed("released"), released, dict(trees))
    # Released trees are not added to the index, which has no use for them.
    index = None if now.index is None else replace(now.index, writable=False)
    found = tree_nodes(engine, place, known.trees, index).nodes
    lost = without(found, "node_id", now.nodes.filter(now.nodes.column("data")))
    batches = lost.select(NODES_SCHEMA.names).to_batches()
    return sorted(row for batch in batches for row in rows_in(batch))
