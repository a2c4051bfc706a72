"""A clock that tests set, and a wait for those that cannot set any."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from ebbtide.clock import Queries


class ManualClock:
    """All three clocks show `now`, each moved by an offset of its own."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.host_offset = timedelta(0)
        self.database_offset = timedelta(0)
        self.storage_offset = timedelta(0)

    def advance(self, by: timedelta) -> None:
        self.now += by

    def host_now(self) -> datetime:
        return self.now + self.host_offset

    def database_now(self, tx: Queries) -> datetime:
        del tx
        return self.now + self.database_offset

    def storage_time(self, last_modified: datetime) -> datetime:
        """The storage's time, whatever date it gave the file."""
        del last_modified
        return self.now + self.storage_offset


def wait_for_next_second() -> None:
    """Returns in the second after this one. A date in whole seconds, such as S3 gives, may stand
    for any instant of its second: now files that were written before are surely older."""
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.01)
