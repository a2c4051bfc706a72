"""The examples in the help of each command: each is carried out, or at least parsed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ebbtide.cli.examples import EXAMPLES
from ebbtide.program.app import run
from ebbtide.program.reference import commands
from tests.cli.conftest import Ebbtide
from tests.cli.test_examples import check
from tests.support.templates import copy_store

PARSED: Final = {
    "import": "needs a bucket",
    "expire": "needs an Icechunk repository",
    "fs link": "needs a token",
    "collection find-hash": "needs the hash of a content",
    "gc give-up": "needs a damaged commit",
    "gc undo": "needs a run with a quarantine",
    "gc purge": "needs a run with a quarantine",
    "purge resume": "needs a purge",
    "purge show": "needs a purge",
    "purge verify": "needs a purge",
    "key revoke": "needs an access key",
    "key grant": "needs an access key",
    "key revoke-grant": "needs an access key",
    "serve": "ends only when it is interrupted",
    "repo create": "one of the examples needs a bucket",
}
"""The commands whose examples need more than the store of these tests."""

CARRIED_OUT: Final = [
    pytest.param(name, example, id=example)
    for name, examples in EXAMPLES.items()
    for example in examples
    if name not in PARSED
]


def test_every_command_has_examples() -> None:
    known = {path for path, node in commands() if not hasattr(node, "commands")}
    assert {f"ebbtide {name}" for name in EXAMPLES} == known


def test_examples_are_command_lines_of_their_command() -> None:
    for name, examples in EXAMPLES.items():
        for words in map(shlex.split, examples):
            assert words[: 1 + len(name.split())] == ["ebbtide", *name.split()]
            check(words[1:])


def test_help_shows_examples_one_a_line(ebbtide: Ebbtide) -> None:
    told = ebbtide("fs put --help").out.split("\nExamples:\n")[1]
    assert told.splitlines() == [f"  {each}" for each in EXAMPLES["fs put"]]
    assert "\nExample:\n" in ebbtide("gc runs -h").out
    assert "Example" not in ebbtide("gc --help").out


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("examples")
    (place / "data").mkdir()
    for name in ("may.csv", "data/may.csv"):
        (place / name).write_text("a,b\n")

    def do(line: str) -> None:
        assert run(["--store", str(place / "store"), *shlex.split(line)]) == 0, line

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        patched.setenv("EBBTIDE_SPARK_MASTER", "none")
        for line in STORE.splitlines():
            do(line)
        yield place


STORE: Final = """\
init store
repo create lake
fs put lake main may.csv reports/april.csv
fs put lake main may.csv reports/march.csv
commit lake main -m one --date 2020-01-01
fs rm lake main reports/march.csv
fs put lake main may.csv reports/may.csv
commit lake main -m two --date 2020-01-02
fs rm lake main reports/may.csv
commit lake main -m three --date 2020-01-03
tag create lake v1.0 main
hold add lake main~1
schedule set lake '0 3 29 2 *'
branch create lake work
fs put lake work may.csv new
commit lake work -m four --date 2020-02-01
fs put lake work may.csv reports/june.csv
branch create lake old-work
branch delete lake old-work
branch protect lake 'stable/*'
tag create lake v0.9 main~1
tag delete lake v0.9
project create lake study
project create lake study/pilot
project create lake study/dropped
project delete lake study/dropped
collection create lake study/reads may.csv
collection put lake study/reads data/may.csv --keep-version
collection create lake study/calls may.csv
collection create lake study/dropped-reads may.csv
collection delete lake study/dropped-reads
retention set lake --default 30d --branch user-*=14d
gc plan lake
repo create old-lake
repo delete old-lake
"""

ASKING: Final = ("gc sweep", "reset")
"""Commands that ask. Nobody sits at a terminal here."""


@pytest.mark.drawn("examples of commands")
@pytest.mark.parametrize(("name", "example"), CARRIED_OUT)
def test_examples_do_what_they_say(
    ebbtide: Ebbtide,
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    example: str,
) -> None:
    """Each alone, in its own copy of the store."""
    copy_store(filled / "store", tmp_path / "store")
    shutil.copytree(filled / "data", tmp_path / "data")
    shutil.copy(filled / "may.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(example)[1:]
    added = ["--yes"] if name in ASKING and "--yes" not in words else []
    if words[:2] == ["init", "my-store"] and "--upgrade" in words:
        ebbtide("init my-store")
    ebbtide(*words, *added)
