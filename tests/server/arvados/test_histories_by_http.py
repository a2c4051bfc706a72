"""Any sequence of requests over HTTP with a collector and the reclaimer in between: what was
promised is there, and in the end nothing is left that nobody needs."""

from __future__ import annotations

import base64
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Final

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI
from hypothesis import HealthCheck, note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ebbtide.errors import EbbtideError
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import Mode
from ebbtide.server.app import create_app
from ebbtide.store.access.keys import Role
from tests.gc.histories import fast_place
from tests.server.arvados.promised import Act, Clients, failing
from tests.support.app import InProcess
from tests.support.memory import Moment
from tests.support.memory_world import MemoryWorld, Place
from tests.support.randomized import INDEPENDENT, examples, randomized

VOLUME: Final = "histories of Arvados's clients"
STEPS: Final = 25
CLIENTS: Final = 2
PLANS_MAX: Final = 2
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
FIXED: Final[dict[str, Any]] = {
    "secret_key": base64.urlsafe_b64encode(bytes(32)).decode(),
    "reclaim": False,
    "schedules": False,
}
SETTINGS: Final = st.fixed_dictionaries(
    {
        "lease_ttl": st.sampled_from([HOUR, 10 * MINUTE]),
        "trash_time": st.sampled_from([timedelta(0), 30 * MINUTE, DAY]),
        "write_ttl": st.sampled_from([HOUR, DAY]),
        "slice_objects_max": st.sampled_from([50_000, 3]),
        "slice_age_max": st.sampled_from([MINUTE, HOUR]),
        "clean_every": st.sampled_from([7 * DAY, HOUR]),
    }
)
GRACES: Final = st.sampled_from([timedelta(seconds=1), 10 * MINUTE, HOUR])
MODES: Final[st.SearchStrategy[Mode]] = st.sampled_from(["incremental", "auto", "clean"])
MOMENTS: Final[st.SearchStrategy[Moment]] = st.sampled_from(["before", "after"])

Point = tuple[str, str]
Interludes = list[tuple[Point, Act]]
WITHIN_DELETES: Final[Point] = ("delete", "within")
PLAN_POINTS: Final[list[Point]] = [
    ("list", "start"),
    ("list", "end"),
    ("read", "end"),
    ("subtract", "end"),
]
SWEEP_POINTS: Final[list[Point]] = [
    ("fence", "start"),
    ("fence", "end"),
    ("recheck", "end"),
    ("forget", "end"),
    ("delete tree", "end"),
    ("delete range", "end"),
    ("delete object", "start"),
    ("delete object", "end"),
    WITHIN_DELETES,
]

SAVING: Final = ("put", "create", "create_again", "update")
READING: Final = ("read", "show", "steal", "put_damaged")
ENDING: Final = ("trash", "untrash", "retime")
TIME: Final = ("wait", "wait_for_an_end")


def acts(*names: str) -> st.SearchStrategy[Act]:
    """Acts of these names."""
    return st.builds(
        Act,
        st.sampled_from(names or (*SAVING, *READING, *ENDING, *TIME, "reclaim")),
        st.integers(0, CLIENTS - 1),
        st.integers(0, 255),
        st.sampled_from([0, 1, 4, 7, 20, 31, 59]),
    )


def interludes(points: list[Point]) -> st.SearchStrategy[Interludes]:
    """What clients do at which points of a run."""
    return st.lists(st.tuples(st.sampled_from(points), acts()), max_size=4)


@dataclass
class Site:
    """A server that shows the repository of one world after the other, and its clients."""

    place: Place
    app: FastAPI
    http: list[httpx.Client] = field(default_factory=list)


class Stopped(Exception):
    """The collector's process has died."""


class Histories(RuleBasedStateMachine):
    """One history in a world of its own. All share a server."""

    site: ClassVar[Site]
    seen: ClassVar[Counter[str]]
    clients: Clients | None = None

    @initialize(chosen=SETTINGS, grace=GRACES, seed=st.integers(0, 999))
    def begin(self, chosen: dict[str, Any], grace: timedelta, seed: int) -> None:
        self.world = MemoryWorld(self.site.place, settings=FIXED | chosen, seed=seed)
        self.site.app.state.store = self.world.store
        self.grace = grace
        self.clients = Clients(self.world, self.site.http)
        self.world.bucket.watcher = self.hooks = self.clients.hooks
        self.before = self.world.files()
        self.plans: list[str] = []

    def do(self, act: Act) -> None:
        assert self.clients is not None
        if threading.current_thread() is threading.main_thread():
            note(f"{self.world.now}: {act}")
        self.clients.do(act)
        self.seen[act.name] += 1

    def check(self) -> None:
        assert self.clients is not None
        self.clients.check()

    @rule(act=acts(*SAVING))
    def save(self, act: Act) -> None:
        self.do(act)

    @rule(act=acts(*SAVING, *READING))
    def use(self, act: Act) -> None:
        self.do(act)

    @rule(act=acts(*ENDING))
    def end_or_restore(self, act: Act) -> None:
        self.do(act)

    @rule(act=acts(*TIME))
    def wait(self, act: Act) -> None:
        self.do(act)

    @rule(act=acts("reclaim"), other=acts())
    def reclaim(self, act: Act, other: Act) -> None:
        """A pass of the reclaimer, with a request after its first delete."""
        self.hooks.at_delete = lambda: self._once_deleted(other)
        self.do(act)
        self.hooks.at_delete = None
        self.check()

    @rule(act=acts(*SAVING), moment=MOMENTS, others=st.lists(acts(), max_size=2), mode=MODES)
    def save_slowly(self, act: Act, moment: Moment, others: list[Act], mode: Mode) -> None:
        """A request during which others are answered, and a whole run is made."""
        assert self.clients is not None

        def meanwhile() -> None:
            for other in others:
                self.do(other)
            self._run(mode, [], [])

        with self.clients.disturbed(moment, meanwhile):
            self.do(act)
        self.check()

    @rule(act=acts(*SAVING), moment=MOMENTS)
    def save_in_vain(self, act: Act, moment: Moment) -> None:
        """A request during which the storage fails. The next one is carried out."""
        assert self.clients is not None
        with self.clients.disturbed(moment, lambda: failing(moment)(moment)):
            self.do(act)

    @rule(mode=MODES, before=interludes(PLAN_POINTS), after=interludes(SWEEP_POINTS))
    def run(self, mode: Mode, before: Interludes, after: Interludes) -> None:
        self._run(mode, before, after)

    @precondition(lambda self: len(self.plans) < PLANS_MAX)
    @rule(mode=MODES, before=interludes(PLAN_POINTS))
    def plan(self, mode: Mode, before: Interludes) -> None:
        """A plan that is swept later, or never."""
        self.plans.append(self._plan(mode, before))

    @precondition(lambda self: bool(self.plans))
    @rule(
        number=st.integers(0, PLANS_MAX - 1),
        after=interludes(SWEEP_POINTS),
        stop=st.sampled_from([None, None, *SWEEP_POINTS]),
    )
    def sweep(self, number: int, after: Interludes, stop: Point | None) -> None:
        """Carries out a plan, which can be much older than the state that it meets. The sweep may
        stop, and goes on later."""
        run_id = self.plans.pop(number % len(self.plans))
        try:
            self._sweep(run_id, after, stop)
        except Stopped:
            self.seen["stopped"] += 1
            self.plans.append(run_id)
        self.check()

    def _run(self, mode: Mode, before: Interludes, after: Interludes) -> None:
        self._sweep(self._plan(mode, before), after)
        self.check()

    def _plan(self, mode: Mode, acts: Interludes) -> str:
        # No two runs begin at one instant, so that they have different ids.
        self.world.clock.advance(timedelta(microseconds=1))
        report = self._collector(mode, acts).plan()
        assert report.state == "planned", report.error
        self.seen[f"{report.mode} plan"] += 1
        return report.run_id

    def _sweep(self, run_id: str, acts: Interludes, stop: Point | None = None) -> None:
        within = [act for point, act in acts if point == WITHIN_DELETES]
        if within:
            self.hooks.at_delete = lambda: self._once_deleted(*within)
        try:
            report = self._collector("auto", acts, stop).sweep(run_id)
        except EbbtideError as error:
            assert error.kind in ("plan_used", "plan_missing"), error
            return
        finally:
            self.hooks.at_delete = None
        assert report.state == "swept", report.error
        assert report.counts["failed"].objects == 0
        self.seen["deleted"] += report.counts["deleted"].objects
        self.seen["revived"] += report.counts["revived"].objects

    def _once_deleted(self, *acts: Act) -> None:
        self.hooks.at_delete = None
        for act in acts:
            self.do(act)
            self.check()

    def _collector(self, mode: Mode, acts: Interludes, stop: Point | None = None) -> Collector:
        def observe(step: str, moment: str) -> None:
            for point, act in acts:
                if point == (step, moment):
                    self.do(act)
            if (step, moment) in SWEEP_POINTS:
                self.check()
            if (step, moment) == stop:
                raise Stopped

        return self.world.collector(
            observer=observe, grace=self.grace, mode=mode, unsafe=True, allow_share=True
        )

    def teardown(self) -> None:
        if self.clients is not None and sys.exception() is None:
            self.finish(self.clients)

    def finish(self, clients: Clients) -> None:
        """All promises end. What collections have is left, and nothing when they are gone."""
        self.check()
        self.world.clock.advance(4 * DAY)
        assert clients.promised() == []
        self._run("clean", [], [])
        self._run("clean", [], [])
        assert self.world.files("data/") == clients.addresses()
        for uuid in sorted(clients.kept):
            clients.http[0].delete(f"/arvados/v1/collections/{uuid}")
            clients.kept.pop(uuid)
        self.world.clock.advance(4 * DAY)
        self._run("clean", [], [])
        self._run("clean", [], [])
        assert self.world.files() == self.before


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server over a storage in memory."""
    with fast_place() as place:
        first = MemoryWorld(place, settings=FIXED)
        app = create_app(first.store, arvados_repository="lake")
        found = Site(place, app)
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(app.router.lifespan_context(app)),
        ):
            for number in range(CLIENTS):
                made = first.store.keys.create(Role.WRITER, name=f"client {number}")
                token = f"v2/{made.key.access_key_id}/{made.secret}"
                found.http.append(
                    httpx.Client(
                        transport=InProcess(app, portal),
                        base_url="http://test",
                        headers={"Authorization": f"Bearer {token}"},
                    )
                )
            yield found


@randomized(VOLUME)
def test_any_history_over_http(site: Site) -> None:
    class Here(Histories):
        seen: ClassVar[Counter[str]] = Counter()

    Here.site = site
    run_state_machine_as_test(
        Here,
        settings=examples(
            VOLUME,
            stateful_step_count=STEPS,
            backend=INDEPENDENT,
            suppress_health_check=list(HealthCheck),
        ),
    )
