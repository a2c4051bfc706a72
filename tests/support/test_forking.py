"""Programs that tests fork: what they answer, and that none outlives the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

from tests.support.commands import captured
from tests.support.forking import ROOT, Forks

MODULE: Final = "tests.support.test_forking"
SECONDS_MAX: Final = 60
STARTED: Final = f"""
import sys, time
from tests.support.forking import forks
print(forks().start("{MODULE}", "sleep").pid, flush=True)
time.sleep({SECONDS_MAX})
"""


def main(what: str = "") -> None:
    """The program; a command says where it is, and what it was told."""
    if not what:
        told = (Path.cwd().name, os.environ["TOLD"], *sys.argv[1:], sys.stdin.read())
        sys.stdout.write(" ".join(told) + "\n")
        raise SystemExit(5)
    sys.stdout.write(os.environ["TOLD"] if what == "tell" else what)
    sys.stdout.flush()
    if what == "sleep":
        signal.pause()
    if what == "fail":
        raise SystemExit(3)


def test_programs_go_on_beside_each_other(tmp_path: Path) -> None:
    forks = Forks()
    said = tmp_path / "said"
    sleeping = forks.start(MODULE, "sleep")
    told = forks.start(MODULE, "tell", environment={"TOLD": "so"}, out=said)
    failing = forks.start(MODULE, "fail")
    assert (told.wait(), failing.wait()) == (0, 3)
    assert said.read_text() == "so"
    assert sleeping.poll() is None
    sleeping.send_signal(signal.SIGTERM)
    assert sleeping.wait(SECONDS_MAX) == -signal.SIGTERM
    forks.end()


def test_a_shell_starts_a_command_as_any_other(tmp_path: Path) -> None:
    forks = Forks()
    place = tmp_path / "here"
    place.mkdir()
    path = f"{forks.command('tell', MODULE)}:{os.environ['PATH']}"
    told = ["bash", "-c", "echo in | tell a 'b  c' | cat; echo ${PIPESTATUS[1]}"]
    done = captured(told, cwd=place, env={**os.environ, "PATH": path, "TOLD": "x" * 100_000})
    assert done.stdout.split("\n") == [f"here {'x' * 100_000} a b  c in", "", "5", ""]
    assert done.stderr == ""
    forks.end()


def test_none_outlives_tests_that_are_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTED], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        program = psutil.Process(int(tests.stdout.readline()))
        tests.kill()
    psutil.wait_procs([program], SECONDS_MAX)
    assert not program.is_running()
