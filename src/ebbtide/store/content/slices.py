"""Slices: directories of objects, each filled by one process. A listing can skip them by name.

The name of a slice is a descending id of the instant at which it was opened. The newest slice sorts
first. No object in a slice is older than the slice's name.
"""

from __future__ import annotations

from datetime import datetime
from threading import Lock

from ebbtide.ids import descending_id
from ebbtide.settings import Settings
from ebbtide.store.content.layout import new_object_address


class CurrentSlice:
    """Makes addresses in this process's current slice. A full or old slice is closed."""

    def __init__(self, settings: Settings) -> None:
        self._objects_max = settings.slice_objects_max
        self._age_max = settings.slice_age_max
        self._lock = Lock()
        self._slice_id = ""
        self._opened_at: datetime | None = None
        self._object_count = 0

    def new_addresses(self, count: int, *, now: datetime) -> list[str]:
        """Returns `count` addresses that no other call returns. `now` is the database's time."""
        with self._lock:
            return [self._new_address(now) for _ in range(count)]

    def _new_address(self, now: datetime) -> str:
        opened_at = self._opened_at
        if (
            opened_at is None
            or self._object_count >= self._objects_max
            # A slice from a time when the clock was ahead must not stay open until then.
            or abs(now - opened_at) >= self._age_max
        ):
            self._slice_id = descending_id(now)
            self._opened_at = now
            self._object_count = 0
        address = new_object_address(self._slice_id, self._object_count)
        self._object_count += 1
        return address
