"""Queries: records of gone repositories that a run collected. They outlast the repositories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import removals


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A gone repository whose storage run `run_id` emptied, with the run's `report` as JSON.
    `finished_at` is None until OWNER is closed and the repository's rows are deleted."""

    repository_id: str
    run_id: str
    name: str
    storage_url: str
    report: Mapping[str, Any]  # JSON
    emptied_at: datetime
    finished_at: datetime | None = None


_COLUMNS: Final = tuple(removals.c[field.name] for field in fields(Removal))


def read_removal(tx: Transaction, repository_id: str) -> Removal | None:
    """Returns the record of one repository, or None."""
    found = _removals(tx, removals.c.repository_id == repository_id)
    return found[0] if found else None


def removals_named(tx: Transaction, name: str) -> list[Removal]:
    """Returns the records of all repositories that had this name, the newest first."""
    return _removals(tx, removals.c.name == name)


def _removals(tx: Transaction, condition: sa.ColumnElement[bool]) -> list[Removal]:
    rows = tx.execute(sa.select(*_COLUMNS).where(condition).order_by(removals.c.emptied_at.desc()))
    return [Removal(**row._mapping) for row in rows]


def insert_removal(tx: Transaction, removal: Removal) -> None:
    """Records that a run emptied a storage."""
    tx.execute(sa.insert(removals).values(asdict(removal)))


def finish_removal(tx: Transaction, repository_id: str) -> None:
    """Records that the removal is finished."""
    tx.execute(
        sa.update(removals)
        .where(removals.c.repository_id == repository_id)
        .values(finished_at=tx.now())
    )
