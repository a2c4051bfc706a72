"""The command line, run in this process with its output caught."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from ebbtide.program.app import run
from tests.support.commands import captured
from tests.support.templates import copy_store, old_lake

FIRST_DAY: Final = datetime(2020, 1, 1, tzinfo=UTC)
BIG_BYTES: Final = 3 * 1024 * 1024
SHORT: Final = ("--grace", "1s", "--unsafe")
AT_ONCE: Final = (*SHORT, "--quarantine", "none", "--yes")

Write = Callable[..., str]
Template = tuple[Path, str]
"""A store to copy, and the commit of its repository that is to go."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:  # whatever JSON holds
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def error_kind(self) -> str:
        return str(self.document["error"]["kind"])


class Ebbtide:
    """Runs one command, which must end with exit code `code`. The first argument may be words."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *arguments: str | Path, code: int = 0) -> Result:
        self._capfd.readouterr()
        first = str(arguments[0]).split(" ") if arguments else []
        found = run([*first, *map(str, arguments[1:])])
        result = Result(found, *self._capfd.readouterr())
        assert found == code, result
        assert "Traceback" not in result.err
        return result

    def json(self, *arguments: str | Path, code: int = 0) -> Any:  # whatever JSON holds
        return self(*arguments, "--json", code=code).document

    def refuses(self, kind: str, *arguments: str | Path, code: int = 1) -> Result:
        result = self(*arguments, "--json", code=code)
        assert result.document["error"]["kind"] == kind, result
        return result


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def output_without(modules: str, *command: str, **environment: str) -> str:
    """What a command prints in a process of its own, which loads none of the modules."""
    code = f"""
import sys
from ebbtide.program.app import run
assert run({list(command)!r}) == 0
assert not set({modules.split()!r}) & set(sys.modules)
"""
    done = captured([sys.executable, "-c", code], env=os.environ | environment, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="session", autouse=True)
def commands() -> Iterator[None]:
    """Makes the tree of commands once. Typer makes it at each call, which takes five times as long
    as most commands; a process of its own has one call."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("typer.main.get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def ebbtide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Ebbtide:
    """The program, with the store in `tmp_path / "store"` unless told otherwise."""
    for name in [name for name in os.environ if name.startswith("EBBTIDE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EBBTIDE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("EBBTIDE_SPARK_MASTER", "none")

    return Ebbtide(capfd)


@pytest.fixture(scope="session")
def lake_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an empty repository `lake` in it. Tests have copies."""
    directory = tmp_path_factory.mktemp("lake") / "store"
    assert run(["init", str(directory)]) == 0
    assert run(["--store", str(directory), "repo", "create", "lake"]) == 0
    return directory


@pytest.fixture
def lake(ebbtide: Ebbtide, lake_template: Path, tmp_path: Path) -> Ebbtide:
    copy_store(lake_template, tmp_path / "store")
    return ebbtide


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a terminal in place of stdin, at which the given text is typed."""

    def type_in(text: str) -> None:
        monkeypatch.setattr("sys.stdin", Terminal(text))

    return type_in


@pytest.fixture
def write(tmp_path: Path, lake: Ebbtide) -> Write:
    """Uploads objects to a branch of `lake` and commits them; the commit's id."""

    def put_and_commit(*extra: str, branch: str = "main", **files: str) -> str:
        for name, text in files.items():
            (tmp_path / "upload").write_text(text)
            lake("fs", "put", "lake", branch, tmp_path / "upload", name)
        made = lake("commit", "lake", branch, "-m", "change", *extra, "--json")
        return str(made.document["commit_id"])

    return put_and_commit


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with a file, one deeper down, and one of several pieces."""
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "one").write_text("1")
    (tree / "deep" / "two").write_text("22")
    (tree / "big").write_bytes(b"x" * BIG_BYTES)
    return tree


@pytest.fixture(scope="session")
def expired_template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """A store whose policy lets one commit of `lake` go, and with it one object."""
    directory = tmp_path_factory.mktemp("expired") / "store"
    with old_lake(directory, lease_ttl=timedelta(0)) as lake:
        for day, files in enumerate(
            ({"keep": b"1"} | {f"stays{n}": b"1" for n in range(4)}, {"a": b"old"}, {"a": b"new"})
        ):
            for name, data in files.items():
                lake.objects.put("main", name, data)
            lake.commits.commit("main", "change", date=FIRST_DAY + timedelta(days=day))
        lake.retention.set({"default": {"keep_last": 1}})
        old = lake.commits.get("main~1").commit_id
    return directory, old


@pytest.fixture
def expired(lake: Ebbtide, expired_template: Template, tmp_path: Path) -> str:
    """`lake` with one commit to let go, whose one object nothing else needs; the commit's id."""
    del lake  # whose store this one replaces
    directory, old = expired_template
    shutil.rmtree(tmp_path / "store")
    copy_store(directory, tmp_path / "store")
    return old
