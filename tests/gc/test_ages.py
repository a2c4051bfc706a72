"""The age of a file where clocks differ by less than is allowed."""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import product

from tests.support.histories import GRACE, PlannedWorld

CLOCKS = ("host_offset", "database_offset", "storage_offset")
MINUTE = timedelta(minutes=1)


def test_the_clock_that_is_behind_counts(planned: PlannedWorld) -> None:
    """By any other a file would seem older than it is."""
    garbage = next((planned.root / "data").iterdir()) / ("a" * 32)
    for clock, minutes in product(CLOCKS, (-4, 4)):
        offset = minutes * MINUTE
        setattr(planned.clock, clock, offset)
        cutoff = planned.clock.now + min(offset, timedelta(0)) - GRACE
        for written_at, is_young in ((cutoff + MINUTE, True), (cutoff - MINUTE, False)):
            garbage.write_bytes(b"nobody needs it")
            os.utime(garbage, times=(written_at.timestamp(),) * 2)
            planned.swept()
            assert garbage.exists() == is_young, (clock, minutes)
        setattr(planned.clock, clock, timedelta(0))
