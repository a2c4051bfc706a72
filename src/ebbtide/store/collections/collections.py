"""Collections: named sets of files in a project, each with a lifecycle of its own.

A collection points at content, as a branch points at a commit. After an update the replaced content
is kept for one lease. A version that somebody asked to keep stays as long as the collection. Not
for: reading collections (`reading`). Source: the Arvados wiki, "Expiring collections".
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from ebbtide.errors import Conflict, Gone, InvalidInput
from ebbtide.ids import new_id
from ebbtide.quarantined import closed_text
from ebbtide.retention.lifecycle import expiry_asked
from ebbtide.store.collections.contents import (
    Built,
    ContentChange,
    FromCollection,
    FromRef,
    ResolvedPart,
    Summary,
    resolve_ref,
)
from ebbtide.store.collections.items import KEEP, Keep, Omitted, check_asked, given
from ebbtide.store.collections.queries import (
    COLLECTIONS,
    VERSIONS,
    CollectionRow,
    VersionRow,
    delete_version,
    list_versions,
)
from ebbtide.store.collections.reading import Collection, CollectionReader, version_of
from ebbtide.store.database.commit_rows import CommitRecord, raise_lease, require_commit
from ebbtide.store.database.engine import LockMode, Transaction
from ebbtide.store.lifecycle import SeenItem
from ebbtide.store.refs.ref_rows import insert_reflog
from ebbtide.text import count_text, shown

REPLICATION_MAX: Final = 100
MISSING_SHOWN_MAX: Final = 100
LOOKED_FOR_MAX: Final = 10_000


Also = Callable[[Transaction, CollectionRow], None]
"""More work in the transaction that makes a change visible. It gets the collection as it is
then."""


class Collections(CollectionReader):
    """The collections of one repository."""

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
        also: Also | None = None,
    ) -> Collection:
        """Makes a collection with the files that `content` describes, or an empty one.

        Raises InvalidInput; NotFound `project_not_found`, and for a source that does not exist;
        Conflict `token_expired`; Gone `commit_expired`, `data_released` or `purged`. Raises
        Conflict `collection_exists` if the name is taken, unless `ensure_unique_name`. After an
        error nothing is made.
        """
        check_asked({"name": name, "description": description, "properties": properties or {}})
        _check_replication(replication_desired)
        change = replace(content or ContentChange(), replaces=True)
        change.check()
        with self._metadata.snapshot() as tx:
            # Checked here too, so that errors are reported before anything is written.
            self._projects.require_live(tx, project_id)
            if not ensure_unique_name:
                self._free_name(tx, (project_id, name), ensure_unique=False)
            resolved = self._resolve(tx, change)
        with (
            self._contents.building(None, change, resolved) as built,
            self._context.changing("exclusive") as tx,
        ):
            self._projects.require_live(tx, project_id)
            collection_id = new_id()
            now = tx.now()
            made = built.finish(tx, collection_id)
            row = CollectionRow(
                collection_id=collection_id,
                repository_id=self._repository_id,
                project_id=project_id,
                name=self._free_name(tx, (project_id, name), ensure_unique=ensure_unique_name),
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
            COLLECTIONS.insert(tx, row)
            self._keep_promises(tx, row, built)
            if also is not None:
                also(tx, row)
            return self._found(tx, self._see(tx, row))

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
        only_if_content: str | None = None,
        also: Also | None = None,
    ) -> Collection:
        """Changes the fields that are given.

        If the collection is in the trash, only `expires_at` can be changed. This restores it. With
        `keep_version` the old state is kept as a version. `only_if_content` is the id of the
        content that the new content was made of.

        Raises as `create` does; NotFound `collection_not_found`; Conflict `trashed`; Conflict
        `collection_changed` if another update changed the content meanwhile. Raises Gone
        `commit_expired` (details: `missing_count`, `missing`) if a run has expired the data.
        """
        asked = given(
            name=name,
            description=description,
            properties=properties,
            project_id=project_id,
            replication_desired=replication_desired,
        )
        check_asked(asked)
        if "replication_desired" in asked:
            _check_replication(asked["replication_desired"])
        mode: LockMode = "exclusive" if _renames(asked, expires_at) else "share"
        update = partial(
            self._update,
            collection_id=collection_id,
            asked=asked,
            expires_at=expires_at,
            ensure_unique=ensure_unique_name,
            keep_version=keep_version,
            also=also,
        )
        if content is None:
            with self._context.changing(mode) as tx:
                return update(tx)
        content.check()
        with self._metadata.snapshot() as tx:
            seen = self._require(tx, collection_id, include_expired=True)
            self._require_changeable(tx, seen, {*asked, "content"})
            resolved = self._resolve(tx, content)
            base = self._base(tx, seen.row, content, only_if_content)
        with (
            self._contents.building(base, content, resolved) as built,
            self._context.changing(mode) as tx,
        ):
            return update(tx, before=seen.row, built=built)

    def drop_version(self, collection_id: str, version: int) -> None:
        """Drops an earlier version that was kept.

        Its data stays for one lease, because locators of it can have been signed. Raises NotFound
        `collection_not_found` or `version_not_found`.
        """
        with self._context.changing() as tx:
            row = self._locked(tx, collection_id).row
            found = version_of(tx, row, version)
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
        also: Also | None,
        before: CollectionRow | None = None,
        built: Built | None = None,
    ) -> Collection:
        """Changes one collection, in the transaction that makes the changes visible.

        The caller has locked the repository: exclusively if the name, the project or the expiry can
        change.
        """
        seen = self._locked(tx, collection_id, include_expired=True)
        row, now = seen.row, tx.now()
        changes = {*asked, *(["content"] if built else []), *(["version"] if keep_version else [])}
        self._require_changeable(tx, seen, changes)
        changed = replace(row, **asked, modified_at=now)
        if not isinstance(expires_at, Omitted):
            changed = replace(changed, expires_at=expiry_asked(expires_at, now=now))
        if changed.project_id != row.project_id:
            self._projects.require_live(tx, changed.project_id)
        if built is not None:
            assert before is not None
            changed = self._with_content(tx, changed, row, before, built)
        elif changed.replication_desired > 0 and row.replication_desired == 0:
            self._require_data(tx, row)
        if row.replication_desired > 0 and changed.replication_desired == 0:
            # Locators of this data that were signed before, also of versions, are valid for one
            # lease.
            kept = {version.content_id for version in list_versions(tx, row.collection_id)}
            for content_id in sorted(kept | {row.content_id}):
                self._remember(tx, row, content_id)
        if keep_version:
            VERSIONS.insert(tx, _as_version(row))
            changed = replace(changed, version=row.version + 1)
        elif changed.content_id != row.content_id:
            changed = replace(changed, version=row.version + 1)
        changed = self._placed(tx, row, changed, ensure_unique=ensure_unique)
        if built is not None:
            self._keep_promises(tx, changed, built)
        self._store(tx, row, changed)
        if also is not None:
            also(tx, changed)
        return self._found(tx, self._see(tx, changed))

    def _base(
        self, tx: Transaction, row: CollectionRow, change: ContentChange, only_if: str | None
    ) -> CommitRecord:
        """Returns the present content. Raises Conflict `collection_changed` unless it is `only_if`,
        and Gone `commit_expired` if the change keeps some of its files."""
        if only_if not in (None, row.content_id):
            raise _changed_meanwhile(row)
        base = require_commit(tx, self._repository_id, row.content_id)
        if not change.replaces:
            base.require_intact()
        return base

    def _with_content(
        self,
        tx: Transaction,
        changed: CollectionRow,
        row: CollectionRow,
        before: CollectionRow,
        built: Built,
    ) -> CollectionRow:
        """Returns the row with new content. The replaced content is kept for one lease."""
        if row.content_id != before.content_id:
            raise _changed_meanwhile(row)
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

    def _keep_promises(self, tx: Transaction, row: CollectionRow, built: Built) -> None:
        """Leases new content until the last locator of its files ends.

        The lease holds even if the collection keeps no data, or is deleted.
        """
        ends_at = built.promised_until
        if ends_at is not None:
            raise_lease(tx, self._repository_id, row.content_id, until=ends_at, raised_to=ends_at)

    def _remember(self, tx: Transaction, row: CollectionRow, content_id: str) -> None:
        insert_reflog(
            tx, self._repository_id, kind="collection", name=row.name, commit_id=content_id
        )

    def _require_data(self, tx: Transaction, row: CollectionRow) -> None:
        """Raises Gone `commit_expired`, with the missing paths, if a run has expired the
        content."""
        record = require_commit(tx, self._repository_id, row.content_id)
        try:
            record.require_intact()
        except Gone as error:
            run_id = error.details.get("run_id")
            why = error.message if run_id is None else closed_text(run_id)
            missing, looked_for = self._missing(record)
            least = "at least " if looked_for < row.file_count else ""
            of_all = count_text(row.file_count, "file is missing", "files are missing")
            raise Gone(
                "commit_expired",
                f"the data of collection {shown(row.name)} has expired: {why}; {least}"
                f"{len(missing)} of {of_all}; to keep its data again, add its files again",
                run_id=run_id,
                missing_count=len(missing),
                looked_for=looked_for,
                missing=missing[:MISSING_SHOWN_MAX],
            ) from None

    def _missing(self, record: CommitRecord) -> tuple[builtins.list[str], int]:
        """Returns the paths whose data is not on the storage, and the number of files that were
        looked for."""
        missing: builtins.list[str] = []
        looked_for = 0
        for entry in self._walk(record):
            if looked_for == LOOKED_FOR_MAX:
                break
            looked_for += 1
            if self._objects.is_missing(entry):
                missing.append(entry.path)
        return missing, looked_for

    def _resolve(self, tx: Transaction, change: ContentChange) -> dict[int, ResolvedPart]:
        """Returns the refs and collections that sources name, by the index of the source. Raises
        NotFound, Gone."""
        resolved: dict[int, ResolvedPart] = {}
        for place, source in enumerate(change.sources):
            if isinstance(source, FromRef):
                resolved[place] = resolve_ref(tx, self._repository_id, source)
            elif isinstance(source, FromCollection):
                seen = self._require(tx, source.collection_id)
                record = self._readable(tx, seen.row, source.version)
                resolved[place] = ResolvedPart(record, source.prefix, source.into)
        return resolved

    def _locked(
        self, tx: Transaction, collection_id: str, *, include_expired: bool = False
    ) -> SeenItem[CollectionRow]:
        COLLECTIONS.by_id(tx, collection_id, lock="exclusive")
        return self._require(tx, collection_id, include_expired=include_expired)


def _changed_meanwhile(row: CollectionRow) -> Conflict:
    return Conflict(
        "collection_changed",
        f"the content of collection {shown(row.name)} was changed by another process meanwhile: "
        "look at it, and try again",
    )


def _as_version(row: CollectionRow) -> VersionRow:
    return VersionRow(**{name: getattr(row, name) for name in VersionRow.__dataclass_fields__})


def _renames(asked: Mapping[str, Any], expires_at: datetime | Keep | None) -> bool:
    """Whether an update can change the name, the project or the expiry."""
    return not isinstance(expires_at, Omitted) or bool({"name", "project_id"} & set(asked))


def _check_replication(number: int) -> None:
    if not 0 <= number <= REPLICATION_MAX:
        raise InvalidInput(
            "invalid_argument",
            f"replication_desired is from 0 (keep no data) to {REPLICATION_MAX}: {number}",
        )
