"""Manifests: which chunks they refer to.

Source: Icechunk specification, `manifest.fbs`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebbtide.formats.icechunk.flatbuffer import Buffer, DamagedError, Tables
from ebbtide.formats.icechunk.ids import ID_BYTES, id_text, id_texts

CHUNKS_PREFIX: Final = "chunks/"

_MANIFEST_FIELDS: Final = 5
_ARRAY_FIELDS: Final = 3
_REF_FIELDS: Final = 10
_ID, _ARRAYS = 0, 1
_REFS: Final = 1
_INDEX, _INLINE, _CHUNK_ID, _LOCATION, _PACKED_LOCATION = 0, 1, 4, 5, 8

Columns = npt.NDArray[np.uint32]
"""Coordinates of chunks: one row for each dimension, one column for each chunk."""


def manifest_chunks(payload: bytes, manifest_id: str, *, entry_count: int) -> pa.StringArray:
    """The addresses of the chunks of the repository's own that a manifest refers to.

    `entry_count` is how many references of any kind it must have: inline and virtual ones count,
    and have no address here. DamagedError, UnknownFieldError.
    """
    root = Buffer(payload).root(fields=_MANIFEST_FIELDS)
    if id_of(root, _ID) != manifest_id:
        raise DamagedError(f"it holds manifest {id_of(root, _ID)}")
    found: list[pa.StringArray] = []
    count = 0
    for arrays in root.children(_ARRAYS, fields=_ARRAY_FIELDS):
        for array in arrays:
            last: Columns | None = None
            for refs in array.children(_REFS, fields=_REF_FIELDS):
                _check_kinds(refs)
                last = _check_order(refs, last)
                count += len(refs)
                found.append(id_texts(refs.structs(_CHUNK_ID, ID_BYTES), prefix=CHUNKS_PREFIX))
    if count != entry_count:
        raise DamagedError(f"it has {count:,} references where its snapshot says {entry_count:,}")
    return pa.concat_arrays(found) if found else pa.array([], pa.string())


def id_of(table: Tables, slot: int) -> str:
    """The id that a single table has in a field."""
    rows = table.structs(slot, ID_BYTES)
    if len(rows) != 1:
        raise DamagedError("it has no id")
    return id_text(rows[0].tobytes())


def _check_kinds(refs: Tables) -> None:
    """A reference is inline, or to a chunk, or virtual. One that is nothing, or two of these, or
    has nothing where it points, may stand for a chunk that is needed."""
    kinds = refs.has(_INLINE).astype(np.int8) + refs.has(_CHUNK_ID)
    kinds += refs.has(_LOCATION) | refs.has(_PACKED_LOCATION)
    if (kinds != 1).any():
        raise DamagedError("it has a reference that is not of one kind")
    for slot in (_INLINE, _LOCATION, _PACKED_LOCATION):
        refs.check_vectors(slot, 1)


def _check_order(refs: Tables, last: Columns | None) -> Columns:
    """References are in the order of their chunks' coordinates, each once: a reference that took
    another's place shows. `last` are the coordinates that came before; the last of these."""
    found = refs.columns(_INDEX)
    if last is not None:
        if len(last) != len(found):
            raise DamagedError("its coordinates differ in their number")
        found = np.concatenate([last, found], axis=1)
    before, after = found[:, :-1], found[:, 1:]
    rising = np.zeros(before.shape[1], np.bool_)
    equal = np.ones(before.shape[1], np.bool_)
    for first, second in zip(before, after, strict=True):
        rising |= equal & (second > first)
        equal &= second == first
    if not rising.all():
        raise DamagedError("its references are not in order")
    return found[:, -1:]
