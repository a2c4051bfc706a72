"""`--json`: what is no document, and what is one too. `test_steps.py` asks every command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import SHORT, Ebbtide
from tests.support.program import PROGRAM
from tests.support.server import new_server


@pytest.mark.usefixtures("expired")
def test_no_is_a_document_too(lake: Ebbtide, typing: Callable[[str], None]) -> None:
    """Whoever is asked and says no changes nothing, and a program hears of it."""
    planned = lake.json("gc plan lake", *SHORT)
    for arguments in (("repo", "adopt", "lake"), ("gc", "sweep", "lake", *SHORT)):
        typing("n\n")
        found = lake(*arguments, "--json")
        assert found.document == {"done": False}
    (run,) = lake.json("gc runs lake")["runs"]
    assert (run["run_id"], run["state"]) == (planned["run_id"], "planned")


AMID_THE_START = """
import asyncio, os, signal
from ebbtide.program import main
make = asyncio.selector_events.BaseSelectorEventLoop.__init__
def told(loop, *given):
    os.kill(os.getpid(), signal.SIGTERM)
    make(loop, *given)
asyncio.selector_events.BaseSelectorEventLoop.__init__ = told
main()
"""
"""The program, which is told to end while it makes its event loop."""


@pytest.mark.parametrize("is_amid", [False, True])
def test_a_server_says_where_it_is_and_ends_when_it_is_told_to(
    tmp_path: Path, is_amid: bool
) -> None:
    """One document at once; SIGTERM is how a server ends, and no failure."""
    server = new_server(tmp_path / "store")
    server.command("init", str(server.directory))
    program = [sys.executable, "-c", AMID_THE_START] if is_amid else PROGRAM
    process = subprocess.Popen(
        [*program, "serve", "--port", "0", "--json"],
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    told = "".join(process.stdout.readline() for _ in range(6))
    assert json.loads(told)["url"].startswith("http://127.0.0.1:")
    if not is_amid:
        process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")
