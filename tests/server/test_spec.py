"""pandas on the server through lakefs-spec, as data scientists use it."""

from __future__ import annotations

import lakefs
import pandas as pd
import pytest
from lakefs_spec import LakeFSFileSystem

from tests.support.server import Server


def test_tables(plain: Server, lake: lakefs.Repository) -> None:
    """Errors come as Python's own."""
    key = plain.keys["writer"]
    options = {"host": plain.url, "username": key.access_key_id, "password": key.secret}
    table = pd.DataFrame({"number": [1, 2, 3], "text": ["a", "b", "ü"]})
    place = f"lakefs://{lake.id}/main/tables"
    table.to_csv(f"{place}/t.csv", index=False, storage_options=options)
    table.to_parquet(f"{place}/t.parquet", storage_options=options)
    assert pd.read_csv(f"{place}/t.csv", storage_options=options).equals(table)
    assert pd.read_parquet(f"{place}/t.parquet", storage_options=options).equals(table)
    lake.branch("main").commit("tables")
    files = LakeFSFileSystem(**options)
    listed = files.ls(f"{lake.id}/main/tables/", detail=False)
    assert sorted(name.rsplit("/", 1)[1] for name in listed) == ["t.csv", "t.parquet"]
    with files.transaction(lake.id, "main") as tx:
        files.rm(f"{lake.id}/{tx.branch.id}/tables/t.csv")
        tx.commit(message="without the copy")
    path = f"{lake.id}/main/tables/t.csv"
    assert not files.exists(path)
    files.rm_file(path)  # again: no error
    with pytest.raises(FileNotFoundError):
        files.info(path)
    with pytest.raises(FileNotFoundError):
        files.rm_file(f"{lake.id}/nowhere/a.txt")
