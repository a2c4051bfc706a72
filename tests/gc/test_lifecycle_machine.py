"""Random histories of projects, collections and locators with a collector among the users, against
the definition.

No needed, promised or leased file is ever deleted. A file that nobody needs is gone after at most
two runs past its time. The store answers each request as the model says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
)

from ebbtide.gc.options import Mode
from ebbtide.store.collections import contents
from tests.gc.histories import PlacedMachine, fast_place, run_histories
from tests.gc.lifecycle_model import LifecycleModel
from tests.gc.lifecycle_runs import LifecycleRuns
from tests.gc.lifecycle_users import LifecycleUsers, lifecycle_acts
from tests.gc.model import Head, Made
from tests.gc.slow_users import OneThread, Witness
from tests.gc.uncommitted_runs import PLAN_POINTS, SWEEP_POINTS, Interludes, Planned, Point
from tests.gc.uncommitted_users import DAY, HOUR, MINUTE, SECOND
from tests.gc.users import Act
from tests.support.memory_world import MemoryWorld, Place
from tests.support.randomized import randomized

STEPS: Final = 30
ACTS_BEFORE_RUN: Final = 12
"""A run costs as much as twenty acts: it is made when there is something new to it."""
NOTHING: Final = timedelta(0)

SETTINGS: Final = st.fixed_dictionaries(
    {
        "slice_age_max": st.sampled_from([MINUTE, HOUR]),
        "write_ttl": st.sampled_from([HOUR, DAY]),
        "lease_ttl": st.sampled_from([HOUR, MINUTE, DAY, NOTHING]),
        "trash_time": st.sampled_from([10 * MINUTE, NOTHING, DAY, HOUR]),
        "clean_every": st.sampled_from([7 * DAY, HOUR]),
        "range_entries_target": st.just(2),
    }
)
MODES: Final[st.SearchStrategy[Mode]] = st.sampled_from(["incremental", "auto", "clean"])


def interludes(points: list[Point]) -> st.SearchStrategy[Interludes]:
    """What users do at which points of a run, if anything."""
    return st.lists(st.tuples(st.sampled_from(points), lifecycle_acts()), max_size=3)


def several(*groups: str) -> st.SearchStrategy[list[Act]]:
    """A few acts."""
    return st.lists(lifecycle_acts(*groups), min_size=1, max_size=2)


class Machine(PlacedMachine):
    """One history in a world of its own; all share a place."""

    runs: LifecycleRuns | None = None

    @initialize(chosen=SETTINGS, grace=st.sampled_from([SECOND, MINUTE]), seed=st.integers(0, 999))
    def begin(self, chosen: dict[str, Any], grace: timedelta, seed: int) -> None:
        """A repository with a policy, a commit and a project, and two processes."""
        world = MemoryWorld(self.place, settings=chosen, seed=seed)
        model = LifecycleModel(
            trash_time=world.settings.trash_time, lease_ttl=world.settings.lease_ttl
        )
        self.users = LifecycleUsers(world, model)
        self.users.grace = grace
        self.users.processes = [world.lake, world.another_process()]
        self.witness = Witness(world, model)
        world.bucket.watcher = self.witness
        record = world.lake.commits.get("main")
        model.commits[record.commit_id] = Made((), record.created_at, {})
        model.branches["main"] = Head("main", record.commit_id)
        self.users.note_pointers(record.commit_id)
        model.files |= {address: world.lake.storage.get(address) for address in world.files()}
        self.users.set_rules(default=1)
        # Three commits, of which all but the last have expired.
        for kind in (*["put", "commit"] * 3, "project", "create", "sign"):
            self.users.do(Act(kind, 0, 0, 9.0, 1))
        self.runs = LifecycleRuns(world, model, self.users, self.witness, grace)
        self.world, self.model = world, model
        self.planned: Planned | None = None
        self.done_before = 0

    def do(self, acts: list[Act]) -> None:
        """Users do something while no run is under way."""
        assert self.runs is not None
        for each in acts:
            self.users.do(each)
        self.runs.check_needed()

    @rule(acts=several("make"))
    def make(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("change"))
    def change(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("sign", "use"))
    def promise(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(sign=lifecycle_acts("sign"), acts=several("end", "change"), use=lifecycle_acts("use"))
    def outlast(self, sign: Act, acts: list[Act], use: Act) -> None:
        """Sign, let go what was signed, and use it."""
        self.do([sign, *acts, use])

    @rule(acts=several("end", "back"))
    def end(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("move"))
    def move(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("version"))
    def version(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("slow"))
    def slow(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("look"))
    def look(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(act=lifecycle_acts("time"))
    def wait(self, act: Act) -> None:
        self.do([act])

    @precondition(lambda self: self.planned is None and self.is_time())
    @rule(
        mode=MODES,
        wait=lifecycle_acts("time"),
        before=interludes(PLAN_POINTS),
        between=st.lists(lifecycle_acts("time", "use", "back", "change"), max_size=2),
        after=interludes(SWEEP_POINTS),
    )
    def run(
        self, mode: Mode, wait: Act, before: Interludes, between: list[Act], after: Interludes
    ) -> None:
        """A run while users go on."""
        assert self.runs is not None
        self.do([wait])
        planned = self.runs.plan(mode, before)
        self.do(between)
        self.sweep(planned, after)

    @precondition(lambda self: self.planned is None and self.is_time())
    @rule(mode=MODES, acts=interludes(PLAN_POINTS))
    def plan(self, mode: Mode, acts: Interludes) -> None:
        """A plan that is swept later."""
        assert self.runs is not None
        self.planned = self.runs.plan(mode, acts)

    @precondition(lambda self: self.planned is not None)
    @rule(acts=interludes(SWEEP_POINTS))
    def sweep_later(self, acts: Interludes) -> None:
        """What was planned before so much else was done."""
        assert self.planned is not None
        planned, self.planned = self.planned, None
        self.sweep(planned, acts)

    def sweep(self, planned: Planned, acts: Interludes) -> None:
        """Carry a plan out."""
        assert self.runs is not None
        assert self.runs.sweep(planned, acts)
        self.done_before = len(self.users.done)

    def is_time(self) -> bool:
        """Whether users have done enough since the last run."""
        return len(self.users.done) - self.done_before >= ACTS_BEFORE_RUN

    def teardown(self) -> None:
        """All is quiet: what is needed is all there is, and is what the model says."""
        if self.runs is None:
            return
        if sys.exception() is None:
            self.finish()
        self.users.finish_all()
        self.modes.update(self.runs.modes)

    def finish(self) -> None:
        """See `teardown`."""
        assert self.runs is not None
        self.users.finish_all()
        # To an instant at which something has just ended, and past the grace.
        self.do([Act("until", 7, 0, 0.0, 1)])
        self.world.clock.advance(2 * MINUTE)
        self.sweep(self.runs.plan("incremental", []), [])
        self.world.clock.advance(2 * MINUTE)
        self.sweep(self.runs.plan("clean", []), [])
        assert self.world.files() == self.model.needed(self.world.now)
        self.runs.check_commits()
        self.runs.check_all()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Where all histories happen."""
    with fast_place() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "ThreadPoolExecutor", OneThread)
        yield made


@randomized("lifecycle histories")
def test_histories(place: Place) -> None:
    """Each example is a history of thirty steps."""
    run_histories(Machine, place, "lifecycle histories", steps=STEPS)
