"""Collections: named sets of files in a project, with a lifecycle of their own.

A collection points at content, as a branch does at a commit. What it pointed at stays promised for
a lease after an update; and versions that are asked for stay as long as the collection. Source: the
Arvados wiki, "Expiring collections".
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from ebbtide.errors import Conflict, Gone, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState, earliest, expiry_asked, state_at
from ebbtide.store.changes import KEEP, Keep, Unchanged, given
from ebbtide.store.content.diffing import Change, diff_trees
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.reading import find_entry, iterate_entries
from ebbtide.store.contents import (
    Built,
    ContentChange,
    Contents,
    FromCollection,
    FromRef,
    Resolved,
    Summary,
    resolve_ref,
)
from ebbtide.store.context import RepositoryContext
from ebbtide.store.listing import Page, check_amount, page_of
from ebbtide.store.locators import Locators, Signed
from ebbtide.store.metadata.branches import insert_reflog
from ebbtide.store.metadata.collections import (
    CollectionRow,
    VersionRow,
    collections_by_hash,
    collections_named,
    delete_version,
    find_collection,
    find_version,
    insert_collection,
    insert_version,
    list_versions,
    page_of_collections,
    update_collection,
)
from ebbtide.store.metadata.commits import CommitRecord, require_commit, require_intact_commits
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.expiries import StateFilter
from ebbtide.store.names import check_item_name, check_properties, check_text, shown, unique_name
from ebbtide.store.objects import Objects, Readable
from ebbtide.store.projects import (
    DESCRIPTION_BYTES_MAX,
    Lineage,
    Projects,
    one_of,
    require_changeable,
)
from ebbtide.store.views import Found

REPLICATION_MAX: Final = 100
MISSING_SHOWN_MAX: Final = 100
LOOKED_FOR_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """One collection as it was when it was looked at.

    `expires_at` is its own; `ends_at` the first of that and those of the projects above it, by
    which its `state` goes. `content_hash` depends on the files alone. With a
    `replication_desired` of 0 the data is not kept, and what is not data is.
    """

    collection_id: str
    project_id: str
    name: str
    path: str
    description: str
    properties: Mapping[str, Any]
    version: int
    content_hash: str
    file_count: int
    size_bytes: int
    replication_desired: int
    created_at: datetime
    modified_at: datetime
    expires_at: datetime | None
    ends_at: datetime | None
    state: LifecycleState


@dataclass(frozen=True, slots=True)
class _Seen:
    """A collection and where it lies, in one transaction."""

    row: CollectionRow
    lineage: Lineage

    @property
    def ends_at(self) -> datetime | None:
        return earliest(self.row.expires_at, self.lineage.ends_at)


@dataclass(frozen=True, slots=True)
class SignedPage:
    """Files of a collection with their locators, and common prefixes, as a `Page` has them."""

    entries: tuple[Signed, ...]
    common_prefixes: tuple[str, ...]
    next_after: str | None


class Collections:
    """The collections of one repository."""

    def __init__(
        self,
        context: RepositoryContext,
        projects: Projects,
        objects: Objects,
        locators: Locators,
    ) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id
        self._projects = projects
        self._objects = objects
        self._locators = locators
        self._contents = Contents(context, locators)

    def create(
        self,
        project_id: str,
        name: str,
        content: ContentChange | None = None,
        *,
        description: str = "",
        properties: Mapping[str, Any] | None = None,
        replication_desired: int = 1,
        expires_at: datetime | None = None,
        ensure_unique_name: bool = False,
    ) -> Collection:
        """Make a collection, empty or of what `content` says.

        Raises InvalidInput, NotFound `project_not_found` and whatever a source lacks; Conflict
        `collection_exists`, unless a unique name is asked for, `token_expired`; Gone
        `commit_expired`, `data_released` or `purged`. Nothing is made then.
        """
        check_item_name(name)
        check_text("the description", description, bytes_max=DESCRIPTION_BYTES_MAX)
        check_properties(properties or {})
        _check_replication(replication_desired)
        change = replace(content or ContentChange(), replaces=True)
        change.check()
        with self._metadata.snapshot() as tx:
            # Only so that what is wrong is told before anything is written.
            self._projects.require_live_in(tx, project_id)
            if not ensure_unique_name:
                self._free_name(tx, project_id, name, ensure_unique=False)
            resolved = self._resolve(tx, change)
        with (
            self._contents.building(None, change, resolved) as built,
            self._metadata.transaction() as tx,
        ):
            tx.lock_repository(self._repository_id, "exclusive")
            self._projects.require_live_in(tx, project_id)
            collection_id = new_id()
            now = tx.now()
            made = built.finish(tx, collection_id)
            row = CollectionRow(
                collection_id=collection_id,
                repository_id=self._repository_id,
                project_id=project_id,
                name=self._free_name(tx, project_id, name, ensure_unique=ensure_unique_name),
                description=description,
                properties=dict(properties or {}),
                version=1,
                content_id=made.commit_id,
                content_hash=built.summary.content_hash,
                file_count=built.summary.file_count,
                size_bytes=built.summary.size_bytes,
                replication_desired=replication_desired,
                created_at=now,
                modified_at=now,
                expires_at=expiry_asked(expires_at, now=now),
            )
            insert_collection(tx, row)
            return self._collection(tx, row)

    def get(self, collection_id: str, *, include_expired: bool = False) -> Collection:
        """One collection; with `include_expired` also one in the trash.

        Raises NotFound `collection_not_found`.
        """
        with self._metadata.snapshot() as tx:
            seen = self._require_visible(tx, collection_id, include_expired=include_expired)
            return self._collection(tx, seen.row)

    def find(self, path: str, *, include_expired: bool = False) -> Collection:
        """The collection of an id, or of a path such as `genomes/2026/reference`.

        A trashed one is found by its path only where no other there has had that name. Raises
        NotFound `collection_not_found` or `project_not_found`, Conflict `ref_ambiguous`.
        """
        with self._metadata.snapshot() as tx:
            row = find_collection(tx, path)
        project_path, _, name = path.rpartition("/")
        if row is not None or not project_path:
            return self.get(path, include_expired=include_expired)
        project = self._projects.find(project_path, include_expired=include_expired)
        with self._metadata.snapshot() as tx:
            named = collections_named(tx, project.project_id, name)
            found = one_of(
                [(row.collection_id, self._state(tx, row.expires_at)) for row in named],
                include_expired=include_expired,
                what=f"collection {shown(path)}",
                missing=lambda is_trashed: no_collection(path, is_trashed=is_trashed),
            )
        return self.get(found, include_expired=include_expired)

    def by_hash(self, content_hash: str, *, include_expired: bool = False) -> Collection:
        """A collection of that content: a persistent one before an expiring, and with
        `include_expired` either before one in the trash.

        Raises NotFound `collection_not_found`.
        """
        trashed: CollectionRow | None = None
        with self._metadata.snapshot() as tx:
            expiring: CollectionRow | None = None
            for row in collections_by_hash(
                tx, self._repository_id, content_hash, states=self._states(tx, include_expired=True)
            ):
                state = self._state_of(tx, row)
                if state is LifecycleState.PERSISTENT:
                    return self._collection(tx, row)
                if state is LifecycleState.EXPIRING:
                    expiring = expiring or row
                elif state is LifecycleState.TRASHED:
                    trashed = trashed or row
            found = expiring or (trashed if include_expired else None)
            if found is None:
                raise no_collection(content_hash, is_trashed=trashed is not None)
            return self._collection(tx, found)

    def page(
        self,
        project_id: str,
        *,
        include_expired: bool = False,
        state: LifecycleState | None = None,
        from_date: datetime | None = None,
        to_date: datetime | None = None,
        prefix: str = "",
        name: str | None = None,
        after: tuple[str, str] = ("", ""),
        amount: int = 1000,
    ) -> builtins.list[Collection]:
        """At most `amount` collections of a project behind (name, id), by name and id, of those
        whose names have the prefix, or are `name`.

        With `include_expired` also the trash; `state` and the dates, [from, to) of `expires_at`,
        choose from what is listed by the collections' own `expires_at`. Raises InvalidInput
        `invalid_argument` or `invalid_date`, NotFound `project_not_found`.
        """
        check_amount(amount)
        project = self._projects.get(project_id, include_expired=include_expired)
        with self._metadata.snapshot() as tx:
            lineage = self._projects.lineage_in(tx, project.project_id)
            rows = page_of_collections(
                tx,
                project_id,
                states=self._states(
                    tx,
                    include_expired=include_expired,
                    state=state,
                    from_date=from_date,
                    to_date=to_date,
                ),
                prefix=prefix,
                name=name,
                after=after,
                amount=amount,
            )
            return [self._shown(tx, _Seen(row, lineage)) for row in rows]

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
        """At most `amount` files and common prefixes, by path, as `Objects.list`; also of a
        collection whose data is not kept. Raises NotFound, InvalidInput `invalid_argument`."""
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
        """All files, by path. Raises NotFound."""
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
        """As `files`, with a locator for each. They last EBBTIDE_LEASE_TTL, or until the collection
        ends. Raises NotFound; Gone `data_released` or `commit_expired`."""
        with self._metadata.snapshot() as tx:
            seen = self._require_visible(tx, collection_id, include_expired=False)
            record = self._readable(tx, seen.row, version)
            lasts_until = tx.now() + self._context.settings.lease_ttl
            ends_at = min(lasts_until, seen.ends_at or lasts_until)
        page = page_of(
            lambda place: self._walk(record, prefix=prefix, after=place),
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            amount=amount,
        )
        with self._metadata.snapshot() as tx:
            now = tx.now()
            signer = self._locators.signer(tx, now=now, ends_at=ends_at)
            signed = tuple(signer.sign(entry) for entry in page.entries)
        return SignedPage(signed, page.common_prefixes, page.next_after)

    def open(self, collection_id: str, path: str, *, version: int | None = None) -> Readable:
        """A file to be read. Raises NotFound `collection_not_found`, `version_not_found` or
        `object_not_found`; Gone `data_released` or `commit_expired`; and as `Objects.stream`."""
        with self._metadata.snapshot() as tx:
            seen = self._require_visible(tx, collection_id, include_expired=False)
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
        return Readable(self._objects, Found(entry, record))

    def open_all(
        self, collection_id: str, *, version: int | None = None, prefix: str = ""
    ) -> Iterator[Readable]:
        """Every file with the prefix, by path, to be read: all of one and the same content,
        whatever is changed meanwhile. Raises as `open`."""
        with self._metadata.snapshot() as tx:
            seen = self._require_visible(tx, collection_id, include_expired=False)
            record = self._readable(tx, seen.row, version)
        for entry in self._walk(record, prefix=prefix):
            yield Readable(self._objects, Found(entry, record))

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
        """What differs between the contents of two collections, or versions of them, by path; also
        where data is not kept. Raises NotFound."""
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
        """As `diff`, in parts. Raises as `diff`, InvalidInput `invalid_argument`."""
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

    def update(
        self,
        collection_id: str,
        content: ContentChange | None = None,
        *,
        name: str | Keep = KEEP,
        description: str | Keep = KEEP,
        properties: Mapping[str, Any] | Keep = KEEP,
        project_id: str | Keep = KEEP,
        replication_desired: int | Keep = KEEP,
        expires_at: datetime | Keep | None = KEEP,
        ensure_unique_name: bool = False,
        keep_version: bool = False,
    ) -> Collection:
        """Change what is given; of a trashed collection only `expires_at`, which brings it back.

        What is replaced is kept as a version if `keep_version` asks for it. Raises as `create`;
        NotFound `collection_not_found`; Conflict `trashed`, or `collection_changed` when somebody
        else changed the content meanwhile; Gone `commit_expired` (details: `missing_count`,
        `missing`) when data is to be kept again that a run has let go.
        """
        asked = given(
            name=name,
            description=description,
            properties=properties,
            project_id=project_id,
            replication_desired=replication_desired,
        )
        _check_asked(asked)
        if content is None:
            with self._metadata.transaction() as tx:
                return self._update(
                    tx,
                    collection_id,
                    asked,
                    expires_at,
                    ensure_unique=ensure_unique_name,
                    keep_version=keep_version,
                )
        content.check()
        with self._metadata.snapshot() as tx:
            seen = self._require_visible(tx, collection_id, include_expired=True)
            self._require_changeable(tx, seen, {*asked, "content"})
            resolved = self._resolve(tx, content)
            base = require_commit(tx, self._repository_id, seen.row.content_id)
            if not content.replaces:
                base.require_intact()
        with (
            self._contents.building(base, content, resolved) as built,
            self._metadata.transaction() as tx,
        ):
            return self._update(
                tx,
                collection_id,
                asked,
                expires_at,
                ensure_unique=ensure_unique_name,
                keep_version=keep_version,
                before=seen.row,
                built=built,
            )

    def delete(self, collection_id: str) -> Collection:
        """Put a collection in the trash: its name is free, and all of it stays for `trash_time`.

        Raises NotFound `collection_not_found`, also for one that is there already.
        """
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive")
            seen = self._require_visible(tx, collection_id, include_expired=False)
            row = replace(seen.row, expires_at=tx.now())
            update_collection(tx, collection_id, expires_at=row.expires_at)
            return self._shown(tx, _Seen(row, seen.lineage))

    def restore(self, collection_id: str, *, ensure_unique_name: bool = False) -> Collection:
        """Bring a collection back from the trash; one that is not there stays as it is.

        Raises NotFound `collection_not_found`, Conflict `collection_exists`, unless a unique name
        is asked for, and `trashed` for one whose project is in the trash.
        """
        found = self.get(collection_id, include_expired=True)
        if found.state is not LifecycleState.TRASHED:
            return found
        return self.update(collection_id, expires_at=None, ensure_unique_name=ensure_unique_name)

    def versions(
        self, collection_id: str, *, before: int | None = None, amount: int = 1000
    ) -> builtins.list[VersionRow]:
        """At most `amount` of the earlier versions that are kept, the newest first: those before
        version `before`. Raises NotFound, InvalidInput `invalid_argument`."""
        check_amount(amount)
        with self._metadata.snapshot() as tx:
            self._require_visible(tx, collection_id, include_expired=False)
            return list_versions(tx, collection_id, before=before, amount=amount)

    def drop_version(self, collection_id: str, version: int) -> None:
        """Keep an earlier version no longer; what was signed of it stays for a lease. Raises
        NotFound `collection_not_found` or `version_not_found`."""
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id)
            row = self._locked(tx, collection_id).row
            found = _version(tx, row, version)
            self._remember(tx, row, found.content_id)
            delete_version(tx, collection_id, version)

    def _update(
        self,
        tx: Transaction,
        collection_id: str,
        asked: Mapping[str, Any],  # values by the columns' names
        expires_at: datetime | Keep | None,
        *,
        ensure_unique: bool,
        keep_version: bool,
        before: CollectionRow | None = None,
        built: Built | None = None,
    ) -> Collection:
        """Change one collection, in the transaction that makes the changes visible."""
        renames = not isinstance(expires_at, Unchanged) or bool({"name", "project_id"} & set(asked))
        tx.lock_repository(self._repository_id, "exclusive" if renames else "share")
        seen = self._locked(tx, collection_id, include_expired=True)
        row, now = seen.row, tx.now()
        changes = {*asked, *(["content"] if built else []), *(["version"] if keep_version else [])}
        self._require_changeable(tx, seen, changes)
        changed = replace(row, **asked, modified_at=now)
        if not isinstance(expires_at, Unchanged):
            changed = replace(changed, expires_at=expiry_asked(expires_at, now=now))
        if changed.project_id != row.project_id:
            self._projects.require_live_in(tx, changed.project_id)
        if built is not None:
            assert before is not None
            changed = self._with_content(tx, changed, row, before, built)
        elif changed.replication_desired > 0 and row.replication_desired == 0:
            self._require_data(tx, row)
        if row.replication_desired > 0 and changed.replication_desired == 0:
            # What was signed while the data was kept, of versions too, is promised for a lease.
            kept = {version.content_id for version in list_versions(tx, row.collection_id)}
            for content_id in sorted(kept | {row.content_id}):
                self._remember(tx, row, content_id)
        if keep_version:
            insert_version(tx, _as_version(row))
            changed = replace(changed, version=row.version + 1)
        elif changed.content_id != row.content_id:
            changed = replace(changed, version=row.version + 1)
        if renames and not self._is_over(tx, changed.expires_at):
            place = (changed.project_id, changed.name)
            if self._is_over(tx, row.expires_at) or place != (row.project_id, row.name):
                name = self._free_name(
                    tx, *place, ensure_unique=ensure_unique, holder_id=collection_id
                )
                changed = replace(changed, name=name)
        values = {
            field: getattr(changed, field)
            for field in CollectionRow.__dataclass_fields__
            if getattr(changed, field) != getattr(row, field)
        }
        if values:  # none, where the same was said at the same instant
            update_collection(tx, collection_id, **values)
        return self._collection(tx, changed)

    def _with_content(
        self,
        tx: Transaction,
        changed: CollectionRow,
        row: CollectionRow,
        before: CollectionRow,
        built: Built,
    ) -> CollectionRow:
        """The row with new content; what it pointed at is promised for a lease."""
        if row.content_id != before.content_id:
            raise Conflict(
                "collection_changed",
                f"the content of collection {shown(row.name)} was changed by somebody else "
                "meanwhile: look at it, and try again",
            )
        content = built.finish(tx, row.collection_id)
        if content.commit_id != row.content_id:
            self._remember(tx, row, row.content_id)
        summary: Summary = built.summary
        return replace(
            changed,
            content_id=content.commit_id,
            content_hash=summary.content_hash,
            file_count=summary.file_count,
            size_bytes=summary.size_bytes,
        )

    def _remember(self, tx: Transaction, row: CollectionRow, content_id: str) -> None:
        insert_reflog(
            tx, self._repository_id, kind="collection", name=row.name, commit_id=content_id
        )

    def _require_data(self, tx: Transaction, row: CollectionRow) -> None:
        """Raises Gone `commit_expired`, saying what is missing, when a run has let the data go."""
        record = require_commit(tx, self._repository_id, row.content_id)
        try:
            record.require_intact()
        except Gone as error:
            missing, looked_for = self._missing(record)
            least = "at least " if looked_for < row.file_count else ""
            raise Gone(
                "commit_expired",
                f"the data of collection {shown(row.name)} was let go by run "
                f"{error.details.get('run_id')}: {least}{len(missing)} of {row.file_count} files "
                "are missing; give it its files anew to have it kept again",
                run_id=error.details.get("run_id"),
                missing_count=len(missing),
                looked_for=looked_for,
                missing=missing[:MISSING_SHOWN_MAX],
            ) from None

    def _missing(self, record: CommitRecord) -> tuple[builtins.list[str], int]:
        """The paths whose data is not on the storage, and how many were looked for."""
        missing: builtins.list[str] = []
        looked_for = 0
        for entry in self._walk(record):
            if looked_for == LOOKED_FOR_MAX:
                break
            looked_for += 1
            if self._objects.is_missing(entry):
                missing.append(entry.path)
        return missing, looked_for

    def _resolve(self, tx: Transaction, change: ContentChange) -> dict[int, Resolved]:
        """What the sources of other content come to. Raises NotFound, Gone."""
        resolved: dict[int, Resolved] = {}
        for place, source in enumerate(change.sources):
            if isinstance(source, FromRef):
                resolved[place] = resolve_ref(tx, self._repository_id, source)
            elif isinstance(source, FromCollection):
                seen = self._require_visible(tx, source.collection_id, include_expired=False)
                record = self._readable(tx, seen.row, source.version)
                resolved[place] = Resolved(record, source.prefix, source.into)
        return resolved

    def _readable(self, tx: Transaction, row: CollectionRow, version: int | None) -> CommitRecord:
        """The content of a collection whose data is there. Raises Gone."""
        if row.replication_desired == 0:
            raise Gone(
                "data_released",
                f"the data of collection {shown(row.name)} is not kept (its replication_desired is "
                "0): names, sizes and checksums are all that there is",
            )
        content_id = row.content_id if version is None else _content_of(tx, row, version)
        return require_intact_commits(tx, self._repository_id, [content_id])[content_id]

    def _record(
        self, collection_id: str, version: int | None, *, include_expired: bool = False
    ) -> CommitRecord:
        """The content of a collection whether its data is there or not."""
        with self._metadata.snapshot() as tx:
            row = self._require_visible(tx, collection_id, include_expired=include_expired).row
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

    def _locked(
        self, tx: Transaction, collection_id: str, *, include_expired: bool = False
    ) -> _Seen:
        find_collection(tx, collection_id, locked=True)
        return self._require_visible(tx, collection_id, include_expired=include_expired)

    def _require_visible(
        self, tx: Transaction, collection_id: str, *, include_expired: bool
    ) -> _Seen:
        row = find_collection(tx, collection_id)
        if row is None or row.repository_id != self._repository_id:
            raise no_collection(collection_id)
        seen = _Seen(row, self._projects.lineage_in(tx, row.project_id))
        state = self._state(tx, seen.ends_at)
        if not state.is_visible(include_expired=include_expired):
            raise no_collection(collection_id, is_trashed=state is LifecycleState.TRASHED)
        return seen

    def _require_changeable(self, tx: Transaction, seen: _Seen, asked: Iterable[str]) -> None:
        require_changeable(
            asked,
            what=f"collection {shown(seen.row.name)}",
            own=self._state(tx, seen.row.expires_at),
            above=self._state(tx, seen.lineage.ends_at),
        )

    def _free_name(
        self,
        tx: Transaction,
        project_id: str,
        name: str,
        *,
        ensure_unique: bool,
        holder_id: str | None = None,
    ) -> str:
        """The name, or one like it that nobody but its holder has. Raises Conflict
        `collection_exists`."""

        def is_taken(candidate: str) -> bool:
            return any(
                row.collection_id != holder_id and not self._is_over(tx, row.expires_at)
                for row in collections_named(tx, project_id, candidate)
            )

        if not is_taken(name):
            return name
        if ensure_unique:
            return unique_name(name, is_taken)
        raise Conflict(
            "collection_exists",
            f"there is a collection {shown(name)} already: choose another name, or ask for a "
            "unique one",
        )

    def _is_over(self, tx: Transaction, ends_at: datetime | None) -> bool:
        return ends_at is not None and ends_at <= tx.now()

    def _state(self, tx: Transaction, ends_at: datetime | None) -> LifecycleState:
        return state_at(ends_at, trash_time=self._context.trash_time, now=tx.now())

    def _state_of(self, tx: Transaction, row: CollectionRow) -> LifecycleState:
        return self._state(tx, _Seen(row, self._projects.lineage_in(tx, row.project_id)).ends_at)

    def _states(
        self,
        tx: Transaction,
        *,
        include_expired: bool,
        state: LifecycleState | None = None,
        from_date: datetime | None = None,
        to_date: datetime | None = None,
    ) -> StateFilter:
        return StateFilter(
            now=tx.now(),
            trash_time=self._context.trash_time,
            include_expired=include_expired,
            state=state,
            from_date=from_date,
            to_date=to_date,
        )

    def _collection(self, tx: Transaction, row: CollectionRow) -> Collection:
        return self._shown(tx, _Seen(row, self._projects.lineage_in(tx, row.project_id)))

    def _shown(self, tx: Transaction, seen: _Seen) -> Collection:
        row = seen.row
        return Collection(
            collection_id=row.collection_id,
            project_id=row.project_id,
            name=row.name,
            path=f"{seen.lineage.path}/{row.name}",
            description=row.description,
            properties=row.properties,
            version=row.version,
            content_hash=row.content_hash,
            file_count=row.file_count,
            size_bytes=row.size_bytes,
            replication_desired=row.replication_desired,
            created_at=row.created_at,
            modified_at=row.modified_at,
            expires_at=row.expires_at,
            ends_at=seen.ends_at,
            state=self._state(tx, seen.ends_at),
        )


def _as_version(row: CollectionRow) -> VersionRow:
    return VersionRow(**{name: getattr(row, name) for name in VersionRow.__dataclass_fields__})


def _version(tx: Transaction, row: CollectionRow, version: int) -> VersionRow:
    """Raises NotFound `version_not_found`."""
    # A greater number than any row's is none that a database could be asked for.
    found = None
    if 0 < version < row.version:
        found = find_version(tx, row.collection_id, version)
    if found is None:
        raise NotFound(
            "version_not_found", f"no version {version} of collection {shown(row.name)} is kept"
        )
    return found


def _content_of(tx: Transaction, row: CollectionRow, version: int) -> str:
    return row.content_id if version == row.version else _version(tx, row, version).content_id


def _check_asked(asked: Mapping[str, Any]) -> None:  # values by the columns' names
    if "name" in asked:
        check_item_name(asked["name"])
    if "description" in asked:
        check_text("the description", asked["description"], bytes_max=DESCRIPTION_BYTES_MAX)
    if "properties" in asked:
        check_properties(asked["properties"])
    if "replication_desired" in asked:
        _check_replication(asked["replication_desired"])


def _check_replication(number: int) -> None:
    if not 0 <= number <= REPLICATION_MAX:
        raise InvalidInput(
            "invalid_argument",
            f"replication_desired is from 0 (keep no data) to {REPLICATION_MAX}: {number}",
        )


def no_collection(name: str, *, is_trashed: bool = False) -> NotFound:
    """The error for a collection that is not there, or only in the trash."""
    hint = ""
    if is_trashed:
        hint = ": it was deleted or has expired, and 'ebbtide collection restore' may bring it back"
    return NotFound("collection_not_found", f"there is no collection {shown(name)}{hint}")
