"""Servers of a whole test run: each starts once, and ends with the run, however that ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import services
from tests.support.server import eventually
from tests.support.services import DIRECTORY_VARIABLE, Services, shared

RUN: Final = """
import os, subprocess, sys, time
from tests.support.services import Services, shared

def start(home, lifeline):
    (home / "files").mkdir()
    # A server: it runs until the pipe closes, and removes its files then.
    server = "cat; rmdir files"
    subprocess.Popen(["/bin/sh", "-c", server], cwd=home, stdin=lifeline, stdout=subprocess.DEVNULL)
    return home

services = Services()
homes = []
for _ in range(2):
    if (child := os.fork()) == 0:
        shared("server", start, str)
        os._exit(0)
    os.waitpid(child, 0)
print(shared("server", start, str), flush=True)
if sys.argv[1] == "end":
    services.end()
else:
    time.sleep(600)
"""
WAIT_SECONDS: Final = 60.0


def begun(how: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", RUN, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        return process, Path(process.stdout.readline().strip())


def test_a_server_of_other_processes_ends_with_the_run() -> None:
    process, home = begun("end")
    process.wait(WAIT_SECONDS)
    assert not home.parent.exists()


def test_it_starts_for_the_first_who_asks_and_again_if_it_did_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    run = Services()
    started = []

    def start(home: Path, _lifeline: int) -> Path:
        started.append(home)
        if len(started) == 1:
            raise RuntimeError("not now")
        return home

    try:
        with pytest.raises(RuntimeError, match="not now"):
            shared("server", start, str)
        assert shared("server", start, str) == shared("server", start, str) == str(started[1])
        assert shared("other", start, str) == str(started[2])
        assert len(started) == 3
    finally:
        run.end()
    assert not run.directory.exists()


def test_what_a_killed_run_left_goes_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its servers have ended with it."""
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    process, home = begun("kill")
    left = home.parent
    monkeypatch.setattr(services, "START_SECONDS_MAX", -1)
    Services().end()
    assert (home / "files").is_dir()
    process.kill()
    process.wait(WAIT_SECONDS)
    eventually(lambda: not (home / "files").exists())

    def is_gone() -> bool:
        Services().end()
        return not left.exists()

    eventually(is_gone)  # other runs that end at this moment look at it too
