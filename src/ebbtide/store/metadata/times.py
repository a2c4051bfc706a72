"""Queries: how long the store's promises last, by the name of the setting."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import sqlalchemy as sa

from ebbtide.model import ONE_MICROSECOND
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import promised_times


def read_times(tx: Transaction) -> dict[str, timedelta]:
    """Returns all recorded times, by the name of the setting."""
    rows = tx.execute(sa.select(promised_times.c.name, promised_times.c.microseconds))
    return {row.name: row.microseconds * ONE_MICROSECOND for row in rows}


def write_times(tx: Transaction, times: Mapping[str, timedelta]) -> None:
    """Records these times, in place of earlier ones of the same names."""
    tx.execute(sa.delete(promised_times).where(promised_times.c.name.in_(list(times))))
    tx.execute(
        sa.insert(promised_times),
        [
            {"name": name, "microseconds": time // ONE_MICROSECOND}
            for name, time in sorted(times.items())
        ],
    )
