"""Roots that nobody has to hold: refs and all else at once, commits some at a time.

Not for: reading them, which each format does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa

from ebbtide.arrow import make_schema, table_of
from ebbtide.retention.decision import Roots
from ebbtide.retention.rows import CommitRow, without_commits

COMMIT_ROWS_SCHEMA: Final = make_schema(
    ("commit_id", pa.string()),
    ("parent_ids", pa.string()),
    ("created_at", pa.int64()),
    ("tree_id", pa.string()),
    ("checksum", pa.string()),
    ("leased_until", pa.int64()),
    ("tombstoned", pa.int8()),
    ("is_content", pa.int8()),
    ("is_stub", pa.int8()),
)
"""Commits of a reading as `retention.rows.CommitRow` has them."""
COMMIT_ROWS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class RootTables:
    """Roots whose commits are not held, but come some at a time: `head` has all but them, `tables`
    (COMMIT_ROWS_SCHEMA) have those, once."""

    head: Roots
    tables: Iterator[pa.Table]

    @classmethod
    def of(cls, roots: Roots) -> RootTables:
        """Of roots that are held."""
        head, rows = without_commits(roots)
        return cls(head, _tables(rows))


def commit_table(rows: Sequence[CommitRow]) -> pa.Table:
    """A table of COMMIT_ROWS_SCHEMA."""
    return table_of(rows, COMMIT_ROWS_SCHEMA)


def _tables(rows: Iterator[CommitRow]) -> Iterator[pa.Table]:
    while some := list(islice(rows, COMMIT_ROWS_AT_ONCE)):
        yield commit_table(some)
