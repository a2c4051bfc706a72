"""Completion, as shells ask for it: names of the store, at once, and nothing is made or said."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ebbtide.program.app import run
from ebbtide.store.completing import known_names
from tests.cli.conftest import Ebbtide
from tests.cli.test_gc import SHORT
from tests.support.program import PROGRAM
from tests.support.templates import copy_store


@pytest.fixture(scope="module")
def store_template(lake_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something of every kind that is offered. Tests have copies."""
    directory = tmp_path_factory.mktemp("completion") / "store"
    copy_store(lake_template, directory)
    for command in (
        ("repo", "create", "lagoon"),
        ("branch", "create", "lake", "feature/one"),
        ("branch", "create", "lake", "feature/gone"),
        ("branch", "delete", "lake", "feature/gone"),
        ("tag", "create", "lake", "v1", "main"),
        ("gc", "plan", "lake", *SHORT),
    ):
        assert run(["--store", str(directory), *command]) == 0
    return directory


@pytest.fixture
def store(ebbtide: Ebbtide, store_template: Path, tmp_path: Path) -> Path:
    del ebbtide  # which names the store
    copy_store(store_template, tmp_path / "store")
    return tmp_path / "store"


def ask(line: str, *, shell: str = "bash", **environment: str) -> subprocess.CompletedProcess[str]:
    """What the program answers to a shell in which `line` was typed so far."""
    words = line.split(" ")
    return subprocess.run(
        PROGRAM,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "_EBBTIDE_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1],
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def offered(line: str, store: Path, **environment: str) -> list[str]:
    found = ask(line, EBBTIDE_STORE=str(store), **environment)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout.split()


def test_names(ebbtide: Ebbtide, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of commands and options as of any program, and of what is in the store, but for the trash."""
    assert offered("ebbtide gc sw", store) == ["sweep"]
    assert "--grace" in offered("ebbtide gc plan lake --g", store)
    assert offered("ebbtide gc plan --mode ", store) == ["auto", "clean", "incremental"]
    assert offered("ebbtide branch list ", store) == ["lagoon", "lake"]
    assert offered("ebbtide branch delete lake f", store) == ["feature/one"]
    assert offered("ebbtide log lake ", store) == ["feature/one", "main", "v1"]
    assert offered("ebbtide log lagoon ", store) == ["main"]
    (run,) = ebbtide("gc", "runs", "lake", "--json").document["runs"]
    assert offered("ebbtide gc show lake ", store) == [run["run_id"]]
    (key,) = ebbtide("key", "list", "--json").document["keys"]
    assert offered("ebbtide key revoke ", store) == [key["access_key_id"]]
    monkeypatch.delenv("EBBTIDE_STORE")
    for line in (
        f"ebbtide --store {store} repo show lag",
        f"ebbtide repo show --store {store} lag",
    ):
        assert ask(line).stdout.split() == ["lagoon"]


@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
def test_other_shells(store: Path, shell: str) -> None:
    found = ask("ebbtide gc show la", shell=shell, EBBTIDE_STORE=str(store))
    assert (found.returncode, found.stderr) == (0, "")
    assert re.findall(r"la\w+", found.stdout) == ["lagoon", "lake"]


def test_nothing_is_made(store: Path) -> None:
    """Neither in a store that nobody has open, nor in one that somebody writes to, whose newest
    names are offered too; nor where there is none."""
    before = sorted(store.rglob("*"))
    assert offered("ebbtide repo show lag", store) == ["lagoon"]
    assert sorted(store.rglob("*")) == before
    connection = sqlite3.connect(store / "metadata.db", isolation_level=None)
    connection.execute("UPDATE repositories SET name = 'lagune' WHERE name = 'lagoon'")
    during = sorted(store.rglob("*"))
    assert during != before
    assert offered("ebbtide repo show lag", store) == ["lagune"]
    assert sorted(store.rglob("*")) == during
    connection.close()
    assert offered("ebbtide repo show ", store / "nowhere") == []
    assert not (store / "nowhere").exists()


def test_nothing_is_said(store: Path) -> None:
    """Of a damaged file, one that is locked, another database, or a line that is no command."""
    assert ask("ebbtide repo show ").stdout.strip() == ""
    line = "ebbtide repo show "
    assert offered(line, store, EBBTIDE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none") == []
    assert "init" in offered("ebbtide nonsense ", store)
    assert offered("ebbtide gc show 'la", store) == ["lagoon", "lake"]
    (store / "metadata.db").write_bytes(b"no database")
    assert offered(line, store) == []


def test_a_locked_database_is_not_waited_for(store: Path) -> None:
    connection = sqlite3.connect(store / "metadata.db", isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("UPDATE repositories SET name = name")
    now = datetime.now(UTC)
    assert known_names(store / "metadata.db", "repositories", "", now=now) == []
    connection.close()
    found = known_names(store / "metadata.db", "repositories", "", now=now)
    assert found == ["lagoon", "lake"]


def test_nothing_slow_is_imported(store: Path) -> None:
    """A press of a key is answered by the standard library and Typer, which needs pydantic."""
    code = """
import sys
from ebbtide.program.app import run
assert run([]) == 0
slow = {"pyspark", "pyarrow", "sqlalchemy", "alembic", "rich"} & set(sys.modules)
assert not slow, slow
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {
            "_EBBTIDE_COMPLETE": "complete_bash",
            "COMP_WORDS": "ebbtide gc show ",
            "COMP_CWORD": "3",
            "EBBTIDE_STORE": str(store),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["lagoon", "lake"], "")


def test_in_bash(store: Path, tmp_path: Path) -> None:
    """The script that the program prints and installs, in the shell that it is for."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    (programs / "ebbtide").write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    (programs / "ebbtide").chmod(0o755)

    def bash(script: str) -> str:
        done = subprocess.run(
            ["bash", "--norc", "-c", script],
            env=os.environ
            | {
                "PATH": f"{programs}:{os.environ['PATH']}",
                "HOME": str(home),
                "EBBTIDE_STORE": str(store),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    typed = (
        "COMP_WORDS=(ebbtide branch delete lake fea); COMP_CWORD=4; "
        "$(complete -p ebbtide | sed 's/.*-F \\([^ ]*\\) .*/\\1/') ebbtide; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert bash(f'eval "$(ebbtide --show-completion)"; {typed}') == "feature/one\n"
    assert "completion installed" in bash("ebbtide --install-completion; true")
    assert bash(f"source ~/.bashrc; {typed}") == "feature/one\n"
