"""Random stores: after a run a file is there if and only if the definition says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import get_args

from hypothesis import event, given
from hypothesis import strategies as st

from ebbtide.errors import Conflict
from ebbtide.gc.engines.base import Engine
from ebbtide.model import Commit
from ebbtide.run_request import Sizes
from ebbtide.store.content.layout import range_address, tree_address
from ebbtide.store.content.trees import read_tree
from tests.support.engines import INLINE, on_engines
from tests.support.icechunk_lake import planned_rows
from tests.support.randomized import examples, randomized
from tests.support.world import DAY, World, temporary_world

PATHS = ["a", "a/b", "b", "c/d", "c/e", "ü"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens to a random store; the numbers choose among what is there."""

    kind: str
    days: float
    branch: int
    other: int
    paths: tuple[str, ...]


EVENTS = st.builds(
    Event,
    kind=st.sampled_from(
        ["save", "save", "save", "save", "branch", "drop", "tag", "merge", "revert", "overwrite"]
    ),
    days=st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]),
    branch=st.integers(0, 9),
    other=st.integers(0, 9),
    paths=st.lists(st.sampled_from(PATHS), max_size=4, unique=True).map(tuple),
)
PERIODS = st.sampled_from([1, 3, 7, 20])


@dataclass(slots=True)
class History:
    """What happened, as the definition needs it: commits, and which addresses each has."""

    commits: dict[str, Commit] = field(default_factory=dict)
    addresses: dict[str, set[str]] = field(default_factory=dict)
    metadata: dict[str, set[str]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def note(self, world: World, branch: str, commit_id: str) -> None:
        record = world.lake.commits.get(commit_id)
        tree_id, checksum = record.require_tree()
        tree = read_tree(world.lake.storage, tree_id, checksum)
        self.commits[commit_id] = Commit(commit_id, record.parent_ids, record.created_at, tree_id)
        self.addresses[commit_id] = {e.address for e in world.lake.objects.walk(commit_id)}
        self.metadata[commit_id] = {tree_address(tree_id)} | {
            range_address(info.range_id) for info in tree.ranges
        }
        self.branches[branch] = commit_id

    def chain(self, commit_id: str | None) -> list[Commit]:
        found = []
        while commit_id is not None:
            found.append(self.commits[commit_id])
            commit_id = found[-1].first_parent_id
        return found

    def was_head(self, head: str, *, after: datetime) -> set[str]:
        """Which commits were a branch's head at some instant later than `after`.

        A commit is the head from its own date to its child's; the last one is so still.
        """
        chain = self.chain(head)
        children: list[Commit | None] = [None, *chain]
        return {
            commit.commit_id
            for commit, child in zip(chain, children, strict=False)
            if child is None or child.created_at > after or commit.created_at > after
        }

    def active(self, periods: dict[str, int], default: int, now: datetime) -> set[str]:
        found = set(self.tags.values())
        for name, head in self.branches.items():
            found |= self.was_head(head, after=now - periods.get(name, default) * DAY)
        fathers = {commit.first_parent_id for commit in self.commits.values()}
        for commit in self.commits.values():
            if commit.commit_id not in fathers and commit.commit_id not in self.branches.values():
                after = now - default * DAY
                # The hypothetical head is as old as the commit that it stands on.
                own = set[str]() if commit.created_at > after else {commit.commit_id}
                found |= self.was_head(commit.commit_id, after=after) - own
        return found

    def reached(self, start: set[str]) -> set[str]:
        found: set[str] = set()
        waiting = list(start)
        while waiting:
            commit_id = waiting.pop()
            if commit_id not in found:
                found.add(commit_id)
                waiting += self.commits[commit_id].parent_ids
        return found


def play(world: World, history: History, events: list[Event]) -> None:
    """Make it happen, the oldest first, at the dates that the days between the events give."""
    age = sum(each.days for each in events) + 1.0
    history.note(world, "main", world.lake.commits.resolve("main"))
    # Without a second line of history hardly any example has a commit that nothing reaches.
    world.lake.branches.create("dev", "main")
    history.branches["dev"] = history.branches["main"]
    for number, each in enumerate(events):
        age -= each.days
        names = sorted(history.branches)
        name = names[each.branch % len(names)]
        other = names[each.other % len(names)]
        # A commit is later than the one before it, even on the same day.
        date = world.now - timedelta(days=age) + timedelta(seconds=number)
        try:
            happen(world, history, each, (name, other), (number, date))
        except Conflict as error:
            event(error.kind)


def happen(
    world: World,
    history: History,
    each: Event,
    names: tuple[str, str],
    when: tuple[int, datetime],
) -> None:
    name, other = names
    number, date = when
    lake = world.lake
    event(each.kind)
    if each.kind == "branch":
        lake.branches.create(f"b{number}", name)
        history.branches[f"b{number}"] = history.branches[name]
    elif each.kind == "drop" and len(history.branches) > 1:
        others = sorted(history.branches.keys() - {"main"})
        dropped = others[each.branch % len(others)]
        lake.branches.delete(dropped)
        del history.branches[dropped]
    elif each.kind == "tag":
        lake.tags.create(f"t{number}", name)
        history.tags[f"t{number}"] = history.branches[name]
    elif each.kind == "overwrite":
        for path in each.paths:
            lake.objects.put(name, path, f"{number} {path} first".encode())
            lake.objects.put(name, path, f"{number} {path} second".encode())
    elif each.kind == "merge":
        made = lake.commits.merge(other, name, date=date, strategy="source-wins")
        history.note(world, name, made.commit_id)
    elif each.kind == "revert" and history.commits[history.branches[name]].parent_ids:
        made = lake.commits.revert(name, history.branches[name], date=date)
        history.note(world, name, made.commit_id)
    elif each.kind == "save":
        here = {entry.path for entry in lake.objects.walk(name)}
        for position, path in enumerate(each.paths):
            if path in here and position % 2:
                lake.objects.delete(name, path)
            else:
                lake.objects.put(name, path, f"{number} {path}".encode())
        made = lake.commits.commit(name, f"event {number}", date=date, allow_empty=True)
        history.note(world, name, made.commit_id)


def expected(world: World, history: History, active: set[str]) -> set[str]:
    files = set[str]().union(*(history.addresses[commit_id] for commit_id in active))
    for name in history.branches:
        files |= {entry.address for entry in world.lake.objects.walk(name)}
    reached = history.reached({*history.branches.values(), *history.tags.values(), *active})
    return files.union(*(history.metadata[commit_id] for commit_id in reached))


any_store = given(
    events=st.lists(EVENTS, min_size=3, max_size=14),
    default=PERIODS,
    main=PERIODS,
    sizes=st.sampled_from(get_args(Sizes)),
)


@randomized("random stores")
@examples("random stores")
@any_store
def test_a_file_is_there_if_and_only_if_it_should(
    events: list[Event], default: int, main: int, sizes: Sizes
) -> None:
    check_store(INLINE, events, default, main, sizes)


@on_engines("spark", "joins")
@randomized("random stores on Spark")
@examples("random stores on Spark")
@any_store
def test_so_it_is_on_spark(
    engine: Engine, events: list[Event], default: int, main: int, sizes: Sizes
) -> None:
    check_store(engine, events, default, main, sizes)


def check_store(engine: Engine, events: list[Event], default: int, main: int, sizes: Sizes) -> None:
    with temporary_world() as world:
        world.engine = engine
        world.keep(default=f"{default}d", branches={"main": f"{main}d"})
        history = History()
        play(world, history, events)
        (world.root / "data" / "foreign.txt").parent.mkdir(exist_ok=True)
        (world.root / "data" / "foreign.txt").write_text("not ours")
        active = history.active({"main": main}, default, world.now)
        if engine is not INLINE:
            check_rows(world, engine, sizes)

        report = world.collect(sizes=sizes)

        assert report.state == "swept"
        everything = world.files("data") | world.files("_ebbtide/trees")
        everything |= world.files("_ebbtide/ranges")
        assert everything - {"data/foreign.txt"} == expected(world, history, active)
        assert "data/foreign.txt" in everything
        for commit_id in active:
            for entry in world.lake.objects.walk(commit_id):
                assert len(world.lake.objects.get(commit_id, entry.path)) == entry.size_bytes

        again = world.collect()

        assert again.state == "swept"
        assert again.counts["candidate"].objects == 0


def check_rows(world: World, engine: Engine, sizes: Sizes) -> None:
    """A plan on this engine has the rows of a plan in the process."""
    found = []
    for each in (engine, INLINE):
        world.engine = each
        found.append(planned_rows(world.collector(mode="clean", sizes=sizes).plan()))
    world.engine = engine
    assert found[0] == found[1]
