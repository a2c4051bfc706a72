"""`--json`: what is no document, and what is one too. `test_steps.py` asks every command."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ebbtide
from tests.support.program import PROGRAM
from tests.support.server import new_server


def test_bytes_are_no_document(lake: Ebbtide, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    lake("fs put lake main", file, "a")
    lake("project create lake p")
    lake("collection create lake p/c", file)
    for arguments in (
        ("fs", "cat", "lake", "main", "a"),
        ("fs", "get", "lake", "main", "a", "-"),
        ("collection", "get", "lake", "p/c", "file"),
    ):
        lake.refuses("invalid_argument", *arguments, code=2)


def test_no_is_a_document_too(lake: Ebbtide, typing: Callable[[str], None]) -> None:
    """Whoever is asked and says no changes nothing, and a program hears of it."""
    planned = lake.json("gc plan lake")
    for arguments in (("repo", "adopt", "lake"), ("gc", "sweep", "lake")):
        typing("n\n")
        found = lake(*arguments, "--json")
        assert found.document == {"done": False}
    (run,) = lake.json("gc runs lake")["runs"]
    assert (run["run_id"], run["state"]) == (planned["run_id"], "planned")


def test_a_server_says_where_it_is_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """One document at once; SIGTERM is how a server ends, and no failure."""
    server = new_server(tmp_path / "store")
    server.command("init", str(server.directory))
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--port", "0", "--json"],
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    told = "".join(process.stdout.readline() for _ in range(5))
    assert json.loads(told)["url"].startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")
