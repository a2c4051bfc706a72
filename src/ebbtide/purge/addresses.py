"""A set of addresses to be deleted. It is searched by key first, and then by address.

A key alone is not enough for deletes: two addresses may have the same key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.gc.relations.keys import KeyArray, keys_of

Mask = np.ndarray[Any, np.dtype[np.bool_]]

ADDRESSES_PER_STEP = 10_000


class AddressSet:
    """Distinct addresses. Uses about 100 bytes of memory for each."""

    def __init__(self, columns: Iterable[pa.Array[Any] | pa.ChunkedArray[Any]]) -> None:
        """Builds the set from columns of text, which contain each address once."""
        chunks = [
            chunk
            for column in columns
            for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
        ]
        # Offsets of 64 bits, because all addresses together may exceed 2 GiB.
        whole = pa.chunked_array(chunks, pa.string()).cast(pa.large_string()).combine_chunks()
        keys = keys_of(whole)
        order = np.argsort(keys)
        self.keys: KeyArray = keys[order]
        self._addresses = cast("pa.StringArray", whole.take(pa.array(order, pa.int64())))
        self._has_twins = bool(np.any(self.keys[1:] == self.keys[:-1]))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), ADDRESSES_PER_STEP):
            yield from texts(self._addresses.slice(start, ADDRESSES_PER_STEP))

    def may_have(self, keys: KeyArray) -> Mask:
        """Returns for each key whether an address of the set has it."""
        if not len(self):
            return np.zeros(len(keys), np.bool_)
        places = np.searchsorted(self.keys, keys)
        places[places == len(self)] = 0
        found: Mask = self.keys[places] == keys
        return found

    def has(self, addresses: pa.Array[Any] | pa.ChunkedArray[Any]) -> Mask:
        """Returns for each address whether it is in the set. There must be no nulls."""
        keys = keys_of(addresses)
        found = self.may_have(keys)
        likely = np.flatnonzero(found)
        if not len(likely):
            return found
        asked: Any = addresses.take(pa.array(likely, pa.int64())).cast(pa.large_string())
        if self._has_twins:
            same = pc.is_in(asked, value_set=self._addresses)
        else:
            places = pa.array(np.searchsorted(self.keys, keys[likely]), pa.int64())
            same = pc.equal(asked, self._addresses.take(places))
        found[likely] = np.asarray(same)
        return found

    def matches(self, addresses: list[str]) -> list[bool]:
        """Returns for each address of a list whether it is in the set."""
        found: list[bool] = self.has(pa.array(addresses, pa.string())).tolist()
        return found
