"""`fs`, `commit`, `log`, `diff`, `merge`, `revert`, `reset`."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import BIG_BYTES, Ebbtide, Write


def test_an_object_comes_back_as_it_went(lake: Ebbtide, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "in").write_bytes(data)
    put = ("fs", "put", "lake", "main", tmp_path / "in", "a/b.bin")
    lake(*put, "--content-type", "x/y", "--meta", "who=me")
    lake("commit lake main -m first")
    got = lake.json("fs get lake main a/b.bin", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    assert (got["content_type"], got["metadata"]) == ("x/y", {"who": "me"})
    assert not (tmp_path / "out.partial").exists()
    stat = lake("fs stat lake main a/b.bin")
    assert "1.2 MiB (1,280,000 bytes)" in stat.out


def test_stdin_and_stdout(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"typed")))
    lake("fs put lake main - a")
    assert lake("fs cat lake main a").out == "typed"
    assert lake("fs get lake main a").out == "typed"
    for reading in ("cat lake main a", "get lake main a -"):  # bytes are no document
        lake.refuses("invalid_argument", f"fs {reading}", code=2)


def test_a_directory_tree(lake: Ebbtide, tree: Path) -> None:
    done = lake.json("fs put -r lake main", tree, "in/")
    assert (done["object_count"], done["bytes_total"]) == (3, 3 + BIG_BYTES)
    entries = lake.json("fs ls lake main -r")["entries"]
    assert [entry["path"] for entry in entries] == ["in/big", "in/deep/two", "in/one"]
    entries = lake.json("fs ls lake main in/")["entries"]
    assert [entry["path"] for entry in entries] == ["in/big", "in/deep/", "in/one"]
    assert [entry["kind"] for entry in entries] == ["object", "directory", "object"]
    assert lake("fs put -r lake main", tree / "one", "in", code=2).out == ""
    assert "add --recursive" in lake("fs put lake main", tree, "in", code=2).err


def test_what_is_not_there(lake: Ebbtide, tmp_path: Path) -> None:
    assert lake.refuses("object_not_found", "fs rm lake main a").err.startswith("error: ")
    assert lake("fs cat lake main a", code=1).err.startswith("error: ")
    missing = f"fs put lake main {tmp_path / 'nothing'} a"
    told = lake.refuses("invalid_argument", missing, code=2)
    assert "nothing: No such file" in told.err


def test_delete_and_copy(lake: Ebbtide, write: Write) -> None:
    """A slash ends the name of a directory: no name that only begins so is deleted."""
    paths = ("data/r", "data/r/1", "data/r/s/2", "data/raw/3", "data/r.csv", "other")
    write(**dict.fromkeys(paths, "x"))

    def left() -> list[str]:
        return [line.split()[-1] for line in lake("fs ls -r lake main").out.splitlines()]

    done = lake.json("fs rm -r lake main data/r/")
    assert done["deleted_count"] == 2
    assert left() == ["data/r", "data/r.csv", "data/raw/3", "other"]
    write(**{"data/r/1": "x"})
    lake("fs rm -r lake main data/r")
    assert left() == ["data/r.csv", "data/raw/3", "other"]
    for nothing in ("data/ra", "data/r"):
        lake.refuses("object_not_found", "fs rm -r lake main", nothing)
    lake("fs rm lake main other")
    assert left() == ["data/r.csv", "data/raw/3"]
    lake("fs rm -r lake main", "")
    assert left() == []
    lake("fs cp lake main other back --from main~0")
    assert lake("fs cat lake main back").out == "x"


def test_upload_past_the_program(lake: Ebbtide) -> None:
    found = lake.json("fs address lake main a")
    link = ("fs", "link", "lake", "main", "a", found["token"])
    lake.refuses("object_not_found", *link)
    place = Path(found["url"].removeprefix("file://"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("sent")
    lake.refuses("checksum_mismatch", *link, "--size", "3", code=2)
    assert lake(*link, "--size", "4").out == "staged a on main (4 B)\n"
    assert lake("fs cat lake main a").out == "sent"

    shown = lake("fs address lake main b").out
    assert "upload to  file://" in shown
    assert "ebbtide fs link lake main b TOKEN" in shown


def test_stage_what_lies_elsewhere(lake: Ebbtide, tmp_path: Path) -> None:
    (tmp_path / "import").write_text("theirs")
    url = (tmp_path / "import").as_uri()
    staged = lake.json("fs stage lake main", url, "a", "--size", "6")
    assert staged["address"] == url
    assert lake("fs cat lake main a").out == "theirs"
    assert "never" in lake("fs stage --help").out


def test_log_diff_and_pages(lake: Ebbtide, write: Write) -> None:
    write("--date", "2026-01-01T00:00:00Z", "--committer", "me", "--meta", "k=v", a="1")
    second = write(a="22", b="3")
    records = lake.json("log lake main")["commits"]
    assert records[0]["commit_id"] == second
    assert records[1]["created_at"] == "2026-01-01T00:00:00Z"
    assert (records[1]["committer"], records[1]["metadata"]) == ("me", {"k": "v"})
    assert "more may follow" in lake("log lake main --limit 1").err
    changes = lake.json("diff lake main~1 main")["changes"]
    assert [(change["path"], change["kind"]) for change in changes] == [
        ("a", "changed"),
        ("b", "added"),
    ]
    assert "~ a  (1 B → 2 B)" in lake("diff lake main~1 main").out
    lake("fs rm lake main b")
    assert lake("diff lake main").out == "- b  (1 B)\n"
    first = lake.json("fs ls lake main~1 --limit 1")["entries"]
    rest = lake.json("fs ls lake main --after A")["entries"]
    assert [each["path"] for each in (*first, *rest)] == ["a", "a"]
    assert lake.json("fs ls lake main --after a")["entries"] == []


def test_a_date_that_no_commit_may_have(lake: Ebbtide) -> None:
    making = ("commit", "lake", "main", "-m", "x", "--allow-empty", "--date")
    for date, says in {
        "2026-01-01T00:00:00": "no time zone",
        "2999-01-01T00:00:00Z": "in the future",
        "1969-12-31T23:59:59Z": "before 1970-01-01",
        "9999-12-31T23:59:59-12:00": "years 1 to 9999",
    }.items():
        assert says in lake.refuses("invalid_date", *making, date, code=2).err


def test_merge_and_revert(lake: Ebbtide, write: Write) -> None:
    write(a="1")
    lake("branch create lake dev")
    write(branch="dev", a="dev")
    write(b="2")
    merged = lake.json("merge lake dev main")
    assert len(merged["parent_ids"]) == 2
    assert lake("fs cat lake main a").out == "dev"
    lake("revert lake main main --parent 1")
    assert lake("fs cat lake main a").out == "1"
    write(branch="dev", b="other")
    lake("merge lake dev main --strategy source-wins -m theirs")
    assert lake("fs cat lake main b").out == "other"


def test_reset_asks(lake: Ebbtide, tmp_path: Path, typing: Callable[[str], None]) -> None:
    (tmp_path / "in").write_text("1")
    for path in ("a", "d/b", "d/c"):
        lake("fs put lake main", tmp_path / "in", path)
    lake("reset lake main", code=2)
    typing("no\n")
    assert "drop 3 staged changes on main?" in lake("reset lake main").err
    assert lake("reset lake main --path a --prefix d", code=2).out == ""
    assert "1 staged change " in lake("reset lake main --path a --yes").out
    done = lake.json("reset lake main --prefix d/ --yes")
    assert done["dropped_count"] == 2
    assert lake("diff lake main").out == ""
