"""How long the store's promises last: one answer for all of its processes, in the database.

What one process promises another one keeps, or breaks by deleting too early: a scheduled job whose
environment says a shorter time must not. The times are those of the settings when the store is
made, and change for all processes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.settings import Settings
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.times import read_times, write_times

PROMISED: Final = ("lease_ttl", "trash_time", "upload_ttl", "prepare_ttl")
"""The settings by which something is promised that others see to later."""


def promised(tx: Transaction, settings: Settings) -> Settings:
    """The settings of a process with the times that the store promises. Whoever deletes asks in the
    transaction that decides, for they may have changed since the process began."""
    return settings.model_copy(update=read_times(tx))


def times_of(settings: Settings) -> dict[str, timedelta]:
    """The promised times among settings, by name."""
    return {name: getattr(settings, name) for name in PROMISED}


def promise(tx: Transaction, times: Mapping[str, timedelta]) -> None:
    """Set promised times, by name, for all processes; those not named stay.

    Raises InvalidInput `invalid_argument`, and `invalid_setting` for a time that it cannot be.
    """
    for name in times:
        if name not in PROMISED:
            raise InvalidInput(
                "invalid_argument",
                f"{name} is no promised time: it is one of {', '.join(PROMISED)}",
            )
    if times:
        checked = Settings(**times)
        write_times(tx, {name: getattr(checked, name) for name in times})
