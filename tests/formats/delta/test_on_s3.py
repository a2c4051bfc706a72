"""A table in a bucket, with keys that a URL would write in another way."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ebbtide.arrow import texts
from ebbtide.audit.verify import verify
from ebbtide.formats.delta.scheme import open_delta
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.ids import new_id
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from ebbtide.storage import Storage, open_storage
from tests.formats.iceberg.test_on_s3 import VALUES, free
from tests.support.ceph import make_bucket
from tests.support.clock import ManualClock
from tests.support.engines import INLINE
from tests.support.icechunk_lake import candidates

SETTINGS = Settings(share_max=1.0, run_heartbeat=timedelta(seconds=1))


class Written:
    """A table that deltalake writes to a new bucket, with a collector 10 days later."""

    def __init__(self) -> None:
        bucket = f"lake-{new_id()[:20]}"
        make_bucket(bucket, os.environ)
        self.place = f"s3://{bucket}/wh/odd name"
        self.access = {
            "AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT"],
            "AWS_ALLOW_HTTP": "true",
            # The gateway of Ceph 16 knows no conditional writes, and this table has one writer.
            "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        }
        self.clock = ManualClock(datetime.now(UTC) + timedelta(days=10))

    def append(self, start: int) -> None:
        ids = pa.array(range(start, start + len(VALUES)), pa.int64())
        rows = pa.table({"id": ids, "part": [*VALUES]})
        options: dict[str, Any] = {"partition_by": ["part"], "storage_options": self.access}
        write_deltalake(self.place, rows, mode="append", **options)

    def table(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.place, version=version, storage_options=self.access)

    def read(self, version: int) -> set[tuple[int, str]]:
        rows = self.table(version).to_pyarrow_table().to_pylist()
        return {(row["id"], row["part"]) for row in rows}

    def data(self, storage: Storage) -> set[str]:
        listed = (each for rows in storage.list("") for each in texts(rows.column("address")))
        return {each for each in listed if each.endswith("t") and each.startswith("part=")}

    def collector(self, **options: Any) -> Collector:
        chosen = RunOptions.of(SETTINGS, grace=timedelta(days=7), sessions=timedelta(0), **options)
        repository = open_delta(f"delta:{self.place}", SETTINGS, clock=self.clock)
        return Collector(repository, engine=INLINE, options=replace(chosen, undo_hold=timedelta(0)))


def test_what_a_table_in_a_bucket_loses(s3_url: str) -> None:
    """Files of dead writers and files that only expired versions need go, come back, and go again.
    Kept versions read the same."""
    del s3_url  # its server and its variables
    lake = Written()
    lake.append(0)
    lake.append(10)
    lake.table().delete("id < 4 or id >= 14")
    lake.append(20)
    storage = open_storage(lake.place)
    # Files are compared by their names: so the test decodes no path.
    alive = {PurePath(each).name for each in lake.table().file_uris()}
    gone = {each for each in lake.data(storage) if PurePath(each).name not in alive}
    assert {each.partition("/")[0] for each in gone} == {
        each.partition("/")[0] for each in lake.data(storage)
    }
    assert len(gone) == len(VALUES)
    left = {f"{each.rpartition('/')[0]}/part-0-{UUID(int=7)}.parquet" for each in gone}
    for each in left:
        storage.put(each, b"")
    everything, contents = lake.data(storage), [lake.read(each) for each in range(4)]
    open_delta(f"delta:{lake.place}", SETTINGS).set_policy(
        Policy.parse({"default": {"keep_last": 2}})
    )
    for quarantine in (timedelta(days=7), timedelta(0)):
        report = lake.collector().plan()
        assert {*candidates(report)} == gone | left
        free(storage)
        report = lake.collector(quarantine=quarantine).sweep(report.run_id)
        assert report.state == "swept", report.error
        assert lake.data(storage) == everything - gone - left
        assert [lake.read(2), lake.read(3)] == contents[2:]
        for version in (0, 1):
            with pytest.raises(OSError, match="404"):
                lake.read(version)
        free(storage)
        assert not verify(lake.collector(), report.run_id).difference_count
        free(storage)
        if quarantine:
            assert lake.collector().undo(report.run_id).state == "undone"
            assert lake.data(storage) == everything
            assert [lake.read(each) for each in range(4)] == contents
            free(storage)
