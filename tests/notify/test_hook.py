"""The program at the end of runs."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.notify import start_hook
from ebbtide.settings import Settings
from tests.notify.ends import run_end


def test_a_program_gets_the_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its output is no answer."""
    file = tmp_path / "a file"
    assert start_hook(f"tee {shlex.quote(str(file))}", run_end()) is None
    assert json.loads(file.read_text()) == run_end().to_json()
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", file.read_text())


def test_programs_that_fail() -> None:
    """Also one that never reads its stdin."""
    told = start_hook("false --token hidden", run_end())
    assert told == "the hook false ended with exit code 1"
    told = start_hook("/no/such/program", run_end())
    assert told is not None and "did not start" in told


def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    """Its child holds a pipe, which ends with it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        script = f"sleep 600 > {shlex.quote(str(pipe))} & wait"
        told = start_hook(f"sh -c {shlex.quote(script)}", run_end(), seconds_max=0.5)
        assert told is not None and "took longer than 0.5 seconds" in told
        os.set_blocking(reading, True)
        assert os.read(reading, 1) == b"", "nobody holds its other end"
    finally:
        os.close(reading)


@pytest.mark.parametrize("line", ["'", " "])
def test_lines_that_are_refused(line: str) -> None:
    with pytest.raises(InvalidInput, match="EBBTIDE_RUN_HOOK"):
        Settings(run_hook=line)
