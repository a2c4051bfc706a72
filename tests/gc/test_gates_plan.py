"""Gates on the plan itself: edited, damaged, another repository's, too large, too young."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.errors import ExitCode, InvalidInput, NotFound
from ebbtide.formats.base import RUNS_PREFIX
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.runs import checksum_of
from tests.support.engines import INLINE
from tests.support.histories import GRACE, PlannedWorld, Template
from tests.support.refusals import check_readable, check_refused, nothing_deleted
from tests.support.world import World

Edit = Callable[[dict[str, Any]], object]  # of the JSON of a plan


def run_folder(world: PlannedWorld) -> Path:
    """Where the plan's files lie."""
    return world.root / RUNS_PREFIX / world.run_id


def drop_candidates(plan: dict[str, Any]) -> None:
    plan["candidates"] = []


def rename_candidate(plan: dict[str, Any]) -> None:
    plan["candidates"][0]["name"] = "candidates/another.parquet"


def add_rows(plan: dict[str, Any]) -> None:
    plan["candidates"][0]["rows"] += 1


def free_share(plan: dict[str, Any]) -> None:
    plan["cutoff"] = "2100-01-01T00:00:00+00:00"


@pytest.mark.parametrize("edit", [drop_candidates, rename_candidate, add_rows, free_share])
@pytest.mark.parametrize("recomputed", [False, True])
def test_plan_edited_by_hand(planned: PlannedWorld, edit: Edit, recomputed: bool) -> None:
    """With the checksum in the file recomputed, the database's record still shows it."""
    file = run_folder(planned) / "plan.json"
    plan = json.loads(file.read_text())
    edit(plan)
    if recomputed:
        plan["checksum"] = checksum_of(plan)
    file.write_text(json.dumps(plan))
    with nothing_deleted(planned):
        report = planned.collector().sweep(planned.run_id)
    recorded = "the one that the database recorded" if recomputed else "match its checksum"
    check_refused(report, "plan_corrupt", str(file), recorded, "plan again")
    check_readable(planned)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_plan_that_is_no_plan(planned: PlannedWorld, content: bytes) -> None:
    file = run_folder(planned) / "plan.json"
    file.write_bytes(content)
    with nothing_deleted(planned):
        report = planned.collector().sweep(planned.run_id)
    check_refused(report, "plan_corrupt", str(file), "plan again")
    (known,) = planned.collector().runs()
    check_refused(known, "plan_corrupt", str(file))


def test_plan_that_is_gone(planned: PlannedWorld) -> None:
    shutil.rmtree(run_folder(planned))
    with nothing_deleted(planned), pytest.raises(NotFound) as refused:
        planned.collector().sweep(planned.run_id)
    assert refused.value.kind == "run_not_found"


def test_plan_of_an_unknown_version(planned: PlannedWorld) -> None:
    file = run_folder(planned) / "plan.json"
    plan = json.loads(file.read_text()) | {"version": 2}
    file.write_text(json.dumps(plan | {"checksum": checksum_of(plan)}))
    with nothing_deleted(planned):
        report = planned.collector().sweep(planned.run_id)
    check_refused(report, "unknown_format_version", str(file), "has version 2", "plan again")


def replace_part(file: Path, world: PlannedWorld) -> None:
    """The same file with a live object among the candidates."""
    (live,) = (e.address for e in world.lake.objects.walk("main") if e.path == "five")
    table = pq.read_table(file)
    column = table.column_names.index("address")
    addresses = pa.array([live] * table.num_rows, pa.string())
    pq.write_table(table.set_column(column, "address", addresses), file)


@pytest.mark.parametrize("kind", ["tree", "object"])
@pytest.mark.parametrize("staged", [True, False])
def test_candidate_part_replaced(planned: PlannedWorld, kind: str, staged: bool) -> None:
    """Found before anything goes, also where nothing needs to be taken out of the plan."""
    if not staged:
        planned.lake.commits.reset("main")
    (file,) = (run_folder(planned) / "candidates").glob(f"{kind}-*.parquet")
    replace_part(file, planned)
    with nothing_deleted(planned):
        report = planned.collector().sweep(planned.run_id)
    check_refused(report, "plan_corrupt", str(file), "plan again")
    check_readable(planned)


def test_candidate_part_missing(planned: PlannedWorld) -> None:
    (file,) = (run_folder(planned) / "candidates").glob("object-*.parquet")
    file.unlink()
    with nothing_deleted(planned):
        report = planned.collector().sweep(planned.run_id)
    check_refused(report, "plan_corrupt", str(file), "plan again")
    check_readable(planned)


def test_commits_replaced(planned: PlannedWorld) -> None:
    """As if the plan had found every commit expired."""
    file = run_folder(planned) / "commits.parquet"
    table = pq.read_table(file)
    column = table.column_names.index("active")
    inactive = pa.array([False] * table.num_rows)
    pq.write_table(table.set_column(column, "active", inactive), file)
    with nothing_deleted(planned):
        report = planned.collector().sweep(planned.run_id)
    check_refused(report, "plan_corrupt", str(file), "plan again")


def test_plan_of_another_repository(template: Template, tmp_path: Path) -> None:
    mine = World(tmp_path)
    theirs = template.directory / "store" / "storage" / "lake" / RUNS_PREFIX / template.run_id
    shutil.copytree(theirs, mine.root / RUNS_PREFIX / template.run_id)
    before = mine.files("")
    report = mine.collector().sweep(template.run_id)
    check_refused(report, "plan_foreign", mine.store.store_id, "sweep a plan of this repository")
    assert mine.files("") >= before
    mine.close()


def test_candidates_over_the_share(template: Template, tmp_path: Path) -> None:
    planned = PlannedWorld(template, tmp_path, share_max=0.3)
    with nothing_deleted(planned):
        plan = planned.collector().run()
    count, listed = plan.counts["candidate"].objects, plan.counts["listed"].objects
    check_refused(plan, "over_share", f"{count} of {listed} files", "30%", "--allow-share")
    assert plan.to_json()["candidate_count"] > 0
    with nothing_deleted(planned):
        check_refused(planned.collector().sweep(plan.run_id), "over_share", "--allow-share")
    check_readable(planned)

    report = planned.collector(allow_share=True).sweep(plan.run_id)
    assert report.state == "swept"
    assert report.counts["deleted"] == plan.counts["candidate"]
    planned.close()


@pytest.mark.parametrize("action", ["plan", "sweep", "run"])
@pytest.mark.parametrize(
    ("grace", "lease_ttl"),
    [
        (timedelta(seconds=1), timedelta(0)),
        (timedelta(hours=1), timedelta(hours=2)),
        (timedelta(seconds=-1), timedelta(0)),
    ],
)
def test_unsafe_grace(
    template: Template, tmp_path: Path, grace: timedelta, lease_ttl: timedelta, action: str
) -> None:
    planned = PlannedWorld(template, tmp_path, lease_ttl=lease_ttl)
    with nothing_deleted(planned), pytest.raises(InvalidInput) as refused:
        getattr(planned.collector(grace=grace), action)()
    assert refused.value.kind == "unsafe_grace"
    assert refused.value.exit_code == ExitCode.USAGE
    assert len(planned.collector().runs()) == 1
    planned.close()


def test_unsafe_grace_with_the_flag(planned: PlannedWorld) -> None:
    report = planned.collector(grace=timedelta(seconds=1), unsafe=True).plan()
    assert report.state == "planned"
    with pytest.raises(InvalidInput):
        planned.collector(grace=timedelta(seconds=-1), unsafe=True).plan()


@pytest.mark.parametrize("action", ["plan", "sweep", "run"])
def test_storage_in_memory(planned: PlannedWorld, action: str) -> None:
    """Executors are other processes: to them it would be empty."""
    name = f"memory:gates-{action}"
    repository = planned.store.create_repository("volatile", storage_url=name)
    repository.objects.put("main", "a", b"a")
    collector = Collector(
        EmbeddedRepository(repository.context, store_id=planned.store.store_id),
        engine=INLINE,
        options=RunOptions.of(planned.settings, grace=GRACE),
    )
    with pytest.raises(InvalidInput) as refused:
        getattr(collector, action)()
    assert refused.value.kind == "invalid_argument"
    assert name in refused.value.message
    assert "use a directory or an object store" in refused.value.message
    assert repository.objects.get("main", "a") == b"a"
