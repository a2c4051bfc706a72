"""`explain`: what people and programs get to see."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.cli.conftest import AT_ONCE, Ebbtide, Write
from tests.formats.icechunk.test_explaining import commit
from tests.support.icechunk import SPEC_VERSIONS, create_repository


def test_what_a_branch_shows(lake: Ebbtide, write: Write) -> None:
    head = write(a="1")
    found = lake.json("explain lake main a")
    assert (found["what"], found["state"], found["keeper_count"]) == ("address", "kept", 1)
    keeper = found["keepers"][0]
    assert (keeper["commit_id"], keeper["refs"]) == (head, ["branch main"])
    assert lake.json("explain lake", found["address"]) == found
    shown = lake("explain lake main a").out
    assert f"commit {head[:10]}" in shown
    assert "never collectable while nothing changes: head of branch main" in shown

    by_ref = lake.json("explain lake main")
    assert (by_ref["what"], by_ref["commit_id"], by_ref["state"]) == ("commit", head, "kept")
    assert lake.json("explain lake", head[:8]) == by_ref
    assert "head of branch main" in lake("explain lake", head).out
    lake("fs cp lake main a staged")
    assert "branch main, path staged" in lake("explain lake main staged").out


def test_before_and_after_a_run(lake: Ebbtide, expired: str) -> None:
    before = lake.json("explain lake", expired, "a", "--grace", "1s")
    assert (before["state"], before["past_holder_count"]) == ("unneeded", 1)
    shown = lake("explain lake", expired, "a").out
    assert "nothing keeps it" in shown
    assert "collectable from" in shown

    run_id = lake.json("gc run lake", *AT_ONCE)["run_id"]

    after = lake.json("explain lake", before["address"])
    assert (after["state"], after["went"]["run_id"]) == ("gone", run_id)
    shown = lake("explain lake", expired, "a").out
    assert f"run {run_id} deleted it" in shown
    assert "keep_last 1" in shown
    assert f"by run {run_id}" in lake("explain lake", expired).out


def test_what_is_not_there(lake: Ebbtide) -> None:
    for arguments, code, kind in (
        (("lake", "nobody"), 1, "ref_not_found"),
        (("lake", "main", "nothing"), 1, "object_not_found"),
        (("lake", "data/" + "0" * 32 + "/" + "1" * 32), 1, "object_not_found"),
        (("lake", "main", "x" * 1025), 2, "invalid_path"),
    ):
        lake.refuses(kind, "explain", *arguments, code=code)


def test_an_icechunk_repository(ebbtide: Ebbtide, tmp_path: Path) -> None:
    head = commit(create_repository(tmp_path / "ice", SPEC_VERSIONS[-1]), "main", "a")
    where = f"icechunk:{tmp_path / 'ice'}"
    chunk = next((tmp_path / "ice" / "chunks").iterdir()).name
    found = ebbtide.json("explain", where, f"chunks/{chunk}")
    assert (found["kind"], found["state"]) == ("chunk", "kept")
    assert found["keepers"][0]["commit_id"] == head
    assert "head of branch main" in ebbtide("explain", where, head).out
    ebbtide.refuses("invalid_argument", "explain", where, "main", "a", code=2)


def test_the_versions_of_a_delta_table(lake: Ebbtide, tmp_path: Path) -> None:
    """With the rule that keeps each, or the date since when none does; also when the file is
    gone."""
    path = tmp_path / "orders"
    for number in range(3):
        write_deltalake(str(path), pa.table({"id": [number]}), mode="overwrite")
    file = DeltaTable(str(path), version=0).file_uris()[0].rpartition("/")[2]
    versions = "version 0 needs it; version 1 (WRITE) does not; the policy keeps"
    shown = lake(f"explain delta:{path}", file).out
    assert f"{versions} 0 (on branch table, created " in shown
    lake(f"retention set delta:{path} --default keep_last:2")
    assert f"{versions} none of them" in lake(f"explain delta:{path}", file).out
    assert "the policy has not kept it since" in lake(f"explain delta:{path} 0").out
    found = lake.json(f"explain delta:{path} 0")
    assert len(found["history"]) == 1
    lake(f"gc run delta:{path} --yes --grace 0s --unsafe")
    gone = lake(f"explain delta:{path}", file).out
    assert "quarantined it" in gone
    assert "the policy has not kept any of them since" in gone
