"""Ids and their text, against an oracle that spells 5 bits at a time."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.formats.icechunk.ids import (
    ID_BYTES,
    ID_CHARACTERS,
    ID_PATTERN,
    ROOT_ID,
    ByteRows,
    id_bytes,
    id_text,
    id_texts,
    new_id_text,
)
from tests.support.icechunk_files import ALPHABET, spell
from tests.support.randomized import examples, randomized

ROOT_BYTES = bytes.fromhex("0b1cc8d6787580f0e33a6534")
EDGES = [bytes(ID_BYTES), b"\xff" * ID_BYTES, ROOT_BYTES]
EDGES += [(1 << bit).to_bytes(ID_BYTES, "big") for bit in range(8 * ID_BYTES)]


def rows(ids: list[bytes]) -> ByteRows:
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, ID_BYTES)


def test_the_first_snapshot_of_every_repository() -> None:
    assert id_text(ROOT_BYTES) == ROOT_ID == "1CECHNKREP0F1RSTCMT0"
    assert id_bytes(ROOT_ID) == ROOT_BYTES


@randomized("properties of values")
@examples("properties of values")
@given(st.binary(min_size=ID_BYTES, max_size=ID_BYTES))
def test_text_and_bytes_of_any_id(data: bytes) -> None:
    text = id_text(data)
    assert text == spell(data)
    assert len(text) == ID_CHARACTERS
    assert re.fullmatch(ID_PATTERN, text)
    assert id_bytes(text) == data


@randomized("Icechunk ids")
def test_many_texts_at_once(seed: int) -> None:
    choices = random.Random(seed)
    ids = EDGES + [choices.randbytes(ID_BYTES) for _ in range(1000)]
    for prefix in ("", "chunks/", "a", "x" * 100):
        expected = [prefix + spell(each) for each in ids]
        assert id_texts(rows(ids), prefix=prefix).to_pylist() == expected
        # Rows that are not contiguous, and no rows.
        assert id_texts(rows(ids)[::3], prefix=prefix).to_pylist() == expected[::3]
        found = id_texts(rows([]), prefix=prefix)
        assert (found.to_pylist(), str(found.type)) == ([], "string")


def test_new_ids_differ() -> None:
    made = {new_id_text() for _ in range(1000)}
    assert len(made) == 1000
    assert all(id_text(id_bytes(each)) == each for each in made)


def test_what_is_no_id_is_refused() -> None:
    for length in (0, 11, 13, 24):
        with pytest.raises(ValueError, match=f"not {length}"):
            id_text(bytes(length))
    wrong = ["", ROOT_ID[:-1], f"{ROOT_ID}0", ROOT_ID.lower(), f"{ROOT_ID[:-1]}\n"]
    for text in wrong + [each + ROOT_ID[1:] for each in " OILU-\u0661"]:
        with pytest.raises(ValueError, match="is not an id"):
            id_bytes(text)


def test_two_texts_never_mean_the_same_id() -> None:
    """Icechunk drops the four bits that are too many; two names of a file would be one id."""
    for last in ALPHABET:
        text = "0123456789ABCDEFGHJ" + last
        assert bool(re.fullmatch(ID_PATTERN, text)) == (last in "0G")
        if last in "0G":
            assert id_text(id_bytes(text)) == text
        else:
            with pytest.raises(ValueError, match="is not an id"):
                id_bytes(text)
