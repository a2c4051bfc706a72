"""Transactions that write on SQLite, beside other processes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ebbtide.store.database.engine import Metadata, open_engine
from tests.conftest import START
from tests.support.clock import ManualClock
from tests.support.databases import SqliteDatabases


def test_the_file_is_locked_before_the_first_read(tmp_path: Path) -> None:
    """What the transaction reads then is what it decides on."""
    path = SqliteDatabases(tmp_path).template
    with (
        closing(Metadata(open_engine(f"sqlite:///{path}"), ManualClock(START))) as metadata,
        closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other,
    ):
        with metadata.transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        with metadata.snapshot():
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
