"""Gates on whose storage it is: OWNER, restored and cloned databases, emptied ones."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ebbtide.errors import Refused
from ebbtide.store.embedded import DATABASE_FILE
from ebbtide.store.repositories.owner import EPOCHS_BEHIND_MAX, OWNER_ADDRESS, Ownership
from tests.support.copies import OpenedWorld, contents_of, listing
from tests.support.faulty import FaultyStorage, OncePut
from tests.support.histories import PlannedWorld, Template
from tests.support.refusals import (
    check_both_refused,
    check_readable,
    check_refused,
    nothing_deleted,
)
from tests.support.world import START, World

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
    """The same OWNER with other values."""
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


def test_storage_from_a_backup(planned: PlannedWorld) -> None:
    file = planned.root / OWNER_ADDRESS
    old = file.read_bytes()
    for _ in range(EPOCHS_BEHIND_MAX + 1):
        planned.lake.context.ownership.move()
    file.write_bytes(old)
    with nothing_deleted(planned):
        report = planned.collector().plan()
    check_refused(report, "storage_foreign", "the storage was restored from a backup", ADOPT)
    check_writes_refused(planned)


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
    """The copy has checked OWNER, and would write it after the original did: both count one
    more."""
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
