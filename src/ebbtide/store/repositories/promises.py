"""The times of the store's promises. They are in the database, and the same for all processes.

One process makes a promise. Another one keeps it, or breaks it by deleting too early. A scheduled
job whose environment has a shorter time must not break it. The times are taken from the settings
when the store is made. A later change applies to all processes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import sqlalchemy as sa

from ebbtide.errors import InvalidInput
from ebbtide.model import ONE_MICROSECOND
from ebbtide.settings import Settings, check_settings
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import promised_times


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


PROMISED: Final = ("lease_ttl", "trash_time", "upload_ttl", "prepare_ttl")
"""The settings that are times of promises, which other processes keep later."""


def promised(tx: Transaction, settings: Settings) -> Settings:
    """Returns the settings of a process, with the times that the store promises.

    A process that deletes calls this in the transaction that decides, because the times may have
    changed since the process began.
    """
    return settings.model_copy(update=read_times(tx))


def times_of(settings: Settings) -> dict[str, timedelta]:
    """Returns the times of promises in the settings, by name."""
    return {name: getattr(settings, name) for name in PROMISED}


def promise(tx: Transaction, times: Mapping[str, timedelta]) -> None:
    """Sets times of promises, by name, for all processes. Other times stay.

    Raises InvalidInput `invalid_argument` for an unknown name, `invalid_setting` for an invalid
    time.
    """
    for name in times:
        if name not in PROMISED:
            raise InvalidInput(
                "invalid_argument",
                f"{name} is no promised time: it is one of {', '.join(PROMISED)}",
            )
    if times:
        write_times(tx, check_settings(times))
