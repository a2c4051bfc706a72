"""Stores in files that are made once and copied for each test: making one takes a hundred times as
long as copying it. Not for stores on PostgreSQL, or in S3.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ebbtide.settings import Settings
from ebbtide.store.embedded import DATABASE_FILE, Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock

AGE: Final = timedelta(hours=1)


def copy_store(template: Path, target: Path) -> None:
    """Copies a store that nobody has open. Its repositories and its runs lie in the copy."""
    shutil.copytree(template, target)
    places = (f"{template.resolve()}/", f"{target.resolve()}/")
    with closing(sqlite3.connect(target / DATABASE_FILE)) as connection, connection:
        for table, column in (("repositories", "storage_url"), ("gc_runs", "run_url")):
            connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", places)


@contextmanager
def old_lake(directory: Path, **settings: Any) -> Iterator[Repository]:
    """The repository `lake` of a new store. What the block writes is then an hour old."""
    now = datetime.now(UTC) - AGE
    with Store.init(directory, settings=Settings(**settings), clock=ManualClock(now)) as store:
        yield store.create_repository("lake")
    date_files(directory, now)


def date_files(directory: Path, date: datetime) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            os.utime(path, (date.timestamp(), date.timestamp()))
