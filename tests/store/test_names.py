"""Names and paths: what is allowed, and that messages say so and stay short."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.store.names import (
    check_metadata,
    check_path,
    check_ref_name,
    check_repository_name,
    check_text,
)


@pytest.mark.parametrize("name", ["abc", "a-1", "0" * 63])
def test_repository_names(name: str) -> None:
    check_repository_name(name)


@pytest.mark.parametrize("name", ["", "ab", "-abc", "Abc", "a_b", "a.b", "a" * 64, "abc\n", "ä-b"])
def test_bad_repository_names(name: str) -> None:
    _refused(check_repository_name, name, "invalid_name", "3 to 63")


@pytest.mark.parametrize(
    "name", ["main", "v1.0", "feature/x-1", "_", "a" * 255, "deadbeef", "A.lock.x", "f" * 31]
)
def test_ref_names(name: str) -> None:
    check_ref_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".a",
        "-a",
        "/a",
        "a..b",
        "a//b",
        "a/",
        "a.",
        "a.lock",
        "a" * 256,
        "a b",
        "a~1",
        "a^",
        "a@",
    ],
)
def test_bad_ref_names(name: str) -> None:
    _refused(check_ref_name, name, "invalid_name", "at most 255")


def test_a_ref_is_not_called_like_a_commit() -> None:
    _refused(check_ref_name, "0123456789abcdef" * 2, "invalid_name", "looks like the id")


@pytest.mark.parametrize(
    "path",
    [
        *("a", "a/b", "a//b", "a/", ".a", "..a", "a b", "ä/日本", "é" * 512, "\U0010ffff"),
        *("/a", "/", "//", ".", "..", "a/./b", "a/../b", "a/..", "a\nb", "a\tb", "a\x7f", "a\x85"),
    ],
)
def test_paths(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    "path",
    ["", "a\0", "\ud800", "x" * 1025],
)
def test_bad_paths(path: str) -> None:
    _refused(check_path, path, "invalid_path", "1 to 1024 bytes")


def test_metadata_and_texts() -> None:
    check_metadata({"key": "value"})
    _refused(check_metadata, {"key": 1}, "invalid_argument", "text to text")
    _refused(check_metadata, {"key": "x" * 20_000}, "invalid_argument", "at most 16384")
    _refused(
        lambda text: check_text("it", text, bytes_max=9), "a\0", "invalid_argument", "zero byte"
    )
    _refused(
        lambda text: check_text("it", text, bytes_max=9), "\ud800", "invalid_argument", "Unicode"
    )


def _refused(check: Callable[..., None], value: object, kind: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(value)
    assert caught.value.kind == kind
    assert says in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("name", ["ä", "a\n", "x" * 10**6])
def test_bad_characters_and_lengths(name: str) -> None:
    _refused(check_ref_name, name, "invalid_name", "at most 255")
    if len(name) > 2:
        _refused(check_path, name, "invalid_path", "1 to 1024 bytes")
