"""Worker processes of this machine. Light to import, so that they start while the rest loads."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.synchronize import Semaphore
from typing import Any, Final

import cloudpickle

from ebbtide.errors import Failed
from ebbtide.gc.meter import Meter, join
from ebbtide.imports import leave_pandas_alone
from ebbtide.memory import keep_freed
from ebbtide.processes import collect_seldom, follow_parent

PRELOADED: Final = ("ebbtide.gc.planning", "ebbtide.gc.sweep", "pyarrow.acero")
"""What tasks are made of."""

STOP_SECONDS: Final = 30.0
"""For how long an interrupt waits for tasks to come to a place where they can end."""

_loading: list[Semaphore] = []
"""In a worker process, one: whoever loads holds one of its turns."""

_pools: list[ProcessPoolExecutor] = []
"""Kept until this process ends: Python stumbles over the end of a pool that was dropped before."""


class Workers:
    """`count` processes that call functions, by default one for each core. They end with this
    process, however it ends. `meter` counts what they do."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or len(os.sched_getaffinity(0))
        self.meter = Meter()
        self._pool: ProcessPoolExecutor | None = None

    @property
    def started(self) -> bool:
        """Whether they run, or are about to."""
        return self._pool is not None

    def start(self) -> None:
        """Start them now, not when they are needed first."""
        if self.count > 1:
            self._submit(_preload, [()] * self.count)

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`function(*each)` for each of `arguments`, in order. One worker is this process itself.

        Raises what a call raised, and Failed `worker_died` when the system ended a process. On an
        interrupt the calls that have begun end first, at the next place where they can.
        """
        is_worth_starting = self.started or len(arguments) > 1
        if self.count == 1 or not is_worth_starting:
            return [function(*each) for each in arguments]
        calls = self._submit(function, arguments)
        try:
            return [call.result() for call in calls]
        except BrokenProcessPool as error:
            self._pool = None
            raise Failed(
                "worker_died",
                "the system ended a worker process, for want of memory perhaps: set "
                "EBBTIDE_WORKERS to fewer of them",
            ) from error
        except KeyboardInterrupt:
            self._end(calls)
            raise
        finally:
            for call in calls:
                call.cancel()

    def _end(self, calls: Sequence[Future[Any]]) -> None:
        """Nobody works any more after this: whoever holds the repository may let go of it."""
        self.meter.stop()
        for call in calls:
            call.cancel()
        _, at_work = wait(calls, timeout=STOP_SECONDS)
        if at_work:
            # The pool's own are no business of others, so that these are all of this process's.
            for process in multiprocessing.active_children():
                process.kill()
        self._pool = None

    def _submit(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Future[Any]]:
        if self._pool is None:
            # A forked process would have this one's locks, but not the threads that release them.
            spawn = multiprocessing.get_context("spawn")
            # This process loads as much meanwhile, and whoever waits for it waits for a core.
            turns = spawn.Semaphore(max(1, self.count - 1))
            given = (turns, *self.meter.share(self.count))
            self._pool = ProcessPoolExecutor(
                self.count, spawn, initializer=_initialize, initargs=given
            )
            _pools.append(self._pool)
        # All calls have what a function refers to in common, which may be much.
        pickled = cloudpickle.dumps(function)
        return [self._pool.submit(_call, pickled, cloudpickle.dumps(each)) for each in arguments]


def _call(function: bytes, arguments: bytes) -> Any:
    return _loaded(function)(*cloudpickle.loads(arguments))


@lru_cache(maxsize=1)
def _loaded(function: bytes) -> Callable[..., Any]:
    loaded: Callable[..., Any] = cloudpickle.loads(function)
    return loaded


def _preload() -> None:
    with _loading[-1]:
        for name in PRELOADED:
            importlib.import_module(name)


def _initialize(turns: Semaphore, cells: Any, joined: Any) -> None:
    """Be light, count where the parent sees it (with what `Meter.share` gives), and end with the
    parent. Only so many at a time load what they need as there are `turns`."""
    leave_pandas_alone()
    keep_freed()
    collect_seldom()
    join(cells, joined)
    follow_parent()
    _loading.append(turns)
