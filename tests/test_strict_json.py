"""JSON that people write: each key stands once in an object."""

from __future__ import annotations

import json

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.strict_json import read_document


def read(text: str) -> object:
    return read_document(text, kind="invalid_policy", what="the file")


def test_values_are_those_of_pythons_reader() -> None:
    text = '{"a": {"b": 1, "c": [{"b": 2}, {"b": 2}]}, "d": null, "": "x"}'
    assert read(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"main": 1, "x": 2, "main": 1}',
        '[{"a": {"main": 1, "main": 2}}]',
        '{"m\\u0061in":1,"main":2}',
    ],
)
def test_a_key_that_stands_twice_is_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="the file has the key 'main' twice") as caught:
        read(text)
    assert caught.value.kind == "invalid_policy"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_what_is_no_json_is_said_to_be_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="the file is not JSON"):
        read(text)
