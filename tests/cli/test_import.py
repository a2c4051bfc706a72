"""`import`: objects of a directory become paths of a branch, and stay where they are."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Ebbtide


def test_a_directory_and_a_file(lake: Ebbtide, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("f")
    lake("fs put lake main", tmp_path / "file", "in/old")
    lake("commit lake main -m first")
    done = lake("import lake main", f"{tree}/", "in", "-m", "data", "--meta", "a=b", "--json")
    assert (done.document["object_count"], done.document["message"]) == (3, "data")
    assert done.document["metadata"] == {"a": "b"}
    text = lake("import lake main", tmp_path / "file", "single").out
    assert text.startswith("imported 1 object: main is at commit ")
    entries = lake.json("fs ls lake main -r")["entries"]
    assert [entry["path"] for entry in entries] == ["in/big", "in/deep/two", "in/one", "single"]
    assert lake("fs cat lake main in/deep/two").out == "22"
    stat = lake.json("fs stat lake main in/one")
    assert stat["address"] == (tree / "one").as_uri()


def test_what_cannot_be_imported(lake: Ebbtide, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    importing = ("import", "lake", "main")
    lake.refuses("object_not_found", *importing, f"{tree}/", "in")
    assert "end it in a slash" in lake(*importing, tree, "in", code=1).err
    for place in (tmp_path, tmp_path / "store"):
        lake.refuses("invalid_address", *importing, f"{place}/", "in", code=2)
