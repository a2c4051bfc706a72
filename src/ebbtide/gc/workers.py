"""Worker processes of this machine. Light to import, so that they start while the rest loads."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

import cloudpickle

from ebbtide.errors import Failed
from ebbtide.imports import leave_pandas_alone
from ebbtide.processes import follow_parent

PRELOADED: Final = ("ebbtide.gc.planning", "ebbtide.gc.sweep")
"""What tasks are made of."""

_pools: list[ProcessPoolExecutor] = []
"""Kept until this process ends: Python stumbles over the end of a pool that was dropped before."""


class Workers:
    """`count` processes that call functions, by default one for each core. They end with this
    process, however it ends."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None

    @property
    def started(self) -> bool:
        """Whether they run, or are about to."""
        return self._pool is not None

    def start(self) -> None:
        """Start them now, not when they are needed first."""
        if self.count > 1:
            self._submit([(_preload, ())] * self.count)

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`function(*each)` for each of `arguments`, in order. One worker is this process itself.

        Raises what a call raised, and Failed `worker_died` when the system ended a process.
        """
        if self.count == 1 or len(arguments) < 2:
            return [function(*each) for each in arguments]
        calls = self._submit([(function, each) for each in arguments])
        try:
            return [call.result() for call in calls]
        except BrokenProcessPool as error:
            self._pool = None
            raise Failed(
                "worker_died",
                "the system ended a worker process, for want of memory perhaps: set "
                "EBBTIDE_WORKERS to fewer of them",
            ) from error
        finally:
            for call in calls:
                call.cancel()

    def _submit(
        self, calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]
    ) -> list[Future[Any]]:
        if self._pool is None:
            # A forked process would have this one's locks, but not the threads that release them.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, spawn, initializer=_initialize)
            _pools.append(self._pool)
        return [self._pool.submit(_call, cloudpickle.dumps(call)) for call in calls]


def _call(pickled: bytes) -> Any:
    function, arguments = cloudpickle.loads(pickled)
    return function(*arguments)


def _preload() -> None:
    for name in PRELOADED:
        importlib.import_module(name)


def _initialize() -> None:
    """Be light, and end with the parent."""
    leave_pandas_alone()
    follow_parent()
