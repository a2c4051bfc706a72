"""Spark Connect: frames of a server that runs elsewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.find_spark_home import _find_spark_home

from ebbtide import imports
from ebbtide.errors import Failed, Refused
from ebbtide.gc.engines.base import Batches, Query
from ebbtide.gc.engines.spark.connect import ConnectEngine, connect
from ebbtide.gc.engines.spark.jvm import find_java
from ebbtide.imports import allow_pandas
from tests.support.commands import captured
from tests.support.postgres import free_port

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 120
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SCHEMA = pa.schema([("key", pa.int64())])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    allow_pandas()
    home, port = Path(_find_spark_home()), free_port()
    (jar,) = (home / "jars").glob("spark-connect_*.jar")
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(tmp_path),
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [
        str(home / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        "--driver-memory",
        "512m",
    ]
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *words, "--class", SERVER, str(jar)],
            env=os.environ
            | {
                "JAVA_HOME": find_java(),
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        ends = time.monotonic() + SECONDS_MAX
        while "server started" not in log.read_text():
            assert process.poll() is None and time.monotonic() < ends, log.read_text()
            time.sleep(0.05)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def keys_of(table: pa.Table) -> list[int]:
    return sorted(int(str(key)) for key in table.column("key"))


def some(task: int) -> Batches:
    yield pa.record_batch([[task, task + 1]], schema=SCHEMA)


def refusing(_task: int) -> Batches:
    yield from ()
    raise Refused("missing_object", "it is lost", errors=["a", "b"])


@pytest.mark.spark
@pytest.mark.drawn("whole programs")
def test_relations(server: str) -> None:
    """In a process of its own: PySpark has a session of either kind, never of both."""
    program = (
        "from ebbtide.imports import leave_pandas_alone; leave_pandas_alone()\n"  # as commands do
        f"from tests.gc.test_connect import try_relations; try_relations({server!r})"
    )
    path = os.pathsep.join([str(ROOT), *sys.path])
    done = captured(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path}, timeout=SECONDS_MAX
    )
    assert (done.returncode, done.stdout) == (0, "all was as it should\n"), done.stderr


def try_relations(server: str) -> None:
    """All that a plan does with relations; an error of a step arrives as itself."""
    with pytest.raises(Failed, match=r"CANNOT_MODIFY_CONFIG.*spark\.driver\.memory"):
        connect(server, {"spark.driver.memory": "3g"})
    settings = {"spark.sql.session.timeZone": "UTC"}
    engine = ConnectEngine(server, partial(connect, server, settings))
    try:
        assert engine.cores == 2
        assert re.fullmatch(rf"Spark \S+ on {server}", engine.name)
        engine.name_jobs("run", "mark")
        kept = engine.rows([1, 2, 3], some, SCHEMA).kept()
        assert keys_of(kept.collect()) == [1, 2, 2, 3, 3, 4]
        assert keys_of(engine.union(kept, kept).collect()) == sorted([1, 2, 2, 3, 3, 4] * 2)
        anti = Query("SELECT a.* FROM {a} a ANTI JOIN {b} b ON a.key = b.key", SCHEMA)
        left = engine.query(anti, a=kept, b=engine.rows([3], some, SCHEMA))
        assert keys_of(left.collect()) == [1, 2, 2]
        assert engine.rows([], some, SCHEMA).collect() == SCHEMA.empty_table()
        engine.expect(10)
        with pytest.raises(Refused) as refused:
            engine.rows([1], refusing, SCHEMA).collect()
        assert (refused.value.kind, refused.value.message) == ("missing_object", "it is lost")
        assert refused.value.details == {"errors": ["a", "b"]}
        assert engine.spark().getTags() == {"ebbtide", "run", "mark"}
    finally:
        engine.forget()
        engine.spark().stop()
    sys.stdout.write("all was as it should\n")


def test_nobody_answers() -> None:
    """At once, in words, where Spark's own client would try for ten minutes."""
    address = f"sc://127.0.0.1:{free_port()}"
    with pytest.raises(Failed) as failed:
        connect(address, {})
    assert failed.value.kind == "spark_error"
    assert address in failed.value.message
    with pytest.raises(Failed, match="no server of Spark Connect at sc://host:port"):
        connect("sc://host:port", {})


@pytest.mark.parametrize("missing", ["grpc", "google.rpc"])
def test_a_package_is_missing(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """PySpark would end the program, with exit code 0."""

    def find_spec(name: str) -> object:
        if name != missing:
            return object()
        if "." in name:
            raise ModuleNotFoundError(name)
        return None

    monkeypatch.setattr(imports, "find_spec", find_spec)
    with pytest.raises(Failed, match=f"{missing}, which is not installed here: pip install"):
        connect("sc://127.0.0.1", {})


def test_progress_and_an_interrupt() -> None:
    """Tasks are counted as the server tells of them; what runs is interrupted."""
    told: list[Callable[..., None]] = []
    interrupted: list[bool] = []
    session: Any = SimpleNamespace(
        version="4.3.0",
        registerProgressHandler=told.append,
        clearTags=lambda: None,
        addTag=lambda _tag: None,
        interruptAll=lambda: interrupted.append(True),
    )
    engine = ConnectEngine("sc://somewhere", lambda: session)
    assert engine.name.startswith("Spark (not started")
    engine.spark()
    (handler,) = told
    stages = [SimpleNamespace(num_tasks=4, num_completed_tasks=3) for _ in range(2)]
    handler(stages, 1, "operation", False)
    reading = engine.meter.reading()
    assert (reading.done, reading.total) == (6, 8)
    handler(None, 0, "operation", True)
    assert engine.meter.reading().total is None
    with pytest.raises(KeyboardInterrupt), engine.watching():
        raise KeyboardInterrupt
    assert interrupted == [True]
