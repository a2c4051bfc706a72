"""Queries: tags. A name belongs to at most one tag that is not trashed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.prefixes import begins_with
from ebbtide.store.metadata.schema import tags


@dataclass(frozen=True, slots=True)
class TagRow:
    """One tag as it is stored."""

    tag_id: str
    name: str
    commit_id: str
    created_at: datetime
    expires_at: datetime | None


_COLUMNS: Final = (
    tags.c.tag_id,
    tags.c.name,
    tags.c.commit_id,
    tags.c.created_at,
    tags.c.expires_at,
)


def find_tag(tx: Transaction, repository_id: str, name: str) -> TagRow | None:
    """The tag of that name that is not trashed, by the database's now."""
    row = tx.execute(
        sa.select(*_COLUMNS).where(
            tags.c.repository_id == repository_id, tags.c.name == name, _is_live(tx.now())
        )
    ).one_or_none()
    return None if row is None else TagRow(**row._mapping)


def trashed_tags(tx: Transaction, repository_id: str, name: str) -> list[TagRow]:
    """The expired tags of that name, gone ones too, the last to expire first."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(
            tags.c.repository_id == repository_id,
            tags.c.name == name,
            ~_is_live(tx.now()),
        )
        .order_by(tags.c.expires_at.desc(), tags.c.tag_id)
    )
    return [TagRow(**row._mapping) for row in rows]


def list_tags(tx: Transaction, repository_id: str) -> Iterator[TagRow]:
    """All tags, trashed and gone ones too, by name."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(tags.c.repository_id == repository_id)
        .order_by(tags.c.name, tags.c.created_at, tags.c.tag_id)
    )
    return (TagRow(**row._mapping) for row in rows)


def page_of_tags(
    tx: Transaction, repository_id: str, *, prefix: str, after: str, amount: int
) -> list[TagRow]:
    """At most `amount` tags that are not trashed, by name."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(
            tags.c.repository_id == repository_id,
            tags.c.name > after,
            *begins_with(tags.c.name, prefix),
            _is_live(tx.now()),
        )
        .order_by(tags.c.name)
        .limit(amount)
    )
    return [TagRow(**row._mapping) for row in rows]


def insert_tag(tx: Transaction, repository_id: str, tag: TagRow) -> None:
    """Record a tag."""
    tx.execute(
        sa.insert(tags).values(
            repository_id=repository_id,
            tag_id=tag.tag_id,
            name=tag.name,
            commit_id=tag.commit_id,
            created_at=tag.created_at,
            expires_at=tag.expires_at,
        )
    )


def update_tag_expiry(
    tx: Transaction, repository_id: str, tag_id: str, expires_at: datetime | None
) -> None:
    """Trash a tag, or bring one back."""
    tx.execute(
        sa.update(tags)
        .where(tags.c.repository_id == repository_id, tags.c.tag_id == tag_id)
        .values(expires_at=expires_at)
    )


def is_tag_on(
    tx: Transaction, repository_id: str, commit_id: str, *, gone_before: datetime
) -> bool:
    """Whether a tag points at the commit: a trashed one too, unless it expired that early."""
    query = sa.select(tags.c.tag_id).where(
        tags.c.repository_id == repository_id,
        tags.c.commit_id == commit_id,
        _is_live(gone_before),
    )
    return tx.execute(query.limit(1)).first() is not None


def _is_live(now: datetime) -> sa.ColumnElement[bool]:
    return sa.or_(tags.c.expires_at.is_(None), tags.c.expires_at > now)
