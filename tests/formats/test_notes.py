"""Notes beside a repository that are not as they were written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.errors import Refused
from ebbtide.formats.notes import HOLDS_ADDRESS, read_holds, write_holds
from ebbtide.storage import open_storage

NOW = datetime(2026, 11, 3, 12, tzinfo=UTC)
DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'"a"',
        DEEP,
        b'{"a": 1}',
        b'{"a": "soon"}',
        b'{"a": "2026-11-03T12:00:00"}',
    ],
)
def test_damaged_holds(tmp_path: Path, data: bytes) -> None:
    """Which commits are held is then unknown. A date without a zone is no instant."""
    storage = open_storage(str(tmp_path))
    storage.put(HOLDS_ADDRESS, data)
    for act in (
        lambda: read_holds(storage, NOW),
        lambda: write_holds(storage, ["b"], until=NOW, now=NOW),
    ):
        with pytest.raises(Refused, match=HOLDS_ADDRESS) as refused:
            act()
        assert refused.value.kind == "plan_corrupt"


def test_holds_that_have_ended(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    for name, days in (("a", 1), ("b", 2)):
        write_holds(storage, [name], until=NOW + timedelta(days=days), now=NOW)
    assert read_holds(storage, NOW + timedelta(days=1)) == {"b": NOW + timedelta(days=2)}
