"""Values as people read them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.gc import commits_text
from ebbtide.text import age_text, count_text, one_line, short_id, size_text


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("file",), "0 files"),
        (1, ("file",), "1 file"),
        (1, ("copy", "copies"), "1 copy"),
        (1234, ("copy", "copies"), "1,234 copies"),
        (1_234_567, (), "1,234,567"),
    ],
)
def test_one_and_several(count: int, words: tuple[str, ...], text: str) -> None:
    assert count_text(count, *words) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**3 // 2, "2.5 GiB"),
        (3000 * 1024**6, "3,000.0 EiB"),
    ],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(0), "now"),
        (timedelta(hours=-1), "in the future"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(hours=47), "1 day"),
        (timedelta(days=59), "59 days"),
        (timedelta(days=65), "2 months"),
        (timedelta(days=800), "2 years"),
    ],
)
def test_ages(age: timedelta, text: str) -> None:
    assert age_text(age) == text


def test_one_line() -> None:
    """Nothing that could move a terminal's cursor."""
    assert one_line("\n first\x1b[2J\nsecond") == "first\\x1b[2J"
    assert one_line("") == ""


@pytest.mark.parametrize(
    ("full_id", "text"),
    [
        (None, ""),
        ("fff99e888668288f0513938b20bd9ab7", "fff99e8886"),
        ("17:sales/orders", "17:sales/orders"),
        ("2515756522356914855:sales.orders", "2515756522356914855:sales.orders"),
        ("29J9E6GBWHV2C18MQ9T0", "29J9E6GBWHV2C18MQ9T0"),
        ("17:a\x1b[2J", "17:a\\x1b[2J"),
    ],
)
def test_ids(full_id: str | None, text: str) -> None:
    """Only long hexadecimal ids are told apart by their first digits."""
    assert short_id(full_id) == text


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((1, 1, 1), "1 commit kept, 1 expires next, 1 quarantined or gone"),
        ((1_000, 2, 0), "1,000 commits kept, 2 expire next"),
    ],
)
def test_counts_of_commits(counts: tuple[int, int, int], said: str) -> None:
    assert commits_text(*counts) == said
