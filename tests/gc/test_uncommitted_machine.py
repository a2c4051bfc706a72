"""Random histories of uncommitted data with a collector among the users, against the definition.

Nothing reachable, leased or promised is ever deleted; what nobody needs is gone after at most two
runs past its grace; incremental runs end in the same storage as clean ones.
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
from tests.gc.histories import PlacedMachine, fast_place, run_histories
from tests.gc.model import Head, Made
from tests.gc.slow_users import Witness
from tests.gc.uncommitted_model import UncommittedModel
from tests.gc.uncommitted_runs import PLAN_POINTS, SWEEP_POINTS, Interludes, Planned, Point, Runs
from tests.gc.uncommitted_users import DAY, HOUR, MINUTE, SECOND, UploadUsers, acts
from tests.gc.users import Act
from tests.support.memory_world import MemoryWorld, Place
from tests.support.randomized import randomized

STEPS: Final = 50
ACTS_BEFORE_RUN: Final = 10
"""A run costs as much as twenty acts: it is made when there is something new to it."""
PLANS_MAX: Final = 2
NOTHING: Final = timedelta(0)

SETTINGS: Final = st.fixed_dictionaries(
    {
        "slice_age_max": st.sampled_from([MINUTE, SECOND, 10 * MINUTE, HOUR]),
        "slice_objects_max": st.sampled_from([50_000, 1, 3]),
        "upload_ttl": st.sampled_from([HOUR, MINUTE, DAY]),
        "write_ttl": st.sampled_from([HOUR, 10 * MINUTE, DAY]),
        "lease_ttl": st.sampled_from([NOTHING, HOUR]),
        "trash_time": st.sampled_from([NOTHING, HOUR, DAY]),
        "clean_every": st.sampled_from([7 * DAY, HOUR]),
        "prepare_ttl": st.sampled_from([HOUR, DAY]),
        "range_entries_target": st.just(2),
    }
)
GRACES: Final = st.sampled_from([SECOND, MINUTE, 10 * MINUTE, HOUR])
MODES: Final[st.SearchStrategy[Mode]] = st.sampled_from(["incremental", "auto", "clean"])
STOPS: Final[st.SearchStrategy[Point | None]] = st.sampled_from([None] * 24 + SWEEP_POINTS)


def interludes(points: list[Point]) -> st.SearchStrategy[Interludes]:
    """What users do at which points of a run, if anything."""
    return st.lists(st.tuples(st.sampled_from(points), acts()), max_size=4)


def several(*groups: str) -> st.SearchStrategy[list[Act]]:
    """A few acts."""
    return st.lists(acts(*groups), min_size=1, max_size=2)


class Machine(PlacedMachine):
    """One history in a world of its own; all share a place."""

    runs: Runs | None = None

    @initialize(
        chosen=SETTINGS, grace=GRACES, seed=st.integers(0, 999), dates_to_seconds=st.booleans()
    )
    def begin(
        self, chosen: dict[str, Any], grace: timedelta, seed: int, dates_to_seconds: bool
    ) -> None:
        """An empty repository with a policy, and two processes that write to it."""
        world = MemoryWorld(
            self.place, settings=chosen, seed=seed, dates_to_seconds=dates_to_seconds
        )
        model = UncommittedModel(
            trash_time=world.settings.trash_time, lease_ttl=world.settings.lease_ttl
        )
        self.users = UploadUsers(world, model)
        self.users.grace = grace
        self.users.processes = [world.lake, world.another_process()]
        self.witness = Witness(world, model)
        world.bucket.watcher = self.witness
        record = world.lake.commits.get("main")
        model.commits[record.commit_id] = Made((), record.created_at, {})
        model.branches["main"] = Head("main", record.commit_id)
        self.users.note_pointers(record.commit_id)
        model.files |= {address: world.lake.storage.get(address) for address in world.files()}
        self.users.set_rules(default=3)
        self.runs = Runs(world, model, self.users, self.witness, grace)
        self.world, self.model = world, model
        self.planned: list[Planned] = []
        self.done_before = 0

    def do(self, acts: list[Act]) -> None:
        """Users do something while no run is under way."""
        assert self.runs is not None
        for each in acts:
            self.users.do(each)
        self.runs.check_needed()

    @rule(acts=several("upload"))
    def upload(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("promise"))
    def promise(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("drop"))
    def drop(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("version"))
    def version(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("refs"))
    def refs(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("slow"))
    def slow(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(acts=several("other"))
    def other(self, acts: list[Act]) -> None:
        self.do(acts)

    @rule(act=acts("time"))
    def wait(self, act: Act) -> None:
        self.do([act])

    @rule(acts=st.lists(acts("move"), min_size=1, max_size=4))
    def read(self, acts: list[Act]) -> None:
        """What is uncommitted, in pages, while things are on the move."""
        page = Act("read", 0, 0, 0.0)
        for each in acts:
            self.do([page, each])
        while self.users.reading is not None:
            self.do([Act("read", 0, 63, 0.0)])

    @precondition(lambda self: self.is_time())
    @rule(
        mode=MODES,
        before=interludes(PLAN_POINTS),
        between=st.lists(acts("refs"), max_size=2),
        after=interludes(SWEEP_POINTS),
        stop=STOPS,
    )
    def run(
        self,
        mode: Mode,
        before: Interludes,
        between: list[Act],
        after: Interludes,
        stop: Point | None,
    ) -> None:
        """A run while users go on, or not, and to its end, or not."""
        assert self.runs is not None
        planned = self.runs.plan(mode, before)
        self.do(between)
        self.sweep(planned, after, stop)

    @precondition(lambda self: self.is_time())
    @rule(mode=MODES, wait=acts("time"))
    def quiet_run(self, mode: Mode, wait: Act) -> None:
        """A run that nobody disturbs leaves nothing that it has to delete."""
        assert self.runs is not None
        self.do([wait])
        self.sweep(self.runs.plan(mode, []), [])

    @precondition(lambda self: len(self.planned) < PLANS_MAX and self.is_time())
    @rule(mode=MODES, acts=interludes(PLAN_POINTS))
    def plan(self, mode: Mode, acts: Interludes) -> None:
        """A plan that is swept later, or never."""
        assert self.runs is not None
        self.planned.append(self.runs.plan(mode, acts))

    @precondition(lambda self: bool(self.planned))
    @rule(number=st.integers(0, PLANS_MAX - 1), acts=interludes(SWEEP_POINTS), stop=STOPS)
    def sweep_later(self, number: int, acts: Interludes, stop: Point | None) -> None:
        """Of several plans, any; a sweep that was stopped goes on."""
        self.sweep(self.planned.pop(number % len(self.planned)), acts, stop)

    def sweep(self, planned: Planned, acts: Interludes, stop: Point | None = None) -> None:
        """Carry a plan out; what is stopped may be swept again."""
        assert self.runs is not None
        if not self.runs.sweep(planned, acts, stop):
            self.planned.append(planned)
        self.runs.check_refs()
        self.done_before = len(self.users.done)

    def is_time(self) -> bool:
        """Whether users have done enough since the last run."""
        return len(self.users.done) - self.done_before >= ACTS_BEFORE_RUN

    def teardown(self) -> None:
        """All is quiet: what was sent can be linked, and what is needed is all there is."""
        if self.runs is None:
            return
        if sys.exception() is None:
            self.end()
        self.users.finish_all()
        self.modes.update(self.runs.modes)

    def end(self) -> None:
        """See `teardown`."""
        assert self.runs is not None
        self.users.link_all()
        # Who is still at it has died, and what they registered ends.
        self.world.clock.advance(3 * DAY)
        self.sweep(self.runs.plan("incremental", []), [])
        waiting = self.world.files() - self.model.foreign.keys() - self.needed()
        assert waiting <= self.model.late | {address for address, _ in self.model.shared}
        # At the same instant a clean run finds what only a clean run may find, and nothing else.
        planned = self.runs.plan("clean", [])
        waiting = self.world.files() - self.model.foreign.keys() - self.needed()
        assert planned.candidates == len(waiting)
        if waiting:
            self.sweep(planned, [])
            assert self.world.files() - self.model.foreign.keys() == self.needed()
        self.runs.check_commits()

    def needed(self) -> set[str]:
        """The files that the definition needs, now."""
        return self.model.needed(self.world.now)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Where all histories happen."""
    with fast_place() as made:
        yield made


@randomized("uncommitted histories")
def test_histories(place: Place) -> None:
    """Each example is a history of fifty steps."""
    run_histories(Machine, place, "uncommitted histories", steps=STEPS)
