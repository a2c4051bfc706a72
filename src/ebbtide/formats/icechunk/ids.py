"""Icechunk's object ids: 12 bytes, shown as 20 characters of Crockford's base32.

96 bits make 19 characters and one bit. This bit is the first of the last character, whose other
four bits are zero. Source: Icechunk specification, "Common Types".
"""

from __future__ import annotations

import secrets
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebbtide.text import shown

ID_BYTES: Final = 12
ID_CHARACTERS: Final = 20
ID_PATTERN: Final = "[0-9A-HJKMNP-TV-Z]{19}[0G]"
"""A regular expression for the text of every id."""

ROOT_ID: Final = "1CECHNKREP0F1RSTCMT0"
"""The first snapshot of every repository."""

ByteRows: TypeAlias = npt.NDArray[np.uint8]
"""Rows of bytes, in two dimensions: each row is an id, or another value of fixed size."""

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}
_PADDING_BITS: Final = ID_CHARACTERS * 5 - ID_BYTES * 8
# Two characters at a time: 10 bits.
_PAIRS: Final = np.array(
    [[ord(_ALPHABET[pair >> 5]), ord(_ALPHABET[pair & 31])] for pair in range(1024)], np.uint8
).view(np.uint16)[:, 0]


def id_text(data: bytes) -> str:
    """Returns the 20 characters for 12 bytes. Raises ValueError for another length."""
    if len(data) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(data)}")
    bits = int.from_bytes(data, "big") << _PADDING_BITS
    return "".join(_ALPHABET[(bits >> shift) & 31] for shift in range(95, -1, -5))


def id_bytes(text: str) -> bytes:
    """Returns the 12 bytes for 20 characters. Raises ValueError if the text is not an id."""
    if len(text) != ID_CHARACTERS or any(character not in _VALUES for character in text):
        raise ValueError(f"{shown(text)} is not an id")
    bits = 0
    for character in text:
        bits = bits << 5 | _VALUES[character]
    if bits & (1 << _PADDING_BITS) - 1:
        raise ValueError(f"{text!r} is not an id")
    return (bits >> _PADDING_BITS).to_bytes(ID_BYTES, "big")


def new_id_text() -> str:
    """Returns a random id."""
    return id_text(secrets.token_bytes(ID_BYTES))


def id_texts(rows: ByteRows, *, prefix: str = "") -> pa.StringArray:
    """Returns the text of each id (rows of 12 bytes), with `prefix` (ASCII) before it."""
    count, width = len(rows), len(prefix) + ID_CHARACTERS
    text = np.empty((count, width), np.uint8)
    text[:, : len(prefix)] = np.frombuffer(prefix.encode("ascii"), np.uint8)
    # One row for each byte, so that each step below reads contiguous memory. The last pair of
    # characters needs the two rows of zeros.
    columns = np.zeros((ID_BYTES + 2, count), np.uint32)
    columns[:ID_BYTES] = rows.T
    pairs = np.empty((count, ID_CHARACTERS // 2), np.uint16)
    for pair in range(ID_CHARACTERS // 2):
        first, bit = divmod(pair * 10, 8)
        window = columns[first] << 16 | columns[first + 1] << 8 | columns[first + 2]
        pairs[:, pair] = _PAIRS[window >> (14 - bit) & 1023]
    text[:, len(prefix) :] = pairs.view(np.uint8)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int64)
    buffers: list[Any] = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    found: Any = pa.LargeStringArray.from_buffers(count, buffers[1], buffers[2])
    return found.cast(pa.string())  # type: ignore[no-any-return]
