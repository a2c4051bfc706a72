"""`purge`: what is asked before it, what it answers, and with which exit code it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.storage import LocalStorage, Retained
from tests.cli.conftest import Ebbtide

WHY = ("--reason", "a subject asked for it")


@pytest.fixture
def filled(lake: Ebbtide, tmp_path: Path) -> Ebbtide:
    for name in "ab":
        (tmp_path / name).write_text(name)
        lake("fs put lake main", tmp_path / name, name)
    lake("commit lake main -m", "two files")
    return lake


def files(tmp_path: Path) -> int:
    return sum(path.is_file() for path in (tmp_path / "store/storage/lake/data").rglob("*"))


def test_from_a_dry_run_to_a_verified_record(filled: Ebbtide, tmp_path: Path) -> None:
    run = ("purge", "run", "lake", "--path", "main:a", *WHY)
    planned = filled.json(*run, "--dry-run")
    assert planned["state"] == "planned"
    assert [each["paths"] for each in planned["objects"]] == [["a"]]
    assert files(tmp_path) == 2

    done = filled.json(*run, "--yes-i-mean", "lake")
    assert (done["state"], done["outcomes"]) == ("done", {"deleted": 1})
    assert {"user", "host"} == set(done["request"]["who"])
    assert files(tmp_path) == 1
    filled.refuses("purged", "fs get lake main a", tmp_path / "out")

    purge_id = done["purge_id"]
    listed = filled.json("purge list lake")["purges"]
    assert [each["purge_id"] for each in listed] == [purge_id, planned["purge_id"]]
    assert "a subject asked for it" in filled("purge list lake").out
    shown = filled("purge show", purge_id, "--objects")
    assert "deleted" in shown.out
    verified = filled.json("purge verify", purge_id)
    assert (verified["verified"], verified["address_count"]) == (True, 1)
    assert "all as the record says" in filled("purge verify", purge_id).out
    keys = filled.json("purge key")["keys"]
    assert keys[0]["public_key"] in filled("purge key").out
    record = Path(done["record_path"]) / "record-1.json"
    record.write_text(record.read_text().replace("a subject", "nobody"))
    assert "signature" in filled("purge verify", purge_id, code=1).out


def test_what_is_in_the_way_is_shown_and_ends_with_3(filled: Ebbtide, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("c")
    filled("fs put lake main", tmp_path / "c", "c")
    filled("commit lake main -m", "one more")
    refused = filled("purge run lake --path main:a", *WHY, "--yes-i-mean", "lake", "--json", code=3)
    assert refused.document["error"]["kind"] == "purge_in_use"
    assert refused.document["reference_counts"] == {"commit": 1}
    shown = filled("purge run lake --path main:a", *WHY, "--dry-run", code=3)
    assert "blocked by" in shown.out
    assert "Nothing was deleted" in shown.err
    assert files(tmp_path) == 3
    with_all = ("--all-history", "--yes-i-mean", "lake")
    filled("purge run lake --path main:a", *WHY, *with_all)
    assert files(tmp_path) == 2


def test_a_purge_that_was_planned_can_be_carried_out(filled: Ebbtide, tmp_path: Path) -> None:
    run = ("purge", "run", "lake", "--commit", "main", *WHY)
    purge_id = filled.json(*run, "--dry-run")["purge_id"]
    filled("purge resume", purge_id, code=2)
    filled("purge resume", purge_id, "--yes-i-mean", "lake")
    assert files(tmp_path) == 0
    filled.refuses("purge_ended", "purge resume", purge_id, "--yes-i-mean", "lake")


def test_without_the_name_nothing_goes(
    filled: Ebbtide, tmp_path: Path, typing: Callable[[str], None]
) -> None:
    run = ("purge", "run", "lake", "--path", "main:a", *WHY)
    for arguments in ((), ("--yes-i-mean", "lak"), ("--yes-i-mean", "")):
        assert "Nothing was changed" in filled(*run, *arguments, code=2).err
    filled(*run, "--yes", code=2)
    for typed, left in (("yes\n", 2), ("\n", 2), ("lake\n", 1)):
        typing(typed)
        assert "type lake to continue" in filled(*run).err
        assert files(tmp_path) == left


def test_nothing_named_and_no_reason(filled: Ebbtide) -> None:
    for options in (WHY, ("--path", "main:a"), ("--path", "main:a", "--reason", "  ")):
        filled("purge run lake", *options, code=2)


def test_versions_that_a_storage_keeps(
    filled: Ebbtide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Retained("versions", "the bucket keeps versions")
    monkeypatch.setattr(LocalStorage, "retained", lambda _self: kept)
    run = ("purge", "run", "lake", "--path", "main:a", *WHY)
    planned = filled(*run, "--dry-run")
    assert "versions      stay" in planned.out
    assert "warning: the storage keeps versions (the bucket keeps versions)" in planned.err
    document = filled.json(*run, "--dry-run")
    assert document["retained"]["state"] == "versions" and len(document["warnings"]) == 1
    assert not document["request"]["delete_versions"]

    done = filled(*run, "--delete-versions", "--yes-i-mean", "lake")
    assert "versions      deleted too" in done.out and "warning" not in done.err
    assert files(tmp_path) == 1
