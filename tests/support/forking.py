"""Programs of tests that are forked from a process which has loaded their modules: a program then
starts in a hundredth of the time that Python takes to load them.

`python -m tests.support.forking` is that process; each process of tests has one. It reads what to
start from lines, as JSON, and answers with lines: the id of each program when it begins, and that
with its exit code when it ends. Commands of a shell ask at a socket.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from ebbtide.imports import prepare_forks

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = Path(__file__).with_name("forked_command.py")
PIECE_BYTES: Final = 65_536
PR_SET_PDEATHSIG: Final = 1
"""Of `linux/prctl.h`."""


@dataclass(frozen=True, slots=True)
class Running:
    """One that has begun. `pid` is its process, and the session of all that it starts."""

    forks: Forks
    pid: int

    def poll(self) -> int | None:
        """Its exit code, negative if a signal ended it; None while it runs."""
        return self.forks.code_of(self.pid, seconds=0.0)

    def wait(self, seconds: float | None = None) -> int:
        """Its exit code, once it has ended; TimeoutError where that takes longer."""
        code = self.forks.code_of(self.pid, seconds=seconds)
        if code is None:
            raise TimeoutError(f"program {self.pid} has not ended within {seconds} s")
        return code

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


class Forks:
    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="ebbtide-forks-"))
        with socket.socket(socket.AF_UNIX) as asked:
            asked.bind(self._socket)
            asked.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", str(asked.fileno())],
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[asked.fileno()],
                bufsize=0,
            )
        self._rest = b""
        self._begun: list[int] = []
        self._codes: dict[int, int] = {}

    @property
    def _socket(self) -> str:
        return str(self._directory / "socket")

    def command(self, name: str, module: str) -> Path:
        """A directory for PATH with one command, which a shell can start: it is forked too, and has
        the directory, the environment, and the inputs and outputs of who started it. `module` has
        its `main`, which reads `sys.argv`."""
        script = self._directory / "bin" / name
        if not script.exists():
            script.parent.mkdir(exist_ok=True)
            words = [sys.executable, "-IS", CLIENT, self._socket, module]
            script.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} {name} "$@"\n')
            script.chmod(0o755)
        return script.parent

    def start(
        self,
        module: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
        out: Path | None = None,
        err: Path | None = None,
    ) -> Running:
        """Fork a program that calls `main(*arguments)` of a module, in this process's environment
        or another one. What it writes is added to `out` and `err`, without which it is lost, or
        goes where this process's errors go."""
        wanted = {
            "module": module,
            "arguments": arguments,
            "environment": environment or _environment(),
            "out": out and str(out),
            "err": err and str(err),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(wanted)}\n".encode())
        while not self._begun:
            self._read(None)
        return Running(self, self._begun.pop())

    def code_of(self, pid: int, *, seconds: float | None) -> int | None:
        """The exit code of a program; None where it has not ended within so many seconds."""
        ends = None if seconds is None else time.monotonic() + seconds
        while pid not in self._codes:
            left = None if ends is None else max(ends - time.monotonic(), 0.0)
            if not self._read(left):
                return None
        return self._codes[pid]

    def _read(self, seconds: float | None) -> bool:
        """Take what the process says; whether it said anything within so many seconds."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return False
        piece = self._process.stdout.read(PIECE_BYTES)
        assert piece, "the process that programs are forked from has ended"
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for pid, code in map(json.loads, lines):
            if code is None:
                self._begun.append(pid)
            else:
                self._codes[pid] = code
        return True

    def end(self) -> None:
        self._process.communicate()
        shutil.rmtree(self._directory)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


@cache
def forks() -> Forks:
    """That of this process, until its end."""
    made = Forks()
    atexit.register(made.end)
    return made


class _Server:
    """The process that is forked for each line of input, and each client of the socket."""

    def __init__(self, listening: int) -> None:
        self._listening = socket.socket(fileno=listening)
        self._running: dict[int, int] = {}
        self._clients: dict[int, socket.socket] = {}

    def serve(self) -> None:
        prepare_forks()
        rest = b""
        while True:
            for ready in select.select([0, self._listening.fileno(), *self._running], [], [])[0]:
                if ready == self._listening.fileno():
                    self._accept()
                elif ready != 0:
                    self._ended(ready)
                elif piece := os.read(0, PIECE_BYTES):
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        wanted = json.loads(line)
                        out, err = wanted.pop("out"), wanted.pop("err")
                        _tell(self._fork(wanted, _opened(out, err)), None)
                else:
                    return

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        text, files, _, _ = socket.recv_fds(client, PIECE_BYTES, 3)
        while not text.endswith(b"\n"):
            text += client.recv(PIECE_BYTES)
        self._clients[self._fork(json.loads(text), files)] = client
        for each in files:
            os.close(each)

    def _fork(self, wanted: dict[str, Any], files: Iterable[int]) -> int:
        importlib.import_module(wanted["module"])
        if (pid := os.fork()) == 0:
            _run(files=files, **wanted)
        self._running[os.pidfd_open(pid)] = pid
        return pid

    def _ended(self, ready: int) -> None:
        os.close(ready)
        pid, status = os.waitpid(self._running.pop(ready), 0)
        code = os.waitstatus_to_exitcode(status)
        if (client := self._clients.pop(pid, None)) is None:
            _tell(pid, code)
            return
        with client, suppress(OSError):  # a client that was killed waits for nothing
            client.sendall(f"{code % 256}".encode())


def _tell(pid: int, code: int | None) -> None:
    os.write(1, f"{json.dumps([pid, code])}\n".encode())


def _opened(out: str | None, err: str | None) -> Iterator[int]:
    """Standard input, output and errors of a program. It opens them itself."""
    yield os.open(os.devnull, os.O_RDONLY)
    yield os.open(out or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield 2 if err is None else os.open(err, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _run(
    *,
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    files: Iterable[int],
    directory: str | None = None,
) -> None:
    """The program. It never returns to the loop of the process that it was forked from. One that
    has a `directory` is a command: its `main` reads `sys.argv`."""
    code: Any = 1
    try:
        os.setsid()
        # However the process that it was forked from ends: nothing outlives the tests.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number, each in enumerate(files):
            os.dup2(each, number)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        if directory is not None:
            os.chdir(directory)
            sys.argv, arguments = arguments, []
        importlib.import_module(module).main(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - whatever it is, it is told of, and ends this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    _Server(int(sys.argv[1])).serve()
