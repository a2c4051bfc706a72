"""The command line, run in this process with its output caught."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from ebbtide.cli.app import run


@dataclass(frozen=True)
class Result:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:  # whatever JSON holds
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def error_kind(self) -> str:
        """The kind of the error that `--json` printed."""
        return str(self.document["error"]["kind"])


class Ebbtide(Protocol):
    """Runs one command; `code` is the exit code that it must end with."""

    def __call__(self, *arguments: str | Path, code: int = 0) -> Result:
        """Arguments as on a command line."""


class Terminal(io.StringIO):
    """A stdin at which somebody sits and types."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.fixture
def ebbtide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Ebbtide:
    """The program, with the store in `tmp_path / "store"` unless told otherwise."""
    for name in [name for name in os.environ if name.startswith("EBBTIDE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EBBTIDE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("EBBTIDE_WORKERS", "1")

    def invoke(*arguments: str | Path, code: int = 0) -> Result:
        capfd.readouterr()
        found = run([str(argument) for argument in arguments])
        result = Result(found, *capfd.readouterr())
        assert found == code, result
        assert "Traceback" not in result.err
        return result

    return invoke


@pytest.fixture
def lake(ebbtide: Ebbtide, tmp_path: Path) -> Ebbtide:
    """The program, with a store and an empty repository `lake` in it."""
    ebbtide("init", tmp_path / "store")
    ebbtide("repo", "create", "lake")
    return ebbtide


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a terminal in place of stdin, at which the given text is typed."""

    def type_in(text: str) -> None:
        monkeypatch.setattr("sys.stdin", Terminal(text))

    return type_in


@pytest.fixture
def write(tmp_path: Path, lake: Ebbtide) -> Callable[..., str]:
    """Uploads objects to a branch of `lake` and commits them; the commit's id."""

    def put_and_commit(*extra: str, branch: str = "main", **files: str) -> str:
        for name, text in files.items():
            (tmp_path / "upload").write_text(text)
            lake("fs", "put", "lake", branch, name, tmp_path / "upload")
        made = lake("commit", "lake", branch, "-m", "change", *extra, "--json")
        return str(made.document["commit_id"])

    return put_and_commit
