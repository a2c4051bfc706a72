"""Each step of what this process does: a call of a local storage, a statement or commit of the
database, a write to stdout or to a file of this machine. One of them fails, or is interrupted.

The steps are found where every caller passes: in the methods of LocalStorage, in SQLAlchemy's
dialect, in the file below stdout, and in `Path`. Not for: other processes, which nobody here sees.
"""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

import pyarrow as pa
import pytest
from sqlalchemy.engine.default import DefaultDialect

from ebbtide import interrupts
from ebbtide.errors import Failed
from ebbtide.storage import DeleteOutcome, LocalStorage

Answer = TypeVar("Answer")

Kind = Literal["fails", "late", "down", "interrupted", "interrupted behind"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""What can happen to a step. In this order: it fails; it takes effect and its answer is lost; it
fails, and all later steps of its kind too. Or Ctrl-C comes: before the step, or right after it."""

Service = Literal["storage", "database", "stdout", "file"]

ONCE: Final[tuple[Kind, ...]] = ("fails",)
ASKED: Final[tuple[Kind, ...]] = ("fails", "down", "interrupted", "interrupted behind")
DONE: Final[tuple[Kind, ...]] = KINDS


@dataclass(frozen=True, slots=True)
class Place:
    """One step: what serves it, what it is, and what can become of it."""

    service: Service
    name: str
    kinds: tuple[Kind, ...]

    def __str__(self) -> str:
        return f"{self.service}: {self.name}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of the step with a number, counted from 0."""

    number: int
    kind: Kind


class Steps:
    """The steps that were taken so far, of which `fault` befalls one. Those of other threads than
    the one that made this are not counted, unless `everywhere`; none unless it `counts`."""

    def __init__(
        self, fault: Fault | None = None, *, everywhere: bool = False, counts: bool = True
    ) -> None:
        self.places: list[Place] = []
        self.hit: Place | None = None
        self._fault = fault
        self._counts = counts
        self._thread = None if everywhere else threading.get_ident()
        self._down: Service | None = None
        self._inside = threading.local()
        self._lock = threading.Lock()

    def take(
        self, place: Place, call: Callable[[], Answer], broken: Callable[[], Answer]
    ) -> Answer:
        """Does `call`, or what befalls it; `broken` answers for it. Steps inside are none."""
        if getattr(self._inside, "yes", False):
            return call()
        if place.service == self._down:
            return broken()
        kind = self._counted(place)
        if kind in ("fails", "down"):
            return broken()
        if kind == "interrupted":
            interrupt()
        self._inside.yes = True
        try:
            answer = call()
        finally:
            self._inside.yes = False
            if kind == "interrupted behind":
                interrupt()
        return broken() if kind == "late" else answer

    @property
    def is_down(self) -> bool:
        return self._down is not None

    def _counted(self, place: Place) -> Kind | None:
        if not self._counts or self._thread not in (None, threading.get_ident()):
            return None
        with self._lock:
            number = len(self.places)
            self.places.append(place)
        if self._fault is None or number != self._fault.number:
            return None
        self.hit = place
        if self._fault.kind == "down":
            self._down = place.service
        return self._fault.kind


def interrupt() -> None:
    interrupts._heard.hear(signal.SIGINT, None)


def faults(places: Sequence[Place]) -> list[Fault]:
    """All that can befall these steps. Of statements that are alike, the first stands for all: what
    matters of each is told by the transactions that it is in."""
    seen = set[str]()
    found = list[Fault]()
    for number, place in enumerate(places):
        if place.kinds is not ONCE or place.name not in seen:
            found += [Fault(number, kind) for kind in place.kinds]
        seen.add(place.name)
    return found


def faults_at(places: Sequence[Place], name: str, kind: Kind) -> list[Fault]:
    """All faults of a kind at steps whose name begins as the pattern says. There must be some."""
    at_places = (each for each in faults(places) if re.match(name, places[each.number].name))
    found = [each for each in at_places if each.kind == kind]
    assert found
    return found


_METHODS: Final[dict[str, tuple[Kind, ...]]] = {
    "get": ASKED,
    "get_versioned": ASKED,
    "head": ASKED,
    "list_prefixes": ASKED,
    "sizes": ASKED,
    "put": DONE,
    "replace": DONE,
}
"""Of a storage: those that answer, or raise Failed, at the call."""


class Stepping:
    """Lets every step of this process pass by `steps`, until the end of the `patched`. Files of
    this machine are those below `directory`, but for `left_out`."""

    def __init__(self, patched: pytest.MonkeyPatch, directory: Path, *left_out: Path) -> None:
        self.steps = Steps(counts=False)
        self._directory = directory
        self._left_out = left_out
        self._storage(patched)
        self._database(patched)
        self._files(patched)

    @contextmanager
    def taking(self, steps: Steps) -> Iterator[Steps]:
        before, self.steps = self.steps, steps
        try:
            yield steps
        finally:
            self.steps = before

    def _storage(self, patched: pytest.MonkeyPatch) -> None:
        stepping = self

        def broken(address: str) -> Any:
            raise Failed(
                "storage_error", f"the storage answered with an error on {address}: 503 SlowDown"
            )

        def answering(name: str, kinds: tuple[Kind, ...]) -> None:
            method = getattr(LocalStorage, name)

            def step(storage: LocalStorage, address: Any = "", *given: Any, **more: Any) -> Any:
                place = Place("storage", f"{name} {_shape(address)}", kinds)
                call = lambda: method(storage, address, *given, **more)  # noqa: E731
                return stepping.steps.take(place, call, lambda: broken(str(address)))

            patched.setattr(LocalStorage, name, step)

        for name, kinds in _METHODS.items():
            answering(name, kinds)
        listed, streamed = LocalStorage.list, LocalStorage.stream

        def rows(storage: LocalStorage, prefix: str = "", **more: Any) -> Iterator[pa.RecordBatch]:
            place = Place("storage", f"list {_shape(prefix)}", ASKED)
            # At the first batch, as a storage answers.
            yield from stepping.steps.take(
                place, lambda: list(listed(storage, prefix, **more)), lambda: broken(prefix)
            )

        def pieces(storage: LocalStorage, address: str, **more: Any) -> Iterator[bytes]:
            place = Place("storage", f"stream {_shape(address)}", ASKED)
            data = stepping.steps.take(
                place,
                lambda: b"".join(streamed(storage, address, **more)),
                lambda: broken(address),
            )

            def halves() -> Iterator[bytes]:
                yield data[: len(data) // 2]
                middle = Place("storage", f"stream {_shape(address)}, the rest", ASKED)
                yield stepping.steps.take(
                    middle, lambda: data[len(data) // 2 :], lambda: broken(address)
                )

            return halves()

        patched.setattr(LocalStorage, "list", rows)
        patched.setattr(LocalStorage, "stream", pieces)
        for name in ("delete", "move"):
            self._many(patched, name)

    def _many(self, patched: pytest.MonkeyPatch, name: str) -> None:
        method = getattr(LocalStorage, name)

        def step(storage: LocalStorage, asked: Sequence[Any]) -> list[DeleteOutcome]:
            first = [each if isinstance(each, str) else each[0] for each in asked]
            place = Place("storage", f"{name} {_shape(first[0] if first else '')}", DONE)
            return self.steps.take(
                place,
                lambda: method(storage, asked),
                lambda: [DeleteOutcome(each, "failed", "403 AccessDenied") for each in first],
            )

        patched.setattr(LocalStorage, name, step)

    def _database(self, patched: pytest.MonkeyPatch) -> None:
        stepping = self

        def broken() -> Any:
            raise sqlite3.OperationalError("disk I/O error")

        def around(name: str, of: Callable[..., Place]) -> None:
            method = getattr(DefaultDialect, name)

            def step(dialect: DefaultDialect, *given: Any, **more: Any) -> Any:
                call = lambda: method(dialect, *given, **more)  # noqa: E731
                return stepping.steps.take(of(*given), call, broken)

            patched.setattr(DefaultDialect, name, step)

        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            around(name, lambda _cursor, statement, *_: _statement(statement))
        around("do_commit", lambda *_: Place("database", "commit", DONE))
        around("connect", lambda *_: Place("database", "connect", ASKED))

    def _files(self, patched: pytest.MonkeyPatch) -> None:
        stepping = self

        def is_ours(path: Path) -> bool:
            whole = path.absolute()
            return whole.is_relative_to(stepping._directory) and not any(
                whole.is_relative_to(each) for each in stepping._left_out
            )

        def around(name: str, kinds: tuple[Kind, ...]) -> None:
            method = getattr(Path, name)

            def step(path: Path, *given: Any, **more: Any) -> Any:
                if not is_ours(path):
                    return method(path, *given, **more)
                call = lambda: method(path, *given, **more)  # noqa: E731
                place = Place("file", f"{name} {_shape(path.name)}", kinds)
                return stepping.steps.take(place, call, lambda: _no_room(path))

            patched.setattr(Path, name, step)

        opened = Path.open

        def step(path: Path, mode: str = "r", *given: Any, **more: Any) -> Any:
            if not is_ours(path):
                return opened(path, mode, *given, **more)
            # Opened, and interrupted at once, it would be left to Python to close.
            kinds: tuple[Kind, ...] = ("fails", "down", "interrupted")
            place = Place("file", f"open {mode} {_shape(path.name)}", kinds)
            file = stepping.steps.take(
                place, lambda: opened(path, mode, *given, **more), lambda: _no_room(path)
            )
            return _Written(file, path, stepping) if mode == "wb" else file

        patched.setattr(Path, "open", step)
        for name in ("replace", "mkdir"):
            around(name, DONE)


class _Written:
    def __init__(self, file: Any, path: Path, stepping: Stepping) -> None:
        self._file = file
        self._path = path
        self._stepping = stepping

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        """As a full disk answers: without the file's name."""
        place = Place("file", f"write {_shape(self._path.name)}", ASKED)

        def broken() -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return self._stepping.steps.take(place, lambda: int(self._file.write(data)), broken)


class Stdout(io.RawIOBase):
    """The file below stdout. It fails as a full disk does, or as a pipe that nobody reads."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps
        self._descriptor = os.memfd_create("stdout")
        self._kept = os.dup(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # a buffer
        """Whoever made this lead nowhere loses nothing any more."""
        if os.path.samestat(os.fstat(self._descriptor), Path(os.devnull).stat()):
            return len(data)

        def broken() -> int:
            if self._steps.is_down:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        place = Place("stdout", "write", ASKED)
        return self._steps.take(place, lambda: os.write(self._descriptor, data), broken)

    def lead_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)

    def text(self) -> str:
        return os.pread(self._kept, os.fstat(self._kept).st_size, 0).decode()

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
            os.close(self._kept)
        super().close()


def _no_room(path: Path) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _statement(text: str) -> Place:
    words = text.split()
    if words[0].upper() == "BEGIN":
        return Place("database", " ".join(words), ASKED)
    return Place("database", " ".join(words[:3]), ONCE)


def _shape(address: object) -> str:
    """An address without what chance made of it."""
    parts = str(address).split("/")
    return "/".join("…" if len(part) >= 20 else part for part in parts)[:60]
