"""The relation `store`: the files that a plan considers, by a listing of the storage.

Tasks list slices and prefixes, and write Parquet parts under `inventory/` of the run's folder.
Sizes and dates that a listing left out are asked for later, for the files that need them. Not for:
an inventory in place of a listing (`inventory_report`), and which of the files are live.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts
from ebbtide.formats.base import EVERY_SLICE, FOREIGN, Layout, ListingItem, RepositoryFormat, Slices
from ebbtide.formats.capabilities import (
    Releasing,
    Sliced,
    checked_kinds_of,
    plan_listing,
    slices_of,
)
from ebbtide.formats.roots import is_ended, nested_root, roots_among
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import SIZED_FILES_MAX, RunOptions
from ebbtide.gc.parts import (
    Answers,
    Count,
    Counted,
    Part,
    PartRows,
    total_by_kind,
)
from ebbtide.gc.prefetch import listed
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import advance
from ebbtide.ids import latest_id
from ebbtide.model import EPOCH
from ebbtide.storage import Storage
from ebbtide.storage.base import BELIEVED
from ebbtide.storage.local import temporary_targets
from ebbtide.text import count_text, shown

INVENTORY_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("last_modified", pa.timestamp("us", "UTC")),
    ("kind", pa.string()),
    ("slice", pa.string()),
    ("storage_class", pa.string()),
)
"""The relation `inventory`: one row for each file.

`address` is relative to the storage root. `size_bytes` and `last_modified` (by the storage's clock)
are null if no listing has asked for them yet. `kind` is that of the format's layout. `slice` is
null for a file in no slice. `storage_class` is null if the listing does not give it.
"""

_END: Final = datetime.max.replace(tzinfo=UTC)
EVERYTHING: Final = Slices(cutoff=_END, now=_END)
"""The slices of a listing that leaves none out. Their cutoff is later than the date of any file."""
LISTED: Final = "listed"
"""The name under which a listing counts files, by kind."""
UNDATED: Final = "undated"
"""The name under which tasks count files without a believable date. The `kind` is the address of
one of them, and "" for others."""
OTHER_ROOT: Final = "other root"
"""The name under which a listing counts files that show the root of another repository. In place of
a kind, the count has the address of the file."""
OTHER_ROOTS_MAX: Final = 20
"""The most roots that one task tells."""
POINTERS: Final = "pointers"
"""The relation of parts that list files of the layout's `checked_kinds`. Other parts list none."""

ROWS_PER_PART: Final = 500_000

_UNDATED_NAMED: Final = 3
"""The files that each task names for UNDATED, at most."""

UNKNOWN_MICROS: Final = 2**62
"""A number later than any date, so that a file without a date counts as young."""


def list_inventory(
    engine: Engine,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    slices: Slices,
    *,
    expected: int | None = None,
) -> tuple[Answers, int]:
    """Lists the storage, without the slices that may be left out. Returns parts (INVENTORY_SCHEMA)
    and the counts of LISTED files by kind, and the number of slices that were left out because they
    are young.

    Parts and counts include foreign and system files. `expected` is the expected number of files,
    for the display of progress.
    """
    listing = plan_listing(storage, layout, slices, cores=engine.cores)
    items = listing.items
    # Neighbouring items have similar sizes. They go to different tasks, so that tasks are equal.
    count = min(len(items), engine.task_count)
    tasks = [items[first::count] for first in range(count)]
    at_once = engine.fetches_at_once

    def work(number: int, task: list[ListingItem], answer: PartRows) -> None:
        writer = InventoryWriter(f"part-{number:05d}", answer, folder, checked_kinds_of(layout))
        with closing(listed(storage, task, at_once=at_once)) as batches:
            for batch in batches:
                writer.add(classified(batch, layout))
                advance(batch.num_rows)
        writer.flush()

    engine.meter.begin("files", expected, is_about=True)
    return engine.run(tasks, work), listing.young_slices


def classified(batch: pa.RecordBatch, layout: Layout) -> pa.Table:
    """Returns a batch of a listing as rows of INVENTORY_SCHEMA. An entry that is not a regular file
    is foreign."""
    addresses = cast("pa.StringArray", batch.column("address"))
    kinds = pc.if_else(
        batch.column("regular"), layout.classify(addresses), pa.scalar(FOREIGN, pa.string())
    )
    columns: list[Any] = [  # an array for each column of INVENTORY_SCHEMA
        addresses,
        batch.column("size_bytes"),
        batch.column("last_modified"),
        kinds,
        slices_of(layout, addresses),
        batch.column("storage_class"),
    ]
    return pa.table(columns, schema=INVENTORY_SCHEMA)


def micros_of(cutoff: datetime) -> int:
    """Returns an instant as microseconds since 1970."""
    return (cutoff - EPOCH) // timedelta(microseconds=1)


def latest_micros(last_modified: pa.ChunkedArray[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the latest instant that each date can mean, in microseconds since 1970. A date in
    whole seconds can mean any instant of that second, and a missing date any instant."""
    micros = (
        last_modified.cast(pa.int64()).fill_null(pa.scalar(UNKNOWN_MICROS, pa.int64())).to_numpy()
    )
    return np.where(micros % 1_000_000 == 0, micros + 999_999, micros)


def tell_undated(table: pa.Table, answer: PartRows) -> None:
    """Counts the rows of INVENTORY_SCHEMA without a believable date, and names some of them."""
    start = pa.scalar(BELIEVED[1], pa.timestamp("us", "UTC"))
    late = table.filter(pc.greater_equal(table.column("last_modified"), start))
    told = sum(row.get("relation") == UNDATED for row in answer.rows)
    named = late.slice(0, max(0, _UNDATED_NAMED - told))
    for address in texts(named.column("address")):
        answer.counted(Count(1), of=UNDATED, kind=address)
    if late.num_rows > named.num_rows:
        answer.counted(Count(late.num_rows - named.num_rows), of=UNDATED)


def undated_warnings(counts: Iterable[Counted]) -> tuple[str, ...]:
    """Returns the warning about the files that tasks told as UNDATED, or none."""
    told = [each for each in counts if each.of == UNDATED]
    if not told:
        return ()
    names = sorted({shown(each.kind) for each in told if each.kind})[:_UNDATED_NAMED]
    number = count_text(sum(each.count.objects for each in told), "file")
    return (
        f"{number} dated before 1970 or after 2199, such as {', '.join(names)}: no run deletes a "
        "file of unknown age. Give it the date of its write, for instance by touch",
    )


def judged_by(table: pa.Table) -> pa.StringArray:
    """Returns the address that each row of a table with a column `address` is judged by. That of a
    temporary file is the address for which it is written: it is protected if this one is."""
    addresses = cast("pa.StringArray", table.column("address").combine_chunks())
    return pc.coalesce(temporary_targets(addresses), addresses)


def in_closed_slices(table: pa.Table, closed_after: str) -> pa.Table:
    """Returns the rows in slices that sort after `closed_after`; all rows with EVERY_SLICE."""
    if closed_after == EVERY_SLICE:
        return table
    return table.filter(pc.greater(table.column("slice"), pa.scalar(closed_after, pa.string())))


class InventoryWriter:
    """Collects batches into parts of a bounded size, and counts rows by kind."""

    def __init__(
        self, stem: str, answer: PartRows, folder: RunFolder, pointer_kinds: tuple[str, ...]
    ) -> None:
        self._stem = stem
        self._pointer_kinds = pa.array(pointer_kinds, pa.string())
        self._answer = answer
        self._folder = folder
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._parts = 0
        self._roots: set[str] = set()

    def add(self, table: pa.Table) -> None:
        """Adds rows of INVENTORY_SCHEMA."""
        tell_undated(table, self._answer)
        self._tables.append(table)
        self._look_for_roots(table)
        self._rows += table.num_rows
        if self._rows >= ROWS_PER_PART:
            self.flush()

    def _look_for_roots(self, table: pa.Table) -> None:
        """Counts one file of each root of another repository that foreign files show."""
        foreign = table.filter(pc.equal(table.column("kind"), pa.scalar(FOREIGN, pa.string())))
        for root in roots_among(foreign.column("address")):
            if root.place not in self._roots and len(self._roots) < OTHER_ROOTS_MAX:
                self._roots.add(root.place)
                self._answer.counted(Count(1), of=OTHER_ROOT, kind=root.address)

    def flush(self) -> None:
        """Writes the rows that are not written yet."""
        if not self._rows:
            return
        table = pa.concat_tables(self._tables).combine_chunks()
        points = pc.is_in(table.column("kind"), value_set=self._pointer_kinds)
        stem = f"inventory/{self._stem}-{self._parts:03d}"
        others = table.filter(pc.invert(points))
        self._answer.wrote(self._folder, f"{stem}.parquet", others, relation="inventory")
        pointers = table.filter(points)
        self._answer.wrote(self._folder, f"{stem}-pointers.parquet", pointers, relation=POINTERS)
        counts = table.group_by("kind").aggregate(
            [("address", "count"), ("size_bytes", "sum"), ("size_bytes", "count")]
        )
        for row in counts.to_pylist():
            count = row["address_count"]
            sized = row["size_bytes_count"] == count
            listed = Count(count, row["size_bytes_sum"] or 0, sized)
            self._answer.counted(listed, of=LISTED, kind=row["kind"])
        self._tables, self._rows, self._parts = [], 0, self._parts + 1


def sized(
    storage: Storage, table: pa.Table, wanted: np.ndarray[Any, np.dtype[np.bool_]]
) -> pa.Table:
    """Returns the rows of INVENTORY_SCHEMA, with size and date for all `wanted` rows. If a file was
    listed without them, and does not exist any more, it has no date and a size of 0."""
    unknown = np.asarray(pc.is_null(table.column("last_modified"))) & wanted
    if not unknown.any():
        return table
    mask = pa.array(unknown)
    found = storage.sizes(texts(table.column("address").filter(mask)))
    sizes = found.column("size_bytes").fill_null(0)
    for name, values in (("size_bytes", sizes), ("last_modified", found.column("last_modified"))):
        column = table.column(name).combine_chunks()
        told: Any = pc.replace_with_mask(column, mask, values)
        table = table.set_column(table.column_names.index(name), table.schema.field(name), told)
    return table


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """The files that were listed.

    `parts` are of INVENTORY_SCHEMA, `kinds` counts all files by kind, and `total` counts the files
    of kinds that can be deleted. Files that may have been written at or after `cutoff` are young.
    `young_slices` is the number of slices that were left out because they are young. Slices that
    sort after `closed_after` get no more files; None if no incremental run can continue from this
    listing. `slices` are those that the listing could leave out.
    """

    parts: list[Part]
    kinds: dict[str, Count]
    total: Count
    cutoff: datetime
    slices: Slices
    warnings: tuple[str, ...] = ()
    young_slices: int = 0
    closed_after: str | None = None

    def with_rows(self, parts: list[Part]) -> ListedFiles:
        """Returns this with more parts, which an incremental run considers without listing them."""
        more = (part.count for part in parts)
        return replace(self, parts=self.parts + parts, total=sum(more, self.total))


@dataclass(frozen=True, slots=True)
class InventoryListing:
    """Lists a repository into a run's folder."""

    engine: Engine
    repository: RepositoryFormat
    folder: RunFolder
    options: RunOptions

    def given(self, answers: Answers, date: datetime, started_at: datetime) -> ListedFiles:
        """Returns the files of an inventory that was read, and that was begun at `date`."""
        # `closed_after` stays None: the inventory may lack the last files of a closed slice.
        cutoff = min(self._cutoff(started_at), date)
        return self._listed(answers, Slices(cutoff=cutoff, now=started_at))

    def make(
        self, started_at: datetime, *, settled_after: str | None, expected: int | None
    ) -> ListedFiles:
        """Lists the storage, without the slices that sort after `settled_after`: an earlier run has
        settled these. `expected` is the expected number of files in the whole storage."""
        cutoff = self._cutoff(started_at)
        # This comes before the listing: a slice that closes during it may be listed incompletely.
        closed_after = _closed_after(self.repository, cutoff)
        slices = Slices(
            cutoff=cutoff,
            now=started_at,
            closed_after=settled_after,
            sized=self._asks_for_sizes(expected),
        )
        is_whole = settled_after is None
        found = self._list(slices, expected if is_whole else None)
        if is_whole and self._wants_sizes_of(found.total):
            self.folder.storage.delete([self.folder.address(part.name) for part in found.parts])
            found = self._list(replace(slices, sized=True), found.total.objects)
        return replace(found, closed_after=closed_after)

    def everything(self, started_at: datetime) -> ListedFiles:
        """Lists the whole storage with all sizes, young slices too. No run can continue from it."""
        return replace(self._list(EVERYTHING, None), cutoff=self._cutoff(started_at))

    def _list(self, slices: Slices, expected: int | None) -> ListedFiles:
        storage, layout = self.repository.storage, self.repository.layout
        answers, young = list_inventory(
            self.engine, storage, layout, self.folder, slices, expected=expected
        )
        return replace(self._listed(answers, slices), young_slices=young)

    def _cutoff(self, started_at: datetime) -> datetime:
        return started_at - self.options.grace

    def _asks_for_sizes(self, expected: int | None) -> bool:
        """Whether files are listed with their sizes. If the expected number is not known, files are
        listed by name first."""
        if self.options.sizes != "auto":
            return self.options.sizes == "all"
        return expected is not None and expected <= SIZED_FILES_MAX

    def _wants_sizes_of(self, total: Count) -> bool:
        """Whether a listing by name turned out to have so few files that sizes are asked for."""
        is_open = self.options.sizes == "auto" and not total.sized
        return is_open and total.objects <= SIZED_FILES_MAX

    def _listed(self, answers: Answers, slices: Slices) -> ListedFiles:
        kinds = listed_kinds(self.repository.storage, answers)
        collected = self.repository.layout.delete_order
        return ListedFiles(
            parts=answers.parts,
            kinds=kinds,
            total=sum((kinds.get(kind, Count()) for kind in collected), Count()),
            cutoff=slices.cutoff,
            slices=slices,
            warnings=undated_warnings(answers.counts),
        )


def listed_kinds(storage: Storage, answers: Answers) -> dict[str, Count]:
    """Returns the listed files and bytes by kind. Raises Refused `nested_root` if files show the
    root of another repository."""
    shown = [each.kind for each in answers.counts if each.of == OTHER_ROOT]
    roots = {root.place: root for root in roots_among(pa.array(sorted(shown), pa.string()))}
    for _, root in sorted(roots.items()):
        if not is_ended(storage, root):
            raise nested_root(storage, root)
    return total_by_kind(each for each in answers.counts if each.of == LISTED)


def _closed_after(repository: RepositoryFormat, cutoff: datetime) -> str | None:
    """Returns a slice; slices that sort after it get no more files. They were opened before the
    cutoff, so that this run lists them unless an earlier run did. None if no incremental run can
    continue from this one."""
    if isinstance(repository, Releasing):
        return EVERY_SLICE
    if not isinstance(repository, Sliced):
        return None
    return max(repository.closed_after(), latest_id(cutoff))
