"""Lists of Arvados's collections. Not for: one collection with its manifest (`collections`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.fields import (
    Field,
    FlagField,
    InstantField,
    NumberField,
    OwnerField,
    TextField,
    UuidField,
)
from ebbtide.doors.arvados.store.listing import ListPage, ListQuery, Source, visible
from ebbtide.doors.arvados.store.owners import Owners
from ebbtide.doors.arvados.store.properties import PropertiesField
from ebbtide.doors.arvados.store.uuids import COLLECTION
from ebbtide.retention.lifecycle import delete_at
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import arvados_collections, collections, projects

NAME: Final = "collections"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCollection:
    """A collection as lists show it, without its manifest. The dates are its own, not those of its
    project. `modified_by` is an access key's id."""

    collection_id: str
    uuid: str
    owner_uuid: str
    name: str
    description: str
    properties: Mapping[str, Any]
    portable_data_hash: str
    file_count: int
    file_size_total: int
    replication_desired: int
    version: int
    preserve_version: bool
    created_at: datetime
    modified_at: datetime
    modified_by: str
    trash_at: datetime | None
    delete_at: datetime | None
    is_trashed: bool

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
        context, now = self._context, tx.now()
        horizon = now - context.trash_time if include_trash else now
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
            "name": TextField(row.name),
            "description": TextField(row.description),
            "properties": PropertiesField(row.properties),
            "portable_data_hash": TextField(more.portable_data_hash),
            "file_count": NumberField(more.file_count),
            "file_size_total": NumberField(more.file_size_total),
            "replication_desired": NumberField(row.replication_desired),
            "version": NumberField(row.version),
            "preserve_version": FlagField(more.preserve_version),
            "created_at": InstantField(row.created_at),
            "modified_at": InstantField(row.modified_at),
            "trash_at": InstantField(row.expires_at),
            "delete_at": InstantField(row.expires_at, after=context.trash_time),
            "is_trashed": FlagField(row.expires_at <= now),
        }
        return Source(NAME, fields, query, lambda each: self._item(each, now))

    def _item(self, row: Any, now: datetime) -> ListedCollection:  # a row of `source`
        expires_at: datetime | None = row.expires_at
        return ListedCollection(
            collection_id=row.collection_id,
            uuid=row.uuid,
            owner_uuid=self._owners.uuid_of_parent(row.project_id, row.parent_name, row.above),
            name=row.name,
            description=row.description,
            properties=row.properties,
            portable_data_hash=row.portable_data_hash,
            file_count=row.manifest_files,
            file_size_total=row.file_size_total,
            replication_desired=row.replication_desired,
            version=row.version,
            preserve_version=row.preserve_version,
            created_at=row.created_at,
            modified_at=row.modified_at,
            modified_by=row.modified_by,
            trash_at=expires_at,
            delete_at=delete_at(expires_at, self._context.trash_time),
            is_trashed=expires_at is not None and expires_at <= now,
        )
