"""Names for shell completion, read directly from the SQLite file.

A shell asks at each press of a key, and must not wait. SQLAlchemy takes too long to import, and is
not used. The store is not opened as usual: nothing is checked, made or changed. Not for: stores on
PostgreSQL, which get no names, or callers that need a complete list.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from ebbtide.model import EPOCH

DATABASE_FILE: Final = "metadata.db"
"""The SQLite file in the directory of a store."""
WAIT_SECONDS: Final = 0.2
SHOWN_MAX: Final = 200

_LIVES: Final = "(expires_at IS NULL OR expires_at > :now)"
_OF_REPOSITORY: Final = (
    "repository_id = (SELECT repository_id FROM repositories"
    f" WHERE name = :repository AND {_LIVES})"
)
_QUERIES: Final = {
    "repositories": f"SELECT name AS text FROM repositories WHERE {_LIVES}",
    "branches": "SELECT name AS text FROM branches"
    f" WHERE {_OF_REPOSITORY} AND {_LIVES} AND NOT hidden",
    "tags": f"SELECT name AS text FROM tags WHERE {_OF_REPOSITORY} AND {_LIVES}",
    # Run ids descend: the first are the newest.
    "runs": f"SELECT run_id AS text FROM gc_runs WHERE {_OF_REPOSITORY}",
    "purges": "SELECT purge_id AS text FROM purges",
    "keys": "SELECT access_key_id AS text FROM access_keys WHERE revoked_at IS NULL",
}
"""The query of each kind of name."""


def known_names(
    database: Path, kind: str, prefix: str, *, now: datetime, repository: str = ""
) -> list[str]:
    """Returns the names (or ids) of a kind that begin with `prefix`, sorted, at most SHOWN_MAX.

    Kinds that belong to a repository need its name. The list is empty if the database has no such
    name, or cannot be read now.
    """
    # If no process has the database open, SQLite creates files beside it, unless it is `immutable`.
    is_open = database.with_name(f"{database.name}-wal").exists()
    mode = "mode=ro" if is_open else "mode=ro&immutable=1"
    try:
        address = f"{database.absolute().as_uri()}?{mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=WAIT_SECONDS)) as connection:
            rows = connection.execute(
                f"SELECT * FROM ({_QUERIES[kind]})"
                " WHERE substr(text, 1, length(:prefix)) = :prefix ORDER BY text LIMIT :most",
                {
                    "prefix": prefix,
                    "repository": repository,
                    "now": (now - EPOCH) // timedelta(microseconds=1),
                    "most": SHOWN_MAX,
                },
            )
            return [str(row[0]) for row in rows]
    except (sqlite3.Error, OSError, ValueError):
        return []
