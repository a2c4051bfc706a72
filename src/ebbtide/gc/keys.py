"""Keys: 64-bit hashes that replace addresses where many addresses are compared. Only the address
index stores them.

Keys are used only for the addresses that are subtracted: live, protected, or known to exist. If two
addresses have the same key, a file of garbage stays, and no live file is deleted. Among n kept and
m listed addresses this happens n * m / 2**64 times on average. For 20 million of each, that is once
in 50,000 runs. Addresses of the store have 96 random bits. An attacker who chose an address that
collides could only keep garbage.

The hash is XXH3 of the address in UTF-8, with seed 0 (https://xxhash.com, its specification 0.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from ebbtide.arrow import make_schema
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, read_rows
from ebbtide.gc.runs import RunFolder

KEYS_SCHEMA: Final = make_schema(
    ("key", pa.int64()),
)
"""Keys. The unsigned 64 bits are stored as a signed number."""

KeyArray: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Keys, in any order unless a docstring says which."""

SET_PLACES_PER_KEY: Final = 4
"""A KeySet has at least this number of places for each key, and at most twice as many. A larger set
would not stay in the processor's cache."""
SET_BITS_MAX: Final = 25
"""The maximum number of bits of a key that a KeySet looks up. Its two arrays, with one byte for
each value of these bits, then have 64 MB."""
SET_AT_ONCE: Final = 1 << 15
"""The number of keys that are looked up together. Their intermediate results stay in the
processor's cache."""
_HIGH_BITS: Final = 64 - SET_BITS_MAX


def keys_of(addresses: pa.Array[Any] | pa.ChunkedArray[Any]) -> KeyArray:
    """Returns the key of each address. No address may be null."""
    encoded: list[bytes] = addresses.cast(pa.binary()).to_pylist()  # type: ignore[assignment]
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(addresses))
    return hashes.view(np.int64)


def once(keys: KeyArray) -> KeyArray:
    """Returns the keys in ascending order, each once."""
    ordered = np.sort(keys)
    if len(ordered) < 2:
        return ordered
    found: KeyArray = ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    return found


def read_keys_in_order(folder: RunFolder, part: Part) -> KeyArray:
    """Returns the key of the address in each row of a part. Raises Refused `plan_corrupt`."""
    return keys_of(read_rows(folder, [part], ADDRESS_SCHEMA).column("address"))


class KeySet:
    """A set of keys that finds its members among many other keys, in one pass and without sorting
    them. It compares some low bits first, then some high bits of the keys that are left, then whole
    keys."""

    def __init__(self, keys: KeyArray) -> None:
        """`keys` may be in any order and may repeat."""
        self._keys = keys = once(keys)
        bits = min(max(len(keys) * SET_PLACES_PER_KEY, 1 << 16).bit_length(), SET_BITS_MAX)
        self._mask = np.int64((1 << bits) - 1)
        self._low = np.zeros(1 << bits, np.bool_)
        self._low[keys & self._mask] = True
        self._high = np.zeros(1 << bits, np.bool_)
        self._high[(keys >> _HIGH_BITS) & self._mask] = True

    @classmethod
    def read(cls, folder: RunFolder, parts: Iterable[Part]) -> KeySet:
        """Reads the keys of parts. Raises Refused `plan_corrupt`."""
        return cls(keys_in_parts(folder, parts))

    def places(self, keys: KeyArray) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns the indexes of those `keys` that are in the set, ascending."""
        likely = [np.empty(0, np.int64)]
        for start in range(0, len(keys), SET_AT_ONCE):
            some = keys[start : start + SET_AT_ONCE]
            likely.append(start + np.flatnonzero(self._low[some & self._mask]))
        found: np.ndarray[Any, np.dtype[np.int64]] = np.concatenate(likely)
        found = found[self._high[(keys[found] >> _HIGH_BITS) & self._mask]]
        if len(found):
            wanted = keys[found]
            places = np.searchsorted(self._keys, wanted)
            places[places == len(self._keys)] = 0
            found = found[self._keys[places] == wanted]
        return found

    def has(self, keys: KeyArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns for each of `keys` whether it is in the set."""
        found = np.zeros(len(keys), np.bool_)
        found[self.places(keys)] = True
        return found

    def among(self, keys: KeyArray) -> KeyArray:
        """Returns those `keys` that are in the set, in their order."""
        found: KeyArray = keys[self.places(keys)]
        return found


def keys_in_parts(folder: RunFolder, parts: Iterable[Part]) -> KeyArray:
    """Returns the keys of all parts, ascending and each once. Raises Refused `plan_corrupt`."""
    none = np.empty(0, np.int64)
    return once(np.concatenate([none, *(read_keys_in_order(folder, part) for part in parts)]))


def rows_of(parts: Iterable[Part]) -> int:
    """Returns the number of rows in all parts."""
    return sum(part.rows for part in parts)
