"""Reads manifests: the chunks that they refer to.

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
    """Returns the addresses of the repository's own chunks that a manifest refers to.

    `entry_count` is the number of references that the manifest must have. It includes inline and
    virtual references, which have no address here. Raises DamagedError or UnknownFieldError.
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
        raise DamagedError(f"it has {count:,} references, but its snapshot says {entry_count:,}")
    return pa.concat_arrays(found) if found else pa.array([], pa.string())


def id_of(table: Tables, slot: int) -> str:
    """Returns the id in a field of a single table. Raises DamagedError if there is none."""
    rows = table.structs(slot, ID_BYTES)
    if len(rows) != 1:
        raise DamagedError("it has no id")
    return id_text(rows[0].tobytes())


def _check_kinds(refs: Tables) -> None:
    """Raises DamagedError unless each reference is of one kind: inline, to a chunk, or virtual.

    A reference of no kind, of two kinds, or to a place outside the file can stand for a needed
    chunk.
    """
    kinds = refs.has(_INLINE).astype(np.int8) + refs.has(_CHUNK_ID)
    kinds += refs.has(_LOCATION) | refs.has(_PACKED_LOCATION)
    if (kinds != 1).any():
        raise DamagedError("it has a reference that is not of one kind")
    for slot in (_INLINE, _LOCATION, _PACKED_LOCATION):
        refs.check_vectors(slot, 1)


def _check_order(refs: Tables, last: Columns | None) -> Columns:
    """Raises DamagedError unless the references are in the order of their chunks' coordinates.

    Each coordinate is allowed once. This detects a reference that was overwritten with a copy of
    another. `last` has the coordinates of the reference before `refs`, or None. Returns those of
    the last reference.
    """
    found = refs.columns(_INDEX)
    if last is not None:
        if len(last) != len(found):
            raise DamagedError("the number of coordinates differs between its references")
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
