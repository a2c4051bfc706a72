"""What steps count, and what is read of it."""

from __future__ import annotations

from ebbtide.gc.steps import Meter, ProgressReading, advance


def test_counts_from_the_beginning_of_a_step() -> None:
    """Not what was counted before, but for what is said to be done."""
    meter = Meter()
    advance(5)
    meter.begin("files", 12)
    advance(2)
    advance(7)
    found = meter.reading()
    assert (found.unit, found.done, found.total, found.is_about) == ("files", 9, 12, False)
    meter.begin("files", 20, is_about=True, done=9)
    advance(2)
    found = meter.reading()
    assert (found.done, found.total, found.is_about) == (11, 20, True)
    assert meter.begun == 2


def test_what_is_left() -> None:
    """By the rate so far; unknown where nothing is done, and where there was more than expected."""
    assert ProgressReading("files", 10, 40, False, 5.0).seconds_left == 15.0
    assert ProgressReading("files", 0, 40, False, 5.0).seconds_left is None
    assert ProgressReading("files", 50, 40, True, 5.0).seconds_left is None
    assert ProgressReading("files", 5, None, False, 5.0).seconds_left is None
    assert ProgressReading("files", 5, 10, False, 0.0).per_second == 0.0
