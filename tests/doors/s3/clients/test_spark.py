"""Spark's s3a, set up as `docs/s3.md` says, with the modules of AWS's SDK that it needs.

The SDK as one jar has 600 MB. These modules have 12 MB.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import lakefs
import pytest

from tests.doors.s3.clients.page import Page
from tests.server.test_collecting import expire_older
from tests.support.maven import JARS_OF_SPARK, Unreachable, fetched_jars
from tests.support.requirements import require_or_skip
from tests.support.server import Server

HADOOP: Final = "3.5.0"
SDK: Final = "2.35.4"
"""The version that this Hadoop was made with, from its `hadoop-project`."""
MODULES: Final = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    *(f"software.amazon.awssdk:{name}:{SDK}" for name in ("s3", "s3-transfer-manager", "sts")),
)
BROUGHT_BY_SPARK: Final = (
    "org.slf4j",
    "io.netty",
    "org.apache.httpcomponents",
    "commons-codec",
    "commons-logging",
)
OPTIONS: Final = {
    # For a handful of rows, compiling takes longer than running.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.master": "local[1]",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
PROGRAM: Final = Path(__file__).with_name("spark_sql.py")

Sql = Callable[[str], Any]


@pytest.fixture(scope="session")
def jars() -> Sequence[Path]:
    assert (JARS_OF_SPARK / f"hadoop-client-api-{HADOOP}.jar").exists()
    without = ("software.amazon.awssdk:bundle", *BROUGHT_BY_SPARK)
    try:
        return fetched_jars(f"s3a-{HADOOP}-{SDK}", MODULES, without=without)
    except Unreachable as error:
        require_or_skip("s3a", f"the jars of s3a cannot be fetched: {error}")


@contextmanager
def spark_sql(directory: Path, configuration: dict[str, str]) -> Iterator[Sql]:
    """Runs statements in a session of its own. Gives their rows, or what an error says."""
    with (
        (directory / "spark.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, PROGRAM],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(configuration) + "\n")

        def ask(statement: str) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(statement) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, (directory / "spark.log").read_text()
            answer = json.loads(line)
            return answer["rows"] if "rows" in answer else answer["error"]

        yield ask
        process.stdin.close()
        assert process.wait(60) == 0, (directory / "spark.log").read_text()


@pytest.mark.drawn("clients of S3")
def test_a_table(
    plain: Server, lake: lakefs.Repository, http: httpx.Client, jars: Sequence[Path], tmp_path: Path
) -> None:
    """A partitioned table, of which a partition is overwritten, and whose first commit expires."""
    lines = Page(plain, lake.id).snippet("ini", "fs.s3a").split()
    page = dict(line.split("=", 1) for line in lines)
    main = lake.branch("main")
    first = [[1, "mon"], [2, "mon"], [3, "tue"]]
    second = [[3, "tue"], [9, "mon"]]
    with spark_sql(tmp_path, {**OPTIONS, **page, "spark.jars": ",".join(map(str, jars))}) as sql:

        def table(ref: str) -> Any:
            return sql(f"SELECT id, day FROM parquet.`s3a://{lake.id}/{ref}/table` ORDER BY id")

        made = sql(
            "CREATE TABLE t (id INT, day STRING) USING parquet PARTITIONED BY (day) "
            f"LOCATION 's3a://{lake.id}/main/table'"
        )
        assert made == []
        assert sql("INSERT INTO t VALUES (1, 'mon'), (2, 'mon'), (3, 'tue')") == []
        assert table("main") == first
        older = main.commit("first").get_commit().id
        assert sql("INSERT OVERWRITE t PARTITION (day = 'mon') VALUES (9)") == []
        newer = main.commit("second").get_commit().id
        assert (table(older), table(newer), table("main")) == (first, second, second)
        days = {item.path.split("/")[1] for item in main.objects(prefix="table/")}
        assert days == {"_SUCCESS", "day=mon", "day=tue"}

        lake.tag("v1").create(newer)
        refused = sql(f"INSERT OVERWRITE DIRECTORY 's3a://{lake.id}/v1/a' USING parquet SELECT 1")
        assert "'v1' is a tag or a commit, which never changes: write to a branch" in refused

        run_id = expire_older(http, lake)
        # This statement reads the schema of a file, and its error has the causes. The other
        # partition's file is in the newer commit too, and stays. s3a keeps files that it has read
        # in memory by their addresses, so this one is read by another name of the commit.
        place = f"s3a://{lake.id}/main~1/table/day=mon"
        expired = sql(f"CREATE TEMPORARY VIEW old USING parquet OPTIONS (path '{place}')")
        assert f"commit {older} has expired: collector run {run_id} deleted its data" in expired
        assert (table(newer), table("main")) == (second, second)
