"""Protected branches and hard resets on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ebbtide, Terminal


def save(lake: Ebbtide, file: Path, path: str, branch: str = "main") -> str:
    file.write_text(path)
    lake("fs", "put", "lake", branch, file, path)
    return str(lake("commit", "lake", branch, "-m", path, "--json").document["commit_id"])


def test_rules(lake: Ebbtide, tmp_path: Path) -> None:
    save(lake, tmp_path / "file", "a")
    for name in ("dev", *(f"r/{number}" for number in range(7))):
        lake("branch", "create", "lake", name)
    assert "no branch is protected" in lake("branch", "protected", "lake").out
    lake("branch", "protect", "lake", "main")
    made = lake("branch", "protect", "lake", "r/*", "--json").document["rules"]
    assert [(each["pattern"], len(each["branches"])) for each in made] == [("main", 1), ("r/*", 7)]
    shown = lake("branch", "protected", "lake").out
    assert "r/0, r/1, r/2, r/3, r/4 and 2 more" in shown
    refused = lake("fs", "put", "lake", "main", tmp_path / "file", "b", code=1)
    assert "cannot write to protected branch 'main'" in refused.err
    for words in (["commit", "lake", "main", "-m", "m"], ["reset", "lake", "main", "--yes"]):
        assert lake(*words, "--json", code=1).error_kind == "write_protected"
    save(lake, tmp_path / "file", "b", "dev")
    lake("merge", "lake", "dev", "main")
    assert lake("fs", "cat", "lake", "main", "b").out == "b"
    gone = lake("branch", "unprotect", "lake", "r/0", "--json", code=1)
    assert gone.error_kind == "protection_not_found"
    left = lake("branch", "unprotect", "lake", "main", "--json").document["rules"]
    assert [each["pattern"] for each in left] == ["r/*"]
    lake("fs", "put", "lake", "main", tmp_path / "file", "c")


def test_hard_resets(lake: Ebbtide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save(lake, tmp_path / "file", "a")
    second = save(lake, tmp_path / "file", "b")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    lake("reset", "lake", "main", "--to", "main~1")
    assert lake("log", "lake", "main", "--json").document["commits"][0]["commit_id"] == second
    moved = lake("reset", "lake", "main", "--to", "main~1", "--yes", "--json").document
    assert moved["commit_id"] == first
    lake("fs", "put", "lake", "main", tmp_path / "file", "c")
    dirty = lake("reset", "lake", "main", "--to", second, "--yes", "--json", code=1)
    assert dirty.error_kind == "branch_dirty"
    lake("reset", "lake", "main", "--to", second, "--force", "--yes")
    assert lake("fs", "ls", "lake", "main", "-r").out.count("\n") == 2
    for words in (["--to", first, "--path", "a"], ["--force"]):
        wrong = lake("reset", "lake", "main", *words, "--yes", "--json", code=2)
        assert wrong.error_kind == "invalid_argument"
