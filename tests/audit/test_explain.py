"""Explaining: every kind of keeper by name, its end by real plans, what went; and random stores
against the definition.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.audit.answers import ExplainedAddress, ExplainedCommit, Keeper
from ebbtide.audit.explain import Explainer
from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.gc.collector import Collector
from ebbtide.store.content.layout import range_address, tree_address
from ebbtide.store.database.schema import pending
from ebbtide.store.gc.exports import Uncommitted
from tests.gc.test_random_stores import EVENTS, PERIODS, Event, History, play
from tests.support.collections import of, of_files
from tests.support.engines import INLINE
from tests.support.icechunk_lake import candidates, reasons
from tests.support.purging import SECRET_KEY, purge
from tests.support.randomized import examples, randomized
from tests.support.world import DAY, START, World, temporary_world

ASKED_PER_STORE = 8
GRACE = timedelta(hours=4)
MICROSECOND = timedelta(microseconds=1)


class LeasedWorld(World):
    """One whose runs have a grace longer than its leases."""

    def collector(self, **options: Any) -> Collector:
        return super().collector(**({"grace": GRACE} | options))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store with a trash, leases and tokens that last."""
    chosen = {
        "lease_ttl": timedelta(hours=3),
        "trash_time": 2 * DAY,
        "upload_ttl": timedelta(hours=5),
        "write_ttl": timedelta(hours=4),
        "secret_key": SECRET_KEY,
        "range_entries_target": 4,
    }
    made = LeasedWorld(tmp_path, settings=chosen)
    made.keep(default="1d", branches={"main": "7d"})
    yield made
    made.close()


def explainer(world: World, **options: object) -> Explainer:
    chosen = {"engine": INLINE, "grace": GRACE} | options
    return Explainer(world.format(), **chosen)  # type: ignore[arg-type]


def explain(world: World, *what: str) -> ExplainedAddress:
    found = explainer(world).explain(*what)
    assert isinstance(found, ExplainedAddress)
    return found


def explain_commit(world: World, what: str) -> ExplainedCommit:
    found = explainer(world).explain(what)
    assert isinstance(found, ExplainedCommit)
    return found


def only(found: ExplainedAddress) -> Keeper:
    assert (found.state, found.keeper_count) == ("kept", 1), found
    return found.keepers[0]


def check_ends(world: World, asked: list[ExplainedAddress]) -> None:
    """A plan made just before its end leaves each, and one made then takes it."""
    for end in sorted({found.collectable_at or datetime.min for found in asked}):
        names = {found.address for found in asked if found.collectable_at == end}
        for now, going in ((end - MICROSECOND, set()), (end, names)):
            world.clock.now = now
            report = world.collector().plan()
            assert report.state == "planned", report.error
            assert candidates(report).keys() & names == going, now


def tree_file(world: World, ref: str) -> str:
    tree_id = explain_commit(world, ref).tree_id
    assert tree_id is not None
    return tree_address(tree_id)


def range_files(world: World, commit_id: str) -> list[str]:
    tree = world.lake.context.tree_of(world.lake.commits.get(commit_id))
    return [range_address(info.range_id) for info in tree.ranges]


def old_file(world: World, branch: str = "main") -> str:
    """The oldest commit of a branch, which alone has its file `a`."""
    old = world.save(branch, days_ago=30, put=["a"])
    world.save(branch, days_ago=20, delete=["a"])
    world.save(branch, days_ago=19)
    return old


def gave_out(world: World, address: str) -> None:
    """Write a file as somebody does who was given its address."""
    (world.root / address).parent.mkdir(parents=True, exist_ok=True)
    (world.root / address).write_bytes(b"half")


def test_every_keeper_that_ends(world: World) -> None:
    """By its name, with the end by plans that are really made."""
    lake = world.lake
    world.keep(default="1d", branches={"main*": "7d"})
    for name in ("window", "tagged", "leased", "lately"):
        lake.branches.create(f"main-{name}", "main")
    world.save("main-window", days_ago=30, put=["a"])
    world.save("main-window", days_ago=3, put=["b"], delete=["a"])
    world.save("main-window", days_ago=1, delete=["b"])
    world.clock.advance(timedelta(hours=4))
    now, hour = world.now, timedelta(hours=1)
    for name in ("staged", "side"):
        lake.branches.create(name, "main")
    staged = lake.objects.put("staged", "a", b"staged").address
    lost = world.save("side", days_ago=20, put=["b"])
    of_lost = [tree_file(world, lost), *range_files(world, lost)]
    for name in ("staged", "side"):
        lake.branches.delete(name)
    uploaded = lake.addresses.get("main", "a").address
    gave_out(world, uploaded)
    tagged, leased, lately = (old_file(world, f"main-{n}") for n in ("tagged", "leased", "lately"))
    lake.tags.create("v1", tagged, expires_at=now + DAY)
    lake.locators.sign_path(leased, "a")
    content = of(of_files({"x": b"1"}))
    brief = lake.projects.create("brief", expires_at=now + DAY)
    lake.collections.create(brief.project_id, "c", content)
    ends: list[tuple[tuple[str, ...], str, datetime]] = [
        ((staged,), "staged", now + 2 * DAY),
        ((uploaded,), "upload token", now + 5 * hour),
        (("main-window~2", "a"), "head of branch main-window when its 7d", START + 4 * DAY),
        (("main-window~1", "b"), "within its 7d", START + 6 * DAY),
        ((tagged, "a"), "tag v1", now + 3 * DAY),
        ((lately, "a"), "leased until", now + 3 * hour),
        ((lost, "b"), "head of branch side", now + 2 * DAY),
        *(((address,), "head of branch side", now + 2 * DAY) for address in of_lost),
        # A trash time longer than a lease outlasts what was signed.
        (("brief/c", "x"), "collection brief/c", now + 3 * DAY),
    ]
    asked = []
    for what, reason, end in ends:
        found = explain(world, *what)
        assert reason in only(found).reason
        assert (found.collectable_at, found.kept_by) == (end, None), reason
        asked.append(found)
    found = explain(world, leased, "a")
    assert found.collectable_at == only(found).leased_until
    assert only(found).leased_until is not None
    check_ends(world, [*asked, found])
    found = explain(world, of_lost[0])
    assert (found.state, found.keeper_count, found.past_holder_count) == ("unneeded", 0, 1)


def test_a_collection_that_came_to_keep_no_data(world: World) -> None:
    lake, end = world.lake, world.now + DAY
    project = lake.projects.create("p")
    content = of(of_files({"x": b"1"}))
    made = lake.collections.create(project.project_id, "c", content, expires_at=end)
    found = explain(world, "p/c", "x")
    assert only(found).reason == "collection p/c"
    assert explain_commit(world, "p/c").refs[0].name == "p/c"
    lake.collections.update(made.collection_id, replication_desired=0)
    without = explain(world, found.address)
    assert only(without).reason.startswith("leased until")
    # Its record stays as long as it does.
    record = only(explain(world, tree_file(world, "p/c")))
    assert record.reason == "in the history of collection p/c" or record.by == "record"
    assert without.collectable_at == world.now + timedelta(hours=3)
    check_ends(world, [without])


def test_a_collection_whose_leases_outlast_its_trash(tmp_path: Path) -> None:
    """What was signed through it is promised for a lease after its end."""
    world = LeasedWorld(tmp_path, settings={"lease_ttl": GRACE, "trash_time": timedelta(0)})
    world.keep(default="1d")
    project = world.lake.projects.create("p", expires_at=world.now + DAY)
    world.lake.collections.create(project.project_id, "c", of(of_files({"x": b"1"})))
    found = explain(world, "p/c", "x")
    assert only(found).reason == "collection p/c"
    assert found.collectable_at == world.now + DAY + GRACE
    check_ends(world, [found])
    world.close()


def test_a_write_in_progress_and_its_temporary_file(world: World) -> None:
    seen: list[ExplainedAddress] = []

    def pieces() -> Iterator[bytes]:
        yield b"first"
        with world.lake.context.metadata.snapshot() as tx:
            address = tx.execute(sa.select(pending.c.address)).scalar_one()
        for each in (address, f"{address}#1"):
            gave_out(world, each)
            seen.append(explain(world, each))
        yield b"second"

    world.lake.objects.put("main", "a", pieces())
    written, temporary = seen
    for found in seen:
        assert only(found).reason == "write in progress"
        assert only(found).until == found.collectable_at == world.now + timedelta(hours=4)
    assert (temporary.kind, temporary.target) == ("temporary", written.address)


def test_a_copy_that_a_reading_must_know_of(world: World) -> None:
    lake = world.lake
    entry = lake.objects.put("main", "a", b"staged")
    lake.objects.put("main", "z", b"another")
    assert Uncommitted(lake.context).page(rows_max=1).next_continuation is not None
    lake.objects.copy("main", "b", "main", "a")
    lake.objects.delete("main", "a")
    lake.objects.delete("main", "b")
    assert only(explain(world, entry.address)).reason == "copy"


def test_what_never_ends(world: World) -> None:
    world.lake.branches.create("held", "main")
    first = world.save("main", days_ago=30, put=["a"])
    head = world.save("main", days_ago=1, put=["c"])
    found = explain(world, "main", "a")
    ids = [keeper.commit_id for keeper in found.keepers]
    assert (ids[0], ids[-1]) == (head, first)
    assert (found.collectable_at, found.kept_by) == (None, "head of branch main")
    held = old_file(world, "held")
    world.lake.retention.hold(held, "an audit")
    found = explain(world, held, "a")
    assert (only(found).reason, only(found).hold) == ("held: an audit", "an audit")
    assert (found.collectable_at, found.kept_by) == (None, "held: an audit")
    # What ends with the calendar has an end all the same.
    last = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    world.lake.branches.create("side", "main", expires_at=last)
    entry = world.lake.objects.put("side", "a", b"staged")
    assert only(explain(world, entry.address)).until == datetime.max.replace(tzinfo=UTC)


def test_a_commit_from_kept_to_forgotten(world: World) -> None:
    world.lake.branches.create("side", "main")
    lost = world.save("side", days_ago=20, put=["b"])
    world.lake.branches.delete("side")
    end = world.now + 2 * DAY
    found = explain_commit(world, lost)
    assert (found.state, found.reason) == ("kept", "head of branch side (in the trash)")
    assert (found.data_until, found.record_until) == (end, end)
    assert found.refs[0].expires_at == world.now
    assert explain_commit(world, "side").commit_id == lost
    world.clock.now = end
    assert explain_commit(world, lost).state == "unneeded"
    run = world.collect()
    gone = explain_commit(world, lost)
    assert (gone.state, gone.expired and gone.expired.run_id) == ("forgotten", run.run_id)


def test_what_went_by_a_run(world: World) -> None:
    """An expired commit and its file: before the run, after it, and after the file went again,
    which somebody had put there."""
    old = old_file(world)
    world.clock.advance(timedelta(hours=4))
    commit = explain_commit(world, old)
    assert commit.state == "expired"
    assert [(ref.name, ref.distance) for ref in commit.refs] == [("main", 2)]
    assert (commit.data_until, commit.record_until) == (None, None)
    assert explain_commit(world, "main~2") == explain_commit(world, old[:12]) == commit
    before = explain(world, old, "a")
    assert (before.state, before.past_holder_count) == ("unneeded", 1)
    assert before.past_holders[0].commit_id == old
    run = world.collect()
    world.collect()
    commit = explain_commit(world, old)
    assert commit.state == "closed"
    assert commit.expired is not None
    assert (commit.expired.run_id, commit.expired.forgotten) == (run.run_id, False)
    found = explain(world, before.address)
    assert found.state == "gone"
    went = found.went
    assert went is not None
    assert (went.run_id, went.outcome, went.at) == (run.run_id, "deleted", world.now)
    assert went.policy is not None
    assert went.policy["branches"] == {"main": "7d"}
    assert [each.commit_id for each in went.commits] == [old]
    assert explain(world, old, "a") == found
    gave_out(world, before.address)
    world.clock.advance(DAY)
    run = world.collect()
    went = explain(world, before.address).went
    assert went is not None
    assert (went.run_id, went.at) == (run.run_id, world.now)


def test_what_went_with_the_record_of_its_commit(world: World) -> None:
    """The tree is gone too; the index still knows what it held."""
    for number in range(3):
        world.save("main", days_ago=3 - number, put=[f"{number}{name}" for name in range(10)])
    world.lake.branches.create("side", "main")
    lost = world.save("side", days_ago=0, put=["b"])
    address = explain(world, lost, "b").address
    world.collect()
    world.lake.branches.delete("side")
    world.clock.advance(3 * DAY)
    run = world.collect()
    found = explain(world, address)
    assert found.went is not None
    assert found.went.run_id == run.run_id
    assert [commit.commit_id for commit in found.went.commits] == [lost]


def test_what_went_aside_and_back(world: World) -> None:
    old = old_file(world)
    world.clock.advance(timedelta(hours=4))
    run = world.collect(quarantine=5 * DAY)
    gone = explain(world, old, "a")
    assert gone.went is not None
    assert (gone.went.run_id, gone.went.outcome) == (run.run_id, "quarantined")
    assert gone.went.aside_until == world.now + 5 * DAY
    world.collector().undo(run.run_id)
    back = explain(world, gone.address)
    assert back.keepers[0].where == f"by an undo of run {run.run_id}"
    assert back.collectable_at == back.keepers[0].until
    assert {keeper.commit_id for keeper in back.keepers if keeper.by == "data"} == {old}
    check_ends(world, [back])


def test_what_went_by_a_purge(world: World) -> None:
    world.save("main", days_ago=1, put=["a"])
    address = explain(world, "main", "a").address
    row = purge(world.store, "main:a", all_history=True).row
    assert row.state == "done"
    found = explain(world, address)
    assert found.state == "purged"
    assert found.purged is not None
    assert found.purged.purge_id == row.purge_id
    assert found.purged.reason == "a subject asked for it"
    assert (found.collectable_at, found.went) == (None, None)


def test_what_went_otherwise(world: World) -> None:
    """It is needed, and nobody knows where it went."""
    head = world.save("main", days_ago=1, put=["a"])
    address = explain(world, "main", "a").address
    (world.root / address).unlink()
    found = explain(world, address)
    assert (found.state, found.keepers[0].commit_id, found.went) == ("missing", head, None)
    for kind, *what in (
        ("object_not_found", "data/" + "0" * 32 + "/" + "1" * 32),
        ("object_not_found", "_ebbtide/trees/" + "0" * 32 + ".parquet"),
        ("ref_not_found", "nobody"),
        ("ref_not_found", "0" * 32),
        ("object_not_found", "main", "nothing"),
    ):
        with pytest.raises(NotFound) as caught:
            explainer(world).explain(*what)
        assert caught.value.kind == kind


def test_what_is_never_collected_and_how_many_are_told_of(world: World) -> None:
    (world.root / "foreign.txt").write_text("not ours")
    assert explain(world, "foreign.txt").state == "foreign"
    assert explain(world, "_ebbtide/OWNER").state == "system"
    with pytest.raises(InvalidInput, match="never collected"):
        world.lake.addresses.stage("main", "a", "s3://elsewhere/a", size_bytes=1, checksum="x")
        explain(world, "main", "a")
    world.lake.commits.reset("main")
    world.keep(default="keep")
    for number in range(5):
        world.save("main", days_ago=30 - number, put=["a"] if number == 0 else [])
    found = explainer(world, limit=2).explain("main", "a")
    assert isinstance(found, ExplainedAddress)
    assert (len(found.keepers), found.keeper_count) == (2, 5)


def test_nothing_younger_than_the_grace_goes(world: World) -> None:
    """Files have dates of the real clock."""
    old = old_file(world)
    world.clock.advance(timedelta(hours=4))
    grace = timedelta(days=500)
    found = explainer(world, grace=grace).explain(old, "a")
    assert isinstance(found, ExplainedAddress)
    assert found.last_modified is not None
    end = found.last_modified + grace + MICROSECOND
    assert (found.state, found.collectable_at) == ("unneeded", end)
    for now, is_taken in ((end - MICROSECOND, False), (end, True)):
        world.clock.now = now
        assert (found.address in candidates(world.collector(grace=grace).plan())) is is_taken


@pytest.mark.parametrize("collected", [False, True], ids=["unindexed", "indexed"])
@pytest.mark.parametrize("family", ["trees", "ranges"])
def test_what_cannot_be_read_is_an_error(world: World, family: str, collected: bool) -> None:
    """Never that nothing keeps it."""
    world.save("main", days_ago=1, put=["a"])
    address = explain(world, "main", "a").address
    if collected:
        world.collect()
    for file in (world.root / "_ebbtide" / family).iterdir():
        file.write_bytes(b"damaged")
    if (family, collected) == ("trees", True):
        # What the tree has was read when it was sound; of its ranges the run would read none anew.
        assert explain(world, address).state == "kept"
        return
    with pytest.raises(Refused) as caught:
        explain(world, address)
    assert caught.value.kind == {"trees": "corrupt_tree", "ranges": "corrupt_node"}[family]


@pytest.mark.parametrize("collected", [False, True], ids=["unindexed", "indexed"])
def test_keys_may_collide(world: World, monkeypatch: pytest.MonkeyPatch, collected: bool) -> None:
    """Each node that has the key is read, and only what refers to the address itself counts."""
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda _data: 7)
    world.keep(default="keep")
    first = world.save("main", days_ago=3, put=["a"])
    second = world.save("main", days_ago=2, put=["b"], delete=["a"])
    if collected:
        world.collect()
    assert only(explain(world, first, "a")).commit_id == first
    assert only(explain(world, second, "b")).commit_id == second


def test_it_changes_nothing_and_needs_no_index(world: World) -> None:
    world.save("main", days_ago=30, put=["a"])
    before = world.files("")
    assert not (world.root / "_ebbtide" / "gc").exists()
    assert explain(world, "main", "a").state == "kept"
    assert world.files("") == before


@randomized("explained stores")
@examples("explained stores")
@given(
    events=st.lists(EVENTS, min_size=3, max_size=14),
    default=PERIODS,
    main=PERIODS,
    seed=st.integers(0, 2**32),
)
def test_random_stores_by_the_definition(
    events: list[Event], default: int, main: int, seed: int
) -> None:
    with temporary_world() as world:
        world.keep(default=f"{default}d", branches={"main": f"{main}d"})
        history = History()
        play(world, history, events)
        oracle = Oracle(world, history, default, main)
        choices = random.Random(seed)
        asked = choices.sample(oracle.files, min(ASKED_PER_STORE, len(oracle.files)))
        for address in asked:
            oracle.check(address)
        report = world.swept()
        for address in asked:
            oracle.check_after(address, report.run_id)


class Oracle:
    def __init__(self, world: World, history: History, default: int, main: int) -> None:
        self.world, self.history = world, history
        self.rules = ({"main": main}, default)
        self.active = history.active(*self.rules, world.now)
        self.files = sorted(
            world.files("data") | world.files("_ebbtide/trees") | world.files("_ebbtide/ranges")
        )
        plan = world.collector().plan()
        self.reasons = reasons(plan)
        self.candidates = candidates(plan)
        self.explainer = Explainer(world.format(), engine=world.engine, grace=GRACE, limit=10_000)

    def holders(self, address: str) -> set[str]:
        return {c for c, held in self.history.addresses.items() if address in held}

    def owners(self, address: str) -> set[str]:
        return {c for c, files in self.history.metadata.items() if address in files}

    def staged(self, address: str) -> set[str]:
        committed = self.history.addresses
        return {
            f"branch {name}, path {entry.path}"
            for name, head in self.history.branches.items()
            for entry in self.world.lake.objects.walk(name)
            if entry.address == address and address not in committed[head]
        }

    def recorded(self, active: set[str]) -> set[str]:
        heads = {*self.history.branches.values(), *self.history.tags.values()}
        return self.history.reached(heads | active)

    def explain(self, address: str) -> ExplainedAddress:
        found = self.explainer.explain(address)
        assert isinstance(found, ExplainedAddress)
        return found

    def check(self, address: str) -> None:
        found = self.explain(address)
        data = {k.commit_id: k for k in found.keepers if k.by == "data"}
        assert data.keys() == self.holders(address) & self.active
        assert all(keeper.reason == self.reasons[name] for name, keeper in data.items() if name)
        records = {keeper.commit_id for keeper in found.keepers if keeper.by == "record"}
        assert records == self.owners(address) & self.recorded(self.active)
        staged = {keeper.where for keeper in found.keepers if keeper.by == "protected"}
        assert staged == self.staged(address)
        past = {each.commit_id for each in found.past_holders}
        everyone = self.holders(address) | self.owners(address)
        assert past == everyone - data.keys() - records
        assert (found.state == "unneeded") is (address in self.candidates)
        assert found.keeper_count == len(found.keepers)
        assert found.collectable_at == self.ends_at(address)

    def ends_at(self, address: str) -> datetime | None:
        """The first instant at which the definition lets it go."""
        if self.staged(address):
            return None
        periods = {DAY * days for days in (*self.rules[0].values(), self.rules[1])}
        dates = [commit.created_at for commit in self.history.commits.values()]
        instants = {date + period for date in dates for period in periods}
        for instant in sorted({self.world.now, *(i for i in instants if i > self.world.now)}):
            active = self.history.active(*self.rules, instant)
            kept = self.holders(address) & active or self.owners(address) & self.recorded(active)
            if not kept:
                return instant
        return None

    def check_after(self, address: str, run_id: str) -> None:
        found = self.explain(address)
        if address not in self.candidates:
            assert found.state == "kept"
            return
        assert found.state == "gone"
        assert found.went is not None
        assert (found.went.run_id, found.went.outcome) == (run_id, "deleted")
        expired = {each.commit_id for each in found.went.commits}
        held = self.holders(address) | self.owners(address)
        assert expired <= held
        # What is still on record is told of; of what was forgotten, what the index has.
        assert {each.commit_id for each in found.past_holders} == held & self.recorded(self.active)
        assert expired >= held & self.recorded(self.active)
