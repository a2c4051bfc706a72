"""Arvados's timers `trash_at`, `delete_at` and `is_trashed`, as the store's `expires_at`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.errors import InvalidInput
from ebbtide.retention.lifecycle import delete_at
from ebbtide.store.collections.items import KEEP, Keep, Omitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """The timers that a client asks for. Each may be left out."""

    trash_at: datetime | Keep | None = KEEP
    delete_at: datetime | Keep | None = KEEP
    is_trashed: bool | Keep = KEEP

    def expires_at(
        self, *, present: datetime | None, now: datetime, trash_time: timedelta
    ) -> datetime | Keep | None:
        """Returns the `expires_at` to store, or KEEP.

        `present` is the item's own date. `is_trashed` decides only if there is no `trash_at`. A
        `delete_at` must be the one that the server computes, so that what a client sends and what
        it reads back agree. Raises InvalidInput `invalid_date`.
        """
        asked = self.trash_at
        is_over = present is not None and present <= now
        is_asked = isinstance(asked, Omitted) and not isinstance(self.is_trashed, Omitted)
        if is_asked and self.is_trashed != is_over:
            asked = now if self.is_trashed else None
        if isinstance(self.delete_at, Omitted):
            return asked
        date = present if isinstance(asked, Omitted) else asked
        # A date in the past becomes the present when it is stored.
        if date is not None and date is not present:
            date = max(date, now)
        computed = delete_at(date, trash_time)
        if self.delete_at != computed:
            text = "null" if computed is None else computed.isoformat()
            raise InvalidInput(
                "invalid_date",
                f"delete_at follows from trash_at: leave it out, or write {text}",
            )
        return asked
