"""Names and messages that are printed move no cursor and forge no line."""

from __future__ import annotations

import pickle

import pytest

from ebbtide.errors import NotFound
from ebbtide.text import escaped, escaped_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 \\ 'x'", "plain é 日本 \\ 'x'"),
        ("\x1b[2J\r\0\x7f", "\\x1b[2J\\r\\x00\\x7f"),
        ("\x9b\x85", "\\x9b\\x85"),
        ("\u202egpj.exe\u2028", "\\u202egpj.exe\\u2028"),
        ("\udcff", "\\udcff"),
    ],
)
def test_what_is_no_plain_text_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == escaped_lines(text) == shown
    assert escaped(shown) == shown


def test_lines_stay_where_a_text_has_some() -> None:
    assert escaped("a\n\tb") == "a\\n\\tb"
    assert escaped_lines("a\n\tb\x1b") == "a\n\tb\\x1b"


def test_messages_of_errors_can_be_read() -> None:
    """However long a name in them is. A key of S3 stands whole."""
    key = "é" * 512
    message = f"there is no object at {key}, {'x' * 5_000} nor {'y' * 5_000}"
    error = NotFound("object_not_found", message)
    assert error.message == f"there is no object at {key}, {'x' * 100}… nor {'y' * 100}…"


def test_messages_of_errors_are_escaped() -> None:
    error = NotFound("object_not_found", "there is no object at a\x1b[2J\nb", address="a\x1b[2J\nb")
    assert error.message == str(error) == "there is no object at a\\x1b[2J\\nb"
    assert error.details == {"address": "a\x1b[2J\nb"}
    assert pickle.loads(pickle.dumps(error)).message == error.message
