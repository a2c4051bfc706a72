"""Relations and queries: what each gives, against lists of rows; and the same on both engines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from ebbtide.arrow import make_schema, rows_in, table_of
from ebbtide.errors import Failed, NotFound, Refused
from ebbtide.gc.candidates import (
    ABSENT,
    LEFT,
    NEEDED,
    NOT_COMMITTED,
    PLACED_SCHEMA,
    UNCOMMITTED_SCHEMA,
)
from ebbtide.gc.committed import LIVE_SCHEMA
from ebbtide.gc.engines.base import Batches, Engine, Query, Relation
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.engines.spark.engine import SparkRelation
from ebbtide.gc.preview import FREED
from ebbtide.ids import new_id
from ebbtide.purge.scanning import RANGES, TREE_RANGES_SCHEMA
from tests.support.engines import on_engines
from tests.support.randomized import randomized

ROWS = make_schema(("key", pa.int64()), ("name", pa.string()))
PLACES = make_schema(("part", pa.int32()), ("row", pa.int32()))
ROWS_MANY: Final = 500_000
Row = tuple[Any, ...]
Side = list[Row]

both = on_engines("inline", "spark", always=True)


def relation(engine: Engine, rows: Side, schema: pa.Schema, pieces: int = 3) -> Relation:
    """Rows in so many tasks, each of which yields them one by one."""

    def step(task: Side) -> Batches:
        for row in task:
            columns = [
                pa.array([value], kind.type) for value, kind in zip(row, schema, strict=True)
            ]
            yield pa.record_batch(columns, schema=schema)

    return engine.rows([rows[first::pieces] for first in range(pieces)], step, schema)


def rows_of(found: Relation) -> Side:
    return sorted((row for each in found.collect().to_batches() for row in rows_in(each)), key=repr)


KEYS: Final = [0, -1, 2**63 - 1, -(2**63), *range(5, 12)]


def placed(rng: random.Random) -> Side:
    """Listed files. No live address keeps some of them."""
    judged = [rng.choice(KEYS) for _ in range(rng.randrange(12))]
    return [
        (key if rng.random() < 0.8 else None, key, number % 3, number)
        for number, key in enumerate(judged)
    ]


def live(rng: random.Random) -> Side:
    return [(rng.choice(KEYS), rng.random() < 0.5) for _ in range(rng.randrange(8))]


def uncommitted(rng: random.Random) -> Side:
    kept = [rng.random() < 0.7 for _ in range(rng.randrange(8))]
    return [(rng.choice(KEYS), each, not each) for each in kept]


def ranges(rng: random.Random) -> Side:
    return [(f"tree {rng.randrange(3)}", f"node {rng.randrange(4)}", "c", 2) for _ in range(9)]


def left(store: Side, committed: Side, uncommitted: Side) -> Iterator[Row]:
    for key, judged, part, row in store:
        if key not in {each[0] for each in committed}:
            mine = [each[1:] for each in uncommitted if each[0] == judged]
            yield part, row, any(each[0] for each in mine), any(each[1] for each in mine)


def not_committed(store: Side, committed: Side) -> Iterator[Row]:
    return ((row[2], row[3]) for row in store if row[0] not in {each[0] for each in committed})


def needed(store: Side, committed: Side, uncommitted: Side) -> Iterator[Row]:
    kept = {row[0] for row in [*committed, *uncommitted]}
    return ((row[1],) for row in store if row[1] in kept)


def absent(store: Side, committed: Side) -> Iterator[Row]:
    required = {key for key, is_required in committed if is_required}
    return ((key,) for key in required - {row[0] for row in store})


def freed(after: Side, before: Side) -> Iterator[Row]:
    return ((row[2], row[3]) for row in after if row[1] not in {each[1] for each in before})


STORE: Final = (placed, PLACED_SCHEMA)
COMMITTED: Final = (live, LIVE_SCHEMA)
UNCOMMITTED: Final = (uncommitted, UNCOMMITTED_SCHEMA)
RANGED: Final = (ranges, TREE_RANGES_SCHEMA)
QUERIES: Final[list[tuple[Query, Callable[..., Iterator[Row]], dict[str, Any]]]] = [
    (LEFT, left, {"store": STORE, "committed": COMMITTED, "uncommitted": UNCOMMITTED}),
    (NOT_COMMITTED, not_committed, {"store": STORE, "committed": COMMITTED}),
    (NEEDED, needed, {"store": STORE, "committed": COMMITTED, "uncommitted": UNCOMMITTED}),
    (ABSENT, absent, {"store": STORE, "committed": COMMITTED}),
    (FREED, freed, {"after": STORE, "before": STORE}),
    (RANGES, lambda ranges: iter({row[1:] for row in ranges}), {"ranges": RANGED}),
]
"""Each query of the program, what it means, and its relations."""


@both
@randomized("queries")
def test_queries(engine: Engine, seed: int) -> None:
    check_queries(engine, seed)


@randomized("queries in the process")
def test_queries_in_the_process(seed: int) -> None:
    """The same, more often, and with threads."""
    check_queries(DuckEngine(cores=1 + seed % 2), seed)


def check_queries(engine: Engine, seed: int) -> None:
    rng = random.Random(seed)
    for query, meaning, sides in QUERIES:
        rows = {name: make(rng) for name, (make, _) in sides.items()}
        given = {name: relation(engine, rows[name], sides[name][1]) for name in sides}
        found = engine.query(query, **given)
        assert found.schema == query.schema
        expected = sorted(meaning(**rows), key=repr)
        assert rows_of(found) == expected, query.text
        if rng.random() < 0.2:
            twice = {name: engine.union(each, each).kept() for name, each in given.items()}
            assert set(rows_of(engine.query(query, **twice))) == set(expected), query.text


@both
@randomized("queries")
def test_rows_are_put_together_and_kept(engine: Engine, seed: int, tmp_path: Path) -> None:
    """What is kept is computed once, however many queries ask for it."""

    def noted(batches: Batches) -> Batches:
        (tmp_path / new_id()).touch()
        return batches

    rng = random.Random(seed)
    rows = [(rng.choice([None, *KEYS]), rng.choice("abc")) for _ in range(rng.randrange(20))]
    given = relation(engine, rows, ROWS)
    assert rows_of(given) == sorted(rows, key=repr)
    kept = given.map(noted, ROWS).kept()
    assert rows_of(engine.union(given, kept, kept)) == sorted([*rows] * 3, key=repr)
    assert rows_of(kept) == rows_of(kept.map(lambda each: each, ROWS)) == rows_of(given)
    assert len(list(tmp_path.iterdir())) == 3
    engine.forget()


@both
@randomized("queries")
def test_rows_are_divided(engine: Engine, seed: int) -> None:
    """Those of one value are all in one partition, where they come in order."""
    rng = random.Random(seed)
    rows = [(rng.randrange(5), rng.randrange(9)) for _ in range(40)]

    def tell(batches: Batches) -> Batches:
        numbers = [row for batch in batches for row in rows_in(batch)]
        assert numbers == sorted(numbers)
        table = table_of(numbers, PLACES)
        each = table.group_by("part").aggregate([("row", "count")])
        columns = [each.column("part"), each.column("row_count").cast(pa.int32())]
        yield from pa.table(columns, schema=PLACES).to_batches()

    counts = {part: sum(row[0] == part for row in rows) for part, _ in rows}
    for tasks, on in ((1, engine), (3, engine), (3, DuckEngine(cores=2))):
        given = relation(on, rows, PLACES).map(tell, PLACES, by=("part", "row"), tasks=tasks)
        assert rows_of(given) == sorted(counts.items(), key=repr)


@both
def test_nothing_at_all(engine: Engine) -> None:
    none = relation(engine, [], LIVE_SCHEMA, pieces=0)
    assert rows_of(none) == rows_of(none.kept()) == []
    places = relation(engine, [], PLACES, pieces=0)
    divided = places.map(lambda batches: batches, PLACES, by=("part", "row"), tasks=2)
    assert rows_of(divided) == []
    store = relation(engine, [(1, 1, 0, 0), (None, 1, 0, 1)], PLACED_SCHEMA)
    found = engine.query(NOT_COMMITTED, store=store, committed=none)
    assert rows_of(found) == [(0, 0), (0, 1)]


def test_what_does_not_fit_is_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort of more rows than DuckDB may hold, and a kept relation of as many."""
    monkeypatch.setattr("ebbtide.gc.engines.duckdb.MEMORY_MAX_BYTES", 32 << 20)
    keys = make_schema(("key", pa.int64()), ("part", pa.int32()))

    def step(task: int) -> Batches:
        numbers = np.arange(task * ROWS_MANY, (task + 1) * ROWS_MANY)
        columns = [pa.array(numbers), pa.array((numbers % 7).astype(np.int32))]
        # The last rows of all do not fill a batch.
        yield from pa.table(columns, schema=keys).to_batches(ROWS_MANY - 7)

    def count(batches: Batches) -> Batches:
        rows = [(batch.num_rows, batch.column("part")[0].as_py()) for batch in batches]
        yield from table_of([(sum(row[0] for row in rows), rows[0][1])], keys).to_batches()

    kept = DuckEngine(cores=2).rows(range(8), step, keys).kept()
    found = kept.map(count, keys, by=("part", "key"), tasks=7).collect()
    assert found.column("key").to_numpy().sum() == 8 * ROWS_MANY
    assert sorted(found.column("part").to_numpy().tolist()) == list(range(7))


@both
@pytest.mark.parametrize(
    "error", [Refused("missing_tree", "it is gone", tree="a"), NotFound("object_not_found", "b")]
)
def test_an_error_of_a_step_is_that_of_the_relation(engine: Engine, error: Refused) -> None:
    """With its class, kind, message and details, however many steps lie between."""

    def fail(batches: Batches) -> Batches:
        for batch in batches:
            if batch.column("key").to_pylist() == [2]:
                raise error
            yield batch

    def place(batches: Batches) -> Batches:
        for batch in batches:
            keys = batch.column("key").cast(pa.int32())
            yield pa.record_batch([keys, keys], schema=PLACES)

    given = relation(engine, [(1, "a"), (2, "b"), (3, "c")], ROWS).map(fail, ROWS)
    divided = given.map(place, PLACES).map(lambda each: each, PLACES, by=("part",), tasks=1)
    asked: list[Callable[[], object]] = [
        given.collect,
        divided.collect,
        lambda: given.kept().collect(),
        engine.union(given, given).collect,
    ]
    if engine.name != "duckdb":
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
        relation(engine, [(1, "a")], ROWS).map(fail, ROWS).collect()
    assert failed.value.kind == ("task_failed" if engine.name == "duckdb" else "spark_error")
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
        SparkRelation(frame, ROWS, engine).collect()
    assert failed.value.kind == "spark_error"
    assert failed.value.message.startswith(f"the Spark job failed: {told}")
    assert "\n" not in failed.value.message
