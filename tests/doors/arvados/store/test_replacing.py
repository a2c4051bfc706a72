"""`replace_files` and `replace_segments`: examples, refusals, and random requests against a slow
model in which a file is a list of single bytes, each named by its block and its place there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from ebbtide.doors.arvados.store.manifests import EMPTY_BLOCK, parse_manifest
from ebbtide.doors.arvados.store.replacements import DEPTH_MAX, Replacements
from tests.support.collections import raises
from tests.support.randomized import examples, randomized

A, B, C = (f"{letter * 32}+3" for letter in "abc")
HASH = f"{'d' * 32}+9"
CURRENT = f". {A} {B} 0:3:a 3:3:b\n./d {A} 0:1:x 1:2:y\n"
OTHER = f"./s/t {C} 0:3:z\n"

Bytes = tuple[tuple[str, int], ...]
Tree = dict[str, Bytes | None]
"""Files by their paths, as their bytes; and directories, as None, with a slash at the end."""


def texts(current: str = CURRENT, other: str = OTHER) -> Callable[[str], str]:
    return {"current": current, HASH: other}.__getitem__


def replaced(files: dict[str, str], given: str | None = None) -> str:
    return Replacements(files).applied(given, texts())


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"/a": "", "/c": "current/a"}, f". {B} {A} 0:3:b 3:3:c\n./d {A} 0:1:x 1:2:y\n"),
        ({"/a": "current/b", "/b": "current/a", "/d": ""}, f". {B} {A} 0:3:a 3:3:b\n"),
        (
            {"/": "", "/e": "current/d", "/e 1": "current/d/x"},
            f". {A} 0:1:e\\0401\n./e {A} 0:1:x 1:2:y\n",
        ),
        (
            {"/e": "current/d", "/d/x": ""},
            f". {A} {B} 0:3:a 3:3:b\n./d {A} 1:2:y\n./e {A} 0:1:x 1:2:y\n",
        ),
        ({"/d/x": "", "/d/y": ""}, f". {A} {B} 0:3:a 3:3:b\n./d {EMPTY_BLOCK} 0:0:\\056\n"),
    ],
)
def test_good_requests(files: dict[str, str], text: str) -> None:
    assert replaced(files) == text
    parse_manifest(text)


def test_new_files_of_the_request() -> None:
    given_text = f". {C} 0:2:new\n"
    found = replaced({"/a": "manifest_text/new", "/old": "current/a", "/b": ""}, given_text)
    assert found == f". {C} {A} 0:2:a 3:3:old\n./d {A} 0:1:x 1:2:y\n"
    assert replaced({"/": "manifest_text/"}, given_text) == given_text
    with raises("invalid_argument"):
        replaced({"/a": "current/b"}, given_text)
    with raises("invalid_manifest"):
        replaced({"/a": "manifest_text/new"}, given_text.strip())


@pytest.mark.parametrize(
    "files",
    [
        {"/a/../b": ""},
        {"a": ""},
        {"/nul\0": "current/a"},
        {"/\ud800": "current/a"},
        {"/x": "abcde-4zz18-000000000000000/b"},
        {"/x": f"{HASH}+Ahint/s"},
        {"/x": "current/d/../a"},
        {"/x": "manifest_text/a"},
        {"/x" * (DEPTH_MAX + 1): "current/a"},
    ],
)
def test_bad_requests(files: dict[str, str]) -> None:
    with raises("invalid_argument"):
        replaced(files)


def test_a_path_that_is_file_and_directory() -> None:
    with raises("invalid_manifest"):
        Replacements({"/x": "current/a"}).applied(None, texts(f". {A} 0:3:a\n./a {A} 0:3:b\n"))


def segments(pieces: dict[str, str], text: str) -> str:
    return Replacements({}, pieces).applied(text, texts())


def test_segments() -> None:
    big = f"{'e' * 32}+5+Eobject+A{'0' * 40}@5e000000"
    text = f". {A} {B} 0:3:a 3:2:b\n./d {A} 0:3:x\n"
    found = segments({f"{A}+Zhint 0 3": f"{big} 2 3", f"{B} 0 2": f"{big} 0 2"}, text)
    assert found == f". {big} 2:3:a 0:2:b\n./d {big} 2:3:x\n"
    # A piece that is not there: no piece is replaced by its block, and others are.
    other = f"{'f' * 32}+5"
    missing = {f"{A} 0 2": f"{big} 0 2", f"{A} 0 3": f"{big} 2 3", f"{B} 0 2": f"{other} 3 2"}
    assert segments(missing, text) == f". {A} {other} 0:3:a 6:2:b\n./d {A} 0:3:x\n"
    assert segments({f"{C} 0 3": f"{other} 0 3"}, text) == text
    assert (
        Replacements({"/d": "current/d"}, {f"{A} 0 1": f"{other} 0 1"}).applied(
            None, texts(f"./d {A} 0:1:x\n")
        )
        == f"./d {other} 0:1:x\n"
    )


@pytest.mark.parametrize(
    "pieces",
    [
        {f"{A} 0 3": f"{B} 0 2"},
        {f"{A} 0 3": f"{B} 1 3"},
        {f"{A} 0": f"{B} 0 3"},
        {f"{A} 0 3": "B 0 3"},
        {f"{A} 0 3": f"{B} 0 -3"},
        {f"{A} 0 3": ""},
    ],
)
def test_bad_segments(pieces: dict[str, str]) -> None:
    with raises("invalid_argument"):
        segments(pieces, f". {A} 0:3:a\n")


def tree_of(text: str) -> Tree:
    """The files of a manifest, byte by byte."""
    tree: Tree = {"/": None}
    for line in text.splitlines():
        name, *tokens = line.split(" ")
        blocks = [token for token in tokens if ":" not in token]
        every = [(block, place) for block in blocks for place in range(int(block.split("+")[1]))]
        for token in tokens[len(blocks) :]:
            position, length, file = token.split(":")
            path = f"{name}/{file}".removeprefix(".")
            tree |= dict.fromkeys(above(path))
            if file != "\\056":
                here = tree.get(path) or ()
                tree[path] = here + tuple(every[int(position) : int(position) + int(length)])
    return tree


def above(path: str) -> list[str]:
    """The directories that a path lies in."""
    return [path[: each.end()] for each in re.finditer("/", path)]


def below(tree: Tree, path: str) -> Tree:
    """What is at a path, with names from there on: a file has the name ''."""
    if path in tree and not path.endswith("/"):
        return {"": tree[path]}
    inner = f"{path.rstrip('/')}/"
    return {f"/{name.removeprefix(inner)}": tree[name] for name in tree if name.startswith(inner)}


def model(files: dict[str, str], sources: dict[str, str]) -> Tree | None:
    """The tree after a request; None if it is refused."""
    trees = {name: tree_of(text) for name, text in sources.items()}
    chosen = {}
    for target, source in files.items():
        if any(files.get(each.rstrip("/") or "/") for each in above(target) if each != target):
            return None
        if source:
            name, _, path = source.partition("/")
            chosen[target] = below(trees[name], f"/{path}")
            if not chosen[target] or (f"/{path}".rstrip("/") in trees[name] and path[-1:] == "/"):
                return None
    result: Tree = {"/": None} if "/" in files else trees["current"]
    for target in files:
        if target not in chosen and target != "/":
            result = without(result, target)
    for target, found in chosen.items():
        if target == "/":
            return None if "" in found else found
        if any(each.rstrip("/") in result for each in above(target)):
            return None  # a file is in the way
        result = without(result, target) | dict.fromkeys(above(target))
        result |= {f"{target}{name}": each for name, each in found.items()}
    return result


def without(tree: Tree, target: str) -> Tree:
    """The tree without a file or a directory."""
    inner = f"{target}/"
    return {name: tree[name] for name in tree if name != target and not name.startswith(inner)}


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


@st.composite
def manifests(draw: st.DrawFn) -> str:
    """A manifest without a path that is both file and directory."""
    text = ""
    for path in draw(st.lists(NAMES, max_size=6)):
        stream, _, name = f"./{path}".rpartition("/")
        position, length = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        block = draw(st.sampled_from((A, B)))
        more = f"{text}{stream} {block} {C} {position}:{length}:{name}\n"
        tree = tree_of(more)
        if not any(f"{each}/" in tree for each in tree):
            text = more
    return text


@randomized("requests that replace files")
@examples("requests that replace files")
@given(st.data())
def test_random_requests(data: st.DataObject) -> None:
    sources = {name: data.draw(manifests()) for name in ("current", HASH, "manifest_text")}
    targets = st.one_of(NAMES.map(lambda path: f"/{path}"), st.just("/"))
    named = st.one_of(NAMES, st.just(""), NAMES.map(lambda path: f"{path}/"))
    source = st.tuples(st.sampled_from(sorted(sources)), named).map("/".join)
    chosen = st.one_of(st.just(""), source)
    files = data.draw(st.dictionaries(targets, chosen, min_size=1, max_size=4))
    if not any(each.startswith("manifest_text/") for each in files.values()):
        sources["manifest_text"] = ""
    wanted = model(files, sources)
    note(f"{files} {sources}")
    request = Replacements(files)
    if wanted is None:
        with raises("invalid_argument"):
            request.applied(sources["manifest_text"], sources.__getitem__)
        return
    text = request.applied(sources["manifest_text"], sources.__getitem__)
    assert tree_of(text) == wanted
    parse_manifest(text)
    assert Replacements({"/": "current"}).applied(None, lambda _: text) == text, "it is normal"
