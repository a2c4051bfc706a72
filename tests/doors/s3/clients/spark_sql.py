"""A program of Spark's user: reads statements of SQL from its input, and prints what they answer.

The first line is Spark's configuration. Each line is a JSON document, in and out. Spark loads its
jars as its JVM starts, so the session that other tests share has none for S3.
"""

import json
import os
import sys

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


def main() -> None:
    """Answers until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # The JVM may print there, too.
    builder = SparkSession.builder
    for name, value in json.loads(sys.stdin.readline()).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        try:
            answer: dict[str, object] = {
                "rows": [list(row) for row in spark.sql(json.loads(line)).collect()]
            }
        except (PySparkException, Py4JError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
