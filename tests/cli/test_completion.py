"""Completion, as shells ask for it: names of the store, at once, and nothing is made or said."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ebbtide.program.app import run
from ebbtide.store.completions import known_names
from tests.cli.conftest import SHORT, Ebbtide, output_without
from tests.support.commands import captured
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


Ask = Callable[..., list[str]]


@pytest.fixture
def ask(ebbtide: Ebbtide, store: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """What the program offers in a shell in which a line was typed so far."""
    del store  # which is the program's

    def offered(line: str, *, shell: str = "bash", **environment: str) -> list[str]:
        words = line.split(" ")
        asked = {
            "_EBBTIDE_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1],
        }
        with monkeypatch.context() as patched:
            for name, value in (asked | environment).items():
                patched.setenv(name, value)
            told = ebbtide()
        assert told.err == ""
        return told.out.split()

    return offered


def test_names(ebbtide: Ebbtide, ask: Ask, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of commands and options as of any program, and of what is in the store, but for the trash."""
    assert ask("ebbtide gc sw") == ["sweep"]
    assert "--grace" in ask("ebbtide gc plan lake --g")
    assert ask("ebbtide branch list ") == ["lagoon", "lake"]
    assert ask("ebbtide branch delete lake f") == ["feature/one"]
    assert ask("ebbtide log lake ") == ["feature/one", "main", "v1"]
    assert ask("ebbtide log lagoon ") == ["main"]
    (run,) = ebbtide.json("gc runs lake")["runs"]
    assert ask("ebbtide gc show lake ") == [run["run_id"]]
    (key,) = ebbtide.json("key list")["keys"]
    assert ask("ebbtide key revoke ") == [key["access_key_id"]]
    monkeypatch.delenv("EBBTIDE_STORE")
    for line in (
        f"ebbtide --store {store} repo show lag",
        f"ebbtide repo show --store {store} lag",
    ):
        assert ask(line) == ["lagoon"]


@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
def test_other_shells(ask: Ask, shell: str) -> None:
    found = " ".join(ask("ebbtide gc show la", shell=shell))
    assert re.findall(r"la\w+", found) == ["lagoon", "lake"]


def test_nothing_is_made(ask: Ask, store: Path) -> None:
    """Neither in a store that nobody has open, nor in one that somebody writes to, whose newest
    names are offered too; nor where there is none."""
    before = sorted(store.rglob("*"))
    assert ask("ebbtide repo show lag") == ["lagoon"]
    assert sorted(store.rglob("*")) == before
    connection = sqlite3.connect(store / "metadata.db", isolation_level=None)
    connection.execute("UPDATE repositories SET name = 'lagune' WHERE name = 'lagoon'")
    during = sorted(store.rglob("*"))
    assert during != before
    assert ask("ebbtide repo show lag") == ["lagune"]
    assert sorted(store.rglob("*")) == during
    connection.close()
    assert ask("ebbtide repo show ", EBBTIDE_STORE=str(store / "nowhere")) == []
    assert not (store / "nowhere").exists()


def test_nothing_is_said(ask: Ask, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a damaged file, one that is locked, another database, or a line that is no command."""
    line = "ebbtide repo show "
    assert ask(line, EBBTIDE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none") == []
    assert "init" in ask("ebbtide nonsense ")
    assert ask("ebbtide gc show 'la") == ["lagoon", "lake"]
    (store / "metadata.db").write_bytes(b"no database")
    assert ask(line) == []
    monkeypatch.delenv("EBBTIDE_STORE")
    assert ask(line) == []


def test_a_locked_database_is_not_waited_for(store: Path) -> None:
    connection = sqlite3.connect(store / "metadata.db", isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("UPDATE repositories SET name = name")
    now = datetime.now(UTC)
    assert known_names(store / "metadata.db", "repositories", "", now=now) == []
    connection.close()
    found = known_names(store / "metadata.db", "repositories", "", now=now)
    assert found == ["lagoon", "lake"]


@pytest.mark.usefixtures("store")
def test_nothing_slow_is_imported() -> None:
    """A press of a key is answered by the standard library and Typer, which needs pydantic."""
    slow = "pyspark pyarrow sqlalchemy alembic rich"
    asked = {"_EBBTIDE_COMPLETE": "complete_bash", "COMP_WORDS": "ebbtide gc show "}
    assert output_without(slow, **asked, COMP_CWORD="3").split() == ["lagoon", "lake"]


@pytest.mark.usefixtures("store")
def test_in_bash(tmp_path: Path) -> None:
    """The script that the program prints and installs, in the shell that it is for."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    (programs / "ebbtide").write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    (programs / "ebbtide").chmod(0o755)

    def bash(script: str) -> str:
        done = captured(
            ["bash", "--norc", "-c", script],
            env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home)},
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
