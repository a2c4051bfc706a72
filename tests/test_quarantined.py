"""What became of the data that a run took, from the record of its quarantine."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.errors import Failed, Gone, quarantine_fields
from ebbtide.quarantined import (
    UNREADABLE,
    Fate,
    closed_text,
    fate_of,
    record_address,
    told,
)
from ebbtide.storage import Storage, open_storage

NOW = datetime(2026, 3, 1, tzinfo=UTC)
RUN = "fff99f0000000000000000000000000a"
LATER = (NOW + timedelta(days=7)).isoformat()
EARLIER = (NOW - timedelta(days=1)).isoformat()
COMMAND = f"ebbtide gc undo lake {RUN}"
HELD: dict[str, object] = {"state": "held", "until": LATER}
PURGED_IN_PART = {"state": "purged", "until": LATER, "back_at": EARLIER}


def fate(tmp_path: Path, content: object, run_state: str | None = "swept") -> Fate:
    storage = open_storage(str(tmp_path))
    if content is not None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        storage.put(record_address(RUN), data)
    return fate_of(storage, RUN, repository="lake", run_state=run_state, now=NOW)


@pytest.mark.parametrize(
    ("content", "run_state", "state", "words"),
    [
        (HELD, "swept", "quarantined", "quarantined its data until"),
        (HELD, "sweeping", "quarantined", "has not finished"),
        (HELD | {"until": EARLIER}, "swept", "quarantined", "by the next run since 2026"),
        (HELD | {"back_at": EARLIER}, "swept", "quarantined", "of which a part is restored"),
        (HELD | {"state": "undone"}, "undone", "undone", "the undo of the run did not"),
        (None, "undone", "undone", "the undo of the run did not"),
        (HELD | {"state": "purged"}, "incomplete", "deleted", "deleted its data"),
        (PURGED_IN_PART, "swept", "deleted", "except what an undo had restored"),
        (None, "swept", "deleted", "deleted its data"),
        (None, None, "deleted", "deleted its data"),
        (None, "sweeping", "deleting", "has not finished deleting its data"),
        (None, "incomplete", "deleting", "has not finished deleting its data"),
        (None, UNREADABLE, "unknown", "cannot be read"),
    ],
)
def test_fates(
    tmp_path: Path, content: object, run_state: str | None, state: str, words: str
) -> None:
    found = fate(tmp_path, content, run_state)
    assert found.state == state
    assert words in found.words
    assert (COMMAND in found.words) == (state == "quarantined")
    assert set(found.fields()) == (
        {"quarantined_until", "restore_command"} if state == "quarantined" else set()
    )
    assert found.fields().get("restore_command") in (None, COMMAND)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff", b"[" * 100_000, [], {}),
        HELD | {"state": "lost"},
        *(HELD | {"until": until} for until in (None, 7, "soon", "2026-03-08T00:00:00")),
        HELD | {"until": "9999-12-31T23:59:59-14:00"},
    ],
)
def test_a_damaged_record_says_neither(tmp_path: Path, content: object) -> None:
    found = fate(tmp_path, content)
    assert found.state == "unknown"
    assert "deleted" not in found.words
    assert found.fields() == {}


def test_a_storage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_storage: Storage, _address: str) -> bytes:
        raise Failed("storage_error", "no answer")

    storage = open_storage(str(tmp_path))
    monkeypatch.setattr(type(storage), "get", fails)
    found = fate_of(storage, RUN, repository="lake", run_state="swept", now=NOW)
    assert found.state == "unknown"


def test_an_error_is_completed_once(tmp_path: Path) -> None:
    found = fate(tmp_path, HELD)
    error = Gone("commit_expired", f"commit c has expired: {closed_text(RUN)}", run_id=RUN)
    for _ in range(2):
        told(error, found)
        assert str(error) == (
            f"commit c has expired: collector run {RUN} quarantined its data until "
            f"2026-03-08 00:00 UTC: '{COMMAND}' restores it"
        )
    assert quarantine_fields(error) == {
        "quarantined_until": "2026-03-08T00:00:00Z",
        "restore_command": COMMAND,
    }
