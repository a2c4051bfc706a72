"""Gates on the plan itself, which is edited, damaged, another repository's, too large, too young;
and on whose storage it is: OWNER, restored and cloned databases, emptied ones."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.errors import Conflict, ExitCode, InvalidInput, NotFound, Refused
from ebbtide.formats.base import RUNS_PREFIX
from ebbtide.gc.gates import check_share
from ebbtide.gc.parts import Count
from ebbtide.gc.runs import checksum_of
from ebbtide.store.embedded import DATABASE_FILE
from ebbtide.store.repositories.owner import EPOCHS_BEHIND_MAX, OWNER_ADDRESS, Ownership
from tests.support.copies import OpenedWorld, contents_of, listing
from tests.support.faulty import FaultyStorage, OncePut
from tests.support.histories import PlannedWorld, Template
from tests.support.icechunk_lake import candidates
from tests.support.refusals import (
    check_both_refused,
    check_readable,
    check_refused,
    nothing_deleted,
)
from tests.support.world import START, World, collector_of


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


ADOPT = "ebbtide repo adopt"


def check_writes_refused(world: World) -> None:
    """Nobody may write to a storage that is not the database's, either."""
    world.clock.advance(timedelta(minutes=1))
    before = listing(world.root)
    with pytest.raises(Refused) as refused:
        world.lake.objects.put("main", "new", b"new")
    assert refused.value.kind == "storage_foreign"
    assert ADOPT in refused.value.message
    with pytest.raises(Refused):
        world.lake.commits.commit("main", "refused")
    assert listing(world.root) == before


def changed(**values: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(json.loads(content) | values).encode()


def test_owner_file(planned: PlannedWorld) -> None:
    changes: list[tuple[Callable[[bytes], bytes | None], str]] = [
        (lambda _: None, "is missing"),
        (lambda _: b"\x00\xff", "cannot be read"),
        (lambda _: b"[]", "cannot be read"),
        (lambda _: b'{"format": 1}', "cannot be read"),
        (changed(store_id="0" * 32), "names another owner"),
        (changed(nonce="0" * 16), "never wrote"),
        (changed(format=2), "version 2"),
    ]
    file = planned.root / OWNER_ADDRESS
    for change, why in changes:
        original = file.read_bytes()
        content = change(original)
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        kind, way = ("storage_foreign", ADOPT)
        if why == "version 2":
            kind, way = ("unknown_format_version", "use a newer")
        check_both_refused(planned, kind, str(file), why, way)
        check_readable(planned)
        if why != "version 2":
            check_writes_refused(planned)
        assert (file.read_bytes() if file.exists() else None) == content
        file.write_bytes(original)
        planned.lake.objects.put("main", "new", b"new")
    # The storage alone was restored from a backup.
    old = file.read_bytes()
    for _ in range(EPOCHS_BEHIND_MAX + 1):
        planned.lake.context.ownership.move()
    file.write_bytes(old)
    with nothing_deleted(planned):
        report = planned.collector().plan()
    check_refused(report, "storage_foreign", "the storage was restored from a backup", ADOPT)
    check_writes_refused(planned)


def test_yesterdays_database(planned: PlannedWorld) -> None:
    database = planned.directory / "store" / DATABASE_FILE
    planned.lake.objects.put("main", "before", b"before")
    planned.close()
    shutil.copy(database, planned.directory / "backup.db")
    today = OpenedWorld(planned.directory, now=START + timedelta(minutes=2))
    today.save("main", days_ago=0, put=["after"])
    today.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    shutil.copy(planned.directory / "backup.db", database)
    restored = OpenedWorld(planned.directory, now=START + timedelta(hours=2))
    before = listing(restored.root)
    for report in (restored.collector().plan(), restored.collector().sweep(planned.run_id)):
        check_refused(report, "storage_foreign", "restored from a backup or copied", ADOPT)
    assert listing(restored.root) == before
    check_writes_refused(restored)
    restored.lake.context.ownership.adopt()
    restored.lake.objects.put("main", "new", b"new")
    report = restored.collector().run()
    assert report.state == "swept"
    kept = {"one", "four", "five", "staged", "before", "new"}
    assert contents_of(restored, "main").keys() == kept
    restored.close()


def clone_of(world: World, directory: Path) -> OpenedWorld:
    """A store whose database is a copy of the one of `world`, with the same storage."""
    shutil.copytree(
        world.directory / "store",
        directory / "store",
        ignore=shutil.ignore_patterns("storage"),
    )
    return OpenedWorld(directory, now=START)


@pytest.mark.parametrize(("first", "moved_by"), [("original", "run"), ("clone", "write")])
def test_cloned_database(template: Template, tmp_path: Path, first: str, moved_by: str) -> None:
    """The first to move has the storage; the other can neither collect nor write."""
    original = PlannedWorld(template, tmp_path / "original")
    clone = clone_of(original, tmp_path / "clone")
    clone.root = original.root
    winner, loser = (original, clone) if first == "original" else (clone, original)
    if moved_by == "write":
        winner.lake.objects.put("main", "new", b"new")
    else:
        assert winner.collector().plan().state == "planned"
    before = listing(original.root)
    for report in (loser.collector().plan(), loser.collector().sweep(template.run_id)):
        check_refused(report, "storage_foreign", "restored from a backup or copied", ADOPT)
    assert listing(original.root) == before
    check_writes_refused(loser)
    winner.clock.advance(timedelta(minutes=1))
    winner.lake.objects.put("main", "newer", b"newer")
    winner.lake.commits.commit("main", "mine")
    clone.close()
    original.close()


def execute(world: World, statement: str) -> None:
    database = sqlite3.connect(world.directory / "store" / DATABASE_FILE)
    with database:
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    ("table", "kind", "advice"),
    [
        ("commits", "zero_commits", "wrong database or an emptied one"),
        ("branches", "zero_refs", "create or restore a branch first"),
    ],
)
def test_emptied_database(planned: PlannedWorld, table: str, kind: str, advice: str) -> None:
    execute(planned, f"DELETE FROM {table}")
    count = planned.collector().plan_of(planned.run_id).counts["listed"].objects
    check_both_refused(planned, kind, f"{count} files", advice)


@pytest.mark.parametrize("commit", ["opening", "head"])
def test_lost_commit(planned: PlannedWorld, commit: str) -> None:
    """A commit that is missing without a stub is an alarm."""
    commit_id = getattr(planned.history, commit)
    execute(planned, f"DELETE FROM commits WHERE commit_id = '{commit_id}'")
    check_both_refused(planned, "missing_parent", commit_id, "restore")


@pytest.fixture
def clone(planned: PlannedWorld, tmp_path: Path) -> Iterator[OpenedWorld]:
    world = clone_of(planned, tmp_path / "clone")
    yield world
    world.close()


def test_epochs_that_count_alike(planned: PlannedWorld, clone: OpenedWorld) -> None:
    """The copy has read OWNER, and would write it after the original did: both count one more."""
    context = clone.lake.context
    during = OncePut(OWNER_ADDRESS, planned.lake.context.ownership.move)
    slow = Ownership(
        context.metadata,
        store_id=clone.store.store_id,
        repository_id=context.repository_id,
        storage=FaultyStorage(context.storage, before=during),
        host_now=clone.clock.host_now,
    )
    with pytest.raises(Refused, match="never wrote") as refused:
        slow.move()
    assert refused.value.kind == "storage_foreign"
    assert during.done
    assert planned.collector().sweep(planned.run_id).state == "swept"


def test_a_copy_that_takes_the_storage_during_a_sweep(
    planned: PlannedWorld, clone: OpenedWorld
) -> None:
    def take(step: str, event: str) -> None:
        if (step, event) == ("recheck", "start"):
            clone.lake.context.ownership.adopt()

    with nothing_deleted(planned):
        report = planned.collector(observer=take).sweep(planned.run_id)
    check_refused(report, "storage_foreign", "never wrote")
    check_readable(planned)
