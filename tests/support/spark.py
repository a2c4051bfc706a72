"""The one Spark session of a test run, started when the first test asks for it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ebbtide.gc.session import build_session


def shared_session() -> SparkSession:
    """A session small enough for jobs over a handful of files."""
    return build_session(
        master="local[2]",
        driver_memory="1g",
        spark_default_parallelism="1",
        spark_sql_shuffle_partitions="1",
        spark_sql_adaptive_enabled="false",
    )
