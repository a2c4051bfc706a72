"""Errors about names suggest the nearest ones that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.settings import unknown_variables
from tests.cli.conftest import Ebbtide, Write


def test_names(lake: Ebbtide, write: Write) -> None:
    write(a="1")
    lake("tag create lake v1.0 main")
    for line, near in {
        "fs ls lak main": "lake",
        "fs ls lake mian~1": "main",
        "branch delete lake mian": "main",
        "tag delete lake v1.1": "v1.0",
        "purge run lake --reason x --path mian:a --dry-run": "main",
    }.items():
        code = 2 if near == "lake" else 1
        error = lake.json(*line.split(), code=code)["error"]
        assert f"did you mean {near!r}?" in error["message"]
        assert error["kind"].endswith("_not_found")


def test_ids_and_far_names_are_not_guessed(lake: Ebbtide, write: Write) -> None:
    commit = write(a="1")
    lake("branch create lake", commit[:9] + "f")
    wrong = ("0" if commit[0] != "0" else "1") + commit[1:9]
    for name in (wrong, "something-else"):
        assert "did you mean" not in lake("fs ls lake", name, code=1).err
    lake("branch create lake gone")
    lake("branch delete lake gone")
    assert "did you mean" not in lake("fs ls lake gome", code=1).err


def test_a_misspelt_setting_is_an_error_and_one_that_is_none_a_warning(
    lake: Ebbtide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_XYZ", "1")
    found = lake("repo list --json")
    assert found.err == "warning: EBBTIDE_XYZ is set, but there is no such setting\n"
    monkeypatch.setenv("EBBTIDE_GRCE", "30d")
    found = lake.refuses("invalid_setting", "repo list", code=2)
    assert "did you mean 'EBBTIDE_GRACE'?" in found.err


def test_variables_of_other_programs_are_left_alone() -> None:
    others = ["EBBTIDE_PORT", "EBBTIDE_PORT_8000_TCP_ADDR", "EBBTIDE_SERVICE_HOST"]
    others += ["EBBTIDE_PYTHON", "EBBTIDE_TEST_DISK", "HOME", "_EBBTIDE_COMPLETE"]
    assert unknown_variables([*others, "EBBTIDE_STORE", "EBBTIDE_STOER"]) == ["EBBTIDE_STOER"]


def test_the_old_order_is_recognised(lake: Ebbtide, write: Write, tmp_path: Path) -> None:
    commit = write(a="1")
    file = tmp_path / "upload"
    told = lake("fs put lake main b", file, code=2).err
    assert f"ebbtide fs put REPO BRANCH {file} b" in told
    assert "comes first" not in lake("fs put lake main b c", code=2).err
    told = lake("revert lake main", commit, code=2).err
    assert f"ebbtide revert REPO {commit} main" in told
    told = lake("fs stage lake main b s3://b/key --size 1", code=2).err
    assert "ebbtide fs stage REPO BRANCH s3://b/key b" in told
