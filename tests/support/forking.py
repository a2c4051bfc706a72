"""Programs of tests that are forked from a process which has loaded their modules: a program then
starts in a hundredth of the time that Python takes to load them.

`python -m tests.support.forking MODULE…` is that process. It reads a module and the arguments of
its `main` from each line, as JSON, and answers with the id and the exit code of the program.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NULL: Final = "/dev/null"


@dataclass(frozen=True, slots=True)
class Running:
    """A program that has begun. `session` is its process, and the session of all that it starts."""

    forks: Forks
    session: int

    def wait(self) -> int:
        """The exit code; negative if a signal ended it."""
        return int(self.forks.answer())


class Forks:
    """The process that programs are forked from, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, module: str, *arguments: str) -> Running:
        """Fork a program that calls `main(*arguments)` of a module."""
        assert self._process.stdin is not None
        print(json.dumps([module, *arguments]), file=self._process.stdin, flush=True)
        return Running(self, int(self.answer()))

    def answer(self) -> str:
        """The next line that the process writes."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that programs are forked from has ended"
        return line


@contextmanager
def forking(*modules: str) -> Iterator[Forks]:
    """A process that has loaded these modules, for the block. What programs write to standard error
    goes to this process's."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.forking", *modules],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        # On leaving, standard input is closed, and the process ends.
        yield Forks(process)


def serve(modules: list[str]) -> None:
    """Fork a program for each line of standard input."""
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        module, *arguments = json.loads(line)
        program = os.fork()
        if program == 0:
            _run(module, arguments)
        _tell(program)
        _, status = os.waitpid(program, 0)
        _tell(os.waitstatus_to_exitcode(status))


def _tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _run(module: str, arguments: list[str]) -> None:
    """The program. It never returns to the loop of the process that it was forked from."""
    code = 1
    try:
        os.setsid()
        for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
            os.dup2(os.open(NULL, flags), descriptor)
        importlib.import_module(module).main(*arguments)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it is told of, and ends this process
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1:])
