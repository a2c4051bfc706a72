"""A set of addresses is exact, whatever their keys are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ebbtide.purge import addresses
from ebbtide.purge.addresses import AddressSet


def few_keys(column: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Keys by the first letter: most addresses share theirs with others."""
    return np.array([ord(str(text)[0]) for text in column], np.int64)


@pytest.mark.parametrize("twins", [False, True])
def test_addresses_with_one_key_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, twins: bool
) -> None:
    monkeypatch.setattr(addresses, "keys_of", few_keys)
    inside = ["a1", "b1", *(["a2"] if twins else [])]
    found = AddressSet([pa.array(inside[:1]), pa.chunked_array([inside[1:]])])
    assert len(found) == len(inside)
    assert sorted(found) == sorted(inside)
    asked = ["a1", "a2", "a3", "b1", "b2", "c1"]
    assert found.matches(asked) == [each in inside for each in asked]
    assert found.has(pa.chunked_array([asked[:2], asked[2:]])).tolist() == found.matches(asked)


def test_a_set_of_none_has_none() -> None:
    found = AddressSet([])
    assert list(found) == []
    assert found.matches(["a"]) == [False]
