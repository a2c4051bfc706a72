"""The threads of a server that carry out imports. They end with the server.

An import is a thread and not a process: it waits for the storage most of the time. Not for: the
steps of an import (`store.importing`).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import BoundedSemaphore, Event, Lock, Thread
from typing import Final

from ebbtide.errors import EbbtideError
from ebbtide.store.importing.imports import ImportRequest, Imports, Signs

AT_ONCE_MAX: Final = 4
"""The most imports that one server carries out at a time. Others wait."""
SIGN_SECONDS: Final = 10.0
"""How often a waiting import records a sign of life."""
STOP_SECONDS_MAX: Final = 5.0
"""How long the end of the server waits for imports. An import that waits longer for its storage is
told as failed when it has been silent for too long."""


class ImportThreads:
    """The imports that this server carries out. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._turns = BoundedSemaphore(AT_ONCE_MAX)
        self._stopping = Event()
        self._threads: list[Thread] = []

    def start(self, imports: Imports, import_id: str, request: ImportRequest) -> None:
        """Carries out an import that has begun, as soon as it is its turn."""
        thread = Thread(
            target=self._work, args=(imports, import_id, request), name="import", daemon=True
        )
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
        thread.start()

    def join(self, seconds_max: float | None = None) -> None:
        """Waits until the imports have ended, each for `seconds_max` at most."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(seconds_max)

    def stop(self) -> None:
        """Ends the imports. They commit nothing from now on, except one that is just committing."""
        self._stopping.set()
        self.join(STOP_SECONDS_MAX)

    def _work(self, imports: Imports, import_id: str, request: ImportRequest) -> None:
        while not self._turns.acquire(timeout=SIGN_SECONDS):
            if not _waits(lambda: imports.wait(import_id)):
                return
        try:
            imports.carry_out(import_id, request, Signs(stopping=self._stopping.is_set))
        finally:
            self._turns.release()


def _waits(sign: Callable[[], None]) -> bool:
    """Whether a waiting import still has to be carried out, by its sign of life."""
    try:
        sign()
    except EbbtideError as error:
        # Without an answer of the database, nobody knows: the import records its next sign later.
        return error.kind != "import_ended"
    return True
