"""Dates, the trash and what comes back from it, on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Ebbtide, Terminal


def commands(kind: str) -> tuple[list[str], list[str]]:
    """What stands between the command and a name, and behind it when one is made."""
    place = [] if kind == "repo" else ["lake"]
    return place, ["main"] if kind == "tag" else []


@pytest.mark.parametrize("kind", ["branch", "tag", "repo"])
def test_life(lake: Ebbtide, kind: str) -> None:
    place, behind = commands(kind)
    before = datetime.now(UTC)
    made = lake.json(kind, "create", *place, "dev", *behind, "--expires-in", "3d")
    expires_at = datetime.fromisoformat(made["expires_at"])
    assert timedelta() <= expires_at - before - timedelta(days=3) < timedelta(minutes=1)
    assert made["state"] == "expiring"
    date = "2126-01-01T00:00:00Z"
    changed = lake(kind, "expire", *place, "dev", "--at", date)
    assert "goes to the trash at 2126-01-01 00:00 UTC" in changed.out
    forever = lake.json(kind, "expire", *place, "dev", "--never")
    assert (forever["expires_at"], forever["state"]) == (None, "persistent")
    trashed = lake.json(kind, "expire", *place, "dev", "--in", "0s")
    assert trashed["state"] == "trashed"
    lake(kind, "expire", *place, "dev", "--in", "1d")
    deleted = lake.json(kind, "delete", *place, "dev")
    thing = deleted.get("ref_id") or deleted["repository_id"]
    assert thing not in lake(kind, "list", *place).out
    listed = lake(kind, "list", *place, "--include-expired").out
    assert thing in listed
    assert "trashed" in listed
    root = ["--storage-url", "memory:other"] if kind == "repo" else []
    lake(kind, "create", *place, "dev", *behind, *root)
    taken = lake(kind, "restore", *place, "dev", "--json", code=1)
    assert taken.error_kind.endswith("_exists")
    back = lake.json(kind, "restore", *place, thing, "--ensure-unique-name")
    assert (back["name"], back["state"]) == ("dev-2", "persistent")
    for name in ("dev", "dev-2"):
        lake(kind, "delete", *place, name)
    lake(kind, "create", *place, "dev", *behind, *(["--storage-url", "memory:third"] * bool(root)))
    lake(kind, "delete", *place, "dev")
    lake.refuses("ref_ambiguous", kind, "restore", *place, "dev")
    lake(kind, "restore", *place, thing)


def test_dates_that_are_none(lake: Ebbtide) -> None:
    for options, error_kind in {
        "": "invalid_argument",
        "--in 1d --never": "invalid_argument",
        "--in 1d --at 2126-01-01T00:00:00Z": "invalid_argument",
        "--in 3": "invalid_duration",
        "--at 2126-01-01T12:00:00": "invalid_date",
        "--at 9999-12-31T23:59:59-12:00": "invalid_date",
    }.items():
        lake.refuses(error_kind, "branch expire lake main", *options.split(), code=2)
    both = ["--expires-in", "1d", "--expires-at", "2126-01-01T00:00:00Z"]
    lake("branch create lake dev", *both, code=2)


def test_who_reads_what_expires_is_told(
    lake: Ebbtide, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal alone, and not where programs read."""
    write(a="1")
    lake("branch create lake dev --expires-at 2126-01-01T00:00:00Z")
    lake("tag create lake v1 main --expires-at 2126-01-01T00:00:00Z")

    def told_at_terminal(command: str) -> str:
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            lake(command)
        return terminal.getvalue()

    told = {"dev": "branch dev", "dev~0": "branch dev", "v1": "tag v1"}
    for command in (
        "fs cat lake REF a",
        "fs get lake REF a -",
        "fs ls lake REF",
        "fs stat lake REF a",
        "log lake REF",
        "diff lake main REF",
    ):
        for ref, what in told.items():
            said = told_at_terminal(command.replace("REF", ref))
            assert f"warning: {what} goes to the trash at 2126-01-01 00:00 UTC" in said, command
            assert said.count("goes to the trash") == 1
        assert "goes to the trash" not in told_at_terminal(command.replace("REF", "main"))
    assert lake("fs cat lake dev a").err == told_at_terminal("fs stat lake dev a --json") == ""


def test_a_repository_from_the_trash_to_its_end(
    lake: Ebbtide,
    write: Callable[..., str],
    tmp_path: Path,
    typing: Callable[[str], None],
) -> None:
    """In the trash everything is refused; once gone it is planned and swept; its record stays."""
    write(a="1")
    root = tmp_path / "store" / "storage" / "lake"
    deleted = lake.json("repo delete lake")
    thing = deleted["repository_id"]
    for command in ("repo show lake", "branch list lake", "gc plan lake", f"gc runs {thing}"):
        found = lake.refuses("repository_not_found", command, code=2)
        assert f"repo restore {thing}" in found.err
    assert lake("repo list --gone").out.startswith("no repositories")
    lake("repo restore lake")
    assert lake("fs cat lake main a").out == "1"
    lake("repo delete lake")

    lake("promises --trash-time 0s --lease-ttl 0s --yes")
    assert thing in lake("repo list --gone").out
    assert thing not in lake("repo list --include-expired").out
    plan = lake("gc plan", thing)
    assert "lake is gone: all files that Ebbtide wrote would be deleted" in plan.out
    typing("n\n")
    assert "the plan stays" in lake("gc sweep", thing).err
    assert (root / "_ebbtide" / "OWNER").exists()
    swept = lake.json("gc run lake --yes --quarantine none")
    assert (swept["state"], swept["run_path"], swept["mode"]) == ("swept", "", "removal")
    assert swept["deleted_count"] == swept["candidate_count"] > 0
    left = [path for path in root.rglob("*") if path.is_file()]
    assert left == [root / "_ebbtide" / "OWNER"], "it says that the repository ended"
    assert lake("repo list --gone").out.startswith("no repositories")
    for name in (thing, "lake"):
        assert lake.json("gc runs", name)["runs"] == [swept]
        assert lake.json("gc show", name, swept["run_id"]) == swept
        assert "swept" in lake("gc show", name, swept["run_id"]).out
    lake("repo create lake")
    assert lake("gc runs lake").out.startswith("no runs yet")
