"""A writer of an Icechunk repository in another process, for tests of what runs beside it."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import icechunk
import zarr
from icechunk import Repository, Session

from tests.support.icechunk import describe, open_repository

PAUSE_SECONDS: Final = 0.1
"""Between two commits: on an object store they take as long by themselves."""

WAIT_SECONDS_MAX: Final = 60.0
"""How long another process may take to answer."""


class Writer:
    """A process that writes to a branch, from when the context is entered until `stop`.

    It commits again and again; with `hold` it instead writes the chunks of one commit before the
    context is entered, and commits when it is stopped. What it wrote is at `PATH` in the snapshot.
    """

    PATH: Final = "written"

    def __init__(self, path: Path, branch: str = "main", *, hold: bool = False) -> None:
        self.command = [
            *(sys.executable, "-m", "tests.support.icechunk_writer"),
            *(str(path.resolve()), branch, "hold" if hold else "loop"),
        ]
        self.descriptions: dict[str, str] = {}
        """What `describe` says of the array as committed, by snapshot id."""
        self._changed = threading.Condition()
        self._ready = self._ended = False

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self.command,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait(lambda: self._ready)
        return self

    def wait_for_commits(self, count: int) -> None:
        """Wait until it made so many in all."""
        self._wait(lambda: len(self.descriptions) >= count)

    def stop(self) -> list[str]:
        """Let it end, and say what it committed, in order. Raises if it failed."""
        self._end()
        if self._process.returncode:
            raise RuntimeError(f"the writer failed with {self._process.returncode}: see its stderr")
        return list(self.descriptions)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(WAIT_SECONDS_MAX)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                self._ready = True
                self.descriptions |= message
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: reached() or self._ended, WAIT_SECONDS_MAX)
        if not reached():
            self._process.kill()
            self._end()
            raise RuntimeError("the writer did not get so far: see its stderr")


def _write(path: Path, branch: str, mode: str) -> None:
    """What a `Writer` runs: prints one object a line, an empty one when it is ready."""
    repository = open_repository(path)
    choices = random.Random(os.getpid())
    if mode == "hold":
        session, description = _write_chunks(repository, branch, choices)
        _say({})
        sys.stdin.read()
        _say({session.commit("held"): description})
        return
    _say({})
    while not select.select([sys.stdin], [], [], 0)[0]:
        session, description = _write_chunks(repository, branch, choices)
        try:
            _say({session.commit("written"): description})
        except icechunk.ConflictError:
            continue
        time.sleep(PAUSE_SECONDS)


def _write_chunks(
    repository: Repository, branch: str, choices: random.Random
) -> tuple[Session, str]:
    session = repository.writable_session(branch)
    root = zarr.open_group(session.store, mode="a")
    array = root.require_array(
        Writer.PATH, shape=(16,), chunks=(4,), dtype="float64", compressors=None
    )
    start = choices.randrange(9)
    array[start : start + 8] = choices.random()
    return session, describe(array)


def _say(message: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _write(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
