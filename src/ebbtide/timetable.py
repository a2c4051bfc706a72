"""The due times of a schedule: cron text, a time zone, and a delay that differs between schedules.

The text has the five fields of cron, and means what Debian's cron makes of it, also when clocks
change (`cron(8)`, Debian). A time of day that the change skips is due right after the change. A
time of day that comes twice is due at its first instant. If the minute or the hour is `*` or
`*/N`, real time counts: such a schedule neither loses nor repeats an hour.

Not for: what is due now, or who runs it (`ebbtide.store.schedules`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ebbtide.errors import InvalidInput
from ebbtide.text import shown

FIELDS: Final = 5
CRON_CHARACTERS_MAX: Final = 200
ZONE_CHARACTERS_MAX: Final = 100
JITTER_MAX: Final = timedelta(days=1)
_DIGEST_BYTES: Final = 8
_HOW: Final = (
    "write five fields: minute, hour, day of the month, month and day of the week, such as "
    "'0 3 * * *' for every night at three"
)


@dataclass(frozen=True, slots=True)
class Timetable:
    """The due times of one schedule. `jitter` is the longest delay of a start."""

    cron: str
    timezone: str = "UTC"
    jitter: timedelta = timedelta(0)

    @classmethod
    def parse(
        cls, cron: str, *, timezone: str = "UTC", jitter: timedelta = timedelta(0), now: datetime
    ) -> Timetable:
        """Returns the timetable of a cron text and of a zone's name in the IANA database.

        Raises InvalidInput `invalid_schedule` if the text is not valid or is never due after `now`,
        if there is no such zone, or if the jitter is longer than JITTER_MAX.
        """
        text = " ".join(cron.split())
        if len(text) > CRON_CHARACTERS_MAX or len(text.split()) != FIELDS:
            raise InvalidInput("invalid_schedule", f"{shown(text)} is no schedule: {_HOW}")
        if jitter > JITTER_MAX:
            raise InvalidInput(
                "invalid_schedule", "the jitter is longer than a day: give a shorter period"
            )
        _zone(timezone)
        made = cls(text, timezone, jitter)
        try:
            made.due_after(now)
        except CronSimError as error:
            raise InvalidInput(
                "invalid_schedule", f"{shown(text)} is no schedule ({error}): {_HOW}"
            ) from None
        except StopIteration:
            raise InvalidInput("invalid_schedule", f"{shown(text)} is never due: {_HOW}") from None
        return made

    def due_after(self, instant: datetime) -> datetime:
        """Returns the first due time after an instant, in UTC and without the delay."""
        local = instant.astimezone(_zone(self.timezone))
        return next(CronSim(self.cron, local)).astimezone(UTC)

    def start_of(self, due: datetime, name: str) -> datetime:
        """Returns when the run of a due time starts: the due time and a delay below the jitter.

        The delay depends on `name` and the due time alone, so that all servers compute the same
        one. It ends before the next due time, so that starts have the order of due times.
        """
        if not self.jitter:
            return due
        digest = hashlib.sha256(f"{name} {due.isoformat()}".encode()).digest()
        share = int.from_bytes(digest[:_DIGEST_BYTES], "big") / (1 << 8 * _DIGEST_BYTES)
        gap = self.due_after(due) - due
        return due + timedelta(seconds=int(min(self.jitter, gap).total_seconds() * share))

    def describe(self) -> str:
        """Returns the cron text in English words, such as `At 03:00 every day`."""
        return CronSim(self.cron, datetime(2000, 1, 1, tzinfo=UTC)).explain()


def _zone(name: str) -> ZoneInfo:
    """Returns a time zone. Raises InvalidInput `invalid_schedule`."""
    try:
        if len(name) > ZONE_CHARACTERS_MAX:
            raise ValueError
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        # OSError: the name of a directory, such as `Europe`. LookupError: no such zone.
        raise InvalidInput(
            "invalid_schedule",
            f"there is no time zone {shown(name)}: use a name such as Europe/Berlin or UTC",
        ) from None
