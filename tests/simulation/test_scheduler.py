"""What sleeps, fails and dies does so as processes do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import pytest

from ebbtide.errors import Failed
from tests.simulation.bucket import SimulatedBucket
from tests.simulation.histories import History, Step, shrink
from tests.simulation.knowledge import Known
from tests.simulation.scheduler import Disturbance, Scheduler, Task, word_of
from tests.simulation.world import HOUR, LEASE, START
from tests.support.clock import ManualClock

REPOSITORY = "r"


class Ground:
    """A bucket whose calls are points."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.scheduler = Scheduler(self.clock, lambda _task: None)
        self.bucket = SimulatedBucket("b", self.clock.host_now, scheduler=self.scheduler)
        self.storage = self.bucket.storage("s3://b/lake")

    def start(self, name: str, work: Callable[[], object], *disturbed: Disturbance) -> Task:
        task = Task(len(self.scheduler.tasks), name, work, disturbed)
        self.scheduler.start(task)
        return task

    def there(self) -> set[str]:
        return set(self.bucket.objects)

    def write(self, *addresses: str) -> None:
        for address in addresses:
            self.storage.put(address, b"")


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_others_go_on_while_one_sleeps(ground: Ground) -> None:
    ground.write("data/a", "data/b")
    sleep = Disturbance("sleep", "delete data", 1, slices=1, lasts=HOUR)
    slow = ground.start("slow", lambda: ground.storage.delete(["data/a", "data/b"]), sleep)
    assert not slow.is_over
    assert ground.there() == {"lake/data/b"}
    assert ground.clock.now >= START + HOUR
    seen = ground.start("fast", lambda: ground.storage.head("data/b"))
    assert seen.answer is not None
    assert slow.is_over
    assert not ground.there()


def test_nothing_is_cleaned_up_by_who_died(ground: Ground) -> None:
    def work() -> None:
        try:
            ground.write("data/a", "data/b")
        except BaseException:
            ground.storage.delete(["data/a"])
            raise

    task = ground.start("dies", work, Disturbance("kill", "put data", 1))
    assert task.is_over
    assert task.refused is None
    assert ground.there() == {"lake/data/a"}


@pytest.mark.parametrize(("fault", "left"), [("fail", 4), ("part", 2), ("lose", 0)])
def test_a_batch_that_fails_in_part(ground: Ground, fault: str, left: int) -> None:
    names = [f"data/{number}" for number in range(4)]
    ground.write(*names)
    disturbance = Disturbance(fault, "delete data")  # type: ignore[arg-type]
    task = ground.start("deletes", lambda: ground.storage.delete(names), disturbance)
    failed = sum(each.outcome == "failed" for each in task.answer)
    assert len(ground.there()) == left
    assert failed == (4 if fault == "lose" else left)


def test_an_answer_that_is_lost(ground: Ground) -> None:
    task = ground.start("writes", lambda: ground.write("data/a"), Disturbance("lose", "put data"))
    assert isinstance(task.refused, Failed)
    assert ground.there() == {"lake/data/a"}


def test_who_waits_goes_on_when_it_is_ready(ground: Ground) -> None:
    taken = [True]

    def hold() -> None:
        ground.write("data/a")
        taken.clear()

    ground.start("holds", hold, Disturbance("sleep", "put data", slices=5))
    waiting = ground.start(
        "waits", lambda: ground.scheduler.wait_for("the other", lambda: not taken)
    )
    assert not waiting.is_over
    ground.scheduler.finish()
    assert waiting.is_over
    assert waiting.refused is None


def test_what_has_not_ended_is_stopped(ground: Ground) -> None:
    sleep = Disturbance("sleep", "put data", slices=9)

    def work() -> None:
        with suppress(Exception):
            ground.write("data/a")
        ground.write("data/b")

    ground.start("sleeps", work, sleep)
    ground.scheduler.stop()
    assert not ground.there()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("INSERT commits", "INSERT commits"),
        ("commit", "commit"),
        ("replace _ebbtide/OWNER", "replace OWNER"),
        ("put _ebbtide/gc/EPOCH", "put gc/EPOCH"),
        ("delete 2 of 3: data/1/2", "delete data"),
        ("put _ebbtide/gc/runs/7/intended/part/1.json", "put runs/intended"),
        ("move 1 of 2: _ebbtide/trees/1.parquet", "move trees"),
    ],
)
def test_points_are_told_apart_by_what_they_are(text: str, word: str) -> None:
    assert word_of(text) == word


def test_a_history_is_made_smaller() -> None:
    sleep = Disturbance("sleep", "commit", lasts=HOUR)
    steps: Sequence[Step] = [
        Step(name, number, (0,), HOUR, 0, (sleep, sleep))
        for number, name in enumerate(["save", "run", "save", "undo"])
    ]

    def fails(tried: History) -> bool:
        names = [step.name for step in tried.steps]
        return "run" in names and any(
            step.name == "undo" and step.disturbances for step in tried.steps
        )

    small = shrink(fails, History(0, tuple(steps), settles=True))
    assert [step.name for step in small.steps] == ["run", "undo"]
    assert not small.settles
    assert [len(step.disturbances) for step in small.steps] == [0, 1]
    assert all(not step.delay for step in small.steps)
    assert not small.steps[1].disturbances[0].lasts


def test_who_was_beside_it_makes_a_promise_short() -> None:
    """Nobody knows which of the two moved the branch last."""
    known = Known(repositories=[REPOSITORY])
    known.moving("main", 1, START)
    known.moving("main", 2, START + HOUR)
    known.points_at("main", 2, REPOSITORY, ["b"])
    assert known.promises["main"].until == START + HOUR + LEASE
    known.end(2, START + HOUR)
    known.end(1, START + HOUR)
    known.moving("main", 3, START + 2 * HOUR)
    known.points_at("main", 3, REPOSITORY, ["c"])
    assert known.promises["main"].until is None
    assert known.promises["main before 3"].keys == {"b"}
    known.lessen_all(REPOSITORY, START + timedelta(days=1))
    assert known.promises["main"].until == START + timedelta(days=1)
