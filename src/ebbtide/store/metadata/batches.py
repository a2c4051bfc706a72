"""Divides values into batches that one statement takes as parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

VALUES_PER_STATEMENT: Final = 500


def in_batches(values: Iterable[str]) -> Iterator[list[str]]:
    """Yields the values in their order, in batches of at most VALUES_PER_STATEMENT."""
    remaining = iter(values)
    while batch := list(islice(remaining, VALUES_PER_STATEMENT)):
        yield batch
