"""Servers that all processes of a test run share: each starts once, when a test first asks for it.

pytest's own process opens a pipe with a name, and every server that a worker starts runs until that
pipe closes: when the run ends, however it ends. Not for servers that a test configures or kills.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

DIRECTORY_VARIABLE: Final = "EBBTIDE_TEST_SERVICES"
PIPE_NAME: Final = "open-while-the-run-lasts"
PREFIX: Final = "ebbtide-services-"
END_SECONDS_MAX: Final = 30
START_SECONDS_MAX: Final = 60
"""A run has long opened its pipe by then."""

Server = TypeVar("Server")
Answer = TypeVar("Answer")

_STARTED: Final[list[object]] = []
"""The servers that this process started, whose pipes stay open as long as it lives."""


class Services:
    """The services of one run. Made in pytest's own process, which ends them."""

    def __init__(self) -> None:
        _remove_left()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        # A server that may not run as root has its files in here.
        self.directory.chmod(0o711)
        pipe = self.directory / PIPE_NAME
        os.mkfifo(pipe)
        # For both directions: to open one end alone waits for somebody at the other.
        self._pipe = os.open(pipe, os.O_RDWR)
        os.environ[DIRECTORY_VARIABLE] = str(self.directory)

    def end(self) -> None:
        os.close(self._pipe)
        os.environ.pop(DIRECTORY_VARIABLE, None)
        deadline = time.monotonic() + END_SECONDS_MAX
        while any(self.directory.glob("*/*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.directory, ignore_errors=True)


def _remove_left() -> None:
    """Removes what runs left that were killed: directories whose pipe nobody has open any more."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if time.time() - directory.stat().st_mtime > START_SECONDS_MAX:
                os.close(os.open(directory / PIPE_NAME, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno == errno.ENXIO:
                shutil.rmtree(directory, ignore_errors=True)


def shared(
    name: str, start: Callable[[Path, int], Server], tell: Callable[[Server], Answer]
) -> Answer:
    """What `tell` says of the server that `start` made for whoever asked first in this run.

    `start` gets a new directory, which is empty again once the server has ended, and the end of a
    pipe to read: it says nothing, and closes with the run. The answer is pickled for the other
    processes, which wait while the server starts.
    """
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    answer = directory / f"{name}.pickle"
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answer.exists():
            server = _start(directory / name, directory / PIPE_NAME, start)
            _STARTED.append(server)
            answer.write_bytes(pickle.dumps(tell(server)))
        found: Answer = pickle.loads(answer.read_bytes())
        return found


def _start(home: Path, pipe: Path, start: Callable[[Path, int], Server]) -> Server:
    home.mkdir()
    # A server that may not run as root removes what it made in here, too.
    home.chmod(0o1777)
    reading = os.open(pipe, os.O_RDONLY)
    try:
        return start(home, reading)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    finally:
        os.close(reading)
