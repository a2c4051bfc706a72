"""`init`, `repo`, `branch`, `tag`, `hold`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ebbtide

LONG = "x" * 10_000


def test_init(ebbtide: Ebbtide, tmp_path: Path) -> None:
    made = ebbtide("init", tmp_path / "store", "--json").document
    assert made["store"] == str(tmp_path / "store")
    assert ebbtide("init", tmp_path / "store", "--json", code=1).error_kind == "store_exists"
    again = ebbtide("init", tmp_path / "store", "--upgrade", "--json").document
    assert again["store_id"] == made["store_id"]


def test_repositories(lake: Ebbtide, tmp_path: Path) -> None:
    made = lake(
        "repo", "create", "other", "--storage-url", tmp_path / "root", "--default-branch", "trunk"
    )
    assert "retention set other" in made.out
    listed = lake("repo", "list", "--json").document["repositories"]
    assert [found["name"] for found in listed] == ["lake", "other"]
    shown = lake("repo", "show", "other", "--json").document
    assert shown["default_branch"] == "trunk"
    assert shown["storage_url"] == f"file://{tmp_path}/root"
    assert (shown["branches"], shown["policy"]) == (1, None)


@pytest.mark.parametrize("name", ["", "../up", "UPPER", "a/b", "-x", LONG, "a\nb"])
def test_a_name_that_no_repository_may_have(lake: Ebbtide, name: str) -> None:
    found = lake("repo", "create", "--json", "--", name, code=2)
    assert found.error_kind == "invalid_name"
    assert len(found.err) < 500


def test_an_unknown_repository(lake: Ebbtide) -> None:
    for arguments in (
        ("repo", "show", "nothing"),
        ("branch", "list", "nothing"),
        ("log", "nothing", "main"),
        ("retention", "show", "nothing"),
        ("gc", "runs", "nothing"),
        ("gc", "plan", "nothing"),
    ):
        assert lake(*arguments, "--json", code=1).error_kind == "repository_not_found"


def test_a_name_that_is_taken(lake: Ebbtide) -> None:
    assert lake("repo", "create", "lake", "--json", code=1).error_kind == "repository_exists"


def test_adopt_asks(lake: Ebbtide, tmp_path: Path, typing: Callable[[str], None]) -> None:
    owner = tmp_path / "store" / "storage" / "lake" / "_ebbtide" / "OWNER"
    before = owner.read_bytes()
    assert lake("repo", "adopt", "lake", "--json", code=2).error_kind == "invalid_argument"
    assert owner.read_bytes() == before
    typing("n\n")
    assert "nothing was changed" in lake("repo", "adopt", "lake").err
    assert owner.read_bytes() == before
    typing("y\n")
    lake("repo", "adopt", "lake")
    assert owner.read_bytes() != before
    assert lake("repo", "adopt", "lake", "--yes", "--json").document["adopted"]


def test_branches(lake: Ebbtide, write: Callable[..., str]) -> None:
    commit_id = write(a="1")
    assert commit_id[:10] in lake("branch", "create", "lake", "dev").out
    lake("branch", "create", "lake", "old", "--source", "main~1")
    listed = lake("branch", "list", "lake", "--json").document["branches"]
    assert [(found["name"], found["state"]) for found in listed] == [
        ("dev", "persistent"),
        ("main", "persistent"),
        ("old", "persistent"),
    ]
    assert "branch restore lake dev" in lake("branch", "delete", "lake", "dev").out
    assert "dev" not in lake("branch", "list", "lake").out
    assert "trashed" in lake("branch", "list", "lake", "--include-expired").out
    lake("branch", "restore", "lake", "dev")
    assert "dev" in lake("branch", "list", "lake").out


def test_branches_that_cannot_be(lake: Ebbtide) -> None:
    cases = {
        ("create", "lake", LONG): (2, "invalid_name"),
        ("create", "lake", "a..b"): (2, "invalid_name"),
        ("create", "lake", "main"): (1, "branch_exists"),
        ("create", "lake", "dev", "--source", "nothing"): (1, "ref_not_found"),
        ("delete", "lake", "nothing"): (1, "branch_not_found"),
        ("delete", "lake", "main"): (1, "branch_protected"),
        ("restore", "lake", "nothing"): (1, "branch_not_found"),
    }
    for arguments, (code, kind) in cases.items():
        assert lake("branch", *arguments, "--json", code=code).error_kind == kind


def test_without_trash_a_delete_asks(lake: Ebbtide, typing: Callable[[str], None]) -> None:
    lake("promises", "--trash-time", "0s", "--yes")
    lake("branch", "create", "lake", "dev")
    lake("branch", "delete", "lake", "dev", code=2)
    typing("\n")
    lake("branch", "delete", "lake", "dev")
    assert "dev" in lake("branch", "list", "lake").out
    lake("branch", "delete", "lake", "dev", "--yes")
    assert "dev" not in lake("branch", "list", "lake", "--include-expired").out


def test_tags(lake: Ebbtide, write: Callable[..., str]) -> None:
    commit_id = write(a="1")
    lake("tag", "create", "lake", "v1", "main")
    write(a="2")
    listed = lake("tag", "list", "lake", "--json").document["tags"]
    assert [(found["name"], found["commit_id"]) for found in listed] == [("v1", commit_id)]
    assert lake("tag", "create", "lake", "v1", "main", "--json", code=1).error_kind == "tag_exists"
    lake("tag", "delete", "lake", "v1")
    assert "no tags" in lake("tag", "list", "lake").out
    lake("tag", "restore", "lake", "v1")
    assert lake("fs", "cat", "lake", "v1", "a").out == "1"


def test_holds(lake: Ebbtide, write: Callable[..., str]) -> None:
    commit_id = write(a="1")
    lake("hold", "add", "lake", "main", "--reason", "audit\x1b[2J of 2026")
    assert "\x1b" not in lake("hold", "list", "lake").out
    listed = lake("hold", "list", "lake", "--json").document["holds"]
    assert listed[0]["commit_id"] == commit_id
    lake("hold", "remove", "lake", commit_id[:8])
    assert "no holds" in lake("hold", "list", "lake").out
    assert lake("hold", "remove", "lake", "main", "--json", code=1).error_kind == "hold_not_found"
