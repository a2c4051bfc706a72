"""Paths in logs, times of versions, kinds of files, properties, and checkpoints that are no use."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ebbtide.errors import EbbtideError
from ebbtide.formats.delta.features import parse_interval
from ebbtide.formats.delta.layout import DeltaLayout, TableFolder
from ebbtide.formats.delta.places import DamagedLogError, DeltaPlaces
from ebbtide.formats.delta.tables import times_of
from tests.formats.delta.lake import DeltaLake, lay
from tests.support.engines import SPARK

S3 = DeltaPlaces("s3://lake/a b")
UUID = "deletion_vector_fb0d8d11-2b23-4a83-8fe8-4fdbdb2d4d1a.bin"


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("p=1/x.parquet", "t/p=1/x.parquet"),
        ("p=a%20b/x.parquet", "t/p=a b/x.parquet"),
        ("p=50%2525/x%25.parquet", "t/p=50%25/x%.parquet"),
        ("p=c:d/x.parquet", "t/p=c:d/x.parquet"),
        ("s3a://lake/a%20b/u/x.parquet", "u/x.parquet"),
        ("s3://lake/a b/u/x.parquet", "u/x.parquet"),
        ("/a%20b/x.parquet", "x.parquet"),
        ("s3://lake/a%20bc/x.parquet", "s3://lake/a bc/x.parquet"),
        ("s3://other/a%20b/x.parquet", "s3://other/a b/x.parquet"),
        ("/x.parquet", "s3://lake/x.parquet"),
    ],
)
def test_a_path_is_decoded_once(path: str, address: str) -> None:
    assert S3.address("t/", path) == address
    assert S3.addresses("t/", pa.array([path, "y"])).to_pylist() == [address, "t/y"]


def test_a_root_in_another_spelling(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    places = DeltaPlaces(f"file://{tmp_path}/real")
    for path in (f"{tmp_path}/link/x", f"file:{tmp_path}/real//x", f"file:///{tmp_path}/real/./x"):
        assert places.address("", path) == "x"
    assert places.address("t/", "../t/x") == "t/x"
    with pytest.raises(EbbtideError) as caught:
        places.address("", f"hdfs://name:8020{tmp_path}/real/x")
    assert caught.value.kind == "prefix_mismatch"
    with pytest.raises(DamagedLogError):
        places.address("", "p=%ff/x")


def test_files_of_deletion_vectors() -> None:
    code = "^-aqEH.-t@S}K{vb[*k^"  # the example of the protocol is of another writer
    found = S3.vector_address("t/", "u", f"ab{code}")
    assert found is not None
    assert found.startswith("t/ab/deletion_vector_")
    assert S3.vector_address("t/", "i", "x") is None
    assert S3.vector_address("t/", "p", "s3a://lake/a%20b/v.bin") == "v.bin"
    for bad in ("short", "\u00e9" * 20):
        with pytest.raises(DamagedLogError):
            S3.vector_address("t/", "u", bad)


@pytest.mark.parametrize(
    ("given", "times"),
    [
        ([(5, False), (3, False), (9, False)], [5, 6, 9]),
        ([(50, False), (60, False), (9, True), (12, True)], [7, 8, 9, 12]),
        ([(5, True), (4, False)], [5, 6]),
    ],
)
def test_times_of_versions_never_fall(given: list[tuple[int, bool]], times: list[int]) -> None:
    assert list(times_of(dict(enumerate(given))).values()) == times


def test_kinds_of_files() -> None:
    folders = (TableFolder("t/", frozenset({"_day", "p"})), TableFolder("t/in/", has_iceberg=True))
    kinds = {
        "t/x.parquet": "data",
        "t/_day=1/x.parquet": "data",
        "t/_days=1/x.parquet": "foreign",
        "t/in/_day=1/x.parquet": "foreign",
        "t/in/metadata/x.parquet": "foreign",
        "t/metadata/x.parquet": "data",
        "t/_delta_index/x.parquet": "data",
        "t/_change_data/p=1/x": "cdc",
        "t/p=1/_change_data/x": "foreign",
        f"t/ab/{UUID}": "dv",
        f"t/.{UUID}.crc": "checksum",
        "t/.x.parquet.crc": "checksum",
        "t/.x.parquet": "foreign",
        "t/.h/x.parquet": "foreign",
        "t/notes.txt": "foreign",
        "u/x.parquet": "foreign",
        "s3://t/x.parquet": "foreign",
        "t/_delta_log/x.parquet": "system",
        "t/in/_delta_log/x.parquet": "system",
        "_ebbtide/x.parquet": "system",
    }
    found = DeltaLayout(S3, folders).classify(pa.array(kinds))
    assert dict(zip(kinds, found.to_pylist(), strict=True)) == kinds


def test_intervals() -> None:
    week = timedelta(days=7)
    for text in ("interval 1 week", "7 days", "INTERVAL '168' HOURS", "interval 6 days 24 hours"):
        assert parse_interval(text, "x") == week
    for text in ("interval 1 month", "a week", "interval", "interval 99999999999 weeks", "7"):
        with pytest.raises(EbbtideError) as caught:
            parse_interval(text, "x")
        assert caught.value.kind == "invalid_policy"


def test_without_a_policy_the_table_decides(tmp_path: Path) -> None:
    facts = lay("rs_plain", tmp_path)
    lake = DeltaLake(tmp_path / "rs_plain", now_ms=facts["now_ms"])
    assert lake.planned() == set(facts["policies"]["keep_within 7d, grace 7d"]["candidates"])


@pytest.mark.spark
def test_a_plan_on_spark(tmp_path: Path) -> None:
    facts = lay("dvs", tmp_path)
    lake = DeltaLake(tmp_path / "dvs", now_ms=facts["now_ms"])
    lake.engine = SPARK
    assert lake.planned() == set(facts["policies"]["keep_within 7d, grace 7d"]["candidates"])
    assert lake.swept(quarantine=timedelta(days=7)).state == "swept"


def test_a_missing_file_of_the_newest_version_refuses(tmp_path: Path) -> None:
    facts = lay("rs_plain", tmp_path)
    lake = DeltaLake(tmp_path / "rs_plain", now_ms=facts["now_ms"])
    listed = {each for each in lake.files() if each.endswith(".parquet") and "/" not in each}
    with lake.open().reading(lake.clock.now):
        pass
    live = listed - set(facts["policies"]["keep_last 1, grace 1d"]["candidates"])
    live -= set(facts["policies"]["keep_last 1, grace 1d"]["protected"])
    (lake.path / min(live)).unlink()
    report = lake.collector().plan()
    assert report.error is not None
    assert report.error["kind"] == "missing_object"
