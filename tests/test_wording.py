"""Numbers of things in messages."""

from __future__ import annotations

import pytest

from ebbtide.wording import counted


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("file",), "0 files"),
        (1, ("file",), "1 file"),
        (1234, ("file",), "1,234 files"),
        (1, ("copy", "copies"), "1 copy"),
        (2, ("copy", "copies"), "2 copies"),
        (1, ("file stays", "files stay"), "1 file stays"),
        (12, ("file stays", "files stay"), "12 files stay"),
    ],
)
def test_one_and_several(count: int, words: tuple[str, ...], text: str) -> None:
    assert counted(count, *words) == text
