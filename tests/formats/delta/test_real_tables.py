"""Tables that Delta's own programs wrote, with what goes and what stays under several policies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from ebbtide.audit.verify import verify
from tests.formats.delta.lake import DeltaLake, expected_names, lay, policy_of

NAMES = expected_names()
SOUND = [each for each in NAMES if not {"refused", "damaged", "empty"} & {*each.split("_")}]
SOUND = [each for each in SOUND if each != "rs_compacted"]  # may be refused


@pytest.mark.parametrize("name", NAMES)
def test_candidates_of_each_policy(name: str, tmp_path: Path) -> None:
    facts = lay(name, tmp_path)
    lake = DeltaLake(tmp_path / name, now_ms=facts["now_ms"])
    if facts["refused"] is not None or "may_refuse" in facts:
        report = lake.collector().plan()
        assert report.state == "refused"
        assert report.error is not None
        return
    for text, expected in facts["policies"].items():
        policy, grace = policy_of(text)
        lake.keep(policy)
        assert lake.planned(grace=grace) == set(expected["candidates"]), text


@pytest.mark.parametrize("name", SOUND)
def test_a_sweep_can_be_undone_and_kept_versions_read_the_same(name: str, tmp_path: Path) -> None:
    facts = lay(name, tmp_path)
    lake = DeltaLake(tmp_path / name, now_ms=facts["now_ms"])
    asked = "keep_last 1 and hold 2, grace 1d"
    policy, grace = policy_of(asked)
    expected = facts["policies"][asked]
    lake.keep(policy)
    before, rows = lake.files(), {each: read(lake, each) for each in expected["kept"]}
    report = lake.swept(grace=grace, quarantine=timedelta(days=7))
    assert lake.files() == before - set(expected["candidates"])
    assert verify(lake.collector(), report.run_id).counts == {}
    assert {each: read(lake, each) for each in expected["kept"]} == rows
    assert lake.collector().undo(report.run_id).state == "undone"
    assert lake.files() == before
    assert lake.swept(grace=grace).counts["deleted"].objects == len(expected["candidates"])
    # The checksums of deleted files have nothing to check any more.
    assert {each.rpartition("/")[2][0] for each in lake.planned(grace=grace)} <= {"."}


def read(lake: DeltaLake, version: int) -> object:
    """The rows of a version by deltalake, or its error: the table may have been broken before."""
    try:
        found = QueryBuilder().register("t", DeltaTable(str(lake.path), version=version))
        return sorted(map(str, pa.table(found.execute("select * from t")).to_pylist()))
    except Exception as error:  # noqa: BLE001 -- of no class of its own
        return type(error).__name__
