"""Values in the amounts that one statement takes as parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

VALUES_PER_STATEMENT: Final = 500


def in_batches(values: Iterable[str]) -> Iterator[list[str]]:
    """The values, in their order, some hundred at a time."""
    remaining = iter(values)
    while batch := list(islice(remaining, VALUES_PER_STATEMENT)):
        yield batch
