"""`init`, `repo`, `branch`, `tag`, `hold`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ebbtide


def test_repositories(lake: Ebbtide, tmp_path: Path) -> None:
    made = lake("repo create other --storage-url", tmp_path / "root", "--default-branch", "trunk")
    assert "retention set other" in made.out
    listed = lake.json("repo list")["repositories"]
    assert [found["name"] for found in listed] == ["lake", "other"]
    shown = lake.json("repo show other")
    assert shown["default_branch"] == "trunk"
    assert shown["storage_url"] == f"file://{tmp_path}/root"
    assert (shown["branches"], shown["policy"]) == (1, None)


def test_adopt_asks(lake: Ebbtide, tmp_path: Path, typing: Callable[[str], None]) -> None:
    owner = tmp_path / "store" / "storage" / "lake" / "_ebbtide" / "OWNER"
    before = owner.read_bytes()
    lake.refuses("invalid_argument", "repo adopt lake", code=2)
    assert owner.read_bytes() == before
    typing("n\n")
    assert "nothing was changed" in lake("repo adopt lake").err
    assert owner.read_bytes() == before
    typing("y\n")
    lake("repo adopt lake")
    assert owner.read_bytes() != before
    assert lake.json("repo adopt lake --yes")["adopted"]


def test_branches_and_tags(lake: Ebbtide, write: Callable[..., str]) -> None:
    """Tags stay on their commit."""
    commit_id = write(a="1")
    assert commit_id[:10] in lake("branch create lake dev").out
    lake("branch create lake old --source main~1")
    listed = lake.json("branch list lake")["branches"]
    assert [each["name"] for each in listed] == ["dev", "main", "old"]
    assert {each["state"] for each in listed} == {"persistent"}
    lake("tag create lake v1 main")
    write(a="2")
    (tag,) = lake.json("tag list lake")["tags"]
    assert (tag["name"], tag["commit_id"]) == ("v1", commit_id)


def test_without_trash_a_delete_asks(lake: Ebbtide, typing: Callable[[str], None]) -> None:
    lake("promises --trash-time 0s --yes")
    lake("branch create lake dev")
    lake("branch delete lake dev", code=2)
    lake("project create lake p")
    lake("project delete lake p", code=2)
    lake("project delete lake p --yes")
    assert lake.json("project list lake --include-expired")["projects"] == []
    typing("\n")
    lake("branch delete lake dev")
    assert "dev" in lake("branch list lake").out
    lake("branch delete lake dev --yes")
    assert "dev" not in lake("branch list lake --include-expired").out


def test_holds(lake: Ebbtide, write: Callable[..., str]) -> None:
    commit_id = write(a="1")
    lake("hold add lake main --reason", "audit\x1b[2J of 2026")
    assert "\x1b" not in lake("hold list lake").out
    listed = lake.json("hold list lake")["holds"]
    assert listed[0]["commit_id"] == commit_id
    lake("hold remove lake", commit_id[:8])
    assert "no holds" in lake("hold list lake").out
    lake.refuses("hold_not_found", "hold remove lake main")
