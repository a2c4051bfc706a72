"""The Python interface, on a store with real files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebbtide
from ebbtide.api.repositories import CollectedRepository
from ebbtide.audit.answers import ExplainedAddress, ExplainedCommit
from ebbtide.errors import Conflict, Incomplete, InvalidInput, NotFound, Refused
from ebbtide.store.embedded import Store
from tests.formats.icechunk.test_sessions import commit
from tests.support.engines import shared_session
from tests.support.icechunk import create_repository
from tests.support.icechunk_lake import IcechunkLake
from tests.support.world import World

HOUR = timedelta(hours=1)
OLD = ("main~2", "old")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A branch with an expired commit: only that has the file `old`."""
    world = World(tmp_path)
    world.save("main", days_ago=30, put=["old"])
    world.save("main", days_ago=20, delete=["old"])
    world.save("main", days_ago=1, put=["new"])
    yield world
    world.close()


@pytest.fixture
def lake(world: World) -> Iterator[CollectedRepository]:
    with ebbtide.open_repository("lake", store=world.store, master="none") as lake:
        lake.set_policy({"default": "7d"})
        yield lake


def data_of(planned: ebbtide.PlannedRun) -> list[str]:
    """The addresses of its candidates that are objects."""
    table = planned.candidates().read_all()
    of_objects = table.filter(pc.equal(table["kind"], pa.scalar("object")))
    return [str(each) for each in of_objects["address"].to_pylist()]


def test_plan_and_sweep(world: World, lake: CollectedRepository) -> None:
    """The figures are those of the files that the sweep deletes. A run asks with its plan."""
    before = world.files()
    planned = lake.plan(grace=HOUR, mode="clean")
    assert world.contents() == {"old", "new"}, "a plan deletes nothing"
    assert (planned.expired_count, planned.report.state) == (2, "planned")
    table = planned.candidates().read_all()
    assert table.column_names == ["kind", "address", "size_bytes", "last_modified"]
    figures = (table.num_rows, pc.sum(table["size_bytes"]).as_py())
    assert figures == (planned.file_count, planned.bytes_total)

    seen: list[int] = []

    def refuse(plan: ebbtide.PlannedRun) -> bool:
        seen.append(plan.file_count)
        return False

    world.clock.advance(timedelta(seconds=1))  # the ids of runs of one instant have no order
    asked = lake.run(confirm=refuse, grace=HOUR, mode="clean")
    assert (asked.state, seen, world.contents()) == ("planned", [table.num_rows], {"old", "new"})

    data = data_of(planned)
    report = lake.sweep(planned)
    assert report.state == "swept"
    assert set(data) == before - world.files()
    assert world.contents() == {"new"}
    assert [each.run_id for each in lake.runs()] == [asked.run_id, planned.run_id]
    assert lake.show(planned.run_id).state == "swept"
    assert lake.show("latest").state == "planned"
    with pytest.raises(Conflict) as used:
        lake.sweep(planned)
    assert used.value.kind == "plan_used"
    lake.set_policy(None)
    assert lake.policy is None
    planned = lake.plan(grace=HOUR, mode="clean")
    assert planned.file_count == 0 == planned.candidates().read_all().num_rows


@pytest.mark.spark
def test_candidates_of_spark(world: World) -> None:
    """On the caller's session, whose settings stay as they were."""
    spark = shared_session()
    before = spark.conf.get("spark.sql.shuffle.partitions")
    with ebbtide.open_repository("lake", store=world.store, spark=spark) as lake:
        lake.set_policy({"default": "7d"})
        planned = lake.plan(grace=HOUR, mode="clean")
        frame = planned.candidates_spark(spark)
        rows = sorted(planned.candidates().read_all().to_pylist(), key=lambda row: row["address"])
        assert planned.report.engine is not None and planned.report.engine.startswith("Spark")
        assert frame.columns == ["kind", "address", "size_bytes", "last_modified"]
        found = [(row.address, row.size_bytes) for row in frame.orderBy("address").collect()]
        assert found == [(row["address"], row["size_bytes"]) for row in rows] != []
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.range(3).count() == 3, "the session stays open"


def test_questions_and_undo(world: World, lake: CollectedRepository) -> None:
    """What is kept, by ref, path and address; what other policies would free; an undo."""
    by_path, tip, old = (lake.explain(*asked) for asked in (("main", "new"), ("main",), OLD))
    assert isinstance(by_path, ExplainedAddress)
    assert lake.explain(by_path.address) == by_path
    assert isinstance(tip, ExplainedCommit)
    assert by_path.state == tip.state == "kept"
    assert isinstance(old, ExplainedAddress)
    assert old.state == "unneeded"
    found = lake.what_if({"default": "keep"}, ebbtide.Policy.parse({"default": "7d"}), grace=HOUR)
    kept, same = found.others
    assert kept.reclaimable.objects == 0
    assert same.reclaimable == found.present.reclaimable
    assert found.present.reclaimable.objects > 0
    assert lake.runs() == []
    assert world.contents() == {"old", "new"}
    aside = timedelta(days=2)
    report = lake.run(confirm=lambda _: True, grace="1h", mode="clean", quarantine=aside)
    assert report.quarantine is not None
    assert report.quarantine["state"] == "held"
    assert world.contents() == {"new"}
    assert lake.undo(report).state == "undone"
    assert world.contents() == {"old", "new"}
    with pytest.raises(NotFound) as unknown:
        lake.undo("nothing")
    assert unknown.value.kind == "run_not_found"


def test_a_refusal_is_an_error(world: World, lake: CollectedRepository) -> None:
    """A share that is too large, and a grace that is too short."""
    with pytest.raises(InvalidInput) as unsafe:
        lake.plan(grace="1s")
    assert unsafe.value.kind == "unsafe_grace"
    strict = world.settings.model_copy(update={"share_max": 0.0})
    directory = world.directory / "store"
    with (
        Store.open(directory, settings=strict, clock=world.clock) as store,
        ebbtide.open_repository("lake", store=store, master="none") as other,
    ):
        with pytest.raises(Refused) as refused:
            other.plan(grace=HOUR, mode="clean")
        assert refused.value.kind == "over_share"
        run_id = refused.value.details["run_id"]
        assert other.planned(run_id).file_count > 0
        with pytest.raises(Refused):
            other.sweep(run_id)
    assert world.contents() == {"old", "new"}


def test_lost_commits_are_accepted_once(tmp_path: Path) -> None:
    path = tmp_path / "weather"
    create_repository(path, 2)
    saved = (path / "repo").read_bytes()
    commit(path, 9)
    with ebbtide.open_repository(f"icechunk:{path}", master="none") as lake:
        assert lake.run().state == "swept"
        (path / "repo").write_bytes(saved)
        IcechunkLake(path).age()
        with pytest.raises(Refused) as refused:
            lake.run()
        assert refused.value.kind == "lost_commits"
        accepted = lake.run(accept_lost_commits=True, allow_share=True)
        assert accepted.state == "swept"
        assert lake.run().state == "swept"
        # Only an expiry has rules there.
        with pytest.raises(NotFound, match="has no policy"):
            lake.what_if({"default": "7d"})


def test_an_incomplete_sweep_is_an_error(world: World, lake: CollectedRepository) -> None:
    """A directory in the place of a file cannot be deleted; the next attempt continues."""
    planned = lake.plan(grace=HOUR, mode="clean")
    file = world.root / data_of(planned)[0]
    file.unlink()
    (file / "inside").mkdir(parents=True)
    with pytest.raises(Incomplete) as incomplete:
        lake.sweep(planned)
    assert incomplete.value.details == {"run_id": planned.run_id}
    (file / "inside").rmdir()
    file.rmdir()
    assert lake.sweep(planned).state == "swept"
    assert world.contents() == {"new"}


def test_places(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a directory, a URL, or the environment. A store of the caller's stays open."""
    directory = world.directory / "store"
    for named in (directory, f"sqlite:///{directory}/metadata.db"):
        with ebbtide.open_store(named) as store:
            assert store.repository("lake").info.name == "lake"
    monkeypatch.setenv("EBBTIDE_STORE", str(directory))
    with ebbtide.open_store() as store:
        assert store.directory == directory
    with pytest.raises(NotFound) as missing:
        ebbtide.open_store(tmp_path / "none")
    assert missing.value.kind == "store_not_found"
    with pytest.raises(NotFound) as unknown:
        ebbtide.open_repository("pond", store=directory)
    assert unknown.value.kind == "repository_not_found"
    with ebbtide.open_repository("lake", store=world.store) as lake:
        assert lake.name == "lake"
    assert world.store.repository("lake").info.name == "lake"


LIGHT = """
import sys
import ebbtide
assert ebbtide.errors.NotFound and "open_store" in dir(ebbtide)
slow = {"pyspark", "pyarrow", "sqlalchemy", "pydantic", "pandas", "fsspec"} & set(sys.modules)
assert not slow, slow
for name in ebbtide.__all__: assert getattr(ebbtide, name) is not None
assert not {"pyspark", "py4j", "pandas", "fsspec"} & set(sys.modules)
try:
    ebbtide.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise SystemExit("no error")
"""


def test_the_import_is_light() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
