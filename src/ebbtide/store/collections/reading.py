"""Reading collections: finding and listing them, and reading their files.

Not for: changing them (`collections`).
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ebbtide.documents import documented
from ebbtide.errors import Conflict, Gone, NotFound
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.collections.contents import Contents
from ebbtide.store.collections.items import Items
from ebbtide.store.collections.projects import Projects
from ebbtide.store.collections.queries import (
    COLLECTIONS,
    LATEST_FIRST,
    CollectionRow,
    VersionRow,
    clients_ids,
    collections_named,
    collections_with_id,
    find_version,
    lineage_of,
    list_versions,
)
from ebbtide.store.content.differences import Change, diff_trees
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.trees import find_entry, iterate_entries
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, require_commit, require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import values_of
from ebbtide.store.database.schema import collections
from ebbtide.store.lifecycle import LIVE, ListFilter, Place, SeenItem, missing
from ebbtide.store.objects.locators import Locators, Signed
from ebbtide.store.objects.objects import Objects, Readable
from ebbtide.store.objects.views import FoundEntry
from ebbtide.store.page import Page, check_amount, page_of
from ebbtide.text import shown

AMBIGUOUS_SHOWN_MAX: Final = 20


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Collection(CollectionRow):
    """A collection as it was when it was read. `repository` is the name of its repository.

    `expires_at` is its own date. `ends_at` is the earliest date of the collection and the projects
    above it, and decides `state`. `content_hash` depends on the files alone. If
    `replication_desired` is 0, only the record is kept, and not the data.
    """

    repository: str
    path: str
    ends_at: datetime | None
    state: LifecycleState


@dataclass(frozen=True, slots=True)
class SignedPage:
    """A page of files with their locators, and of common prefixes, with the fields of `Page`."""

    entries: tuple[Signed, ...]
    common_prefixes: tuple[str, ...]
    next_after: str | None


class CollectionReader(Items[CollectionRow, Collection]):
    """Reads the collections of one repository."""

    kind = "collection"

    def __init__(
        self,
        context: RepositoryContext,
        projects: Projects,
        objects: Objects,
        locators: Locators,
    ) -> None:
        super().__init__(context, COLLECTIONS)
        self._projects = projects
        self._objects = objects
        self._locators = locators
        self._contents = Contents(context, locators)

    def find(self, path: str, *, include_expired: bool = False) -> Collection:
        """Returns a collection by an id, or by a path such as `genomes/2026/reference`.

        Ids are those of `collections_with_id`. With `include_expired`, a trashed collection is
        found by its path if no other collection, live or trashed, has this path. Raises NotFound
        `collection_not_found` or `project_not_found`. Raises Conflict `ref_ambiguous`, also if
        several collections have a hash.
        """
        with self._metadata.snapshot() as tx:
            rows = collections_with_id(tx, self._repository_id, path)
            states = [self._state(tx, self._see(tx, row)) for row in rows]
            visible = [
                row
                for row, state in zip(rows, states, strict=True)
                if state.is_visible(include_expired=include_expired)
            ]
            row = only_one(tx, path, visible)
        project_path, _, name = path.rpartition("/")
        if row is None and (rows or not project_path):
            raise missing("collection", path, is_trashed=LifecycleState.TRASHED in states)
        if row is not None:
            return self.get(row.collection_id, include_expired=include_expired)
        project = self._projects.find(project_path, include_expired=include_expired)
        with self._metadata.snapshot() as tx:
            named = collections_named(tx, project.project_id, name)
            found_id = self._one_of(tx, named, path, include_expired=include_expired)
        return self.get(found_id, include_expired=include_expired)

    def by_hash(self, content_hash: str, *, include_expired: bool = False) -> Collection:
        """Returns a collection with that content hash.

        A persistent collection is preferred to an expiring one. With `include_expired`, both are
        preferred to one in the trash. Raises NotFound `collection_not_found`.
        """
        first: dict[LifecycleState, SeenItem[CollectionRow]] = {}
        with self._metadata.snapshot() as tx:
            every = ListFilter(include_expired=True)
            query = self._listed(tx, every, collections.c.content_hash == content_hash)
            for row in self._rows.each(tx, query.order_by(*LATEST_FIRST)):
                seen = self._see(tx, row)
                state = self._state(tx, seen)
                first.setdefault(state, seen)
                if state is LifecycleState.PERSISTENT:
                    break
            state = next((each for each in LifecycleState if each in first), LifecycleState.GONE)
            if not state.is_visible(include_expired=include_expired):
                is_trashed = state is LifecycleState.TRASHED
                raise missing("collection", content_hash, is_trashed=is_trashed)
            return self._found(tx, first[state])

    def page(
        self,
        project_id: str,
        *,
        listed: ListFilter = LIVE,
        prefix: str = "",
        name: str | None = None,
        after: tuple[str, str] = ("", ""),
        amount: int = 1000,
    ) -> builtins.list[Collection]:
        """Returns at most `amount` collections of a project, sorted by name and id.

        They sort behind `after`. Their names begin with `prefix`, and equal `name` if it is given.
        `listed` filters them.

        Raises InvalidInput `invalid_argument` or `invalid_date`, NotFound `project_not_found`.
        """
        project = self._projects.get(project_id, include_expired=listed.include_expired)
        conditions = [collections.c.project_id == project_id]
        if name is not None:
            conditions.append(collections.c.name == name)
        with self._metadata.snapshot() as tx:
            rows = self._page(
                tx, *conditions, listed=listed, prefix=prefix, after=after, amount=amount
            )
            above = tuple(lineage_of(tx, project.project_id))
            return [self._found(tx, SeenItem(row, above)) for row in rows]

    def files(
        self,
        collection_id: str,
        *,
        version: int | None = None,
        include_expired: bool = False,
        prefix: str = "",
        delimiter: str = "",
        after: str = "",
        amount: int = 1000,
    ) -> Page[Entry]:
        """Returns at most `amount` files and common prefixes by path, as `Objects.list` does.

        This also works if the data is not kept. Raises NotFound, InvalidInput `invalid_argument`.
        """
        record = self._record(collection_id, version, include_expired=include_expired)
        return page_of(
            lambda place: self._walk(record, prefix=prefix, after=place),
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            amount=amount,
        )

    def walk(
        self, collection_id: str, *, version: int | None = None, include_expired: bool = False
    ) -> Iterator[Entry]:
        """Yields all files, sorted by path. Raises NotFound."""
        return self._walk(self._record(collection_id, version, include_expired=include_expired))

    def locators(
        self,
        collection_id: str,
        *,
        version: int | None = None,
        prefix: str = "",
        delimiter: str = "",
        after: str = "",
        amount: int = 1000,
    ) -> SignedPage:
        """Returns a page as `files` does, with a locator for each file.

        The locators last for EBBTIDE_LEASE_TTL, or until the collection ends if that is earlier.
        Raises NotFound; Gone `data_released` or `commit_expired`.
        """
        with self._metadata.snapshot() as tx:
            seen = self._require(tx, collection_id)
            record = self._readable(tx, seen.row, version)
        ends_at = self._locators.lease(record, ends_at_most=seen.ends_at)
        page = page_of(
            lambda place: self._walk(record, prefix=prefix, after=place),
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            amount=amount,
        )
        with self._metadata.snapshot() as tx:
            signer = self._locators.signer(tx, ends_at=ends_at)
            signed = tuple(signer.sign(entry) for entry in page.entries)
        return SignedPage(signed, page.common_prefixes, page.next_after)

    def leased(self, collection_id: str) -> tuple[datetime, CommitRecord, Iterator[Readable]]:
        """Returns the time until which locators of the files may last, the record of the content,
        and all files, sorted by path.

        All are files of this content. Raises as `locators` does.
        """
        with self._metadata.snapshot() as tx:
            seen = self._require(tx, collection_id)
            record = self._readable(tx, seen.row, None)
        ends_at = self._locators.lease(record, ends_at_most=seen.ends_at)
        found = (Readable(self._objects, FoundEntry(entry, record)) for entry in self._walk(record))
        return ends_at, record, found

    def open(
        self,
        collection_id: str,
        path: str,
        *,
        version: int | None = None,
        include_expired: bool = False,
    ) -> Readable:
        """Returns a file as a Readable; with `include_expired`, also one in the trash.

        Raises NotFound `collection_not_found`, `version_not_found` or `object_not_found`; Gone
        `data_released` or `commit_expired`; and as `Objects.stream` does.
        """
        with self._metadata.snapshot() as tx:
            seen = self._require(tx, collection_id, include_expired=include_expired)
            record = self._readable(tx, seen.row, version)
        context = self._context
        with context.reading(record):
            tree = context.tree_of(record)
            entry = find_entry(context.storage, tree, path, read=context.cache.range)
        if entry is None:
            raise NotFound(
                "object_not_found",
                f"there is no {shown(path)} in collection {shown(collection_id)}",
            )
        return Readable(self._objects, FoundEntry(entry, record))

    def open_all(
        self, collection_id: str, *, version: int | None = None, prefix: str = ""
    ) -> Iterator[Readable]:
        """Yields every file with the prefix as a Readable, sorted by path.

        All are files of one content, even if the collection changes meanwhile. Raises as `open`
        does.
        """
        with self._metadata.snapshot() as tx:
            seen = self._require(tx, collection_id)
            record = self._readable(tx, seen.row, version)
        for entry in self._walk(record, prefix=prefix):
            yield Readable(self._objects, FoundEntry(entry, record))

    def diff(
        self,
        left_id: str,
        right_id: str,
        *,
        left_version: int | None = None,
        right_version: int | None = None,
        prefix: str = "",
        after: str = "",
    ) -> Iterator[Change]:
        """Yields the differences between two collections, or versions of them, sorted by path.

        This also works if the data is not kept. Raises NotFound.
        """
        left, right = self._record(left_id, left_version), self._record(right_id, right_version)
        context = self._context
        with context.reading(left, right):
            yield from diff_trees(
                context.storage,
                context.tree_of(left),
                context.tree_of(right),
                prefix=prefix,
                after=after,
                read=context.cache.range,
            )

    def page_of_diff(
        self,
        left_id: str,
        right_id: str,
        *,
        left_version: int | None = None,
        right_version: int | None = None,
        prefix: str = "",
        delimiter: str = "",
        after: str = "",
        amount: int = 1000,
    ) -> Page[Change]:
        """Returns a page of `diff`. Raises as `diff` does, and InvalidInput `invalid_argument`."""
        return page_of(
            lambda place: self.diff(
                left_id,
                right_id,
                left_version=left_version,
                right_version=right_version,
                prefix=prefix,
                after=place,
            ),
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            amount=amount,
        )

    def versions(
        self, collection_id: str, *, before: int | None = None, amount: int = 1000
    ) -> builtins.list[VersionRow]:
        """Returns at most `amount` earlier versions that are kept, the newest first.

        `before` restricts them to versions before that number. Raises NotFound, InvalidInput
        `invalid_argument`.
        """
        check_amount(amount)
        with self._metadata.snapshot() as tx:
            self._require(tx, collection_id)
            return list_versions(tx, collection_id, before=before, amount=amount)

    def _readable(self, tx: Transaction, row: CollectionRow, version: int | None) -> CommitRecord:
        """Returns the content of a collection whose data can be read. Raises Gone, NotFound."""
        if row.replication_desired == 0:
            raise Gone(
                "data_released",
                f"the data of collection {shown(row.name)} is not kept (its replication_desired is "
                "0): only names, sizes and checksums can be read",
            )
        content_id = row.content_id if version is None else _content_of(tx, row, version)
        return require_intact_commits(tx, self._repository_id, [content_id])[content_id]

    def _record(
        self, collection_id: str, version: int | None, *, include_expired: bool = False
    ) -> CommitRecord:
        """Returns the content of a collection, with or without its data. Raises NotFound."""
        with self._metadata.snapshot() as tx:
            row = self._require(tx, collection_id, include_expired=include_expired).row
            content_id = row.content_id if version is None else _content_of(tx, row, version)
            return require_commit(tx, self._repository_id, content_id)

    def _walk(self, record: CommitRecord, *, prefix: str = "", after: str = "") -> Iterator[Entry]:
        context = self._context
        with context.reading(record):
            yield from iterate_entries(
                context.storage,
                context.tree_of(record),
                prefix=prefix,
                after=after,
                read=context.cache.range,
            )

    def _see(self, tx: Transaction, row: CollectionRow) -> SeenItem[CollectionRow]:
        return SeenItem(row, tuple(lineage_of(tx, row.project_id)))

    def _named(self, tx: Transaction, place: Place) -> Sequence[CollectionRow]:
        return collections_named(tx, *place)

    def _place(self, row: CollectionRow) -> Place:
        return (row.project_id, row.name)

    def _found(self, tx: Transaction, seen: SeenItem[CollectionRow]) -> Collection:
        return Collection(
            **values_of(seen.row),
            repository=self._context.info.name,
            path=seen.path,
            ends_at=seen.ends_at,
            state=self._state(tx, seen),
        )


def version_of(tx: Transaction, row: CollectionRow, version: int) -> VersionRow:
    """Returns an earlier version that is kept. Raises NotFound `version_not_found`."""
    # Greater numbers name no version, and may not fit into the database's type.
    found = None
    if 0 < version < row.version:
        found = find_version(tx, row.collection_id, version)
    if found is None:
        raise NotFound(
            "version_not_found", f"no version {version} of collection {shown(row.name)} is kept"
        )
    return found


def _content_of(tx: Transaction, row: CollectionRow, version: int) -> str:
    return row.content_id if version == row.version else version_of(tx, row, version).content_id


def only_one(tx: Transaction, name: str, rows: Sequence[CollectionRow]) -> CollectionRow | None:
    """Returns the collection that an id names, or None. Raises Conflict `ref_ambiguous` if it is a
    hash of several: the message has their ids for Arvados's clients."""
    if len(rows) > 1:
        ids = sorted(clients_ids(tx, [row.collection_id for row in rows]).values())
        raise Conflict(
            "ref_ambiguous",
            f"{len(ids)} collections have the hash {shown(name)}: name one by its id, "
            f"{', '.join(ids[:AMBIGUOUS_SHOWN_MAX])}",
            ids=ids,
        )
    return rows[0] if rows else None
