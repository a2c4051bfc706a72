"""Frames: what each method gives, against lists of rows; and the same on both engines."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.arrow import make_schema, rows_in, table_of
from ebbtide.errors import Failed, NotFound, Refused
from ebbtide.gc.engine import Batches, Engine, Frame
from ebbtide.gc.none import LocalEngine
from ebbtide.gc.spark.engine import SparkFrame
from tests.support.engines import on_engines
from tests.support.randomized import randomized

LEFT = make_schema(("key", pa.int64()), ("name", pa.string()))
RIGHT = make_schema(("key", pa.int64()), ("flag", pa.bool_()))
Row = tuple[Any, ...]

both = on_engines("inline", "spark", always=True)


def frame(engine: Engine, rows: list[Row], schema: pa.Schema, pieces: int = 3) -> Frame:
    """Rows in so many tasks, each of which yields them one by one."""

    def step(task: list[Row]) -> Batches:
        for row in task:
            columns = [
                pa.array([value], kind.type) for value, kind in zip(row, schema, strict=True)
            ]
            yield pa.record_batch(columns, schema=schema)

    return engine.frame([rows[first::pieces] for first in range(pieces)], step, schema)


def rows_of(found: Frame) -> list[Row]:
    return sorted((row for each in found.collect().to_batches() for row in rows_in(each)), key=repr)


def some(seed: int) -> tuple[list[Row], list[Row]]:
    """Rows of both sides, with keys that are null, far apart, on one side alone, and on both."""
    rng = random.Random(seed)
    keys = [None, 0, -1, 2**63 - 1, -(2**63), *range(5, 12)]
    left = [(rng.choice(keys), rng.choice("abc")) for _ in range(rng.randrange(20))]
    right = [(key, rng.random() < 0.5) for key in keys if rng.random() < 0.5]
    return left, right


@both
@randomized("frames")
def test_joins(engine: Engine, seed: int) -> None:
    """A null is equal to nothing, on either side."""
    check_joins(engine, seed)


@randomized("frames in the process")
def test_joins_in_the_process(seed: int) -> None:
    """The same, more often: here a join is code of our own, and takes no time."""
    check_joins(LocalEngine(), seed)


def check_joins(engine: Engine, seed: int) -> None:
    left, right = some(seed)
    first, second = frame(engine, left, LEFT), frame(engine, right, RIGHT)
    known = {key: flag for key, flag in right if key is not None}
    expected = [row for row in left if row[0] not in known]
    assert rows_of(first.join(second, "key", "left_anti")) == sorted(expected, key=repr)
    expected = [row for row in left if row[0] in known]
    assert rows_of(first.join(second, "key", "left_semi")) == sorted(expected, key=repr)
    expected = [(*row, known.get(row[0])) for row in left]
    joined = first.join(second, "key", "left")
    assert joined.schema.names == ["key", "name", "flag"]
    assert rows_of(joined) == sorted(expected, key=repr)
    twice = second.union(second)
    expected = [row for row in left if row[0] in known]
    assert rows_of(first.join(twice, "key", "left_semi")) == sorted(expected, key=repr)


@both
@randomized("frames")
def test_rows_are_chosen_and_put_together(engine: Engine, seed: int) -> None:
    left, _ = some(seed)
    given = frame(engine, left, LEFT)
    assert rows_of(given) == sorted(left, key=repr)
    assert rows_of(given.union(given)) == sorted([*left, *left], key=repr)
    assert rows_of(given.union(given).distinct()) == sorted(set(left), key=repr)
    assert rows_of(given.select("name")) == sorted(((row[1],) for row in left), key=repr)
    named = given.named("other", "word")
    assert named.schema.names == ["other", "word"]
    assert rows_of(named) == sorted(left, key=repr)
    assert rows_of(given.kept().union(given.kept())) == sorted([*left, *left], key=repr)


PLACED = make_schema(("part", pa.int32()), ("row", pa.int32()))


@both
@randomized("frames")
def test_rows_are_gathered(engine: Engine, seed: int) -> None:
    """Those of one value are all in one partition, where they come in order."""
    rng = random.Random(seed)
    rows = [(rng.randrange(5), rng.randrange(9)) for _ in range(40)]

    def tell(batches: Batches) -> Batches:
        numbers = [row for batch in batches for row in rows_in(batch)]
        assert numbers == sorted(numbers)
        table = table_of(numbers, PLACED)
        each = table.group_by("part").aggregate([("row", "count")])
        columns = [each.column("part"), each.column("row_count").cast(pa.int32())]
        yield from pa.table(columns, schema=PLACED).to_batches()

    counts = {part: sum(row[0] == part for row in rows) for part, _ in rows}
    for partitions in (1, 3):
        given = frame(engine, rows, PLACED).gathered(partitions, "part", "row")
        assert rows_of(given.map(tell, PLACED)) == sorted(counts.items(), key=repr)


@both
def test_nothing_at_all(engine: Engine) -> None:
    given = frame(engine, [], LEFT, pieces=0)
    assert rows_of(given) == []
    places = frame(engine, [], PLACED, pieces=0).gathered(2, "part", "row")
    assert rows_of(places.map(lambda batches: batches, PLACED)) == []
    some_rows = frame(engine, [(1, "a"), (None, "b")], LEFT)
    assert len(rows_of(some_rows.join(given.select("key"), "key", "left_anti"))) == 2
    joined = some_rows.join(frame(engine, [], RIGHT, pieces=0), "key", "left")
    assert rows_of(joined) == [(1, "a", None), (None, "b", None)]


@both
@pytest.mark.parametrize(
    "error", [Refused("missing_tree", "it is gone", tree="a"), NotFound("object_not_found", "b")]
)
def test_an_error_of_a_step_is_that_of_the_frame(engine: Engine, error: Refused) -> None:
    """With its class, kind, message and details, however many steps lie between."""

    def fail(batches: Batches) -> Batches:
        for batch in batches:
            if batch.column("key").to_pylist() == [2]:
                raise error
            yield batch

    def place(batches: Batches) -> Batches:
        for batch in batches:
            keys = batch.column("key").cast(pa.int32())
            yield pa.record_batch([keys, keys], schema=PLACED)

    given = frame(engine, [(1, "a"), (2, "b"), (3, "c")], LEFT).map(fail, LEFT)
    other = frame(engine, [(7, True)], RIGHT).select("key")
    asked: list[Callable[[], object]] = [
        given.collect,
        given.map(place, PLACED).gathered(1, "part").map(lambda batches: batches, PLACED).collect,
        frame(engine, [(1, "a")], LEFT).join(given.select("key"), "key", "left_anti").collect,
        given.join(other, "key", "left_anti").collect,
    ]
    if engine.name != "none":
        asked = asked[:2]
    for ask in asked:
        with pytest.raises(type(error)) as raised:
            ask()
        assert (raised.value.kind, raised.value.message) == (error.kind, error.message)
        assert raised.value.details == error.details


@both
def test_what_a_step_did_not_expect(engine: Engine) -> None:
    def fail(_batches: Batches) -> Batches:
        raise ValueError("odd")
        yield

    with pytest.raises(Failed, match="odd") as failed:
        frame(engine, [(1, "a")], LEFT).map(fail, LEFT).collect()
    assert failed.value.kind == ("task_failed" if engine.name == "none" else "spark_error")
    assert "\n" not in failed.value.message


OF_A_TASK = (
    "An error occurred while calling o91.getResult.\n"
    ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
    "\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)\n"
    "Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage "
    "7.0 failed 1 times, most recent failure: Lost task 0.0 in stage 7.0 (TID 9) (127.0.0.1 "
    "executor driver): {}\n"
    "\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n\n"
    "Driver stacktrace:\n"
    "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2906)\n"
    "Caused by: java.io.EOFException\n"
)
"""What PySpark says of a task that failed: line ends, traces and the reason in the middle."""
FULL = "java.io.IOException: No space left on device"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError(OF_A_TASK.format(FULL)), FULL),
        (
            RuntimeError(OF_A_TASK.format("org.x.E: Traceback (most recent call last):\nE: odd")),
            "E: odd",
        ),
        (RuntimeError("one thing"), "one thing"),
        (RuntimeError(""), "RuntimeError"),
        (ConnectionRefusedError(111, "Connection refused"), "its JVM has ended, perhaps"),
    ],
)
def test_what_spark_says_of_a_failure(error: Exception, told: str) -> None:
    def fail() -> pa.Table:
        raise error

    frame: Any = SimpleNamespace(toArrow=fail)
    engine: Any = SimpleNamespace(watching=nullcontext)
    with pytest.raises(Failed) as failed:
        SparkFrame(frame, LEFT, engine).collect()
    assert failed.value.kind == "spark_error"
    assert failed.value.message.startswith(f"the Spark job failed: {told}")
    assert "\n" not in failed.value.message
