"""Queries: imports, and how each of them stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import sqlalchemy as sa

from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import imports

SILENCE_MAX: Final = timedelta(minutes=10)
"""An import that has written no sign of life for longer has failed. A storage that does not answer
is given up after six minutes at the latest."""

State = Literal["running", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class ImportRow:
    """An import. `object_count` is the number of objects that were listed so far. `error` has the
    `kind` and `message` of the failure."""

    import_id: str
    branch: str
    state: State
    object_count: int
    commit_id: str | None
    error: Mapping[str, str] | None
    started_at: datetime
    updated_at: datetime


_IMPORTS: Final = Rows(imports, ImportRow, imports.c.import_id)


def insert_import(tx: Transaction, repository_id: str, import_id: str, branch: str) -> None:
    """Records an import that begins."""
    now = tx.now()
    tx.execute(
        sa.insert(imports).values(
            repository_id=repository_id,
            import_id=import_id,
            branch=branch,
            state="running",
            object_count=0,
            started_at=now,
            updated_at=now,
        )
    )


def find_import(tx: Transaction, repository_id: str, import_id: str) -> ImportRow | None:
    """Returns an import. Its state is `running` although it has failed, if its process died."""
    return _IMPORTS.by_id(tx, import_id, imports.c.repository_id == repository_id)


def update_running(
    tx: Transaction,
    repository_id: str,
    import_id: str,
    **values: Any,  # values of the columns' types
) -> bool:
    """Changes an import, and records a sign of life. Returns false, and changes nothing, if the
    import is not running any more, or was silent for too long."""
    now = tx.now()
    changed = tx.execute(
        sa.update(imports)
        .where(
            imports.c.repository_id == repository_id,
            imports.c.import_id == import_id,
            imports.c.state == "running",
            imports.c.updated_at > now - SILENCE_MAX,
        )
        .values(updated_at=now, **values)
    )
    return changed.rowcount == 1


def cancel_running(tx: Transaction, repository_id: str, import_id: str) -> None:
    """Cancels an import that has not ended, also if it was silent for too long."""
    tx.execute(
        sa.update(imports)
        .where(
            imports.c.repository_id == repository_id,
            imports.c.import_id == import_id,
            imports.c.state == "running",
        )
        .values(updated_at=tx.now(), state="cancelled")
    )


def delete_old_imports(tx: Transaction, repository_id: str, *, before: datetime) -> None:
    """Deletes the records of imports without a sign of life since `before`."""
    tx.execute(
        sa.delete(imports).where(
            imports.c.repository_id == repository_id, imports.c.updated_at < before
        )
    )
