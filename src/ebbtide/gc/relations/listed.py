"""What a plan is of: a listing of the storage, or an inventory in its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from ebbtide.formats.base import RepositoryFormat, Slices
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.options import SIZED_FILES_MAX, RunOptions
from ebbtide.gc.parts import Part, total_by_group
from ebbtide.gc.relations.given import GivenInventory, read_inventory
from ebbtide.gc.relations.inventory import list_inventory
from ebbtide.gc.relations.sizing import all_sized
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import latest_id


@dataclass(frozen=True, slots=True)
class Listed:
    """What was listed: parts of INVENTORY_SCHEMA, counts by kind, and of what can be collected;
    and until when it speaks for the storage."""

    parts: list[Part]
    kinds: dict[str, Count]
    total: Count
    cutoff: datetime
    young_slices: int = 0
    closed_after: str | None = None

    def with_rows(self, parts: list[Part]) -> Listed:
        """This, and what an incremental run looks at besides."""
        more = (part.count for part in parts)
        return replace(self, parts=self.parts + parts, total=sum(more, self.total))


@dataclass(frozen=True, slots=True)
class Listing:
    """Lists a repository into a run's folder."""

    engine: Engine
    repository: RepositoryFormat
    folder: RunFolder
    options: RunOptions

    def read(self, given: GivenInventory, started_at: datetime) -> Listed:
        """What an inventory says."""
        # Nobody knows what came into a slice at its end.
        parts = read_inventory(self.engine, self.repository, self.folder, given)
        return self._listed(parts, min(self._cutoff(started_at), given.date))

    def make(
        self, started_at: datetime, *, settled_after: str | None, expected: int | None
    ) -> Listed:
        """What is in the storage; of slices that an earlier run has settled, those behind
        `settled_after`, nothing. `expected` is how many files there may be in all of them."""
        repository, folder = self.repository, self.folder
        cutoff = self._cutoff(started_at)
        # First: what ends while the listing goes on may have been listed or not.
        closed_after = _closed_after(repository, cutoff)
        slices = Slices(
            cutoff=cutoff,
            now=started_at,
            closed_after=settled_after,
            sized=self._asks_for_sizes(expected),
        )
        is_whole = settled_after is None
        parts, young = list_inventory(
            self.engine,
            repository.storage,
            repository.layout,
            folder,
            slices,
            expected=expected if is_whole else None,
            keyed=not is_whole,
        )
        found = self._listed(parts, cutoff)
        if is_whole and self._wants_sizes_of(found.total):
            layout = repository.layout
            parts = all_sized(self.engine, repository.storage, layout, folder, parts)
            found = self._listed(parts, cutoff)
        return replace(found, young_slices=young, closed_after=closed_after)

    def _cutoff(self, started_at: datetime) -> datetime:
        return started_at - self.options.grace

    def _asks_for_sizes(self, expected: int | None) -> bool:
        """Whether files are listed with their sizes. Where nobody knows how many there are, their
        names come first."""
        if self.options.sizes != "auto":
            return self.options.sizes == "all"
        return expected is not None and expected <= SIZED_FILES_MAX

    def _wants_sizes_of(self, total: Count) -> bool:
        """Whether a whole listing by name turned out to be of few files."""
        is_open = self.options.sizes == "auto" and not total.sized
        return is_open and total.objects <= SIZED_FILES_MAX

    def _listed(self, answers: list[Part], cutoff: datetime) -> Listed:
        kinds = total_by_group(part for part in answers if part.relation == "kind")
        collected = self.repository.layout.delete_order
        return Listed(
            parts=[part for part in answers if part.name is not None],
            kinds=kinds,
            total=sum((kinds.get(kind, Count()) for kind in collected), Count()),
            cutoff=cutoff,
        )


def _closed_after(repository: RepositoryFormat, cutoff: datetime) -> str | None:
    """Slices that sort behind this one get no more files, and are listed by this run unless an
    earlier one did: they were opened before the cutoff."""
    closed_after = repository.closed_after()
    return None if closed_after is None else max(closed_after, latest_id(cutoff))
