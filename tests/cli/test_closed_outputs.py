"""Programs whose output nobody reads to its end, and outputs that take nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from ebbtide.store.embedded import Store
from tests.cli.conftest import Ebbtide
from tests.support.commands import captured
from tests.support.templates import copy_store

PROGRAM: Final = (sys.executable, "-c", "from ebbtide.program import main; main()")
LISTED: Final = ("fs", "ls", "-r", "lake", "main")
READ: Final = ("fs", "cat", "lake", "main", "lines")
HELPS: Final = (("--help",), (), ("gc", "--help"), ("gc", "run", "--help"), ("--version",))
LOST: Final = "error: the answer could not be written to stdout (No space left on device)"
NAMES: Final = 200
LINES: Final = 100_000
"""The listing and the object are larger than a pipe, which holds 64 KiB."""

pytestmark = pytest.mark.drawn("outputs that are closed")


@pytest.fixture(scope="module")
def large_template(lake_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("large") / "store"
    copy_store(lake_template, directory)
    with Store.open(directory) as store:
        objects = store.repository("lake").objects
        objects.put("main", "lines", b"first\n" + b"another\n" * LINES)
        for number in range(NAMES):
            objects.put("main", f"x/{number:0900}", b"")
    return directory


@pytest.fixture
def store(ebbtide: Ebbtide, large_template: Path, tmp_path: Path) -> Path:
    del ebbtide  # whose environment this is
    copy_store(large_template, tmp_path / "store")
    return tmp_path / "store"


def in_shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in which `"$@"` is the program."""
    return captured(
        ["bash", "-c", f"set -o pipefail; {script}", "bash", *PROGRAM],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [LISTED, (*LISTED, "--json"), READ], ids=shlex.join)
def test_a_reader_of_one_line(words: tuple[str, ...], unbuffered: str) -> None:
    """The program ends with code 1, as others do, and says nothing."""
    found = in_shell(f'"$@" {shlex.join(words)} | head -1', PYTHONUNBUFFERED=unbuffered)
    assert (found.returncode, found.stderr) == (1, "")
    assert len(found.stdout.splitlines()) == 1


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("words", [LISTED, (*LISTED, "--json"), READ], ids=shlex.join)
def test_a_full_disk(words: tuple[str, ...]) -> None:
    found = in_shell(f'"$@" {shlex.join(words)} > /dev/full')
    assert found.returncode == 1
    assert found.stderr.startswith(LOST)
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_disk_that_takes_only_the_beginning(store: Path, unbuffered: str) -> None:
    """A short write is no success, also without a buffer."""
    target = store.parent / "target"
    # bash counts KiB.
    script = f'ulimit -f 256; "$@" {shlex.join(READ)} > {shlex.quote(str(target))}'
    found = in_shell(script, PYTHONUNBUFFERED=unbuffered)
    assert found.returncode == 1
    assert found.stderr.startswith("error: the answer could not be written to stdout (File too")
    assert target.stat().st_size == 256 * 1024


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", HELPS, ids=shlex.join)
def test_help_that_nobody_reads(words: tuple[str, ...], unbuffered: str) -> None:
    """A help ends like an answer, whichever write fails first."""
    given = shlex.join(words)
    receiver, sender = os.pipe()
    os.close(receiver)
    closed = subprocess.run(
        [*PROGRAM, *words],
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdout=sender,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    os.close(sender)
    assert (closed.returncode, closed.stderr) == (1, "")
    full = in_shell(f'"$@" {given} > /dev/full', PYTHONUNBUFFERED=unbuffered)
    assert (full.returncode, full.stderr.startswith(LOST)) == (1, True)
