"""Keys: 64-bit hashes that stand for addresses where many of them are compared.

Keys stand on the side that is taken away: what is live, protected, or known to be there. Two
addresses with one key then keep garbage, never drop what is live. Among n kept and m listed
addresses that happens n * m / 2**64 times on average: once in 50,000 runs for 20 million of each.
Addresses of the store have 96 random bits, and whoever chose one to collide could only keep
garbage.

The hash is XXH3 of the address in UTF-8, with seed 0 (https://xxhash.com, its specification 0.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ebbtide.arrow import first_of_each, make_schema, numbered
from ebbtide.gc.parts import Part, opened_part
from ebbtide.gc.runs import RunFolder

KEYS_SCHEMA: Final = make_schema(
    ("key", pa.int64()),
)
"""A part of keys: ascending, each once; the unsigned 64 bits read as signed ones."""

KEYS: Final = "keys"
"""The group of such parts. Parts of other groups may have a column `key` too, in any order."""

KeyArray: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Keys, in any order unless it is said."""

SET_PLACES_PER_KEY: Final = 4
"""At least, and up to twice as many: more would not stay in the processor's cache."""
SET_BITS_MAX: Final = 25
"""A byte each, and that twice: 64 MB."""
SET_AT_ONCE: Final = 1 << 15
"""Keys that are looked at together: what is made of them stays in the processor's cache."""
_HIGH_BITS: Final = 64 - SET_BITS_MAX


def keys_of(addresses: pa.Array[Any] | pa.ChunkedArray[Any]) -> KeyArray:
    """The key of each address, none of which is null."""
    encoded: list[bytes] = addresses.cast(pa.binary()).to_pylist()  # type: ignore[assignment]
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(addresses))
    return hashes.view(np.int64)


def once(keys: KeyArray) -> KeyArray:
    """The keys ascending, each once."""
    ordered = np.sort(keys)
    if len(ordered) < 2:
        return ordered
    found: KeyArray = ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    return found


def read_keys(folder: RunFolder, part: Part) -> KeyArray:
    """The keys of one part, ascending, each once. Refused `plan_corrupt`."""
    keys = read_keys_in_order(folder, part)
    return keys if part.group == KEYS else once(keys)


def read_keys_in_order(folder: RunFolder, part: Part) -> KeyArray:
    """The key of each row of a part. Refused `plan_corrupt`."""
    assert part.name is not None
    with opened_part(folder, part.name, part.checksum) as file:
        name = "key" if "key" in file.schema_arrow.names else "address"
        column = file.read([name], use_threads=False).column(name)
    if name == "address":
        return keys_of(column)
    keys: KeyArray = column.to_numpy()
    return keys


def with_keys(table: pa.Table, judged: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Table:
    """The table with the keys of addresses beside it, so that nobody has to make them again."""
    return table.append_column(KEYS_SCHEMA.field("key"), pa.array(keys_of(judged)))


def first_of_each_address(table: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each row of a table with keys (of what it is judged by) whether it is the first with its
    address. One address has one key, and keys are told apart in a third of the time; that of
    another address, too, where both have one target."""
    numbers, addresses = numbered(table.column("key")), table.column("address")
    is_first = first_of_each(numbers)
    others = np.flatnonzero(~is_first)
    firsts = np.flatnonzero(is_first)[numbers[others]]
    same = pc.equal(addresses.take(others), addresses.take(firsts))
    return is_first if pc.all(same).as_py() else first_of_each(numbered(addresses))


class KeySet:
    """A set of keys. Which of many others are in it, it tells in one pass without ordering them: by
    some of their lowest bits, the few that are left by some of their highest, then by all."""

    def __init__(self, keys: KeyArray) -> None:
        """Of keys in any order, some of them twice perhaps."""
        self._keys = keys = once(keys)
        bits = min(max(len(keys) * SET_PLACES_PER_KEY, 1 << 16).bit_length(), SET_BITS_MAX)
        self._mask = np.int64((1 << bits) - 1)
        self._low = np.zeros(1 << bits, np.bool_)
        self._low[keys & self._mask] = True
        self._high = np.zeros(1 << bits, np.bool_)
        self._high[(keys >> _HIGH_BITS) & self._mask] = True

    @classmethod
    def read(cls, folder: RunFolder, parts: Iterable[Part]) -> KeySet:
        """Of the keys of parts. Refused `plan_corrupt`."""
        return cls(keys_in_parts(folder, parts))

    def places(self, keys: KeyArray) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where in `keys` those are that are in the set, ascending."""
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
        """For each of `keys` whether it is in the set."""
        found = np.zeros(len(keys), np.bool_)
        found[self.places(keys)] = True
        return found

    def among(self, keys: KeyArray) -> KeyArray:
        """Those of `keys` that are in the set, in their order."""
        found: KeyArray = keys[self.places(keys)]
        return found


def keys_in_parts(folder: RunFolder, parts: Iterable[Part]) -> KeyArray:
    """The keys of parts together, ascending, each once. Refused `plan_corrupt`."""
    none = np.empty(0, np.int64)
    return once(np.concatenate([none, *(read_keys(folder, part) for part in parts)]))


def key_table(keys: KeyArray) -> pa.Table:
    """Keys as a table of KEYS_SCHEMA."""
    return pa.table([pa.array(keys)], schema=KEYS_SCHEMA)


def rows_of(parts: Iterable[Part]) -> int:
    """How many rows parts have."""
    return sum(part.rows for part in parts)
