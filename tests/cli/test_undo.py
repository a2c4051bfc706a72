"""`gc run --quarantine`, `gc undo`, `gc purge`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.cli.runs import _tell_undone
from tests.cli.conftest import AT_ONCE, SHORT, Ebbtide


def test_a_run_comes_back_as_it_was(lake: Ebbtide, expired: str) -> None:
    run = lake("gc run lake", *SHORT, "--yes", "--quarantine", "3d")
    assert "quarantined" in run.out
    assert "ebbtide gc undo lake" in run.out
    assert lake("fs cat lake", expired, "a", code=1).err
    (listed,) = lake.json("gc runs lake")["runs"]
    assert (listed["state"], listed["quarantined_count"]) == ("swept", 1)
    run_id = listed["run_id"]
    assert re.search(r"^quarantined +1 file, 3 B, until ", lake("gc show lake", run_id).out, re.M)
    undone = lake("gc undo lake", run_id).out
    assert "1 file (3 B) is restored" in undone
    assert "can be read again" in undone
    assert lake("fs cat lake", expired, "a").out == "old"
    assert "restored" in lake("gc show lake", run_id).out
    again = lake("gc undo lake", run_id, code=1)
    assert "was undone already" in again.err


def test_a_selection_and_the_end(lake: Ebbtide, expired: str) -> None:
    lake("gc run lake", *SHORT, "--yes", "--quarantine", "3d")
    run_id = lake.json("gc runs lake")["runs"][0]["run_id"]
    none = lake.json("gc undo lake", run_id, "--under", "data/none")
    assert (none["state"], none["quarantine"]["back_objects"]) == ("swept", 0)
    assert "1 file (3 B) stays in quarantine" in lake("gc undo lake", run_id, "--under", "x").out
    purged = lake("gc purge lake", run_id, "--yes")
    assert "has no files in quarantine any more" in purged.out
    assert lake("gc undo lake", run_id, code=1).err
    assert lake("fs cat lake", expired, "a", code=1).err


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (
            1,
            "1 file (3 B) is restored|1 commit can be read again|1 file (5 B) stays in quarantine|"
            "1 file was not restored, and commits that need it stay closed: a sweep had begun to "
            "delete it|"
            "1 file that the run quarantined does not exist any more|"
            "1 commit stays closed: files that it needs|"
            "1 file was not restored: an administrator purged it",
        ),
        (
            2,
            "2 files (3 B) are restored|2 commits can be read again|"
            "2 files (5 B) stay in quarantine|"
            "2 files were not restored, and commits that need them stay closed: a sweep had begun "
            "to delete them|"
            "2 files that the run quarantined do not exist any more|"
            "2 commits stay closed: files that they need|"
            "2 files were not restored: an administrator purged them",
        ),
    ],
)
def test_verbs_agree_with_what_is_counted(count: int, told: str) -> None:
    found = {f"{name}_objects": count for name in ("back", "at_risk", "lost", "purged")}
    found |= {"reopened_commits": count, "closed_commits": count, "objects": count}
    report: Any = SimpleNamespace(
        state="swept", quarantine=found | {"back_bytes": 3, "bytes": 5, "sweepers": "process 1"}
    )
    said: list[str] = []
    cli: Any = SimpleNamespace(output=SimpleNamespace(line=said.append, warn=said.append))
    _tell_undone(cli, report)
    for text, expected in zip(said, told.split("|"), strict=True):
        assert text.startswith(expected)


def test_how_long_files_stay(lake: Ebbtide, expired: str, typing: Callable[[str], None]) -> None:
    for period in ("7", "soon", "-1d"):
        assert lake("gc run lake", *SHORT, "--yes", "--quarantine", period, code=2).err
    assert lake.json("gc runs lake")["runs"] == []
    typing("y\n")
    run = lake("gc run lake", *SHORT)
    assert "in quarantine for 7d" in run.err
    assert "1 copy" in run.err
    lake("gc undo lake latest")
    assert lake("fs cat lake", expired, "a").out == "old"


@pytest.mark.usefixtures("expired")
def test_yes_has_a_week_too(lake: Ebbtide) -> None:
    done = lake.json("gc run lake", *SHORT, "--yes")
    assert (done["deleted_count"], done["quarantined_count"]) == (0, 1)
    until = datetime.fromisoformat(done["quarantine"]["until"])
    assert timedelta(days=6) < until - datetime.now(UTC) < timedelta(days=8)


@pytest.mark.usefixtures("expired")
def test_a_script_deletes_at_once(lake: Ebbtide) -> None:
    done = lake.json("gc run lake", *AT_ONCE)
    assert (done["deleted_count"], done["quarantine"]) == (1, None)
    missing = lake("gc undo lake", done["run_id"], code=1)
    assert "moved none there" in missing.err


def test_what_is_in_quarantine_is_not_called_deleted(lake: Ebbtide, expired: str) -> None:
    """An operator who reads "deleted" looks for a backup, and does not undo."""
    lake("gc run lake", *SHORT, "--yes", "--quarantine", "3d")
    run_id = lake.json("gc runs lake")["runs"][0]["run_id"]
    command = f"ebbtide gc undo lake {run_id}"

    def read() -> dict[str, str]:
        found = lake("branch create lake b --source", expired, "--json", code=1)
        error: dict[str, str] = found.document["error"]
        assert error["message"] in found.err
        return error

    error = read()
    assert error["kind"] == "commit_expired"
    assert "quarantined its data until 20" in error["message"] and command in error["message"]
    assert error["restore_command"] == command

    log = lake("log lake main")
    assert re.search(rf"^{expired[:10]} .* quarantined ", log.out, re.M)
    assert command in log.err
    logged = {each["commit_id"]: each for each in lake.json("log lake main")["commits"]}
    assert (logged[expired]["state"], logged[expired]["restore_command"]) == ("expired", command)
    why = lake("explain lake", expired)
    assert re.search(r"^quarantine +until 20", why.out, re.M) and command in why.out
    fate = lake.json("explain lake", expired)["fate"]
    assert (fate["state"], fate["restore_command"]) == ("quarantined", command)
    file = lake("explain lake", expired, "a").out
    assert f"run {run_id} quarantined it:" in file and command in file

    lake("gc undo lake", run_id, "--under", "data/none")
    assert command in read()["message"], "of the files that an undo left there"
    lake("gc purge lake", run_id, "--yes")
    error = read()
    assert error["message"].endswith(f"collector run {run_id} deleted its data")
    assert "restore_command" not in error
    assert "quarantined" not in lake("log lake main").out
    assert "the quarantine has ended: it is deleted" in lake("explain lake", expired, "a").out
