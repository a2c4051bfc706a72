"""The work of several threads is done together; what became of one item is told to its thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

import pytest

from ebbtide.errors import Conflict, Failed
from ebbtide.store.database import concurrency
from ebbtide.store.database.concurrency import MEMBERS_MAX, GroupWork
from tests.support.randomized import randomized

SECONDS_MAX = 20


class Worker:
    """Notes the groups that it gets. What is negative fails, with all of its group."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.groups = list[list[int]]()
        self.gate = threading.Lock()
        self.begun = threading.Semaphore(0)
        self.done = GroupWork(self.work)
        self._error = error

    def work(self, _key: str, items: Sequence[int]) -> list[int]:
        self.groups.append(list(items))
        self.begun.release()
        with self.gate:
            if min(items) < 0:
                raise self._error()
        return [item * 10 for item in items]

    def wait_for(self, count: int) -> None:
        """Until as many threads wait behind the group that is under way."""
        deadline = time.monotonic() + SECONDS_MAX
        while len(self.done._queues.get("", ())) != count:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    @contextmanager
    def held(self, pool: ThreadPoolExecutor) -> Iterator[Future[int]]:
        """A block in which the first item, 0, is under way."""
        with self.gate:
            first = pool.submit(self.done.do, "", 0)
            assert self.begun.acquire(timeout=SECONDS_MAX)
            yield first

    def after_one(self, *items: int) -> list[Future[int]]:
        """Items that arrive in this order while another one is under way, and their ends."""
        with ThreadPoolExecutor(len(items) + 1) as pool, self.held(pool) as first:
            futures = [first]
            for number, item in enumerate(items, 1):
                futures.append(pool.submit(self.done.do, "", item))
                self.wait_for(number)
        return futures[1:]


def conflict() -> Conflict:
    return Conflict("precondition_failed", "no", path="a")


def test_what_arrives_meanwhile_is_one_group() -> None:
    worker = Worker(conflict)
    assert [each.result() for each in worker.after_one(3, 1, 2)] == [30, 10, 20]
    assert worker.groups == [[0], [3, 1, 2]]
    assert worker.done.do("", 4) == 40, "nobody waits for another"
    assert not worker.done._queues


def test_another_key_waits_for_nobody() -> None:
    worker = Worker(conflict)
    worker.gate = threading.Lock()
    with ThreadPoolExecutor(2) as pool:
        with worker.held(pool) as first:
            other = pool.submit(worker.done.do, "other", 7)
            assert worker.begun.acquire(timeout=SECONDS_MAX), "it is under way, too"
        assert (first.result(), other.result()) == (0, 70)


def test_a_group_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MEMBERS_MAX == 64
    monkeypatch.setattr(concurrency, "MEMBERS_MAX", 2)
    worker = Worker(conflict)
    assert [each.result() for each in worker.after_one(1, 2, 3)] == [10, 20, 30]
    assert worker.groups == [[0], [1, 2], [3]]


def test_an_item_that_fails_harms_no_neighbour() -> None:
    """Each is then done alone, and each that fails has an error of its own."""
    worker = Worker(conflict)
    one, bad, two, worse = worker.after_one(1, -1, 2, -2)
    assert (one.result(), two.result()) == (10, 20)
    errors = [bad.exception(), worse.exception()]
    assert [isinstance(each, Conflict) for each in errors] == [True, True]
    assert errors[0] is not errors[1]
    assert worker.groups == [[0], [1, -1, 2, -2], [1], [-1], [2], [-2]]


def test_a_failure_of_the_system_is_one_of_all() -> None:
    """It is not tried again: a commit without an answer may have taken effect."""
    worker = Worker(lambda: Failed("disk_full", "the disk is full", address="x"))
    found = [each.exception() for each in worker.after_one(1, -1, 2)]
    for each in found:
        assert isinstance(each, Failed)
        assert (each.kind, each.message, each.details) == (
            "disk_full",
            "the disk is full",
            {"address": "x"},
        )
    assert len(set(map(id, found))) == 3
    assert worker.groups == [[0], [1, -1, 2]]


def test_an_interrupt_of_the_one_who_works_is_told_to_the_others() -> None:
    worker = Worker(KeyboardInterrupt)
    bad, one = worker.after_one(-1, 1)
    assert isinstance(bad.exception(), KeyboardInterrupt)
    assert isinstance(one.exception(), Failed)
    assert worker.done.do("", 2) == 20


@pytest.mark.parametrize("is_late", [False, True])
def test_an_interrupt_while_waiting_keeps_nobody_waiting(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that comes when it is the thread's turn to lead."""

    class Broken:
        def __init__(self) -> None:
            self.inner, self.calls = threading.Lock(), 0

        def acquire(self) -> bool:
            self.calls += 1
            if self.calls == 2:
                if is_late:
                    self.inner.acquire()
                raise KeyboardInterrupt
            return self.inner.acquire()

        def release(self) -> None:
            self.inner.release()

    worker = Worker(conflict)
    with ThreadPoolExecutor(3) as pool:
        with worker.held(pool) as first:
            with monkeypatch.context() as patched:
                patched.setattr(concurrency, "Lock", Broken)
                broken = pool.submit(worker.done.do, "", 1)
                if is_late:
                    worker.wait_for(1)
                else:
                    assert isinstance(broken.exception(SECONDS_MAX), KeyboardInterrupt)
            other = pool.submit(worker.done.do, "", 2)
            worker.wait_for(1 + is_late)
        assert isinstance(broken.exception(SECONDS_MAX), KeyboardInterrupt)
        assert (first.result(SECONDS_MAX), other.result(SECONDS_MAX)) == (0, 20)
    assert worker.groups == [[0], [2]]
    assert not worker.done._queues


@randomized("groups of threads")
def test_many_threads(seed: int) -> None:
    """Each gets its own result, and no two groups of a key are under way at once."""
    inside = {"a": threading.Lock(), "b": threading.Lock()}

    def work(key: str, items: Sequence[int]) -> list[int]:
        assert inside[key].acquire(blocking=False)
        try:
            if any(item % 7 == 0 for item in items):
                raise conflict()
            return [item * 10 for item in items]
        finally:
            inside[key].release()

    groups = GroupWork(work)

    def run(number: int) -> None:
        random = Random(f"{seed} {number}")
        for _ in range(300):
            item = random.randrange(1000)
            try:
                assert groups.do(random.choice("ab"), item) == item * 10
                assert item % 7
            except Conflict:
                assert item % 7 == 0

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(run, number) for number in range(8)]:
            future.result()
    assert not groups._queues
