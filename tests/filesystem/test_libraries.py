"""Libraries for data that use fsspec: they find the file system by its entry point or by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import zarr

from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.store.embedded import Store

MAIN = "ebbtide://lake/main"
TABLE = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "day": ["x", "x", "y"]})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """A store with the repository `lake`; the file system is known by its name."""
    with Store.init(tmp_path / "store") as store:
        store.create_repository("lake")
    fsspec.register_implementation("ebbtide", EbbtideFileSystem, clobber=True)
    yield str(tmp_path / "store")
    for each in list(EbbtideFileSystem._cache.values()):
        each.close()
    EbbtideFileSystem.clear_instance_cache()


def test_pandas(store: str) -> None:
    options = {"store": store}
    frame = TABLE.to_pandas()
    frame.to_parquet(f"{MAIN}/a.parquet", storage_options=options)
    frame.to_csv(f"{MAIN}/a.csv.gz", index=False, storage_options=options)
    parquet = pd.read_parquet(f"{MAIN}/a.parquet", storage_options=options)
    csv = pd.read_csv(f"{MAIN}/a.csv.gz", storage_options=options)
    assert frame.equals(parquet)
    assert frame.equals(csv)


def test_pyarrow(store: str) -> None:
    """A partitioned dataset; a commit of it reads as before when the branch goes on."""
    fs = fsspec.filesystem("ebbtide", store=store)
    place = "lake/main/table"
    ds.write_dataset(TABLE, place, filesystem=fs, format="parquet", partitioning=["day"])
    commit = fs.commit("lake/main", "table")
    ds.write_dataset(
        TABLE.slice(0, 1),
        place,
        filesystem=fs,
        format="parquet",
        partitioning=["day"],
        existing_data_behavior="delete_matching",
    )

    def ids(of: str) -> list[int]:
        found = ds.dataset(of, filesystem=fs, partitioning=["day"])
        rows = found.to_table(filter=ds.field("day") == "x").to_pylist()
        return sorted(row["id"] for row in rows)

    assert ids(place) == [1]
    assert ids(f"lake/{commit}/table") == [1, 2]


def test_duckdb(store: str) -> None:
    fs = fsspec.filesystem("ebbtide", store=store)
    with fs.open("lake/main/t/1.parquet", "wb") as file:
        pq.write_table(TABLE, file)
    with duckdb.connect() as base:
        base.register_filesystem(fs)
        rows = base.sql(f"select sum(id) from '{MAIN}/t/*.parquet' where day = 'x'").fetchall()
        assert rows == [(3,)]
        base.sql(f"copy (select 7 as id) to '{MAIN}/out.csv'")
    assert fs.cat_file("lake/main/out.csv") == b"id\n7\n"


def test_zarr(store: str) -> None:
    options = {"store": store}
    values = np.arange(12).reshape(3, 4)
    zarr.create_array(f"{MAIN}/z", data=values, chunks=(2, 2), storage_options=options)
    found = zarr.open_array(f"{MAIN}/z", mode="r", storage_options=options)
    assert np.array_equal(np.asarray(found[:]), values)


def test_open_by_url(store: str) -> None:
    """As any program that takes URLs does."""
    with fsspec.open(f"{MAIN}/a", "w", store=store) as file:
        file.write("text")
    with fsspec.open(f"simplecache::{MAIN}/a", ebbtide={"store": store}) as file:
        assert file.read() == b"text"
