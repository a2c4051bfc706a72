"""Sweeps that move aside, and what brings it back."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from ebbtide.errors import Conflict, EbbtideError, Failed, Gone, NotFound
from ebbtide.gc import quarantine
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.ids import new_id
from ebbtide.quarantined import QUARANTINES_PREFIX
from ebbtide.storage import DeleteOutcome, LocalStorage
from ebbtide.store.gc.run_metadata import lift_tombstones
from ebbtide.store.purge_records import insert_purged
from tests.support.copies import contents_of, listing
from tests.support.dying import Died
from tests.support.engines import on_engines
from tests.support.faulty import SharedFaultyStorage
from tests.support.forging import Forgery
from tests.support.world import DAY, World, quarantine_of

SETTINGS = {"range_entries_target": 2}
KEEP = {"default": "3d"}
WEEK = 7 * DAY
HOUR = timedelta(hours=1)


def history(world: World) -> dict[str, dict[str, bytes]]:
    """Commits of which the first two expire, one of them reached by no branch; what each has."""
    commits = [
        world.save("main", days_ago=30, put=["a", "b", "c"]),
        world.save("main", days_ago=20, put=["b", "d"], delete=["a"]),
        world.save("main", days_ago=1, put=["e"], delete=["b", "c"]),
    ]
    world.lake.branches.create("side", commits[1])
    commits.append(world.save("side", days_ago=10, put=["x"], delete=["d"]))
    world.lake.branches.delete("side")
    world.lake.objects.put("main", "dropped", b"dropped")
    world.lake.objects.delete("main", "dropped")
    world.clock.advance(2 * HOUR)
    return {commit: contents_of(world, commit) for commit in commits}


def sweep(world: World, **options: Any) -> RunReport:
    return world.swept(quarantine=WEEK, **options)


@on_engines()
def test_an_undone_run_brings_every_byte_and_commit_back(world: World, engine: Engine) -> None:
    """A sweep moves what it takes aside, where nobody collects it."""
    world.engine = engine
    known = history(world)
    before = listing(world.root)
    report = sweep(world)
    gone = before.keys() - listing(world.root).keys()
    assert report.counts["deleted"].objects == 0
    assert report.counts["quarantined"].objects == len(gone) > 4
    assert report.commits["forgotten"] == 1
    aside = world.root / quarantine.prefix_of(report.run_id)
    assert all((aside / name).read_bytes() == before[name] for name in gone)
    assert quarantine_of(report)["objects"] == len(gone)
    assert sweep(world).counts["candidate"].objects == 0
    assert len([c for c in known if raises_kind(world, c)]) >= 2
    undone = world.collector().undo(report.run_id)
    assert undone.state == "undone"
    assert listing(world.root) == before
    for commit, has in known.items():
        assert contents_of(world, commit) == has
    assert quarantine_of(undone)["objects"] == quarantine_of(undone)["closed_commits"] == 0
    # It is closed for good.
    with pytest.raises(Conflict, match="undone"):
        world.collector().sweep(report.run_id)
    with pytest.raises(Conflict, match="undone"):
        world.collector().undo(report.run_id)
    with pytest.raises(NotFound, match="has no plan to sweep"):
        world.collector().sweep()
    assert world.collector().show(report.run_id).state == "undone"
    # What is back is held for a week, whatever the policy says.
    assert sweep(world).counts["candidate"].objects == 0
    world.clock.advance(WEEK - HOUR)
    assert world.collect().counts["candidate"].objects == 0
    world.clock.advance(2 * HOUR)
    world.collect()
    assert not gone & listing(world.root).keys()


def raises_kind(world: World, commit: str) -> str | None:
    try:
        contents_of(world, commit)
    except EbbtideError as error:
        return error.kind
    return None


def test_purged_and_timed_out(world: World) -> None:
    history(world)
    first = sweep(world).run_id
    done = world.collector().purge(first)
    assert (quarantine_of(done)["state"], quarantine_of(done)["objects"]) == ("purged", 0)
    assert not (world.root / quarantine.prefix_of(first)).exists()
    with pytest.raises(NotFound, match="no files in quarantine"):
        world.collector().undo(first)
    with pytest.raises(NotFound, match="no files in quarantine"):
        world.collector().purge(first)
    world.lake.objects.put("main", "more", b"1")
    world.lake.objects.delete("main", "more")
    world.clock.advance(2 * HOUR)
    second = sweep(world).run_id
    world.clock.advance(WEEK - 2 * HOUR)
    world.collect()
    assert (world.root / quarantine.prefix_of(second)).exists()
    world.clock.advance(3 * HOUR)
    world.collect()
    assert not (world.root / quarantine.prefix_of(second)).exists()
    shown = world.collector().show(second).quarantine
    assert shown is not None
    assert shown["state"] == "purged"


@pytest.mark.parametrize("is_used_again", [False, True])
def test_an_older_plan_does_not_take_what_is_back(world: World, is_used_again: bool) -> None:
    """Nor beside a new commit that needs a part of it, whose tree the plan has not read."""
    known = history(world)
    old = world.collector().plan()
    report = sweep(world)
    world.collector().undo(report.run_id)
    if is_used_again:
        world.lake.branches.create("again", next(iter(known)))
        world.save("again", days_ago=0, put=["new"])
    swept = world.collector().sweep(old.run_id)
    assert swept.counts["deleted"].objects == 0
    assert swept.counts["revived"].objects == old.counts["candidate"].objects
    for commit, has in known.items():
        assert contents_of(world, commit) == has


def test_a_commit_stays_closed_that_a_later_run_took_from(world: World) -> None:
    known = history(world)
    first = sweep(world)
    newest = world.lake.branches.get("main").commit_id
    world.lake.objects.delete("main", "d")
    world.save("main", days_ago=0, put=["z"])
    world.clock.advance(5 * DAY)
    world.collect()  # deletes for good what only `newest` had since
    undone = world.collector().undo(first.run_id)
    assert quarantine_of(undone)["closed_commits"] >= 1
    readable = [commit for commit in known if raises_kind(world, commit) is None]
    for commit in readable:
        assert contents_of(world, commit) == known[commit]
    assert newest not in readable


def test_what_was_purged_stays_gone(world: World) -> None:
    """A copy that is aside goes with the purge, and an undo that finds one leaves it there."""
    history(world)
    before = listing(world.root)
    report = sweep(world)
    gone = sorted(before.keys() - listing(world.root).keys())
    first, second = [name for name in gone if name.startswith("data/")][:2]
    aside = world.root / quarantine.prefix_of(report.run_id)
    assert quarantine.delete_copies(world.lake.storage, [first]) == {}
    assert not (aside / first).exists()
    with world.store.metadata.transaction() as tx:
        insert_purged(tx, world.lake.info.repository_id, "0" * 32, [first, second])
    undone = world.collector().undo(report.run_id)
    assert quarantine_of(undone)["purged_objects"] == 1
    assert listing(world.root).keys() == before.keys() - {first, second}
    assert not (aside / second).exists()
    for commit in (row.commit_id for row in world.lake.commits.log("main")):
        assert raises_kind(world, commit) in (None, "purged")


def as_before(part: dict[str, Any]) -> dict[str, Any]:
    """A part as an earlier version recorded it: one name stood for its relation or its kind."""
    relation, kind = part["relation"], part["kind"]
    others = {name: value for name, value in part.items() if name not in ("relation", "kind")}
    return others | {"group": kind or relation}


def test_records_of_an_earlier_version(world: World) -> None:
    """Its plan can be swept, and what was restored from its quarantine stays protected."""
    history(world)
    before = listing(world.root)
    planned = world.collector(quarantine=WEEK).plan()
    old = Forgery(world.format(), planned)
    for name in ("candidates", "protected", "remaining"):
        old.plan[name] = [as_before(part) for part in old.plan[name]]
    for name in ("commits", "refs"):
        old.plan[name] = as_before(old.plan[name])
    old.seal()
    report = world.collector(quarantine=WEEK).sweep(planned.run_id)
    assert report.state == "swept", report.error
    gone = sorted(before.keys() - listing(world.root).keys())
    assert len(gone) > 4
    name = next(each for each in gone if each.startswith("data/"))
    assert world.collector().undo(report.run_id, under=name).state == "swept"
    record = world.root / f"{QUARANTINES_PREFIX}{report.run_id}.json"
    content = json.loads(record.read_text())
    assert content["back"]
    record.write_text(json.dumps(content | {"back": [as_before(each) for each in content["back"]]}))
    later = world.collect(mode="incremental")
    assert (later.state, later.counts["candidate"].objects) == ("swept", 0)
    assert world.collector().undo(report.run_id).state == "undone"
    assert listing(world.root) == before


def test_what_fails_is_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An undo whose moves fail, and a purge of which all deletes but one do."""
    history(world)
    report = sweep(world)
    kept = listing(world.root)
    delete = LocalStorage.delete

    def stay(_storage: LocalStorage, moves: list[tuple[str, str]]) -> list[DeleteOutcome]:
        return [DeleteOutcome(source, "failed", "made to fail") for source, _ in moves]

    def failing(storage: LocalStorage, addresses: list[str]) -> list[DeleteOutcome]:
        done = delete(storage, addresses[:1])
        return done + [DeleteOutcome(each, "failed", "made to fail") for each in addresses[1:]]

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "move", stay)
        with pytest.raises(Failed, match="undo the run again"):
            world.collector().undo(report.run_id)
        patch.setattr(LocalStorage, "delete", failing)
        with pytest.raises(Failed, match="purge the run again"):
            world.collector().purge(report.run_id)
    held = world.collector().show(report.run_id).quarantine
    assert held is not None
    assert held["state"] == "held"
    assert world.collector().purge(report.run_id).quarantine is not None
    assert not (world.root / quarantine.prefix_of(report.run_id)).exists()
    assert listing(world.root) == kept


def test_what_an_earlier_run_closed_stays_closed(world: World) -> None:
    world.keep(default="3d")
    world.lake.branches.create("side", "main")
    old = world.save("side", days_ago=30, put=["a"])
    world.save("side", days_ago=20, put=["b"], delete=["a"])
    first = world.collect()
    assert world.lake.commits.get(old).tombstoned_by == first.run_id
    world.lake.branches.delete("side")
    world.clock.advance(DAY)
    second = world.collect(quarantine=7 * DAY)
    assert world.lake.commits.get(old).forgotten_by == second.run_id
    undone = world.collector().undo(second.run_id)
    commit = world.lake.commits.get(old)
    assert (commit.tombstoned_by, commit.forgotten_by) == (first.run_id, second.run_id)
    with pytest.raises(Gone):
        world.lake.branches.create("again", old)
    assert quarantine_of(undone)["closed_commits"] == 1


def test_a_run_opens_what_it_closed_itself_alone(world: World) -> None:
    """In the transaction that opens it, whatever was read before."""
    world.keep(default="3d")
    old = world.save("main", days_ago=30, put=["a"])
    world.save("main", days_ago=20, put=["b"], delete=["a"])
    world.save("main", days_ago=1, put=["c"])
    closed_by = world.collect().run_id
    context = world.lake.context
    for run_id, left in ((new_id(), closed_by), (closed_by, None)):
        with context.metadata.transaction() as tx:
            lift_tombstones(tx, context.repository_id, [old], run_id=run_id)
        assert world.lake.commits.get(old).tombstoned_by == left


def die_after_a_move(method: str, _address: str) -> None:
    """A hook: the first files are back, and nothing else happens."""
    if method == "move":
        raise Died


def test_the_next_run_leaves_what_is_back(world: World) -> None:
    world.keep(default="3d")
    expired = world.save("main", days_ago=30, put=["a", "b"])
    world.save("main", days_ago=20, delete=["a", "b"])
    world.save("main", days_ago=1, put=["c"])
    before, known = listing(world.root), contents_of(world, expired)
    run_id = world.collect(quarantine=7 * DAY).run_id
    assert listing(world.root).keys() < before.keys()
    repository = world.format()
    repository.storage = SharedFaultyStorage(repository.storage, after=die_after_a_move)
    options = RunOptions.of(world.settings, grace=timedelta(hours=1), mode="clean")
    with pytest.raises(Died):
        Collector(repository, engine=world.engine, options=options).undo(run_id)
    assert listing(world.root).keys() == before.keys()
    assert world.collect().counts["candidate"].objects == 0
    assert world.collector().undo(run_id).state == "undone"
    assert listing(world.root).keys() == before.keys()
    assert contents_of(world, expired) == known
