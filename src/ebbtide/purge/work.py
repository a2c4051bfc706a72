"""The steps of a purge that hold the repository: planning it, and closing its addresses.

Not for: the purge's row in the database (`purger`), or the deletes (`deleting`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.formats.base import FOREIGN, Identity
from ebbtide.formats.embedded import FORMAT_NAME
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Part, PartRows
from ebbtide.gc.runs import RunFolder
from ebbtide.purge.addresses import AddressSet
from ebbtide.purge.closing import close, find_others, find_promise, find_shared
from ebbtide.purge.naming import Named, resolve_request
from ebbtide.purge.objects import gather
from ebbtide.purge.plan import (
    KEPT_REFERENCES_FILE,
    KEPT_STEM,
    NAMED_STEM,
    OBJECTS_STEM,
    PurgePlan,
    read_objects,
    write_objects,
)
from ebbtide.purge.references import Reference, ReferenceSearch, to_table
from ebbtide.purge.request import Request
from ebbtide.purge.scanning import TreeScan
from ebbtide.purge.whole import (
    close_whole,
    gather_whole,
    holds_in_the_way,
    keep_records,
    records_storage,
)
from ebbtide.store.content.layout import PURGES_PREFIX
from ebbtide.store.embedded import Store
from ebbtide.store.purges.queries import PurgeRow
from ebbtide.store.repositories.leases import Lease
from ebbtide.store.repository import Repository

Notice = Callable[[str], None]
"""A function that is called with the name of each step as it begins."""


def silent(_step: str) -> None:
    """A notice that does nothing."""


def inside_folder(repository: Repository, purge_id: str) -> RunFolder:
    """Returns the folder of a purge on the repository's own storage."""
    return RunFolder(repository.storage, f"{PURGES_PREFIX}{purge_id}/")


def _of_these(objects: pa.Table, addresses: pa.Array[Any], *, are_in: bool) -> pa.Table:
    """Returns the rows of objects whose addresses are among `addresses`, or are not."""
    found = pc.is_in(objects.column("address"), value_set=addresses)
    return objects.filter(found if are_in else pc.invert(found))


class Work:
    """One attempt at one purge, under the repository's lease."""

    def __init__(
        self,
        store: Store,
        repository: Repository,
        folder: RunFolder,
        *,
        engine: Callable[[], Engine],
        notice: Notice = silent,
    ) -> None:
        """`engine` returns the engine that reads the trees, if there are many."""
        self.folder = folder
        self._store = store
        self._repository = repository
        self._context = repository.context
        self._engine = engine
        self._notice = notice
        self._search: ReferenceSearch | None = None

    def is_whole(self, row: PurgeRow) -> bool:
        """Whether the whole repository is purged."""
        return bool(row.request["repository"])

    def plan(self, row: PurgeRow) -> tuple[PurgePlan, list[Reference]]:
        """Finds the objects, writes them into the folder, and finds the references that prevent the
        purge.

        Raises as `resolve_request` does, and Refused if a tree cannot be read.
        """
        with self._context.metadata.snapshot() as tx:
            planned_at = tx.now()
        self._notice("objects")
        if self.is_whole(row):
            named, (tables, counts) = Named(), gather_whole(self._context)
        else:
            resolved = resolve_request(self._repository, Request.from_json(row.request))
            named, tables, counts = resolved.named, gather(self._context, resolved), {FOREIGN: 0}
        stem = NAMED_STEM if row.request.get("keep_shared", False) else OBJECTS_STEM
        with closing(tables):
            parts = write_objects(self.folder, tables, stem=stem)
        plan = PurgePlan(
            purge_id=row.purge_id,
            identity=Identity(
                FORMAT_NAME, self._store.store_id, row.repository_id, row.repository_name
            ),
            storage_url=self._context.storage.url,
            planned_at=planned_at,
            whole=self.is_whole(row),
            named=named,
            parts=tuple(parts),
            foreign_count=counts[FOREIGN],
            reference_counts={},
            retained=self._context.storage.retained(),
        )
        self._notice("references")
        if row.request.get("keep_shared", False):
            plan = self._without_shared(plan)
        found = self._find(plan)
        if not plan.whole:
            until = find_promise(self._searching(plan), now=planned_at)
            plan = replace(plan, promised_until=until)
        return plan.with_references(found), found

    def close(self, row: PurgeRow, plan: PurgePlan, lease: Lease) -> list[Reference]:
        """Closes the named addresses, or the whole repository. If a reference prevents this,
        changes nothing, and returns all such references."""
        self._notice("close")
        if plan.whole:
            keep_records(self._context, records_storage(self._store))
            return close_whole(self._context, lease, row.purge_id)
        return close(self._searching(plan), lease, row.purge_id)

    def _without_shared(self, plan: PurgePlan) -> PurgePlan:
        """Returns the plan without the objects that other data needs, which are written into files
        of their own."""
        search = self._searching(plan)
        found, shared = find_shared(search)
        PartRows().wrote(self.folder, KEPT_REFERENCES_FILE, to_table(found), durable=True)
        known = pa.array(sorted(shared), pa.string())

        def written(stem: str, *, are_shared: bool) -> list[Part]:
            tables = read_objects(self.folder, plan.parts)
            chosen = (_of_these(table, known, are_in=are_shared) for table in tables)
            return write_objects(self.folder, chosen, stem=stem)

        parts, kept = written(OBJECTS_STEM, are_shared=False), written(KEPT_STEM, are_shared=True)
        reduced = plan.without_shared(shared, parts, kept, found)
        scan = search.scan.narrowed(self._addresses(reduced))
        self._search = replace(search, addresses=scan.addresses, named=reduced.named, scan=scan)
        return reduced

    def _addresses(self, plan: PurgePlan) -> AddressSet:
        tables = read_objects(self.folder, plan.parts)
        return AddressSet(table.column("address") for table in tables)

    def _find(self, plan: PurgePlan) -> list[Reference]:
        if plan.whole:
            with self._context.metadata.snapshot() as tx:
                return holds_in_the_way(tx, self._context.repository_id)
        return find_others(self._searching(plan))

    def _searching(self, plan: PurgePlan) -> ReferenceSearch:
        """Returns the search of this purge. If this attempt also planned the purge, the results of
        that search are reused."""
        if self._search is None:
            addresses = self._addresses(plan)
            scan = TreeScan(
                self._context.storage,
                EmbeddedLayout(),
                addresses,
                asked=frozenset(path for paths in plan.named.paths.values() for path in paths),
                engine=self._engine,
            )
            with self._context.metadata.snapshot() as tx:
                now = tx.now()
            scan.recall(self.folder, now=now)
            self._search = ReferenceSearch(self._context, addresses, plan.named, scan)
        return self._search
