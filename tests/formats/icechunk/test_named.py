"""Names of an Icechunk plan's candidates, against Icechunk's own reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from icechunk import Repository
from zarr.core.sync import sync

from ebbtide.audit.candidate_names import names_of_candidates
from ebbtide.formats.file_names import FileName
from tests.support.icechunk import SPEC_VERSIONS, create_repository
from tests.support.icechunk_lake import IcechunkLake, candidates


def commit_array(repository: Repository, name: str, value: float, branch: str = "main") -> str:
    """Makes a commit that writes all of an array, with other bytes in each chunk."""
    session = repository.writable_session(branch)
    root = zarr.open_group(session.store, mode="a")
    array = root.require_array(name, shape=(16,), chunks=(4,), dtype="float64", compressors=None)
    array[...] = value + np.arange(16) / 100
    return session.commit(name)


def keys_of(repository: Repository, snapshot_id: str) -> dict[bytes, str]:
    """The Zarr key of each chunk of a snapshot, by its bytes."""
    store = repository.readonly_session(snapshot_id=snapshot_id).store

    async def read() -> dict[bytes, str]:
        found = {}
        async for key in store.list_prefix(""):
            if "/c/" in key:
                data = await store.get(key, prototype=zarr.core.buffer.default_buffer_prototype())
                assert data is not None
                found[data.to_bytes()] = key
        return found

    return sync(read())


@pytest.mark.parametrize("version", SPEC_VERSIONS)
def test_names_of_a_lost_branch(tmp_path: Path, version: int) -> None:
    """Each chunk, by its content: Icechunk's key for it in the newest lost snapshot that has it."""
    path = tmp_path / "repository"
    repository = create_repository(path, version, inline_bytes_max=0, split_every=2)
    commit_array(repository, "kept", 1.0)
    repository.create_branch("side", repository.lookup_branch("main"))
    lost = [
        commit_array(repository, name, value, "side")
        for name, value in (("deep/er", 2.0), ("other", 3.0), ("deep/er", 4.0))
    ]
    repository.delete_branch("side")
    expected: dict[bytes, str] = {}
    for snapshot_id in reversed(lost):
        expected = keys_of(repository, snapshot_id) | expected
    lake = IcechunkLake(path)
    lake.age()
    report = lake.collector().plan()
    plan = lake.collector().plan_of(report.run_id)
    folder = lake.collector().folder_of(report.run_id)
    asked = candidates(report)
    found = names_of_candidates(lake.format(), plan, folder, asked)
    assert found.complete or any(each.startswith("overwritten/") for each in asked)

    kinds = {each.partition("/")[0] for each in asked}
    assert kinds >= {"chunks", "snapshots", "transactions", "manifests"}
    for address in asked:
        named, kind = found.by_address.get(address), address.partition("/")[0]
        if kind == "chunks":
            assert named is not None
            assert named.name == expected[(path / address).read_bytes()], address
            assert named.commit_id in lost
        elif kind in ("snapshots", "transactions"):
            snapshot_id = address.partition("/")[2]
            message = repository.lookup_snapshot(snapshot_id).message
            assert named == FileName(message, snapshot_id)
        elif kind == "manifests":
            assert named is not None and named.name in ("deep/er", "other", "deep/er, other")

    some = sorted(each for each in asked if each.startswith("chunks/"))[:1]
    assert names_of_candidates(lake.format(), plan, folder, some).by_address == {
        some[0]: found.by_address[some[0]]
    }
    (path / "snapshots" / lost[0]).write_bytes(b"damaged")
    left = names_of_candidates(lake.format(), plan, folder, asked)
    assert not left.complete and left.by_address.items() < found.by_address.items()
