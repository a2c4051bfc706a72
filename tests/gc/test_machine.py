"""Random histories with a collector among the users, against the naive definition.

Users also act between the steps of runs. After each step, every ref and every staged file reads
back byte for byte, and each commit is wholly there or was closed by a named run. At the end, the
files are exactly those that the definition says.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, event, note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ebbtide.gc.steps import Event
from ebbtide.store.content.layout import range_address, tree_address
from tests.gc.lines import Reader, check_commit
from tests.gc.model import Head, Made, Model
from tests.gc.users import ACTS, Act, Users
from tests.support.randomized import INDEPENDENT, examples, randomized
from tests.support.world import World

STEPS = 15
ACTS_BEFORE_PLAN = 8
"""A run costs seconds, an act milliseconds: a plan is made when there is something new to it."""
LEASE = timedelta(hours=1)
TRASH = timedelta(days=1)

PLAN_POINTS: list[tuple[str, Event]] = [("list", "end"), ("read", "end"), ("subtract", "end")]
SWEEP_POINTS: list[tuple[str, Event]] = [
    ("fence", "start"),
    ("fence", "end"),
    ("recheck", "end"),
    ("forget", "end"),
    ("delete range", "end"),
    ("delete object", "start"),
]

Interludes = list[tuple[tuple[str, Event], Act]]


def interludes(points: list[tuple[str, Event]]) -> st.SearchStrategy[Interludes]:
    """What users do at which points of a run."""
    return st.lists(st.tuples(st.sampled_from(points), ACTS), max_size=5)


NUMBERS = count()
"""Of repositories: all cases of a run share a store."""


class Machine(RuleBasedStateMachine):
    """One history in a repository of its own; all share a store."""

    world: World
    numbers: Iterator[int]

    @initialize()
    def begin(self) -> None:
        """An empty repository with a policy."""
        world = self.world
        name = f"lake-{next(self.numbers)}"
        world.lake = world.store.create_repository(name)
        world.root = world.directory / "store" / "storage" / name
        self.model: Model[bytes] = Model(trash_time=TRASH, lease_ttl=LEASE)
        record = world.lake.commits.get("main")
        self.model.commits[record.commit_id] = Made((), record.created_at, {})
        self.model.branches["main"] = Head("main", record.commit_id)
        self.users = Users(world, self.model)
        self.users.set_rules(default=7)
        self.done_before = 0
        self.planned: tuple[str, set[str], set[str]] | None = None

    @rule(acts=st.lists(ACTS, min_size=2, max_size=8))
    def act(self, acts: list[Act]) -> None:
        """Users do something while no run is under way."""
        for each in acts:
            self.users.do(each)
        self.check_refs()

    @precondition(lambda self: self.planned is None and self.acts_since() >= ACTS_BEFORE_PLAN)
    @rule(acts=interludes(PLAN_POINTS))
    def plan(self, acts: Interludes) -> None:
        """Make a plan, and know what it must hold expired."""
        expired: set[str] = set()
        recorded: set[str] = set()

        def observe(step: str, moment: Event) -> None:
            if (step, moment) == ("read", "start"):
                expired.update(self.model.expired(self.world.now))
                recorded.update(self.model.recorded(self.world.now))
            self.interrupt(acts, (step, moment))

        report = self.world.collector(observer=observe).plan()
        assert report.state == "planned"
        assert report.commits["expired"] == len(expired - self.model.closed.keys())
        self.planned = (report.run_id, expired, expired - recorded)
        self.check_refs()

    @precondition(lambda self: self.planned is not None)
    @rule(acts=interludes(SWEEP_POINTS))
    def sweep(self, acts: Interludes) -> None:
        """Carry the plan out, while users go on."""
        assert self.planned is not None
        run_id, expired, forgettable = self.planned

        def observe(step: str, moment: Event) -> None:
            if (step, moment) == ("fence", "end"):
                self.fenced(run_id, expired, forgettable)
            self.interrupt(acts, (step, moment))

        report = self.world.collector(observer=observe).sweep(run_id)
        event(f"revived: {report.counts['revived'].objects > 0}")
        event(f"deleted: {report.counts['deleted'].objects > 0}")
        assert report.state == "swept"
        assert report.counts["missing"].objects == 0
        self.planned = None
        self.done_before = len(self.users.done)
        self.check_commits()
        self.check_refs()

    def acts_since(self) -> int:
        """How much users have done since the last sweep."""
        return len(self.users.done) - self.done_before

    def interrupt(self, acts: Interludes, point: tuple[str, Event]) -> None:
        """Do what users do at this point."""
        for where, each in acts:
            if where == point:
                self.users.do(each)
                note(f"at {point}: {each} {self.users.done[-1]}")

    def fenced(self, run_id: str, expired: set[str], forgettable: set[str]) -> None:
        """Of what the plan held expired, what still is has been closed by the fence."""
        now, model = self.world.now, self.model
        still = expired & model.expired(now)
        forgotten = (forgettable & still) - model.recorded(now)
        model.closed.update({c: run_id for c in still if c not in model.closed})
        # The records go a step later; until then it makes no difference to anybody.
        model.forgotten.update(dict.fromkeys(forgotten - model.forgotten.keys(), run_id))

    def check_refs(self) -> None:
        """Every ref, and what is staged on it, reads back byte for byte."""
        reader = Reader(self.world)
        for head in self.model.branches.values():
            assert reader.contents(head.name) == self.model.shown(head)
            assert reader.contents(f"{head.name}@") == self.model.commits[head.commit_id].contents
        for tag in self.model.tags.values():
            assert reader.contents(tag.name) == self.model.commits[tag.commit_id].contents
        heads = {h.name: h.commit_id for h in (self.model.branches | self.model.tags).values()}
        assert reader.heads() == heads

    def check_commits(self) -> None:
        """Every commit is wholly there, or closed by the run that the definition says."""
        reader = Reader(self.world)
        for commit_id, made in self.model.commits.items():
            record = reader.commit(commit_id)
            assert record.tombstoned_by == self.model.closed.get(commit_id)
            assert record.forgotten_by == self.model.forgotten.get(commit_id)
            check_commit(reader, commit_id, made.contents)
        for name in self.model.branches:
            commits = reader.lake.commits.log(name)
            for young, old in pairwise(commits):
                if not {young.commit_id, old.commit_id} & self.model.forgotten.keys():
                    list(reader.lake.commits.diff(old.commit_id, young.commit_id))

    def teardown(self) -> None:
        """All is quiet: one run, and then there is exactly what the definition says."""
        if not hasattr(self, "planned"):
            return
        self.world.clock.advance(timedelta(days=2))
        self.planned = None
        self.done_before = -ACTS_BEFORE_PLAN
        self.plan([])
        self.sweep([])
        now, lake = self.world.now, self.world.lake
        files = [path.read_bytes() for path in (self.world.root / "data").rglob("*/*")]
        assert len(files) == len(set(files))
        assert set(files) == self.model.kept(now)
        records = [lake.commits.get(commit_id) for commit_id in self.model.recorded(now)]
        trees = [lake.context.tree_of(record) for record in records]
        assert self.world.files("_ebbtide/trees") == {tree_address(t.tree_id) for t in trees}
        ranges = {range_address(info.range_id) for tree in trees for info in tree.ranges}
        assert self.world.files("_ebbtide/ranges") == ranges
        assert self.world.collector().plan().counts["candidate"].objects == 0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A store for all histories. Ranges are so small that commits share some with their parents."""
    chosen = {"range_entries_target": 2, "lease_ttl": LEASE, "trash_time": TRASH}
    with TemporaryDirectory() as directory:
        made = World(Path(directory), settings=chosen, aged_slices=False)
        yield made
        made.close()


@randomized("collector histories")
def test_histories(world: World) -> None:
    """Each example is a history of fifteen steps and as many acts between those of runs."""

    class InThisWorld(Machine):
        pass

    InThisWorld.world = world
    InThisWorld.numbers = NUMBERS
    run_state_machine_as_test(
        InThisWorld,
        settings=examples(
            "collector histories",
            stateful_step_count=STEPS,
            backend=INDEPENDENT,
            suppress_health_check=list(HealthCheck),
        ),
    )
