"""Lists of Arvados's collections. Not for: one collection with its manifest (`collections`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.fields import (
    Field,
    FlagField,
    NumberField,
    OwnerField,
    TextField,
    UuidField,
)
from ebbtide.doors.arvados.store.lists import ListPage, ListQuery, Source, visible
from ebbtide.doors.arvados.store.owners import Owners
from ebbtide.doors.arvados.store.trashable import Present, Trashable, shared_columns, shared_values
from ebbtide.doors.arvados.store.uuids import COLLECTION
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import arvados_collections, collections, projects

NAME: Final = "collections"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCollection(Trashable):
    """A collection as lists show it, without its manifest. The dates are its own, not those of its
    project. `modified_by` is an access key's id."""

    collection_id: str
    portable_data_hash: str
    file_count: int
    file_size_total: int
    replication_desired: int
    version: int
    preserve_version: bool
    modified_by: str

    @property
    def current_version_uuid(self) -> str:
        """The id of the present version: lists have no other ones."""
        return self.uuid


class CollectionLists:
    """The collections of Arvados in one repository, as lists."""

    def __init__(self, context: RepositoryContext, owners: Owners) -> None:
        self._context = context
        self._owners = owners

    def list(self, asked: ListQuery) -> ListPage[ListedCollection]:
        """Returns a page of the collections. Raises InvalidInput `invalid_argument`."""
        with self._context.metadata.snapshot() as tx:
            return self.source(tx, include_trash=asked.include_trash).page(tx, asked)

    def source(self, tx: Transaction, *, include_trash: bool) -> Source[ListedCollection]:
        """Returns the collections of the repository as a list of their own, or a part of one."""
        context = self._context
        present = Present(tx.now(), context.trash_time)
        horizon = present.now - context.trash_time if include_trash else present.now
        row, more = collections.c, arvados_collections.c
        query = (
            sa.select(
                *row,
                more.uuid,
                more.portable_data_hash,
                more.file_count.label("manifest_files"),
                more.file_size_total,
                more.preserve_version,
                more.modified_by,
                projects.c.name.label("parent_name"),
                projects.c.parent_id.label("above"),
            )
            .join_from(collections, arvados_collections)
            .join(projects, projects.c.project_id == row.project_id)
            .where(
                row.repository_id == context.repository_id,
                *visible(
                    context.repository_id,
                    horizon,
                    expires_at=row.expires_at,
                    parent_id=row.project_id,
                ),
            )
        )
        fields: dict[str, Field] = {
            "uuid": UuidField(more.uuid, COLLECTION),
            "current_version_uuid": UuidField(more.uuid, COLLECTION),
            "owner_uuid": OwnerField(row.project_id, self._owners.cluster, context.repository_id),
            **shared_columns(row, present),
            "portable_data_hash": TextField(more.portable_data_hash),
            "file_count": NumberField(more.file_count),
            "file_size_total": NumberField(more.file_size_total),
            "replication_desired": NumberField(row.replication_desired),
            "version": NumberField(row.version),
            "preserve_version": FlagField(more.preserve_version),
        }
        return Source(NAME, fields, query, lambda each: self._item(each, present))

    def _item(self, row: Any, present: Present) -> ListedCollection:  # a row of `source`
        return ListedCollection(
            collection_id=row.collection_id,
            uuid=row.uuid,
            owner_uuid=self._owners.uuid_of_parent(row.project_id, row.parent_name, row.above),
            portable_data_hash=row.portable_data_hash,
            file_count=row.manifest_files,
            file_size_total=row.file_size_total,
            replication_desired=row.replication_desired,
            version=row.version,
            preserve_version=row.preserve_version,
            modified_by=row.modified_by,
            **shared_values(row, present),
        )
