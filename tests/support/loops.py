"""Event loops of code under test."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def without_loop(work: Callable[[], Result]) -> Result:
    """Calls a function that starts an event loop, in a thread of its own. The driver of the browser
    leaves a loop running in the thread of the tests, where no other loop can start."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
