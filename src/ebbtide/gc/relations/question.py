"""Asking the metadata what of some addresses is protected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.formats.base import Reading
from ebbtide.gc.parts import Part, read_batches
from ebbtide.gc.relations.inventory import JUDGED_SCHEMA, judged_by
from ebbtide.gc.runs import RunFolder

ASKED_AT_ONCE: Final = 2_000
"""Addresses that the metadata is asked for together."""


def protected_among(
    reading: Reading, folder: RunFolder, parts: Iterable[Part]
) -> Iterator[pa.Table]:
    """What is protected (PROTECTED_SCHEMA) of the addresses by which the rows of parts (of
    JUDGED_SCHEMA, among others) are judged, in batches."""
    tables = read_batches(folder, parts, JUDGED_SCHEMA, rows_max=ASKED_AT_ONCE)
    return reading.protected(texts(judged_by(table)) for table in tables)


def protected_of(reading: Reading, addresses: pa.ChunkedArray[Any]) -> Iterator[pa.Table]:
    """The same of addresses that are held."""

    def some() -> Iterator[Sequence[str]]:
        for start in range(0, len(addresses), ASKED_AT_ONCE):
            yield texts(addresses.slice(start, ASKED_AT_ONCE))

    return reading.protected(some())
