"""The one Spark session of a test run, started when the first test asks for it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ebbtide.gc.session import build_session


def shared_session() -> SparkSession:
    """A session for many jobs over a handful of files each.

    Compiling takes longer there than running: queries are interpreted, and the JVM optimizes
    little. What they compute is the same.
    """
    return build_session(
        master="local[2]",
        driver_memory="1g",
        spark_default_parallelism="1",
        spark_sql_shuffle_partitions="1",
        spark_sql_adaptive_enabled="false",
        spark_sql_codegen_wholeStage="false",
        spark_sql_codegen_factoryMode="NO_CODEGEN",
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
