"""Finds the files that a plan considers: by a listing of the storage, or by an inventory.

Sizes and dates that a listing left out are asked for later, for the files that need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.formats.base import FOREIGN, Layout, RepositoryFormat, Slices
from ebbtide.formats.capabilities import Sliced
from ebbtide.formats.roots import is_ended, nested_root, roots_among
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import SIZED_FILES_MAX, RunOptions
from ebbtide.gc.parts import Answers, Part, PartRows, read_tables, split, total_by_kind
from ebbtide.gc.relations.inventory import (
    INVENTORY_SCHEMA,
    LISTED,
    OTHER_ROOT,
    InventoryWriter,
    list_inventory,
    undated_warnings,
)
from ebbtide.gc.relations.inventory_report import InventoryReport, read_inventory
from ebbtide.gc.relations.keys import rows_of
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import advance
from ebbtide.ids import latest_id
from ebbtide.storage import Storage


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


def all_sized(
    engine: Engine, storage: Storage, layout: Layout, folder: RunFolder, listed: Sequence[Part]
) -> Answers:
    """Writes the parts of `list_inventory` again with sizes and dates, and returns answers in the
    same form. Files that do not exist any more are left out."""

    def work(number: int, task: Sequence[Part], answer: PartRows) -> None:
        writer = InventoryWriter(f"sized-{number:05d}", answer, folder, layout.checked_kinds)
        for table in read_tables(folder, task, INVENTORY_SCHEMA):
            advance(table.num_rows)
            rows = sized(storage, table, np.ones(table.num_rows, np.bool_))
            # Foreign files, such as symbolic links, may have no date.
            is_foreign = pc.equal(rows.column("kind"), pa.scalar(FOREIGN, pa.string()))
            writer.add(rows.filter(pc.or_(is_foreign, pc.is_valid(rows.column("last_modified")))))
        writer.flush()

    engine.meter.begin("files", rows_of(listed))
    return engine.run(split(listed, tasks=engine.task_count), work)


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

    def read(self, given: InventoryReport, started_at: datetime) -> ListedFiles:
        """Reads an inventory."""
        # `closed_after` stays None: the inventory may lack the last files of a closed slice.
        answers = read_inventory(self.engine, self.repository, self.folder, given)
        cutoff = min(self._cutoff(started_at), given.date)
        return self._listed(answers, Slices(cutoff=cutoff, now=started_at))

    def make(
        self, started_at: datetime, *, settled_after: str | None, expected: int | None
    ) -> ListedFiles:
        """Lists the storage, without the slices that sort after `settled_after`: an earlier run has
        settled these. `expected` is the expected number of files in the whole storage."""
        repository, folder = self.repository, self.folder
        cutoff = self._cutoff(started_at)
        # This comes before the listing: a slice that closes during it may be listed incompletely.
        closed_after = _closed_after(repository, cutoff)
        slices = Slices(
            cutoff=cutoff,
            now=started_at,
            closed_after=settled_after,
            sized=self._asks_for_sizes(expected),
        )
        is_whole = settled_after is None
        answers, young = list_inventory(
            self.engine,
            repository.storage,
            repository.layout,
            folder,
            slices,
            expected=expected if is_whole else None,
            keyed=not is_whole,
        )
        found = self._listed(answers, slices)
        if is_whole and self._wants_sizes_of(found.total):
            layout = repository.layout
            answers = all_sized(self.engine, repository.storage, layout, folder, found.parts)
            found = self._listed(answers, slices)
        return replace(found, young_slices=young, closed_after=closed_after)

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
    cutoff, so that this run lists them unless an earlier run did."""
    if not isinstance(repository, Sliced):
        return None
    return max(repository.closed_after(), latest_id(cutoff))
