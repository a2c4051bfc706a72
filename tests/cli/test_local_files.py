"""Files of directories that are uploaded: none is left out in silence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ebbtide.cli.local_files import Links, read_tree
from ebbtide.errors import InvalidInput
from tests.cli.conftest import Ebbtide


@pytest.fixture
def tree(tree: Path) -> Path:
    """A directory also with links to a file and to a directory."""
    (tree / "big").unlink()
    (tree / "link").symlink_to(tree / "one")
    (tree / "directory").symlink_to(tree / "deep")
    return tree


PUTS = (
    ["fs", "put", "-r", "lake", "main", "TREE", "in"],
    ["collection", "create", "lake", "p/c", "TREE"],
)
"""Commands that upload a directory, which stands for TREE."""


@pytest.fixture(params=PUTS, ids=["fs put", "collection create"])
def words(request: pytest.FixtureRequest, lake: Ebbtide) -> list[str]:
    lake("project create lake p")
    words: list[str] = request.param
    return words


def of(words: list[str], tree: Path) -> list[str]:
    return [str(tree) if word == "TREE" else word for word in words]


def staged(lake: Ebbtide) -> list[str]:
    entries = lake.json("fs ls lake main -r")["entries"]
    return [entry["path"] for entry in entries]


def test_links_are_refused_by_name_or_counted(lake: Ebbtide, words: list[str], tree: Path) -> None:
    message = lake(*of(words, tree), code=2).err
    assert str(tree) in message
    assert "is a symbolic link: --links follow" in message
    assert staged(lake) == []
    assert lake.json("collection list lake p")["collections"] == []
    for number, (how, told) in enumerate((("follow", "followed"), ("skip", "skipped"))):
        named = [word.replace("p/c", f"p/{number}") for word in of(words, tree)]
        result = lake(*named, "--links", how)
        assert f"2 symbolic links {told}" in result.out + result.err


def test_what_links_lead_to_is_stored_as_a_copy_or_left_out(lake: Ebbtide, tree: Path) -> None:
    lake(*of(PUTS[0], tree), "--links", "skip")
    assert staged(lake) == ["in/deep/two", "in/one"]
    lake(*of(PUTS[0], tree), "--links", "follow")
    assert staged(lake) == ["in/deep/two", "in/directory/two", "in/link", "in/one"]
    (tree / "one").write_text("other")
    assert lake("fs cat lake main in/link").out == "1"


def test_what_cannot_be_read_stops_all_before_the_first_byte(
    lake: Ebbtide, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may read everything runs this test, too."""
    for place, name, lost in ((os, "scandir", "deep"), (Path, "open", "two")):
        call: Any = getattr(place, name)

        def refusing(path: Path, *given: Any, call: Any = call, lost: str = lost) -> Any:
            if Path(path).name == lost:
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, *given)

        with monkeypatch.context() as patched:
            patched.setattr(place, name, refusing)
            message = lake(*of(PUTS[0], tree), "--links", "skip", code=1).err
        assert f"{lost}: Permission denied" in message
        assert "defect" not in message
        assert staged(lake) == []


def test_what_can_be_no_file_is_named(tree: Path) -> None:
    (tree / "nowhere").symlink_to(tree / "missing")
    with pytest.raises(InvalidInput, match="nowhere is a broken link"):
        read_tree([tree], into="", links=Links.FOLLOW)
    (tree / "nowhere").unlink()
    (tree / "deep" / "around").symlink_to(tree)
    with pytest.raises(InvalidInput, match="around leads to a directory around it"):
        read_tree([tree], into="", links=Links.FOLLOW)
    assert read_tree([tree], into="", links=Links.SKIP).links_skipped == 3
    os.mkfifo(tree / "pipe")
    with pytest.raises(InvalidInput, match="pipe is neither a file nor a directory"):
        read_tree([tree], into="", links=Links.SKIP)


def test_a_named_link_is_followed(tree: Path) -> None:
    found = read_tree([tree / "link", tree / "directory"], into="x/", links=Links.REFUSE)
    assert found.files == [("x/link", tree / "link"), ("x/two", tree / "directory" / "two")]
    assert (found.links_followed, found.links_skipped) == (0, 0)


def test_a_tree_may_be_deeper_than_python_recurses(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(1_200):
        deep /= "d"
        deep.mkdir()
    (deep / "file").touch()
    ((path, _),) = read_tree([tmp_path], into="", links=Links.REFUSE).files
    assert path == "d/" * 1_200 + "file"
