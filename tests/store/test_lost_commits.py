"""A transaction's COMMIT is lost, before it took effect or after: nothing that is needed goes, and
once all times have passed nothing is left over that nobody needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.purge.purger import Purges
from ebbtide.storage import Storage
from ebbtide.store.collections.contents import Located
from ebbtide.store.content.entries import is_external
from ebbtide.store.content.layout import range_address
from ebbtide.store.content.ranges import RangeInfo, read_range
from ebbtide.store.content.trees import read_tree
from ebbtide.store.database.commit_rows import find_commits
from ebbtide.store.database.schema import (
    commits,
    copies,
    dropped_tokens,
    gc_runs,
    pending,
    purged,
    purges,
    readings,
    released,
    upload_tokens,
)
from ebbtide.store.purge_records import CLOSED
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from tests.support.collections import of, of_files
from tests.support.gone import expire_repository, files, remover
from tests.support.lost import Loser
from tests.support.purging import SECRET_KEY, purge
from tests.support.reachable import ROUNDS, staged_live
from tests.support.world import DAY, World, aged

HOUR: Final = timedelta(hours=1)
SETTINGS: Final[dict[str, Any]] = {
    "lease_ttl": HOUR,
    "trash_time": timedelta(days=7),
    "range_entries_target": 2,
    # It writes, too: which COMMIT is lost would be a matter of time.
    "run_heartbeat": timedelta(hours=1),
    "run_lease_ttl": timedelta(hours=3),
    "secret_key": SECRET_KEY,
}
ENDING: Final = (copies, dropped_tokens, pending, readings, released, upload_tokens)
"""Tables whose rows all end."""
COMMITS_MAX: Final = 40

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Lake:
    """A repository, and the same one by way of the store whose COMMITs may be lost."""

    world: World
    loser: Loser

    @property
    def ours(self) -> Repository:
        return self.world.lake

    @property
    def theirs(self) -> Repository:
        """Of which a COMMIT may be lost."""
        return aged(self.loser.store.repository("lake"))

    def collector(self, **options: Any) -> Collector:
        chosen: dict[str, Any] = {"grace": HOUR, "mode": "clean"} | options
        return Collector(
            EmbeddedRepository(self.theirs.context, store_id=self.loser.store.store_id),
            engine=self.world.engine,
            options=RunOptions.of(self.world.settings, **chosen),
        )

    def save(self, *paths: str, branch: str = "main") -> str:
        """Commit files whose content is their name, and nothing that was staged before."""
        self.ours.commits.reset(branch)
        for path in paths:
            self.ours.objects.put(branch, path, path.encode())
        return self.ours.commits.commit(branch, " ".join(paths)).commit_id

    def garbage(self, name: str) -> None:
        """Commits that are let go, with files of their own, and files that no commit ever had."""
        for each in ("old", "new"):
            self.save(f"{name}/{each}", name)
        self.ours.objects.delete("main", f"{name}/old")
        self.ours.commits.commit("main", "without")
        self.ours.objects.put("main", f"{name}/dropped", b"dropped")
        self.ours.objects.delete("main", f"{name}/dropped")
        self.world.clock.advance(3 * DAY)


Operation = Callable[[Lake, str], Work]
"""Prepares what is to be done once, under a name that nothing else has; and what that is."""


def put_over(lake: Lake, name: str) -> Work:
    lake.ours.objects.put("main", name, b"1")
    return lambda: lake.theirs.objects.put("main", name, b"2")


def link(lake: Lake, name: str) -> Work:
    given = lake.ours.addresses.get("main", name)
    lake.ours.storage.put(given.address, b"1")
    return lambda: lake.theirs.addresses.link("main", name, given.token)


def commit(lake: Lake, name: str) -> Work:
    lake.ours.commits.reset("main")
    for number in range(5):
        lake.ours.objects.put("main", f"{name}/{number}", b"1")
    return lambda: lake.theirs.commits.commit("main", name)


def create_collection(lake: Lake, name: str) -> Work:
    project = lake.ours.projects.create(name).project_id
    signed = lake.ours.locators.upload(name.encode())
    change = of(of_files({"a": b"1", "b": b"2"}), Located({"c": signed.locator}))
    return lambda: lake.theirs.collections.create(project, name, change)


def sweep(lake: Lake, name: str) -> Work:
    lake.garbage(name)
    assert lake.world.collector().plan().state == "planned"
    return lake.collector().sweep


def purge_path(lake: Lake, name: str) -> Work:
    lake.save(name, f"{name}/kept")
    return lambda: purge(lake.loser.store, f"main:{name}", all_history=True)


OPERATIONS: Final[tuple[Operation, ...]] = (
    put_over,
    link,
    commit,
    create_collection,
    sweep,
    purge_path,
)
"""The simulation loses COMMITs of all others, on SQLite."""


@pytest.fixture
def lake(database_url: str, tmp_path: Path) -> Iterator[Lake]:
    """A repository that keeps a day."""
    made = World(tmp_path, settings=SETTINGS | {"database_url": database_url})
    made.keep(default="1d")
    with Loser.of(made.store) as loser:
        yield Lake(made, loser)
    made.close()


@pytest.mark.twins
@pytest.mark.drawn("operations whose COMMIT is lost")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_is_lost_and_nothing_is_left(lake: Lake, operation: Operation) -> None:
    tries = 0
    for moment in lake.loser.moments:
        for nth in range(COMMITS_MAX):
            work = operation(lake, f"{moment}{nth}")
            is_lost = lake.loser.lose(nth, moment, work)
            check_whole(lake.world)
            # What is held stays so until it is given up.
            lake.world.clock.advance(lake.world.settings.run_lease_ttl)
            if not is_lost:
                tries += nth
                break
        else:
            raise AssertionError("it has no end")
    assert tries
    check_settled(lake.world)


def check_whole(world: World) -> None:
    lacking = needed(world) - files(world)
    assert not lacking, f"needed, and not there: {sorted(lacking)}"


def check_settled(world: World) -> None:
    """Once all times have passed, and runs were made, there is what is needed and what the
    collector has to keep, and nothing else."""
    stopped = Purges(world.store)
    for row in stopped.list("lake"):
        if row.state in CLOSED:
            # No run deletes what a commit refers to.
            assert stopped.carry_out(row.purge_id).row.state == "done"
    for _ in range(ROUNDS):
        world.clock.advance(world.settings.run_retention + DAY)
        Reclaimer(world.store).once()
        run = world.collect()
        assert run.state == "swept", run.error
    check_whole(world)
    left = files(world) - needed(world)
    kept = tuple(records(world, run.run_id))
    over = {address for address in left if not address.startswith(kept)}
    assert not over, f"left over: {sorted(over)}"
    with world.store.metadata.snapshot() as tx:
        for table in ENDING:
            assert not tx.execute(sa.select(table)).all(), table.name


def needed(world: World) -> set[str]:
    context = world.lake.context
    found = {"_ebbtide/OWNER"} | {a for a in staged_live(world.lake) if not is_external(a)}
    with context.metadata.snapshot() as tx:
        ids = tx.execute(sa.select(commits.c.commit_id)).scalars().all()
        known = find_commits(tx, context.repository_id, ids)
    for record in known.values():
        if record.forgotten_by is not None:
            continue
        tree = read_tree(context.storage, *record.require_tree())
        found.add(tree.address)
        for info in tree.ranges:
            found.add(range_address(info.range_id))
            if record.is_intact:
                found |= addresses_of(context.storage, info)
    return found - deleted_for_good(world)


@cache
def addresses_of(storage: Storage, info: RangeInfo) -> frozenset[str]:
    """The objects of a range, which never changes."""
    addresses = (entry.address for entry in read_range(storage, info))
    return frozenset(address for address in addresses if not is_external(address))


def deleted_for_good(world: World) -> set[str]:
    with world.store.metadata.snapshot() as tx:
        return set(tx.execute(sa.select(purged.c.address)).scalars())


def records(world: World, run_id: str) -> Iterator[str]:
    """Where the collector, and purges, keep what they say they do: of the last run alone."""
    yield from ("_ebbtide/gc/EPOCH", "_ebbtide/gc/index/1/")
    with world.store.metadata.snapshot() as tx:
        assert tx.execute(sa.select(gc_runs.c.run_id)).scalars().all() == [run_id]
        yield f"_ebbtide/gc/runs/{run_id}/"
        for purge_id in tx.execute(sa.select(purges.c.purge_id)).scalars():
            yield f"_ebbtide/purges/{purge_id}/"


def test_files_of_a_run_that_is_off_the_record_go_in_time(lake: Lake) -> None:
    world = lake.world
    lake.save("a")
    runs = world.root / "_ebbtide" / "gc" / "runs"
    run_id = world.collect().run_id
    world.format().drop_run(run_id)
    (runs / "notes").mkdir()
    (runs / "notes" / "mine").write_text("nobody's run")
    for days, there in ((world.settings.run_retention - DAY, True), (2 * DAY, False)):
        world.clock.advance(days)
        assert world.collect().state == "swept"
        assert (runs / run_id).exists() is there
    assert (runs / "notes" / "mine").exists()


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_a_repository_is_made_or_it_is_not(lake: Lake) -> None:
    world, store = lake.world, lake.loser.store
    for moment in lake.loser.moments:
        for nth in range(COMMITS_MAX):
            name = f"{moment}{nth}"
            is_lost = lake.loser.lose(nth, moment, lambda: store.create_repository(name))  # noqa: B023
            root = world.root.parent / name
            if any(each.info.name == name for each in world.store.catalog.list()):
                made = aged(world.store.repository(name))
            else:
                assert not [each for each in root.rglob("*") if each.is_file()]
                made = aged(world.store.create_repository(name))
            made.objects.put("main", "a", b"1")
            made.commits.commit("main", "first")
            assert made.objects.get("main", "a") == b"1"
            if not is_lost:
                break
        else:
            raise AssertionError("it has no end")


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_a_gone_repository_is_collected_whole(lake: Lake) -> None:
    world, store = lake.world, lake.loser.store
    lake.save("a", "b")
    assert world.collect().state == "swept"
    repository_id = expire_repository(world)
    for nth in range(COMMITS_MAX):
        for moment in lake.loser.moments:
            if store.catalog.find_gone(repository_id) is None:
                break
            lake.loser.lose(nth, moment, lambda: remover(store, repository_id).run())
            world.clock.advance(world.settings.run_lease_ttl)
        else:
            continue
        break
    assert files(world) == {"_ebbtide/OWNER"}
