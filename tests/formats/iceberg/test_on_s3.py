"""A warehouse in a bucket, with keys that a URL would write in another way."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from ebbtide.arrow import texts
from ebbtide.audit.verify import verify
from ebbtide.gc.hold import LEASE_ADDRESS
from ebbtide.ids import new_id
from ebbtide.retention.expiry import ExpiryRequest
from ebbtide.storage import Storage, open_storage
from tests.formats.iceberg.warehouse import SCHEMA, Warehouse
from tests.support.ceph import make_bucket
from tests.support.clock import ManualClock
from tests.support.icechunk_lake import candidates

VALUES = ("a b", "x/y", "50%", "ü", "q=1", "%20", "c:d+e", "~t")
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


def free(storage: Storage) -> None:
    """The gateway of Ceph 16 replaces no object by its version, so that no run frees a bucket."""
    storage.delete([LEASE_ADDRESS])


def test_what_dead_writers_left_in_a_bucket(s3_url: str, tmp_path: Path) -> None:
    """Goes, comes back, and goes again, and nothing else; an expiry is undone, too."""
    del s3_url  # its server and its variables
    bucket = f"lake-{new_id()[:20]}"
    make_bucket(bucket, os.environ)
    access = {
        "s3.endpoint": os.environ["AWS_ENDPOINT"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": os.environ["AWS_REGION"],
        # The other one asks for checksums that not every server knows.
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    }
    clock = ManualClock(datetime.now(UTC))
    with closing(Warehouse(tmp_path, clock=clock, root=f"s3://{bucket}/wh", **access)) as lake:
        table = lake.catalog.create_table("db.t", SCHEMA, partition_spec=SPEC)
        for start in (0, 10):
            ids = range(start, start + len(VALUES))
            table.append(pa.table({"id": pa.array(ids, pa.int64()), "part": [*VALUES]}))
        table.overwrite(pa.table({"id": pa.array([1], pa.int64()), "part": ["a b"]}))
        storage = open_storage(lake.root)
        files = (each for rows in storage.list("") for each in texts(rows.column("address")))
        token = UUID(int=7)
        data = sorted(each for each in files if each.endswith(".parquet"))
        assert len(data) > len(VALUES)
        left = {f"{each.rpartition('/')[0]}/00000-0-{token}.parquet" for each in data}
        for each in left:
            storage.put(each, b"")
        contents = lake.contents()
        clock.advance(timedelta(days=10))
        report = lake.collector().plan()
        assert {*candidates(report)} == left
        free(storage)
        report = lake.collector(quarantine=timedelta(days=7)).sweep(report.run_id)
        assert report.state == "swept", report.error
        assert lake.contents() == contents
        assert not verify(lake.collector(), report.run_id).difference_count
        free(storage)
        assert lake.collector().undo(report.run_id).state == "undone"
        free(storage)
        assert lake.planned() == left
        free(storage)
        asked = ExpiryRequest.of(
            now=clock.now, sessions=timedelta(0), rule={"keep_last": 1}, unsafe=True
        )
        assert len(lake.expire(asked)[1].released) == 3
        free(storage)
        lake.undo_expiry()
        assert lake.contents() == contents
