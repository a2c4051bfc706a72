"""Which files of this machine the objects of a collection become."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.cli.local_files import files_below, save
from ebbtide.errors import InvalidInput
from ebbtide.text import shown
from tests.cli.conftest import Ebbtide, Write

LONGEST = "é" * 127 + "x"  # 255 bytes


def refused(directory: Path, *paths: str) -> InvalidInput:
    before = sorted(directory.rglob("*"))
    with pytest.raises(InvalidInput) as caught:
        files_below(directory, paths)
    assert caught.value.kind == "invalid_path"
    assert sorted(directory.rglob("*")) == before
    return caught.value


@pytest.mark.parametrize(
    ("paths", "wrong"),
    [
        (["dir", "dir/x"], ["dir/x"]),
        (["a/b/c/d", "a/b", "a"], ["a/b/c/d", "a/b"]),
        (["ok", LONGEST + "y"], [LONGEST + "y"]),
        (["ok", f"{LONGEST}y/in"], [f"{LONGEST}y/in"]),
        (["/".join(["x" * 200] * 21)], ["/".join(["x" * 200] * 21)]),
        (["/etc/x", "a/../../x", "..", "/"], ["/etc/x", "a/../../x", "..", "/"]),
        (["a\nb", "a\tb", "\x1b[1m", "ok"], ["a\nb", "a\tb", "\x1b[1m"]),
        (["there/is/a/directory"], ["there/is/a/directory"]),
        (["file/x", "file/y/z", "ok"], ["file/x", "file/y/z"]),
    ],
)
def test_paths_that_can_be_no_files_are_named(
    tmp_path: Path, paths: list[str], wrong: list[str]
) -> None:
    (tmp_path / "there/is/a/directory").mkdir(parents=True)
    (tmp_path / "file").write_text("here before")
    error = refused(tmp_path, *paths)
    assert error.details["paths"] == wrong
    for path in wrong[:3]:
        assert shown(path) in error.message


def test_not_all_of_many_are_named(tmp_path: Path) -> None:
    error = refused(tmp_path, *(f"{number}//x" for number in range(1_000)))
    assert "and 995 more" in error.message


def test_the_longest_names_are_written(tmp_path: Path) -> None:
    paths = [LONGEST, f"dir/{LONGEST}", "dir/x", "dirx", "dir-x"]
    targets = files_below(tmp_path, paths)
    assert targets == [tmp_path / path for path in paths]
    for target in targets:
        target.parent.mkdir(exist_ok=True)
        save([b"1", b"2"], target)
        assert target.read_bytes() == b"12"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == len(paths)


def test_what_is_written_on_the_way_has_no_other_files_name(tmp_path: Path) -> None:
    (tmp_path / "x.partial").write_text("here before")

    def breaking() -> Iterator[bytes]:
        yield b"1"
        raise OSError("no more")

    save([b"1"], tmp_path / "x")
    with pytest.raises(OSError, match="no more"):
        save(breaking(), tmp_path / "y")
    assert {path.name for path in tmp_path.iterdir()} == {"x.partial", "x"}
    assert (tmp_path / "x.partial").read_text() == "here before"


def test_nothing_is_written_of_a_collection_that_fits_no_directory(
    lake: Ebbtide, write: Write, tmp_path: Path
) -> None:
    write(**{"a": "1", "dir": "2", "dir/x": "3", LONGEST + "y": "4"})
    lake("project create lake p")
    lake("collection create lake p/c --from-ref main")
    place = tmp_path / "out"
    got = lake.refuses("invalid_path", "collection get lake p/c --to", place, code=2)
    message = got.document["error"]["message"]
    assert "'dir/x'" in message
    assert "255 bytes" in message
    assert not place.exists()
    lake("collection get lake p/c dir/x --to", place)
    assert place.read_text() == "3"
