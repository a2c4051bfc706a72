"""`collection`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ebbtide, Write


@pytest.fixture
def p(lake: Ebbtide) -> Ebbtide:
    lake("project create lake p")
    return lake


def files_of(p: Ebbtide, collection: str, *options: str) -> list[str]:
    found = p.json("collection files lake", collection, "-r", *options)
    return [entry["path"] for entry in found["entries"]]


def test_files_of_this_machine(p: Ebbtide, tree: Path, tmp_path: Path) -> None:
    made = p("collection create lake p/c", tree, tree / "one", "--into", "in/", "--json")
    assert (made.document["file_count"], made.document["path"]) == (3, "p/c")
    assert files_of(p, "p/c") == ["in/big", "in/deep/two", "in/one"]
    assert "in/" in p("collection files lake p/c").out
    assert p("collection get lake p/c in/one").out == "1"
    got = p("collection get lake p/c in/deep/two --to", tmp_path / "two", "--json")
    assert (got.document["size_bytes"], (tmp_path / "two").read_text()) == (2, "22")
    got = p("collection get lake p/c in/ --to", tmp_path / "out", "--json")
    assert got.document["file_count"] == 3
    for file in ("one", "deep/two", "big"):
        assert (tmp_path / "out" / file).read_bytes() == (tree / file).read_bytes()
    assert not list((tmp_path / "out").rglob("*.partial"))
    for wrong in (
        "get lake p/c",
        "get lake p/c in/one",  # bytes are no document
        f"create lake p/d {tmp_path / 'no'}",
        "put lake p/c",
        "create lake p/d --from-version 1",
        f"create lake p/d --locators {tree / 'one'}",
    ):
        p.refuses("invalid_argument", f"collection {wrong}", code=2)
    p.refuses("object_not_found", "collection get lake p/c no")
    p.refuses("object_not_found", "collection get lake p/c no/ --to", tmp_path)
    assert "p/d" not in p("collection list lake p").out


def test_content_from_elsewhere(p: Ebbtide, write: Write, tmp_path: Path) -> None:
    """From a commit, a collection, locators, and all of them; equal content has one hash."""
    write(**{"a/x": "x", "a/y": "y", "b": "b"})
    part = ("--prefix", "a/", "--into", "n/")
    made = p.json("collection create lake p/c --from-ref main", *part)
    assert files_of(p, "p/c") == ["n/x", "n/y"]
    copied = p.json("collection create lake p/d --from-collection p/c")
    written = p("collection locators lake p/c").out
    (tmp_path / "locators").write_text(written)
    assert set(json.loads(written)["locators"]) == {"n/x", "n/y"}
    locators = ("--locators", tmp_path / "locators")
    located = p.json("collection create lake p/e", *locators)
    hashes = {each["content_hash"] for each in (made, copied, located)}
    assert len(hashes) == 1
    found = p.json("collection find-hash lake", hashes.pop())
    assert found["path"] in ("p/c", "p/d", "p/e")
    p("collection put lake p/e", *locators, "--into", "more/")
    assert files_of(p, "p/e") == ["more/n/x", "more/n/y", "n/x", "n/y"]
    changes = p.json("collection diff lake p/c p/e")["changes"]
    added = [("more/n/x", "added"), ("more/n/y", "added")]
    assert [(each["path"], each["kind"]) for each in changes] == added
    last = ("--prefix", "b", "--into", "b", "--replace")
    p("collection put lake p/e --from-ref main", *last)
    assert files_of(p, "p/e") == ["b"]


def test_versions(p: Ebbtide, tree: Path) -> None:
    p("collection create lake p/c", tree)
    p("collection rm lake p/c deep/ big --keep-version")
    p("collection put lake p/c", tree / "big", "--keep-version")
    assert files_of(p, "p/c") == ["big", "one"]
    assert files_of(p, "p/c", "--version", "1") == ["big", "deep/two", "one"]
    listed = p.json("collection versions lake p/c")["versions"]
    assert [each["version"] for each in listed] == [2, 1]
    assert p("collection get lake p/c deep/two --version 1").out == "22"
    differ = p("collection diff lake p/c p/c --version 1")
    assert differ.out == "- deep/two  (2 B)\n"
    p.refuses("invalid_argument", "collection drop-version lake p/c 1", code=2)
    p("collection drop-version lake p/c 1 --yes")


def test_the_trash(p: Ebbtide) -> None:
    """Tables tell states apart, and have ids where names are not enough."""
    p("collection create lake p/c")
    p("collection create lake p/soon --expires-in 2h")
    deleted = p("collection delete lake p/c")
    (trashed,) = p.json("collection list lake p --state trashed")["collections"]
    assert f"ebbtide collection restore lake {trashed['collection_id']}" in deleted.out
    assert "trashed" not in p("collection list lake p").out
    shown = p("collection list lake p --include-expired").out
    assert {"expiring", "trashed", trashed["collection_id"]} <= set(shown.split())
    p("collection create lake p/c")
    p.refuses("collection_exists", "collection restore lake", trashed["collection_id"])
    for more in ((), ("--ensure-unique-name",)):
        live = p.refuses("collection_exists", "collection restore lake p/c", *more)
        assert "nothing was restored" in live.document["error"]["message"]
    back = p("collection restore lake", trashed["collection_id"], "--ensure-unique-name")
    assert "p/c (2) is restored" in back.out


def test_changes(p: Ebbtide, tree: Path) -> None:
    p("project create lake q")
    p("collection create lake p/c", tree, "--property", "a=1")
    more = ("--property", "b=2", "--unset-property", "a", "--description", "text")
    changed = p.json("collection update lake p/c --name d --project q", *more)
    assert (changed["path"], changed["properties"]) == ("q/d", {"b": "2"})
    let_go = p("collection update lake q/d --replication-desired 0")
    assert "can delete its data for good" in let_go.err
    assert "not kept" in p("collection show lake q/d").out
    p.refuses("data_released", "collection get lake q/d one")
    p("collection update lake q/d --replication-desired 1")
    assert p("collection get lake q/d one").out == "1"


def test_what_ends_is_said_at_a_terminal(
    p: Ebbtide, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To people alone, and on stderr."""
    p("collection create lake p/c", tree / "one")
    p("project update lake p --expires-in 3d")
    reading = ("show lake p/c", "files lake p/c", "get lake p/c one")
    for command in reading:
        assert "warning" not in p(f"collection {command}").err
    monkeypatch.setattr("ebbtide.cli.lifecycle.at_terminal", lambda: True)
    for command in reading:
        told = p(f"collection {command}")
        assert "goes to the trash at" in told.err
        assert "in 2 days" in told.err
        assert "warning" not in told.out
    assert p("collection show lake p/c --json").err == ""
    p("project update lake p --never")
    assert p("collection show lake p/c").err == ""
