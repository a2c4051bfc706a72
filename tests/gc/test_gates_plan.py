"""Gates on the plan itself: edited, damaged, another repository's, too large, too young."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from itertools import product
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


def test_plan_edited_by_hand(planned: PlannedWorld) -> None:
    """With the checksum in the file recomputed, the database's record still shows it."""
    file = run_folder(planned) / "plan.json"
    original = file.read_text()
    edits: tuple[Edit, ...] = (drop_candidates, rename_candidate, add_rows, free_share)
    for edit, recomputed in product(edits, (False, True)):
        plan = json.loads(original)
        edit(plan)
        if recomputed:
            plan["checksum"] = checksum_of(plan)
        file.write_text(json.dumps(plan))
        with nothing_deleted(planned):
            report = planned.collector().sweep(planned.run_id)
        recorded = "the one that the database recorded" if recomputed else "match its checksum"
        check_refused(report, "plan_corrupt", str(file), recorded, "plan again")
    check_readable(planned)


def test_plan_that_is_no_plan(planned: PlannedWorld) -> None:
    file = run_folder(planned) / "plan.json"
    for content in (b"", b"{", b"[]", b"\xff\xfe", b"null"):
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


def deactivate(file: Path, _world: PlannedWorld) -> None:
    """As if the plan had found every commit expired."""
    table = pq.read_table(file)
    column = table.column_names.index("active")
    inactive = pa.array([False] * table.num_rows)
    pq.write_table(table.set_column(column, "active", inactive), file)


def test_parts_replaced_or_missing(planned: PlannedWorld) -> None:
    """Found before anything goes, also where nothing needs to be taken out of the plan."""
    folder = run_folder(planned)
    (tree,) = (folder / "candidates").glob("tree-*.parquet")
    (objects,) = (folder / "candidates").glob("object-*.parquet")
    for staged in (True, False):
        if not staged:
            planned.lake.commits.reset("main")
        for file, change in (
            (tree, replace_part),
            (objects, replace_part),
            (objects, lambda file, _: file.unlink()),
            (folder / "commits.parquet", deactivate),
        ):
            data = file.read_bytes()
            change(file, planned)
            with nothing_deleted(planned):
                report = planned.collector().sweep(planned.run_id)
            check_refused(report, "plan_corrupt", str(file), "plan again")
            file.write_bytes(data)
    check_readable(planned)


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


@pytest.mark.parametrize("lease_ttl", [timedelta(0), timedelta(hours=2)])
def test_unsafe_grace(template: Template, tmp_path: Path, lease_ttl: timedelta) -> None:
    planned = PlannedWorld(template, tmp_path, lease_ttl=lease_ttl)
    below = timedelta(hours=1) if lease_ttl else timedelta(seconds=1)
    for grace, action in product((below, timedelta(seconds=-1)), ("plan", "sweep", "run")):
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


def test_storage_in_memory(planned: PlannedWorld) -> None:
    """Executors are other processes: to them it would be empty."""
    repository = planned.store.create_repository("volatile", storage_url="memory:gates")
    repository.objects.put("main", "a", b"a")
    collector = Collector(
        EmbeddedRepository(repository.context, store_id=planned.store.store_id),
        engine=INLINE,
        options=RunOptions.of(planned.settings, grace=GRACE),
    )
    for action in (collector.plan, collector.sweep, collector.run):
        with pytest.raises(InvalidInput) as refused:
            action()
        assert refused.value.kind == "invalid_argument"
        assert "memory:gates" in refused.value.message
        assert "use a directory or an object store" in refused.value.message
    assert repository.objects.get("main", "a") == b"a"
