"""Protected branches and hard resets on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ebbtide, Terminal, Write


def test_rules(lake: Ebbtide, write: Write, tmp_path: Path) -> None:
    write(a="a")
    for name in ("dev", *(f"r/{number}" for number in range(7))):
        lake("branch create lake", name)
    assert "no branch is protected" in lake("branch protected lake").out
    lake("branch protect lake main")
    made = lake.json("branch protect lake r/*")["rules"]
    assert [(each["pattern"], len(each["branches"])) for each in made] == [("main", 1), ("r/*", 7)]
    shown = lake("branch protected lake").out
    assert "r/0, r/1, r/2, r/3, r/4 and 2 more" in shown
    refused = lake("fs put lake main", tmp_path / "upload", "b", code=1)
    assert "cannot write to protected branch 'main'" in refused.err
    write(branch="dev", b="b")
    lake("merge lake dev main")
    assert lake("fs cat lake main b").out == "b"
    lake.refuses("protection_not_found", "branch unprotect lake r/0")
    left = lake.json("branch unprotect lake main")["rules"]
    assert [each["pattern"] for each in left] == ["r/*"]
    lake("fs put lake main", tmp_path / "upload", "c")


def test_hard_resets(
    lake: Ebbtide, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write(a="a"), write(b="b")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    lake("reset lake main --to main~1")
    assert lake.json("log lake main")["commits"][0]["commit_id"] == second
    moved = lake.json("reset lake main --to main~1 --yes")
    assert moved["commit_id"] == first
    lake("fs put lake main", tmp_path / "upload", "c")
    lake("reset lake main --to", second, "--force", "--yes")
    assert lake("fs ls lake main -r").out.count("\n") == 2
    lake.refuses("invalid_argument", "reset lake main --force --yes", code=2)
