"""Links of Arvados: stars, tags, names and permissions, from one id to another.

The store keeps them for clients. They change no access: the role of an access key decides alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.fields import Field, InstantField, StoreIdField, TextField
from ebbtide.doors.arvados.store.filters import Filter
from ebbtide.doors.arvados.store.lists import ListPage, ListQuery, Source
from ebbtide.doors.arvados.store.properties import PropertiesField
from ebbtide.doors.arvados.store.uuids import KINDS, LINK, cluster_of, kind_of, uuid_of
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.store.collections.items import KEEP, Keep, given
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import arvados_links
from ebbtide.store.names import check_properties, check_text
from ebbtide.text import shown

NAME: Final = "links"
TEXT_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link from `tail_uuid` to `head_uuid`. Both ends may be missing."""

    uuid: str
    owner_uuid: str
    link_class: str
    name: str
    tail_uuid: str | None
    head_uuid: str | None
    properties: Mapping[str, Any]
    created_at: datetime
    modified_at: datetime


class LinkStore:
    """The links of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._cluster = cluster_of(context.repository_id)

    def create(
        self,
        owner_uuid: str,
        link_class: str,
        *,
        name: str = "",
        tail_uuid: str | None = None,
        head_uuid: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Link:
        """Makes a link. Its ends need not exist. Raises InvalidInput `invalid_argument`."""
        if not link_class:
            raise InvalidInput("invalid_argument", "a link needs a link_class, such as star")
        values = {
            "link_class": link_class,
            "name": name,
            "tail_uuid": tail_uuid,
            "head_uuid": head_uuid,
            "properties": dict(properties or {}),
        }
        _check(values)
        link_id = new_id()
        with self._context.changing() as tx:
            tx.execute(
                sa.insert(arvados_links).values(
                    link_id=link_id,
                    repository_id=self._context.repository_id,
                    owner_uuid=owner_uuid,
                    created_at=tx.now(),
                    modified_at=tx.now(),
                    **values,
                )
            )
            return self._require(tx, uuid_of(self._cluster, LINK, link_id))[1]

    def get(self, uuid: str) -> Link:
        """Returns a link. Raises NotFound `object_not_found`."""
        with self._context.metadata.snapshot() as tx:
            return self._require(tx, uuid)[1]

    def update(
        self,
        uuid: str,
        *,
        name: str | Keep = KEEP,
        properties: Mapping[str, Any] | Keep = KEEP,
    ) -> Link:
        """Changes the fields that are given. Raises NotFound `object_not_found`, InvalidInput
        `invalid_argument`."""
        asked = given(name=name, properties=properties)
        _check(asked)
        with self._context.changing() as tx:
            link_id, _ = self._require(tx, uuid)
            tx.execute(
                sa.update(arvados_links)
                .where(arvados_links.c.link_id == link_id)
                .values(**asked, modified_at=tx.now())
            )
            return self._require(tx, uuid)[1]

    def delete(self, uuid: str) -> Link:
        """Deletes a link, and returns it. Raises NotFound `object_not_found`."""
        with self._context.changing() as tx:
            link_id, found = self._require(tx, uuid)
            tx.execute(sa.delete(arvados_links).where(arvados_links.c.link_id == link_id))
            return found

    def list(self, asked: ListQuery) -> ListPage[Link]:
        """Returns a page of the links. Raises InvalidInput `invalid_argument`."""
        with self._context.metadata.snapshot() as tx:
            return self._source().page(tx, asked)

    def _source(self) -> Source[Link]:
        row = arvados_links.c
        fields: dict[str, Field] = {
            "uuid": StoreIdField(row.link_id, self._cluster, LINK),
            "owner_uuid": TextField(row.owner_uuid),
            "link_class": TextField(row.link_class),
            "name": TextField(row.name),
            "tail_uuid": EndField(row.tail_uuid),
            "head_uuid": EndField(row.head_uuid),
            "properties": PropertiesField(row.properties),
            "created_at": InstantField(row.created_at),
            "modified_at": InstantField(row.modified_at),
        }
        query = sa.select(*row).where(row.repository_id == self._context.repository_id)
        return Source(NAME, fields, query, self._link)

    def _require(self, tx: Transaction, uuid: str) -> tuple[str, Link]:
        """Returns a link with the store's id of it."""
        row = arvados_links.c
        found = tx.execute(
            sa.select(*row).where(
                row.repository_id == self._context.repository_id,
                StoreIdField(row.link_id, self._cluster, LINK).equals(uuid),
            )
        ).one_or_none()
        if found is None:
            raise NotFound("object_not_found", f"there is no link {shown(uuid)}")
        return found.link_id, self._link(found)

    def _link(self, row: Any) -> Link:  # a row of the table
        names = set(Link.__dataclass_fields__) - {"uuid"}
        values = {name: getattr(row, name) for name in names}
        return Link(uuid=uuid_of(self._cluster, LINK, row.link_id), **values)


class EndField(TextField):
    """An end of a link, which is an id of any kind."""

    def _other(self, asked: Filter) -> sa.ColumnElement[bool]:
        if asked.operator != "is_a":
            return super()._other(asked)
        wanted = asked.operand if isinstance(asked.operand, list) else [asked.operand]
        return sa.or_(
            sa.false(),
            *(
                self.column.like(f"_____-{kind}-%")
                for kind, name in KINDS.items()
                if name in wanted
            ),
        )


def _check(values: Mapping[str, Any]) -> None:  # values by the columns' names
    """Checks the fields of a link. Raises InvalidInput `invalid_argument`."""
    for name in ("link_class", "name"):
        if name in values:
            check_text(name, values[name], bytes_max=TEXT_BYTES_MAX)
    for name in ("tail_uuid", "head_uuid"):
        uuid = values.get(name)
        if uuid is not None and kind_of(uuid) is None:
            raise InvalidInput("invalid_argument", f"{name} {shown(uuid)} is no id")
    if "properties" in values:
        check_properties(values["properties"])
