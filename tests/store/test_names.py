"""Names and paths: what is allowed, and that messages say so and stay short."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.store.names import (
    check_metadata,
    check_path,
    check_ref_name,
    check_repository_name,
    check_text,
)

Check = Callable[[str], None]

GOOD: Final[dict[Check, tuple[str, ...]]] = {
    check_repository_name: ("abc", "a-1", "0" * 63),
    check_ref_name: (
        *("main", "v1.0", "feature/x-1", "_", "a" * 255, "deadbeef", "A.lock.x", "f" * 31),
    ),
    check_path: (
        *("a", "a/b", "a//b", "a/", ".a", "..a", "a b", "ä/日本", "é" * 512, "\U0010ffff"),
        *("/a", "/", "//", ".", "..", "a/./b", "a/../b", "a/..", "a\nb", "a\tb", "a\x7f", "a\x85"),
    ),
}
BAD: Final[dict[tuple[Check, str, str], tuple[str, ...]]] = {
    (check_repository_name, "invalid_name", "3 to 63"): (
        *("", "ab", "-abc", "Abc", "a_b", "a.b", "a" * 64, "abc\n", "ä-b"),
    ),
    (check_ref_name, "invalid_name", "at most 255"): (
        *("", ".a", "-a", "/a", "a..b", "a//b", "a/", "a.", "a.lock", "a" * 256, "a b", "a~1"),
        *("a^", "a@", "ä", "a\n", "x" * 10**6),
    ),
    (check_ref_name, "invalid_name", "looks like the id"): ("0123456789abcdef" * 2,),
    (check_path, "invalid_path", "1 to 1024 bytes"): (
        *("", "a\0", "\ud800", "x" * 1025, "x" * 10**6),
    ),
}


def test_good_names() -> None:
    for check, names in GOOD.items():
        for name in names:
            check(name)


def test_bad_names() -> None:
    for (check, kind, says), names in BAD.items():
        for name in names:
            _refused(check, name, kind, says)


def test_metadata_and_texts() -> None:
    check_metadata({"key": "value"})
    _refused(check_metadata, {"key": 1}, "invalid_argument", "text to text")
    _refused(check_metadata, {"key": "x" * 20_000}, "invalid_argument", "at most 16384")
    text = partial(check_text, "it", bytes_max=9)
    _refused(text, "a\0", "invalid_argument", "zero byte")
    _refused(text, "\ud800", "invalid_argument", "Unicode")


def _refused(check: Callable[..., None], value: object, kind: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(value)
    assert caught.value.kind == kind, value
    assert says in caught.value.message
    assert len(caught.value.message) < 400
