"""A repository of the embedded store that is gone: all of its own files may be deleted.

There is no policy here, no ref and no mark. One fact replaces them: the repository is gone for
good. The fence checks this fact again, in the transaction that makes it final.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.errors import Refused
from ebbtide.formats.base import (
    EPOCH_ADDRESS,
    FOREIGN,
    RECORD,
    RUNS_PREFIX,
    SYSTEM,
    Listing,
    ListingItem,
    RunHold,
    Slices,
)
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.ids import ID_PATTERN
from ebbtide.storage import Storage
from ebbtide.storage.local import TEMPORARY_SUFFIX
from ebbtide.store.content.layout import COLLECTOR_PREFIX, OWN_FILE, PURGES_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.gc.run_metadata import write_run
from ebbtide.store.repositories.catalog import (
    REMOVALS,
    RemovalRow,
    close_repository,
    finish_removal,
    require_removable,
)
from ebbtide.store.repositories.owner import close_owner
from ebbtide.store.repositories.repository_rows import delete_repository, promised

_RECORD: Final = (
    rf"^{COLLECTOR_PREFIX}(?:"
    rf"runs/{ID_PATTERN}/(?:[^/]+/)*[^/]+\.(?:json|parquet)"
    rf"|runs/{ID_PATTERN}/quarantine/{OWN_FILE}|quarantines/{ID_PATTERN}\.json"
    rf"|index/[0-9]+/(?:[^/]+/)*[^/]+\.(?:arrow|parquet)"
    rf"|exports/{ID_PATTERN}/[^/]+\.(?:csv|json|parquet)"
    rf"|dumps/[0-9a-f]{{64}}\.jsonl"
    r"|symlinks/(?:[^/]+/)+symlink\.txt"
    rf"|EPOCH)(?:{TEMPORARY_SUFFIX})?$"
    rf"|^{PURGES_PREFIX}{ID_PATTERN}/(?:[^/]+/)*[^/]+\.(?:json|parquet)(?:{TEMPORARY_SUFFIX})?$"
)
"""Addresses of the kind RECORD. They include the records of purges: `Remover` has these copied to
another place (`preserve`) before it deletes them."""


@dataclass(frozen=True, slots=True)
class GoneLayout(EmbeddedLayout):
    """The layout of a gone repository: the collector's files can be deleted too.

    The files of the run that deletes them, `own_run`, are an exception. So are the files by which
    this run holds the storage.
    """

    delete_order: tuple[str, ...] = ("tree", "range", "object", "temporary", RECORD)
    own_run: str = ""

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """Returns units for all files: none is too young, and no slice is left out."""
        del slices, cores  # there are far more directories than cores
        items = [ListingItem("", recursive=False)]
        for top in storage.list_prefixes():
            items.append(ListingItem(top, recursive=False))
            items += (ListingItem(inner, recursive=True) for inner in storage.list_prefixes(top))
        return Listing(items)

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address, from the address alone."""
        kinds = EmbeddedLayout.classify(self, addresses)
        in_collector = pc.or_(
            pc.starts_with(addresses, COLLECTOR_PREFIX), pc.starts_with(addresses, PURGES_PREFIX)
        )
        of_collector = pc.if_else(
            pc.match_substring_regex(addresses, _RECORD),
            pa.scalar(RECORD, pa.string()),
            pa.scalar(FOREIGN, pa.string()),
        )
        kinds = pc.if_else(in_collector, of_collector, kinds)
        own = pc.or_(
            pc.starts_with(addresses, f"{RUNS_PREFIX}{self.own_run}/"),
            pc.equal(addresses, pa.scalar(EPOCH_ADDRESS, pa.string())),
        )
        return cast("pa.StringArray", pc.if_else(own, pa.scalar(SYSTEM, pa.string()), kinds))


class GoneRepository(EmbeddedRepository):
    """A gone repository of the embedded store, for the run that deletes all of it."""

    layout: GoneLayout

    def __init__(self, context: RepositoryContext, *, store_id: str) -> None:
        super().__init__(context, store_id=store_id)
        self.layout = GoneLayout()

    @property
    def context(self) -> RepositoryContext:
        """The context of the repository in its store."""
        return self._context

    def layout_of(self, run_id: str) -> GoneLayout:
        """Returns the layout for a run, whose own files stay to the end."""
        return GoneLayout(own_run=run_id)

    def close_storage(self) -> None:
        """Records in OWNER that the repository ended. OWNER stays, and keeps others from the root.
        Raises Refused `storage_foreign`."""
        identity = self.identity
        close_owner(self.storage, store_id=identity.store_id, repository_id=identity.repository_id)

    def check_removable(self) -> None:
        """Raises Refused `repository_not_gone` or `repository_in_use`."""
        with self._metadata.snapshot() as tx:
            require_removable(tx, self._repository_id, promised(tx, self._context.settings))

    def fence_whole(self, hold: RunHold, run_id: str) -> datetime:
        """Checks again and closes the repository, in one transaction that locks its row
        exclusively. Returns the time of the transaction.

        Raises Refused as `check_removable` does, and `lease_lost`.
        """
        with self._locked(hold) as tx:
            require_removable(tx, self._repository_id, promised(tx, self._context.settings))
            close_repository(tx, self._repository_id, run_id=run_id)
            now = tx.now()
            write_run(tx, self._repository_id, run_id, state="sweeping", fenced_at=now)
        return now

    def owns_storage(self) -> bool:
        """Whether OWNER exists and belongs to this database."""
        try:
            self._context.ownership.check()
        except Refused as error:
            if error.kind != "storage_foreign":
                raise
            return False
        return True

    def emptied(self) -> RemovalRow | None:
        """Returns the record of the run that emptied the storage, or None."""
        with self._metadata.snapshot() as tx:
            return REMOVALS.by_id(tx, self._repository_id)

    def record_emptied(
        self,
        hold: RunHold,
        run_id: str,
        report: Mapping[str, Any],  # JSON
    ) -> None:
        """Records in the database that run `run_id` emptied the storage, with the run's report. The
        run's own files are deleted next. Raises Refused `lease_lost`."""
        with self._locked(hold) as tx:
            info = self._context.info
            removal = RemovalRow(
                repository_id=info.repository_id,
                run_id=run_id,
                name=info.name,
                storage_url=info.storage_url,
                report=report,
                emptied_at=tx.now(),
            )
            REMOVALS.insert(tx, removal)

    def drop_rows(self, hold: RunHold) -> None:
        """Deletes every row of the repository in one transaction, except the record of its removal.
        Raises Refused `lease_lost`."""
        with self._locked(hold) as tx:
            delete_repository(tx, self._repository_id)
            finish_removal(tx, self._repository_id)
