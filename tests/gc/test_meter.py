"""What tasks count, and how worker processes are told to stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ebbtide.errors import Failed
from ebbtide.gc.meter import Reading, advance
from ebbtide.gc.workers import Workers


def count_to(number: int, pause_seconds: float) -> int:
    """A task."""
    for _ in range(number):
        advance(1)
        time.sleep(pause_seconds)
    return number


def test_workers_and_this_process_count_together() -> None:
    """From `begin` on, also over the start of a pool."""
    workers = Workers(2)
    advance(5)
    workers.meter.begin("files", 12)
    advance(2)
    assert workers.call(count_to, [(4, 0.0), (3, 0.0)]) == [4, 3]
    found = workers.meter.reading()
    assert (found.unit, found.done, found.total) == ("files", 9, 12)
    workers.meter.begin("files", 20, done=9)
    assert workers.meter.reading().done == 9
    workers.call(count_to, [(1, 0.0), (1, 0.0)])
    assert workers.meter.reading().done == 11


@pytest.fixture
def interrupts() -> Iterator[None]:
    """An interrupt is raised, whoever started this process, and whatever handles it otherwise: a
    shell has what runs in its background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_stops_tasks_where_they_count() -> None:
    """Those that have begun, and none begins after; the next ones are carried out."""
    workers = Workers(2)
    workers.call(count_to, [(1, 0.0)] * 2)
    workers.meter.begin("files")

    def interrupt() -> None:
        while workers.meter.reading().done < 4:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        workers.call(count_to, [(100_000, 0.01)] * 6)
    # Where the old workers count; the new ones have a place of their own.
    cells = workers.meter._cells
    counted = list(cells)
    assert workers.call(count_to, [(2, 0.0)] * 2) == [2, 2]
    assert list(cells) == counted, "a task went on while the new workers started"


def test_what_stops_is_an_error_of_its_own() -> None:
    """Which a task can tell from what went wrong."""
    workers = Workers(2)

    def stop() -> None:
        while workers.meter.reading().done < 1:
            time.sleep(0.01)
        workers.meter.stop()

    workers.meter.begin("files")
    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Failed) as stopped:
        workers.call(count_to, [(100_000, 0.01)] * 2)
    assert stopped.value.kind == "interrupted"


def test_rates() -> None:
    """And how long the rest takes, where that is known."""
    assert Reading("files", 30, 90, False, 10.0).seconds_left == 20.0
    assert Reading("files", 30, None, False, 10.0).seconds_left is None
    assert Reading("files", 0, 90, False, 10.0).seconds_left is None
    assert Reading("files", 91, 90, True, 10.0).seconds_left is None
