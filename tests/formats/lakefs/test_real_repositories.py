"""Repositories that a real lakeFS server wrote, with what was computed by its API: see
`tests/support/fixtures.py`."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.arrow import texts
from ebbtide.formats.lakefs.layout import LakefsLayout, began_at
from ebbtide.formats.lakefs.refs import read_history
from ebbtide.formats.lakefs.repository import LakefsRepository
from ebbtide.formats.lakefs.server import Namespace
from ebbtide.formats.lakefs.walk import LakefsWalk
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from tests.formats.lakefs.recorded import RecordedServer
from tests.support.clock import ManualClock
from tests.support.engines import ENGINES
from tests.support.fixtures import copy_fixture, fixture_names
from tests.support.icechunk_lake import candidates

KIND = "lakefs/repositories"
each_repository = pytest.mark.parametrize("name", fixture_names(KIND, ["s60"]))


class Recorded:
    """A copy of a repository, at the time at which it was recorded."""

    def __init__(self, name: str, tmp_path: Path) -> None:
        copy_fixture(KIND, name, tmp_path / name)
        self.expected: dict[str, Any] = json.loads((tmp_path / name / "expected.json").read_text())
        self.server = RecordedServer(self.expected)
        self.url = (tmp_path / name / "namespace").as_uri()
        self.now = datetime.fromtimestamp(self.expected["now"], UTC)
        before = (self.now - timedelta(days=1)).timestamp()
        for path in (tmp_path / name / "namespace").rglob("*"):
            os.utime(path, (before, before))

    def collector(self, engine: str = "inline") -> Collector:
        settings = Settings(share_max=1.0)
        repository = LakefsRepository(
            self.server,
            Namespace(self.server.namespace, self.server.namespace),
            open_storage(self.url),
            clock=ManualClock(self.now),
        )
        options = RunOptions.of(settings, sessions=timedelta(0), patience=timedelta(0), sizes="all")
        return Collector(repository, engine=ENGINES[engine], options=options)


@pytest.fixture
def recorded(name: str, tmp_path: Path) -> Recorded:
    return Recorded(name, tmp_path)


@each_repository
@pytest.mark.parametrize("engine", ["inline", pytest.param("spark", marks=pytest.mark.spark)])
def test_the_plan_names_what_is_dead(recorded: Recorded, engine: str) -> None:
    expected = recorded.expected
    collector = recorded.collector(engine)
    report = collector.plan()
    assert report.error is None
    # Tags keep their commits here, as they do not in lakeFS's own job.
    assert set(candidates(report)) == set(expected["dead"]) - set(expected["dead_but_tagged"])
    assert collector.sweep(report.run_id).state == "swept"
    left = {
        address
        for batch in open_storage(recorded.url).list("data/")
        for address in batch.column("address").to_pylist()
    }
    assert left == set(expected["live"]) | set(expected["dead_but_tagged"])


@each_repository
def test_both_readers_find_commits_and_addresses(recorded: Recorded) -> None:
    """Those of its API. Partitions say when they began, and each file is of its kind."""
    expected, layout = recorded.expected, LakefsLayout((recorded.server.namespace,))
    storage = open_storage(recorded.url)
    walk = LakefsWalk(storage, (recorded.server.namespace,))
    history = read_history(recorded.server, storage, layout)
    assert history.commits.keys() == expected["commits"].keys()
    for commit_id, known in expected["commits"].items():
        found = history.commits[commit_id]
        assert found.parent_ids == tuple(known["parents"])
        assert found.tree_id == known["meta_range_id"]
        assert int(found.created_at.timestamp()) == known["creation_date"]
    for commit_id, by_path in expected["commit_addresses"].items():
        tree_id = recorded.server.commit(commit_id).metarange_id
        addresses = [
            address
            for row in layout.read_tree(storage, tree_id, tree_id).to_pylist()
            for address in texts(
                layout.read_node(
                    storage, row["node_id"], row["checksum"], entry_count=row["entry_count"]
                )
            )
        ]
        assert sorted(addresses) == sorted(by_path.values())
        nodes = walk.nodes(walk.tree(tree_id))
        assert addresses == [address for node in nodes for address in walk.content(node)]
    partitions = storage.list_prefixes("data/")
    assert partitions
    for prefix in partitions:
        began = began_at(prefix, now=recorded.now)
        assert began is not None
        assert recorded.now - timedelta(hours=1) < began <= recorded.now
    for batch in storage.list(""):
        column: Any = batch.column("address")
        kinds = layout.classify(column.cast(pa.string())).to_pylist()
        for address, kind in zip(column.to_pylist(), kinds, strict=True):
            assert kind == ("object" if address.startswith("data/") else "system")
