"""A writer of Icechunk repositories in another process, for tests of what runs beside it."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import icechunk
import zarr
from icechunk import Repository, Session

from tests.support.icechunk import describe, open_repository

WAIT_SECONDS_MAX: Final = 60.0
"""How long the other process may take to answer."""

Message = dict[str, str] | str | None
"""What a writer says: what it committed, why it failed, or that it has ended."""


class WriterProcess:
    """The process in which one writer after the other runs. It starts with the first of them."""

    def __init__(self) -> None:
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        """The pipe to the process."""
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        return self._connection

    def end(self) -> None:
        """Ends the process; the next writer starts another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._process.join(WAIT_SECONDS_MAX)
            self._process.kill()
            self._process.join()
            self._process.close()


class Writer:
    """Writes to a branch in another process, from when the context is entered until `stop`.

    It commits again and again; with `hold` it instead writes the chunks of one commit before the
    context is entered, and commits when it is stopped. What it wrote is at `PATH` in the snapshot.
    """

    PATH: Final = "written"

    def __init__(
        self, process: WriterProcess, path: Path, branch: str = "main", *, hold: bool = False
    ) -> None:
        self.descriptions: dict[str, str] = {}
        """What `describe` says of the array as committed, by snapshot id."""
        self._process = process
        self._job = (str(path.resolve()), branch, hold)
        self._runs = False

    def __enter__(self) -> Self:
        self._connection = self._process.connection()
        self._connection.send(self._job)
        self._runs = True
        self._receive()
        return self

    def wait_for_commits(self, count: int) -> None:
        """Waits until it has made so many more."""
        while self._connection.poll():
            self._receive()
        enough = len(self.descriptions) + count
        while len(self.descriptions) < enough:
            self._receive()

    def stop(self) -> list[str]:
        """Ends it; what it committed, in order. Raises if it failed."""
        self._connection.send(None)
        while self._runs:
            self._receive()
        return list(self.descriptions)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runs:
            self._process.end()

    def _receive(self) -> None:
        if not self._connection.poll(WAIT_SECONDS_MAX):
            raise RuntimeError("the writer says nothing")
        message: Message = self._connection.recv()
        if isinstance(message, dict):
            self.descriptions |= message
            return
        self._runs = False
        if message is not None:
            self._process.end()
            raise RuntimeError(f"the writer failed: {message}")


def _serve(connection: Connection) -> None:
    """What the process does: one job after the other, until one fails or the pipe closes."""
    while True:
        try:
            path, branch, hold = connection.recv()
        except EOFError:
            return
        try:
            _write(connection, Path(path), branch, hold)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
            connection.send(f"{type(error).__name__}: {error}")
            return
        connection.send(None)


def _write(connection: Connection, path: Path, branch: str, hold: bool) -> None:
    """Writes until told to stop. Says what it committed; first of all, that it is ready."""
    repository = open_repository(path)
    choices = random.Random(os.getpid())
    if hold:
        session, description = _write_chunks(repository, branch, choices)
        connection.send({})
        connection.recv()
        connection.send({session.commit("held"): description})
        return
    connection.send({})
    pause_seconds = 0.0
    # It pauses for as long as a commit takes, so that others get to change the repository, too.
    while not connection.poll(pause_seconds):
        began = time.monotonic()
        session, description = _write_chunks(repository, branch, choices)
        try:
            connection.send({session.commit("written"): description})
        except icechunk.ConflictError:
            continue
        finally:
            pause_seconds = time.monotonic() - began
    connection.recv()


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
