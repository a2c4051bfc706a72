"""`reclaim`, and `fs mv`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.store.embedded import Store
from tests.cli.conftest import Ebbtide


def objects(tmp_path: Path) -> int:
    return len(list(tmp_path.glob("store/storage/lake/data/*/*")))


def test_what_is_due_is_deleted(lake: Ebbtide, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("123")
    for _ in range(3):
        lake("fs put lake main", tmp_path / "in", "a")
    done = lake.json("reclaim --once")
    assert (done["deleted_count"], done["backlog_count"]) == (0, 2)
    assert "2 objects not due yet" in lake("reclaim --once").out
    assert objects(tmp_path) == 3
    lake("promises --lease-ttl 0s --yes")
    lake("reset lake main --yes")
    # What was released before keeps the lease that it was given.
    done = lake.json("reclaim --once")
    assert (done["deleted_count"], done["deleted_bytes"], done["backlog_count"]) == (1, 3, 2)
    assert objects(tmp_path) == 2


def test_it_goes_on_until_it_is_interrupted(
    lake: Ebbtide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("123")
    lake("promises --lease-ttl 0s --yes")
    lake("fs put lake main", tmp_path / "in", "a")
    waits: list[float] = []

    class Waiting:
        """Somebody else drops the object during the first wait, and ends the second."""

        def wait(self, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) > 1:
                raise KeyboardInterrupt
            with Store.open(tmp_path / "store") as store:
                store.repository("lake").commits.reset("main")

    monkeypatch.setattr("ebbtide.cli.reclaim.Event", Waiting)
    assert "deleted 1 object (3 B" in lake("reclaim").out
    assert waits == [2.0, 2.0]
    assert objects(tmp_path) == 0


def test_a_move(lake: Ebbtide, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("1")
    put = lake.json("fs put lake main", tmp_path / "in", "a")
    moved = lake.json("fs mv lake main a b")
    assert moved == put | {"path": "b"}
    assert lake("fs cat lake main b").out == "1"
    lake.refuses("object_not_found", "fs mv lake main a c")
    assert lake("fs mv lake main b b", code=2).err.startswith("error: ")
