"""The program, run in this process in a small world, with every step in the tests' hands."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BufferedWriter, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, Final

import pytest

from ebbtide import interrupts
from ebbtide.program.app import run
from tests.support.small_world import ENVIRONMENT, SmallWorld
from tests.support.steps import Fault, Stdout, Stepping, Steps

PROGRAM: Final = [sys.executable, "-c", "from ebbtide.program import main; main()"]
"""What starts it in a process of its own."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str
    steps: Steps

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"


class Program:
    def __init__(self, world: SmallWorld, stepping: Stepping, patched: pytest.MonkeyPatch) -> None:
        self.world = world
        self.stepping = stepping
        self._patched = patched

    def __call__(
        self, arguments: list[str], fault: Fault | None = None, *, unbuffered: bool = False
    ) -> Result:
        steps = Steps(fault)
        raw = Stdout(steps)
        out = TextIOWrapper(BufferedWriter(raw), encoding="utf-8", write_through=unbuffered)
        err = StringIO()
        with self._patched.context() as patched:
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            patched.setattr(interrupts, "_heard", interrupts._Interrupts())
            patched.chdir(self.world.work)
            with self.stepping.taking(steps):
                code = _ended(arguments, out, err)
        result = Result(code, raw.text(), err.getvalue(), steps)
        raw.lead_nowhere()
        out.close()
        return result

    def do(self, *words: str | Path) -> Any:
        result = self([*map(str, words), "--json"])
        assert result.code == 0, result
        return json.loads(result.out)


def made_world(directory: Path) -> SmallWorld:
    """A small world below a directory, as it was made: other modules may have left it otherwise."""
    world = _made_world(directory)
    world.reset()
    return world


@cache
def _made_world(directory: Path) -> SmallWorld:
    """Made once, which takes some seconds."""
    world = SmallWorld(directory / "world", directory / "pristine")
    with in_world(world) as program:
        world.make(program.do)
    return world


@contextmanager
def in_world(world: SmallWorld) -> Iterator[Program]:
    """The program in a small world. What is patched in this process stays so until the end."""
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("EBBTIDE_")]:
            patched.delenv(name)
        for name, value in {**ENVIRONMENT, "EBBTIDE_STORE": str(world.store)}.items():
            patched.setenv(name, value)
        # A server ends when it is interrupted; an archive takes seconds.
        patched.setattr("ebbtide.program.serve._prepared", lambda *_, **__: lambda: None)
        patched.setattr("ebbtide.gc.engines.spark.conf._needed", dict)
        stepping = Stepping(patched, world.directory, world.store, world.directory / "ice")
        yield Program(world, stepping, patched)


def _ended(arguments: list[str], out: TextIOWrapper, err: StringIO) -> int:
    try:
        code = run(arguments)
    except BaseException:  # noqa: BLE001 - an interrupt that nobody heard of is one
        traceback.print_exc(file=err)
        code = 1
    try:
        out.flush()
    except OSError as error:
        err.write(f"Exception ignored on flushing sys.stdout: {error}")
        code = 120
    return code
