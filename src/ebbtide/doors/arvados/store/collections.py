"""Collections of Arvados: collections of the store whose files are blocks and a manifest.

Each block is a file at the path `MD5+SIZE`, and the manifest is at the path `manifest`, without
hints. So whatever holds for collections of the store holds for these. Not for: the blocks
themselves (`blocks`), or lists (`listed_collections`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from ebbtide.doors.arvados.store.blocks import BlockObject, Blocks, verify_block
from ebbtide.doors.arvados.store.listed_collections import ListedCollection
from ebbtide.doors.arvados.store.manifests import (
    EMPTY_BLOCK,
    Manifest,
    parse_manifest,
    with_locators,
)
from ebbtide.doors.arvados.store.owners import Owners
from ebbtide.doors.arvados.store.replacements import CURRENT, Replacements
from ebbtide.doors.arvados.store.rows import (
    ArvadosRow,
    find_uuid,
    insert_record,
    records_by_hash,
    update_record,
    write_contents,
)
from ebbtide.doors.arvados.store.trashable import Present, Timers, shared_values
from ebbtide.doors.arvados.store.uuids import COLLECTION, cluster_of, uuid_of
from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.access.signed_tokens import read_verifying_keys
from ebbtide.store.collections.collections import Collections
from ebbtide.store.collections.contents import ContentChange, Files, Verified
from ebbtide.store.collections.items import KEEP, Keep, Omitted, given
from ebbtide.store.collections.queries import CollectionRow
from ebbtide.store.collections.reading import Collection
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.lifecycle import missing
from ebbtide.store.objects.locators import Locator, require_unexpired
from ebbtide.store.staging.uploads import NewObject
from ebbtide.text import shown

MANIFEST: Final = "manifest"
"""The path of the manifest among the files of a collection."""
ATTEMPTS_MAX: Final = 50
"""Times that an update is tried. It fails only if so many other updates came before it."""
NO_TIMERS: Final = Timers()
NO_REPLACEMENTS: Final = Replacements()


@dataclass(frozen=True, slots=True)
class ArvadosCollection:
    """A collection as lists show it, and its state, which depends on its projects too."""

    listed: ListedCollection
    state: LifecycleState


class ArvadosCollections:
    """The collections of Arvados in one repository."""

    def __init__(
        self,
        context: RepositoryContext,
        collections: Collections,
        blocks: Blocks,
        owners: Owners,
    ) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id
        self._collections = collections
        self._blocks = blocks
        self._owners = owners

    def create(
        self,
        project_id: str,
        name: str,
        manifest_text: str = "",
        *,
        holder: str,
        replacements: Replacements = NO_REPLACEMENTS,
        description: str = "",
        properties: Mapping[str, Any] | None = None,
        replication_desired: int = 1,
        timers: Timers = NO_TIMERS,
        preserve_version: bool = False,
        ensure_unique_name: bool = False,
    ) -> ArvadosCollection:
        """Makes a collection from a manifest whose locators are signed for the access key `holder`,
        and from other collections.

        Raises as `Collections.create` does; InvalidInput `invalid_manifest`, `token_invalid`,
        `token_truncated`, `token_key_retired`; Conflict `token_expired`; and as
        `Replacements.applied` and `signed_manifest` do.
        """
        if replacements:
            manifest_text = replacements.applied(
                manifest_text, lambda source: self._source(source, holder)
            )
        manifest = parse_manifest(manifest_text)
        located = self._verified(manifest, holder)
        expires_at = self._expires_at(timers, None)
        rows: list[ArvadosRow] = []

        def also(tx: Transaction, made: CollectionRow) -> None:
            row = ArvadosRow(
                collection_id=made.collection_id,
                repository_id=self._repository_id,
                uuid=uuid_of(cluster_of(self._repository_id), COLLECTION, made.collection_id),
                portable_data_hash=manifest.portable_data_hash,
                file_count=manifest.file_count,
                file_size_total=manifest.file_size_total,
                preserve_version=preserve_version,
                modified_by=holder,
            )
            insert_record(tx, row)
            self._note_blocks(tx, made, located)
            rows.append(row)

        made = self._collections.create(
            project_id,
            name,
            _content(manifest, located),
            description=description,
            properties=properties,
            replication_desired=replication_desired,
            expires_at=None if isinstance(expires_at, Omitted) else expires_at,
            ensure_unique_name=ensure_unique_name,
            also=also,
        )
        return self._found(made, rows[-1])

    def update(
        self,
        uuid: str,
        *,
        holder: str,
        manifest_text: str | Keep = KEEP,
        replacements: Replacements = NO_REPLACEMENTS,
        name: str | Keep = KEEP,
        description: str | Keep = KEEP,
        properties: Mapping[str, Any] | Keep = KEEP,
        project_id: str | Keep = KEEP,
        replication_desired: int | Keep = KEEP,
        timers: Timers = NO_TIMERS,
        preserve_version: bool | Keep = KEEP,
        ensure_unique_name: bool = False,
    ) -> ArvadosCollection:
        """Changes the fields that are given. Of two updates of the manifest, the later one wins.
        Replacements change the manifest that the collection has at the instant of the update.

        Raises as `Collections.update` and `create` do.
        """
        makes_version = bool(replacements) or bool(
            given(manifest=manifest_text, name=name, description=description, properties=properties)
        )

        def attempt() -> tuple[Collection, ArvadosRow]:
            row = self._require(uuid)
            text, content_id = manifest_text, None
            if replacements:
                text, content_id = self._replaced(row, replacements, manifest_text, holder)
            located, content, values = self._taken(text, holder)
            present = self._collections.get(row.collection_id, include_expired=True).expires_at
            keeps_version = row.preserve_version and makes_version
            preserved = row.preserve_version and not keeps_version
            if not isinstance(preserve_version, Omitted):
                preserved = preserve_version
            changes = values | {"modified_by": holder, "preserve_version": preserved}

            def also(tx: Transaction, made: CollectionRow) -> None:
                self._require_same(tx, row)
                update_record(tx, made.collection_id, **changes)
                self._note_blocks(tx, made, located)

            found = self._collections.update(
                row.collection_id,
                content,
                name=name,
                description=description,
                properties=properties,
                project_id=project_id,
                replication_desired=replication_desired,
                expires_at=self._expires_at(timers, present),
                ensure_unique_name=ensure_unique_name,
                keep_version=keeps_version,
                only_if_content=content_id,
                also=also,
            )
            return found, replace(row, **changes)

        return self._found(*_retried(attempt))

    def get(self, name: str, *, include_expired: bool = False) -> ArvadosCollection:
        """Returns a collection by its id, or by its portable data hash.

        By a hash, a persistent collection is preferred to an expiring one, and one in the trash is
        never found. Raises NotFound `collection_not_found`.
        """
        if "+" not in name:
            row = self._require(name)
            found = self._collections.get(row.collection_id, include_expired=include_expired)
            return self._found(found, row)
        with self._metadata.snapshot() as tx:
            rows = list(records_by_hash(tx, self._repository_id, name))
        for row in rows:
            try:
                return self._found(self._collections.get(row.collection_id), row)
            except NotFound:
                continue
        raise missing("collection", name)

    def delete(self, uuid: str) -> ArvadosCollection:
        """Moves a collection to the trash. Raises NotFound `collection_not_found`, also if it is
        there already."""
        row = self._require(uuid)
        return self._found(self._collections.delete(row.collection_id), row)

    def restore(self, uuid: str, *, ensure_unique_name: bool = False) -> ArvadosCollection:
        """Restores a collection from the trash. Raises as `Collections.restore` does."""
        row = self._require(uuid)
        found = self._collections.restore(row.collection_id, ensure_unique_name=ensure_unique_name)
        return self._found(found, row)

    def signed_manifest(self, collection_id: str, *, holder: str) -> str:
        """Returns the manifest of a collection, with a new signature for each block.

        The signatures last for EBBTIDE_LEASE_TTL, or until the collection ends if that is earlier.
        Raises NotFound `collection_not_found`; Gone `data_released` or `commit_expired`; Failed
        `corrupt_object`.
        """
        return self._signed(collection_id, holder)[0]

    def _signed(self, collection_id: str, holder: str) -> tuple[str, str]:
        """Returns the signed manifest of a collection, and the id of the content that has it."""
        ends_at, record, files = self._collections.leased(collection_id)
        found: dict[str, BlockObject] = {}
        text = None
        for file in files:
            entry = file.entry
            if entry.path == MANIFEST:
                text = b"".join(file.stream()).decode()
            else:
                found[entry.path] = BlockObject(entry.path, entry.checksum, entry.address)
        if text is None:
            raise no_manifest(collection_id)
        with self._metadata.snapshot() as tx:
            signer = self._blocks.signer(tx, holder=holder, ends_at=ends_at)
        signed: dict[str, str] = {EMPTY_BLOCK: EMPTY_BLOCK}

        def locator_of(block: str) -> str:
            if block not in signed:
                if block not in found:
                    raise no_manifest(collection_id)
                signed[block] = signer.sign(found[block])
            return signed[block]

        return with_locators(text, locator_of), record.commit_id

    def _source(self, name: str, holder: str) -> str:
        """Returns the signed manifest of a portable data hash, and leases its blocks by that. A new
        collection, which is `current` itself, has an empty one. Raises as `get` and
        `signed_manifest` do."""
        if name == CURRENT:
            return ""
        return self.signed_manifest(self.get(name).listed.collection_id, holder=holder)

    def _replaced(
        self, row: ArvadosRow, replacements: Replacements, given: str | Keep, holder: str
    ) -> tuple[str, str | None]:
        """Returns the manifest of a collection after replacements, and the id of the content that
        was changed; None if the present content was not read. Raises as `create` does."""
        content_ids: list[str] = []

        def text_of(name: str) -> str:
            if name != CURRENT:
                return self._source(name, holder)
            text, content_id = self._signed(row.collection_id, holder)
            content_ids.append(content_id)
            return text

        text = None if isinstance(given, Omitted) else given
        return replacements.applied(text, text_of), next(iter(content_ids), None)

    def unsigned_manifest(self, collection_id: str) -> str:
        """Returns the manifest without signatures, also of a collection in the trash. Raises as
        `signed_manifest` does."""
        try:
            file = self._collections.open(collection_id, MANIFEST, include_expired=True)
        except NotFound as error:
            if error.kind == "object_not_found":
                raise no_manifest(collection_id) from None
            raise
        return b"".join(file.stream()).decode()

    def _verified(self, manifest: Manifest, holder: str) -> dict[str, Locator]:
        """Returns the object of each block. Every locator must be valid, so that no promise is
        taken over that nobody made.

        Of several objects for one block, the one that is promised longest is chosen. Raises as
        `create` does, and InvalidInput `checksum_mismatch`.
        """
        located: dict[str, Locator] = {}
        with self._metadata.snapshot() as tx:
            keys = read_verifying_keys(tx)
            for block, locators in manifest.locators.items():
                if block == EMPTY_BLOCK:
                    continue
                for locator in locators:
                    found = verify_block(keys, self._repository_id, holder, locator)
                    require_unexpired(tx, found)
                    other = located.setdefault(block, found)
                    if other.checksum != found.checksum:
                        raise InvalidInput(
                            "checksum_mismatch",
                            f"two locators of the block {block} have different bytes",
                        )
                    if other.expires_at < found.expires_at:
                        located[block] = found
        return located

    def _taken(
        self, manifest_text: str | Keep, holder: str
    ) -> tuple[dict[str, Locator], ContentChange | None, dict[str, Any]]:
        """Returns what an update takes from a manifest: the object of each block, the content, and
        columns of the record. Raises as `create` does."""
        if isinstance(manifest_text, Omitted):
            return {}, None, {}
        manifest = parse_manifest(manifest_text)
        located = self._verified(manifest, holder)
        values = {
            "portable_data_hash": manifest.portable_data_hash,
            "file_count": manifest.file_count,
            "file_size_total": manifest.file_size_total,
        }
        return located, _content(manifest, located), values

    def _require_same(self, tx: Transaction, row: ArvadosRow) -> None:
        """Raises Conflict `collection_changed` if another update has decided since whether the
        present version is kept. The caller has locked the collection."""
        found = find_uuid(tx, self._repository_id, row.uuid)
        if found is None or found.preserve_version != row.preserve_version:
            raise Conflict(
                "collection_changed",
                f"collection {shown(row.uuid)} was changed by another request meanwhile: look at "
                "it, and try again",
            )

    def _note_blocks(
        self, tx: Transaction, made: CollectionRow, located: Mapping[str, Locator]
    ) -> None:
        blocks = ((block.partition("+")[0], found) for block, found in located.items())
        write_contents(
            tx,
            self._repository_id,
            made.content_id,
            ((md5, found.size_bytes, found.address) for md5, found in blocks),
        )

    def _expires_at(self, timers: Timers, present: datetime | None) -> datetime | Keep | None:
        with self._metadata.snapshot() as tx:
            now = tx.now()
        return timers.expires_at(present=present, now=now, trash_time=self._context.trash_time)

    def _found(self, collection: Collection, row: ArvadosRow) -> ArvadosCollection:
        with self._metadata.snapshot() as tx:
            owner_uuid = self._owners.owner_in(tx, collection.project_id)
            present = Present(tx.now(), self._context.trash_time)
        listed = ListedCollection(
            collection_id=collection.collection_id,
            uuid=row.uuid,
            owner_uuid=owner_uuid,
            portable_data_hash=row.portable_data_hash,
            file_count=row.file_count,
            file_size_total=row.file_size_total,
            replication_desired=collection.replication_desired,
            version=collection.version,
            preserve_version=row.preserve_version,
            modified_by=row.modified_by,
            **shared_values(collection, present),
        )
        return ArvadosCollection(listed, collection.state)

    def _require(self, uuid: str) -> ArvadosRow:
        with self._metadata.snapshot() as tx:
            row = find_uuid(tx, self._repository_id, uuid)
        if row is None:
            raise missing("collection", uuid)
        return row


def _retried(
    update: Callable[[], tuple[Collection, ArvadosRow]],
) -> tuple[Collection, ArvadosRow]:
    """Updates a collection, again if another update changed it meanwhile. Raises Conflict
    `collection_changed` if that happens too often."""
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return update()
        except Conflict as error:
            if error.kind != "collection_changed":
                raise
    return update()


def no_manifest(collection_id: str) -> Failed:
    """The error for a collection whose files are no longer a manifest and its blocks."""
    return Failed(
        "corrupt_object",
        f"the files of collection {shown(collection_id)} are not a manifest and its blocks: they "
        "were changed by another program",
    )


def _content(manifest: Manifest, located: Mapping[str, Locator]) -> ContentChange:
    text = NewObject(MANIFEST, manifest.text.encode(), "text/plain")
    return ContentChange((Files((text,)), Verified(located)), replaces=True)
