"""What collectors of tests work with. What they compute must be the same."""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from ebbtide.gc.engines.base import Engine
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.engines.spark.engine import SparkEngine
from ebbtide.gc.engines.spark.session import launch


def shared_session() -> SparkSession:
    """The one session of a test run, for many jobs over a handful of files each.

    Compiling takes longer there than running: queries are interpreted, and the JVM optimizes
    little. What they compute is the same. No archive of classes is made for it.
    """
    with patch("ebbtide.gc.engines.spark.jvm.find_class_archive", lambda *_: None):
        return _session()


def _session() -> SparkSession:
    return launch(
        master="local[2]",
        driver_memory="1g",
        conf={
            "spark.default.parallelism": "1",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    ).session()


INLINE: Final = DuckEngine(cores=1)
"""In the test's own process: quick, and what is patched there is patched for the tasks too."""

SPARK: Final = SparkEngine(shared_session)

JOINS: Final = SparkEngine(shared_session, held_max=-1)
"""As if no process could hold anything."""

ENGINES: Final[dict[str, Engine]] = {
    "inline": INLINE,
    "spark": SPARK,
    "joins": JOINS,
}


def on_engines(*names: str, always: bool = False) -> pytest.MarkDecorator:
    """Parameter `engine`: each of the named ones, or of all. Those that start Spark are marked, and
    drawn unless they are to be tried `always`."""
    drawn = [] if always else [pytest.mark.drawn("engines on Spark")]
    on_spark = [pytest.mark.spark, *drawn]
    return pytest.mark.parametrize(
        "engine",
        [
            pytest.param(
                ENGINES[name],
                id=name,
                marks=on_spark if isinstance(ENGINES[name], SparkEngine) else [],
            )
            for name in names or ENGINES
        ],
    )
