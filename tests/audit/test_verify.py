"""Verification: what a plan must not have is found by a walk of its own, and true plans pass."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.audit import plan_checks as candidates_module
from ebbtide.audit.findings import DIFFERENCES_FILE, Verification
from ebbtide.audit.verify import verify
from ebbtide.errors import Refused
from ebbtide.gc.report import RunReport
from ebbtide.store.content.layout import tree_address
from ebbtide.store.database.schema import repositories
from ebbtide.store.purge_records import insert_purged
from tests.gc.test_incremental import incremental, make_world
from tests.gc.test_incremental import run as run_world
from tests.gc.test_random_stores import EVENTS, PERIODS, Event, History, expected, play
from tests.support.forging import Forgery, Row
from tests.support.gone import expire_repository, fill, gone_repository, remover
from tests.support.histories import PlannedWorld
from tests.support.icechunk import SPEC_VERSIONS, build_random
from tests.support.icechunk_lake import IcechunkLake, candidates
from tests.support.randomized import examples, randomized
from tests.support.world import DAY, World, temporary_world

KINDS = {"data": "object", "_ebbtide/trees": "tree", "_ebbtide/ranges": "range"}


def named(report: RunReport, *sorts: str) -> set[str]:
    """The addresses of all findings of these sorts, from the file."""
    file = Path(report.run_path) / DIFFERENCES_FILE
    rows = pq.read_table(file).to_pylist() if file.exists() else []
    return {row["address"] for row in rows if row["sort"] in sorts}


def forged(world: World, report: RunReport, *addresses: str) -> Forgery:
    """The plan of a run, sealed, with these objects among its candidates."""
    forgery = Forgery(world.format(), report)
    for address in addresses:
        forgery.put_in(world.root, address, "object")
    forgery.seal()
    return forgery


def kind_of(address: str, kinds: Mapping[str, str]) -> str:
    return next(kind for prefix, kind in kinds.items() if address.startswith(prefix))


def check_finds(
    lake: World | IcechunkLake, root: Path, report: RunReport, needed: Mapping[str, str]
) -> None:
    """A plan passes; each needed file, of these kinds, is found in it, if it is put there; and what
    was swept by the plan passes too."""
    found = verify(lake.collector(), report.run_id)
    assert (found.verified, found.counts, found.path) == (True, {}, None)
    assert found.checked["candidates"] == report.counts["candidate"].objects

    untouched = shutil.copytree(report.run_path, root.parent / "untouched")
    forgery = Forgery(lake.format(), report)
    for address, kind in needed.items():
        forgery.put_in(root, address, kind)
    forgery.seal()
    found = verify(lake.collector(), report.run_id)
    assert named(report, "needed", "protected") == needed.keys()
    assert found.counts.keys() <= {"needed", "protected"}

    shutil.rmtree(report.run_path)
    shutil.copytree(untouched, report.run_path)
    Forgery(lake.format(), report).seal()
    swept = lake.collector().sweep(report.run_id)
    assert swept.state == "swept", swept.error
    found = verify(lake.collector(), report.run_id)
    assert (found.verified, found.counts) == (True, {})


@randomized("verified stores")
@examples("verified stores")
@given(events=st.lists(EVENTS, min_size=3, max_size=14), default=PERIODS, main=PERIODS)
def test_random_plans_pass_and_whatever_is_needed_is_found_in_them(
    events: list[Event], default: int, main: int
) -> None:
    with temporary_world() as world:
        world.keep(default=f"{default}d", branches={"main": f"{main}d"})
        history = History()
        play(world, history, events)
        active = history.active({"main": main}, default, world.now)
        stays = expected(world, history, active)
        report = world.collector().plan()
        needed = {address: kind_of(address, KINDS) for address in stays}
        check_finds(world, world.root, report, needed)


def reported(world: PlannedWorld) -> RunReport:
    return world.collector().show(world.run_id)


def verified(world: PlannedWorld) -> Verification:
    return verify(world.collector(), world.run_id)


def live_address(world: PlannedWorld) -> str:
    return next(iter(world.lake.objects.walk(world.history.head))).address


def staged_address(world: PlannedWorld) -> str:
    committed = {e.address for e in world.lake.objects.walk(world.history.head)}
    (found,) = {e.address for e in world.lake.objects.walk("main")} - committed
    return found


def test_a_live_object(planned: PlannedWorld) -> None:
    address = live_address(planned)
    forged(planned, reported(planned), address)
    found = verified(planned)
    assert not found.verified
    (finding,) = found.shown
    assert (finding.sort, finding.address) == ("needed", address)
    assert finding.text.startswith("commit ")
    assert found.path == f"{reported(planned).run_path}/{DIFFERENCES_FILE}"
    swept = planned.collector().sweep(planned.run_id)
    assert swept.state == "swept", "the checks of a sweep do not see it"
    found = verified(planned)
    assert named(reported(planned), "lost") == {address}
    assert not found.verified


Change = Callable[[PlannedWorld, Forgery], set[str]]
"""Changes a plan; the addresses or commits that verification has to name."""


def put_temporary(world: PlannedWorld, forgery: Forgery) -> set[str]:
    """They are judged by what they become: what a commit has is written to its end, and what is
    staged may be written again."""
    staged, live = staged_address(world), live_address(world)
    for address in (staged, live):
        (world.root / f"{address}#12").write_bytes(b"half")
        forgery.put_in(world.root, f"{address}#12", "temporary")
    return {f"{staged}#12"}


def edit_first(**values: Any) -> Change:
    def change(world: PlannedWorld, forgery: Forgery) -> set[str]:
        addresses: list[str] = []

        def edit(rows: list[Row]) -> None:
            young = {"last_modified": world.now} if "last_modified" in values else {}
            rows[0].update(values | young)
            addresses.append(rows[0]["address"])

        forgery.edit_candidates("object", edit)
        return set(addresses)

    return change


def repeat_first(_world: PlannedWorld, forgery: Forgery) -> set[str]:
    forgery.edit_candidates("object", lambda rows: rows.append(rows[0]))
    return set()


def count_more(_world: PlannedWorld, forgery: Forgery) -> set[str]:
    forgery.plan["candidates"][0]["rows"] += 1
    return set()


def drop(rows: list[Row], commit_id: str) -> None:
    """Make it an expired commit."""
    row = next(row for row in rows if row["commit_id"] == commit_id)
    row["active"], row["reason"] = False, None


def lose_reason(name: str, *, active: bool, recorded: bool) -> Change:
    """Takes its reason from a kept commit, and perhaps its data and its record."""

    def change(world: PlannedWorld, forgery: Forgery) -> set[str]:
        commit_id: str = getattr(world.history, name)

        def edit(rows: list[Row]) -> None:
            row = next(row for row in rows if row["commit_id"] == commit_id)
            row["reason"], row["active"], row["recorded"] = None, active, recorded

        forgery.edit("commits", edit)
        forgery.plan["active_count"] -= not active
        forgery.plan["expired_count"] += not active
        forgery.plan["forgettable_count"] += not recorded
        return {commit_id}

    return change


NEVER = ("_ebbtide/OWNER", "data/foreign.txt", "../outside", "_ebbtide/gc/EPOCH")
CHANGES: list[tuple[str, Change]] = [
    ("protected", put_temporary),
    ("changed", edit_first(size_bytes=12345)),
    ("shape", edit_first(kind="tree")),
    *(("shape", edit_first(address=address)) for address in NEVER),
    ("young", edit_first(last_modified="now")),
    ("twice", repeat_first),
    ("figure", count_more),
    *(
        ("reason", lose_reason(name, active=active, recorded=recorded))
        for name in ("opening", "middle", "head")
        for active, recorded in ((True, True), (False, True), (False, False))
    ),
]


def test_one_change_each(planned: PlannedWorld, tmp_path: Path) -> None:
    report = reported(planned)
    untouched = shutil.copytree(report.run_path, tmp_path / "untouched")
    for number, (sort, change) in enumerate(CHANGES):
        forgery = forged(planned, report)
        expected = change(planned, forgery)
        forgery.seal()
        found = verified(planned)
        assert sort in found.counts, number
        assert not found.verified or sort == "changed", number
        told = {each.commit_id if sort == "reason" else each.address for each in found.shown}
        assert not expected or told == expected, number
        if sort not in ("shape", "young", "twice"):
            assert len(found.counts) == 1, (number, found.counts)
        shutil.rmtree(report.run_path)
        shutil.copytree(untouched, report.run_path)
    forged(planned, report)
    assert verified(planned).counts == {}


def test_a_reason_and_the_ref_that_gave_it(planned: PlannedWorld) -> None:
    """Forged so that nothing contradicts it: what only that commit needs is found."""
    commit_id = planned.lake.tags.create("t", planned.history.expired).commit_id
    report = planned.collector().plan()
    forgery = forged(planned, report)
    forgery.edit("refs", lambda rows: rows.remove(next(r for r in rows if r["name"] == "t")))
    forgery.edit("commits", lambda rows: drop(rows, commit_id))
    forgery.plan["active_count"] -= 1
    forgery.plan["expired_count"] += 1
    three = next(e.address for e in planned.lake.objects.walk(commit_id) if e.path == "three")
    forgery.put_in(planned.root, three, "object")
    forgery.seal()
    found = verify(planned.collector(), report.run_id)
    assert "since" in found.counts
    assert three in named(report, "revived")


def test_a_young_file(planned: PlannedWorld) -> None:
    """Written over since: the sweep would not see it."""
    report = reported(planned)
    address = next(a for a in candidates(report) if a.startswith("data/") and "#" not in a)
    later = planned.now.timestamp()
    os.utime(planned.root / address, (later, later))
    assert verified(planned).counts.keys() == {"young", "changed"}
    assert named(report, "young") == {address}


def test_a_part_that_is_not_as_it_was_written(planned: PlannedWorld) -> None:
    file = next((Path(reported(planned).run_path) / "candidates").iterdir())
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(Refused) as caught:
        verified(planned)
    assert caught.value.kind == "plan_corrupt"


def test_what_went_since_is_a_note(planned: PlannedWorld) -> None:
    address = next(a for a in candidates(reported(planned)) if a.startswith("data/"))
    (planned.root / address).unlink()
    found = verified(planned)
    assert found.verified
    assert named(reported(planned), "gone") == {address}


def test_needed_files_that_are_not_there(planned: PlannedWorld) -> None:
    tree_id, _ = planned.lake.commits.get(planned.history.head).require_tree()
    file = planned.root / tree_address(tree_id)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    assert verified(planned).counts.keys() == {"damaged"}
    file.unlink()
    found = verified(planned)
    assert found.counts.keys() == {"missing"}
    assert named(reported(planned), "missing") == {tree_address(tree_id)}


def test_a_tag_since_the_plan_is_a_note(planned: PlannedWorld) -> None:
    planned.lake.tags.create("back", planned.history.expired)
    found = verified(planned)
    assert found.verified
    assert found.counts.keys() == {"since", "revived"}
    assert planned.collector().sweep(planned.run_id).state == "swept"
    found = verified(planned)
    assert (found.verified, found.counts) == (True, {})


def test_what_was_purged_may_go(planned: PlannedWorld) -> None:
    address = live_address(planned)
    forged(planned, reported(planned), address)
    with planned.store.metadata.transaction() as tx:
        insert_purged(tx, planned.lake.context.repository_id, "0" * 32, [address])
    assert verified(planned).verified


def test_many_candidates_in_several_passes(
    planned: PlannedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates_module, "CANDIDATES_HELD", 1)
    whole = verified(planned)
    assert whole.verified
    stays = {e.address for e in planned.lake.objects.walk(planned.history.head)}
    forged(planned, reported(planned), *stays)
    assert not verified(planned).verified
    assert named(reported(planned), "needed") == stays


def test_records_that_were_changed(planned: PlannedWorld) -> None:
    """Dropped, cut short, or of what is no candidate. Findings do not outlast what they found."""
    assert planned.collector().sweep(planned.run_id).state == "swept"
    assert verified(planned).counts == {}
    report = reported(planned)
    file = next((Path(report.run_path) / "deleted").rglob("object-*/*.parquet"))
    data, table = file.read_bytes(), pq.read_table(file)
    addresses = table.column("address").to_pylist()
    file.unlink()
    assert verified(planned).counts.keys() == {"unrecorded", "figure", "gone"}
    assert named(report, "unrecorded") == set(addresses)
    pq.write_table(table.slice(1), file)
    assert verified(planned).counts.keys() == {"unrecorded", "figure", "gone"}
    assert named(report, "unrecorded") == {addresses[0]}
    stray = [table.to_pylist()[0] | {"address": "data/stray"}]
    pq.write_table(pa.concat_tables([table, pa.Table.from_pylist(stray, table.schema)]), file)
    assert verified(planned).counts.keys() == {"stray"}
    assert named(report, "stray") == {"data/stray"}
    file.write_bytes(data)
    found = verified(planned)
    assert (found.verified, found.path) == (True, None)
    assert not (Path(report.run_path) / DIFFERENCES_FILE).exists()


def test_what_was_moved_aside_and_brought_back(planned: PlannedWorld) -> None:
    collector = planned.collector(quarantine=DAY)
    report = collector.sweep(planned.run_id)
    assert report.counts["quarantined"].objects > 4
    assert verified(planned).counts == {}
    assert planned.collector().undo(planned.run_id).state == "undone"
    found = verified(planned)
    assert found.verified
    assert found.checked["outcomes"] == report.counts["quarantined"].objects


def test_incremental_plans(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    for number in range(12):
        world.lake.objects.put("main", f"{number % 5}", f"{number}".encode())
        world.lake.commits.commit("main", "")
        world.clock.advance(DAY / 2)
    world.lake.branches.create("work", "main")
    world.lake.objects.put("work", "staged", b"staged")
    run_world(world, "clean")
    world.clock.advance(2 * DAY)
    world.lake.objects.put("main", "0", b"new")
    world.lake.commits.commit("main", "")
    world.clock.advance(2 * DAY)
    report = world.collector(mode="incremental").plan()
    assert (report.state, report.mode) == ("planned", "incremental")
    assert report.counts["candidate"].objects
    found = verify(world.collector(), report.run_id)
    assert (found.verified, found.counts) == (True, {})
    head = {e.address for e in world.lake.objects.walk("main")}
    staged = {e.address for e in world.lake.objects.walk("work") if e.path == "staged"}
    forged(world, report, *head, *staged)
    found = verify(world.collector(), report.run_id)
    assert named(report, "needed") == head
    assert named(report, "protected") == staged, "which the plan itself does not list"
    world.close()


def test_incremental_runs_after_their_sweep(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.lake.objects.put("main", "a", b"1")
    world.lake.commits.commit("main", "")
    run_world(world, "clean")
    for number in range(2):
        world.lake.objects.put("main", "a", f"{number} new".encode())
        world.lake.commits.commit("main", "")
        world.clock.advance(4 * DAY)
        report = incremental(world)
        found = verify(world.collector(), report.run_id)
        assert (found.verified, found.counts) == (True, {})
    for report in world.collector().runs():
        assert verify(world.collector(), report.run_id).verified, "also what is long ago"
    world.close()


def test_the_plan_of_a_gone_repository(tmp_path: Path) -> None:
    world = World(tmp_path)
    fill(world)
    repository = gone_repository(world.store, expire_repository(world))
    collector = remover(world.store, repository)
    report = collector.plan()
    found = verify(collector, report.run_id)
    assert (found.verified, found.counts) == (True, {})
    assert found.checked["candidates"] == report.counts["candidate"].objects
    (world.root / "notes").write_text("not ours")
    forgery = Forgery(repository, report)
    forgery.put_in(world.root, "notes", "object")
    forgery.seal()
    assert not verify(collector, report.run_id).verified
    assert named(report, "shape") == {"notes"}
    # A repository that was brought back, and a collector of the usual kind.
    with world.store.metadata.transaction() as tx:
        tx.execute(sa.update(repositories).values(expires_at=None))
    assert "repository" in verify(collector, report.run_id).counts
    with pytest.raises(Refused) as caught:
        verify(world.collector(), report.run_id)
    assert caught.value.kind == "plan_foreign"
    world.close()


ICECHUNK_KINDS = {
    "chunks/": "chunk",
    "manifests/": "manifest",
    "snapshots/": "snapshot",
    "transactions/": "transaction_log",
    "overwritten/": "backup",
}


@pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
@randomized("verified Icechunk repositories")
def test_icechunk_plans_pass_and_whatever_is_needed_is_found_in_them(
    tmp_path: Path, seed: int, spec_version: int
) -> None:
    lake = IcechunkLake(tmp_path / "lake")
    build_random(lake.path, seed, spec_version)
    lake.age()
    report = lake.collector().plan()
    going = candidates(report)
    needed = {
        address: kind_of(address, ICECHUNK_KINDS)
        for file in lake.path.rglob("*")
        if file.is_file()
        and (address := file.relative_to(lake.path).as_posix()).startswith(tuple(ICECHUNK_KINDS))
        and address not in going
    }
    assert any(address.startswith("snapshots/") for address in needed)
    check_finds(lake, lake.path, report, needed)


def test_an_icechunk_plan_that_leaves_the_storage_unwritten(tmp_path: Path) -> None:
    lake = IcechunkLake(tmp_path / "lake")
    build_random(lake.path, 1, 2)
    lake.age()
    before = {path: path.read_bytes() for path in lake.path.rglob("*") if path.is_file()}
    report = lake.collector(run_dir=tmp_path / "runs").plan()
    found = verify(lake.collector(run_dir=tmp_path / "runs"), report.run_id)
    assert (found.verified, found.counts) == (True, {})
    forgery = Forgery(lake.format(run_dir=tmp_path / "runs"), report)
    snapshot = next((lake.path / "snapshots").iterdir()).relative_to(lake.path).as_posix()
    forgery.put_in(lake.path, snapshot, "chunk")
    forgery.seal()
    assert not verify(lake.collector(run_dir=tmp_path / "runs"), report.run_id).verified
    assert before == {path: path.read_bytes() for path in lake.path.rglob("*") if path.is_file()}
