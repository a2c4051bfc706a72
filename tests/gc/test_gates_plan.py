"""Gates on the plan itself: edited, damaged, another repository's, too large, too young."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.errors import Conflict, ExitCode, InvalidInput, NotFound
from ebbtide.formats.base import RUNS_PREFIX
from ebbtide.gc.counts import Count
from ebbtide.gc.planning.gates import check_share
from ebbtide.gc.runs import checksum_of
from tests.support.histories import PlannedWorld, Template
from tests.support.icechunk_lake import candidates
from tests.support.refusals import check_readable, check_refused, nothing_deleted
from tests.support.world import World, collector_of


def run_folder(world: PlannedWorld) -> Path:
    return world.root / RUNS_PREFIX / world.run_id


def test_plan_edited_by_hand(planned: PlannedWorld) -> None:
    """With the checksum in the file recomputed, the database's record still shows it."""
    file = run_folder(planned) / "plan.json"
    original = file.read_text()
    part = json.loads(original)["candidates"][0]
    edits: tuple[dict[str, Any], ...] = (
        {"candidates": []},
        {"candidates": [part | {"name": "candidates/another.parquet"}]},
        {"cutoff": "2100-01-01T00:00:00+00:00"},
    )
    for edit, recomputed in product(edits, (False, True)):
        plan = json.loads(original) | edit
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
    for content in (b"{", b"[]", b"\xff\xfe"):
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
    negative = timedelta(seconds=-1)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"grace": below}, action) for action in ("plan", "sweep", "run")
    ]
    refused += [({"grace": negative}, "plan"), ({"grace": negative, "unsafe": True}, "plan")]
    for options, action in refused:
        with nothing_deleted(planned), pytest.raises(InvalidInput) as caught:
            getattr(planned.collector(**options), action)()
        assert caught.value.kind == "unsafe_grace"
        assert caught.value.exit_code == ExitCode.USAGE
    assert len(planned.collector().runs()) == 1
    assert planned.collector(grace=below, unsafe=True).plan().state == "planned"
    planned.close()


def test_storage_in_memory(planned: PlannedWorld) -> None:
    """Executors are other processes: to them it would be empty."""
    repository = planned.store.create_repository("volatile", storage_url="memory:gates")
    repository.objects.put("main", "a", b"a")
    collector = collector_of(planned.store, repository)
    for action in (collector.plan, collector.sweep, collector.run):
        with pytest.raises(InvalidInput) as refused:
            action()
        assert refused.value.kind == "invalid_argument"
        assert "memory:gates" in refused.value.message
        assert "use a directory or an object store" in refused.value.message
    assert repository.objects.get("main", "a") == b"a"


def test_it_is_not_swept_again(planned: PlannedWorld) -> None:
    """A file that came to one of its addresses since stays."""
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    address = next(name for name in candidates(report) if name.startswith("data/"))
    (planned.root / address).write_bytes(b"new")
    with pytest.raises(Conflict) as used:
        planned.collector().sweep(planned.run_id)
    assert used.value.kind == "plan_used"
    assert (planned.root / address).read_bytes() == b"new"


LISTED = Count(1000, 1_000_000)


@pytest.mark.parametrize(
    ("candidates", "listed", "refused"),
    [
        pytest.param(Count(500, 500_000), LISTED, None, id="just the share"),
        pytest.param(Count(501, 0), LISTED, "501 of 1,000 files", id="a file more"),
        pytest.param(Count(1, 500_001), LISTED, "500,001 of 1,000,000 bytes", id="a byte more"),
        pytest.param(Count(1, 7), Count(1000, 7, sized=False), None, id="sizes that nobody knows"),
        pytest.param(Count(0, 0), Count(0, 0), None, id="nothing"),
        pytest.param(Count(1, 0), Count(2, 0), None, id="empty files"),
    ],
)
def test_more_than_the_share_is_refused(
    candidates: Count, listed: Count, refused: str | None
) -> None:
    found = check_share(candidates, listed, share_max=0.5)
    if refused is None:
        assert found is None
    else:
        assert found is not None
        assert found.kind == "over_share"
        assert refused in found.message
