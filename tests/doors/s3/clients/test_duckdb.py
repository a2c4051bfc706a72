"""DuckDB's httpfs, set up as `docs/s3.md` says. A package of PyPI brings this extension: DuckDB
would fetch it from a host of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import duckdb
import httpx
import lakefs
import pytest

from tests.doors.s3.clients.page import Page
from tests.server.test_collecting import expire_older
from tests.support.collected import figure
from tests.support.server import Server


@pytest.fixture
def duck(plain: Server, lake: lakefs.Repository) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory, with the secret that the page makes."""
    file = f"extensions/v{duckdb.__version__}/httpfs.duckdb_extension"
    snippet = Page(plain, lake.id).snippet("sql", "CREATE SECRET")
    with duckdb.connect() as connection:
        connection.load_extension(str(files("duckdb_extension_httpfs").joinpath(file)))
        connection.execute(snippet.partition("SELECT")[0])
        # It would answer from its memory what it has read before.
        connection.execute("SET enable_external_file_cache = false")
        yield connection


@pytest.mark.drawn("clients of S3")
def test_partitions(
    duck: duckdb.DuckDBPyConnection, http: httpx.Client, lake: lakefs.Repository
) -> None:
    """They are written, committed, written again, and read at both. Then the first expires."""
    main = lake.branch("main")

    def write(rows: int) -> str:
        duck.execute(
            f"COPY (SELECT id, id % 2 AS day FROM range({rows}) t(id)) "
            f"TO 's3://{lake.id}/main/days' (FORMAT parquet, PARTITION_BY day, OVERWRITE_OR_IGNORE)"
        )
        return str(main.commit(f"{rows} rows").get_commit().id)

    def read(ref: str) -> list[tuple[int, int]]:
        files = f"'s3://{lake.id}/{ref}/days/*/*.parquet'"
        return duck.execute(
            f"SELECT day, sum(id) FROM read_parquet({files}) GROUP BY day ORDER BY day"
        ).fetchall()

    older, newer = write(10), write(4)
    assert read(older) == [(0, 20), (1, 25)]
    assert read(newer) == read("main") == [(0, 2), (1, 4)]
    assert {item.path.split("/")[1] for item in main.objects(prefix="days/")} == {"day=0", "day=1"}

    lake.tag("v1").create(newer)
    refusal = "(?s)405.*'v1' is a tag or a commit, which never changes: write to a branch"
    with pytest.raises(duckdb.HTTPException, match=refusal):
        duck.execute(f"COPY (SELECT 1 AS id) TO 's3://{lake.id}/v1/a.parquet'")
    expire_older(http, lake)
    with pytest.raises(duckdb.HTTPException, match="410"):
        read(older)
    assert read("v1") == [(0, 2), (1, 4)]


@pytest.mark.drawn("clients of S3")
def test_a_large_file(
    duck: duckdb.DuckDBPyConnection, plain: Server, lake: lakefs.Repository
) -> None:
    """It goes up in parts. The page's own query reads it, and one column comes as a few ranges."""
    path = "table/a.parquet"
    duck.execute(
        "COPY (SELECT id, hash(id) AS a, hash(id + 1) AS b FROM range(200_000) t(id)) "
        f"TO 's3://{lake.id}/main/{path}'"
    )
    size = lake.branch("main").object(path).stat().size_bytes
    _, select, query = Page(plain, lake.id).snippet("sql", "CREATE SECRET").partition("SELECT")
    rows = duck.execute(select + query).fetchall()
    assert [row[0] for row in rows] == list(range(200_000))
    with plain.http() as http:
        before = figure(http, "ebbtide_sent_bytes_total")
        found = duck.execute(f"SELECT sum(id) FROM 's3://{lake.id}/main/{path}'").fetchall()
        assert figure(http, "ebbtide_sent_bytes_total") - before < size / 2
    assert found == [(sum(range(200_000)),)]
