"""Every route, each of whose steps fails: the answer is the documented one, what it says is true,
and the same request goes on from there. And every route in each state in which it should refuse:
nothing is changed. Who may not ask is refused in `test_roles.py`.

`calls.py` says how each route is called; a step is a call of the storage, or a statement or commit
of the database. What a run's own process would do is done in this one. A commit tries some, drawn
by chance; a long run, or whoever names the tests, tries all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from threading import Thread
from typing import Any, Final

import httpx
import pytest

from ebbtide.server.api.routes import PREFIX
from ebbtide.server.app import create_app, guarded_routes
from ebbtide.server.errors import STATUS
from ebbtide.settings import Settings
from ebbtide.storage import LocalStorage
from ebbtide.store.embedded import Store
from tests.server.calls import ASKED, Asked
from tests.support.app import asking
from tests.support.program import Program, in_world, made_world
from tests.support.randomized import randomized
from tests.support.small_world import View, is_done, without_runs
from tests.support.spoiling import SPOILED
from tests.support.steps import Fault, Kind, Place, Steps, faults, faults_at

pytestmark = pytest.mark.xdist_group("small world")  # which is made once

BROKEN_OFF: Final = 0
"""In place of a status: the answer broke off."""
DEFECT: Final = "internal"
SEE_OTHER: Final = 303


@dataclass(frozen=True)
class Answer:
    """What was answered, and the steps that it took."""

    status: int
    text: str
    defects: tuple[str, ...]
    steps: Steps

    @property
    def is_success(self) -> bool:
        """Not one that tells of an error for each path. A form leads to a page."""
        is_good = 200 <= self.status < 300 or self.status == SEE_OTHER
        return is_good and '"errors":[{' not in self.text

    @property
    def is_page(self) -> bool:
        return self.text.lstrip().lower().startswith("<!doctype html")

    @property
    def kind(self) -> str:
        if self.status < 400 or not self.text or self.is_page:
            return ""
        return str(json.loads(self.text)["kind"])

    def tells(self, kinds: Collection[str]) -> bool:
        """Whether it tells of an error of one of these kinds: on a page, by its status."""
        if self.is_page:
            return self.status in {STATUS[kind] for kind in kinds}
        return self.kind in kinds

    def __str__(self) -> str:
        return f"{self.status} {self.text}"


@dataclass(frozen=True)
class Normal:
    """A request that nothing befell: what there was before it, and after it."""

    before: View
    after: View
    places: tuple[Place, ...]


class InThread:
    """In place of a process for a job: what it does is done in a thread of this process."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> None:
        self._thread = Thread(target=self._work, args=(target, *args), name=name)
        self.error: BaseException | None = None

    def _work(self, target: Callable[..., None], *args: Any) -> None:
        try:
            target(*args)
        except BaseException as error:  # noqa: BLE001 - looked at by whoever asked for it
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def terminate(self) -> None:
        """It comes to its end by itself."""


class Requests:
    def __init__(self, program: Program, patched: pytest.MonkeyPatch) -> None:
        self.program = program
        self.world = program.world
        self.jobs: list[InThread] = []
        self._normal: dict[Asked, Normal] = {}
        patched.setattr("ebbtide.server.jobs.follow_parent", lambda: None)
        patched.setattr("multiprocessing.context.SpawnContext.Process", self._process)

    def _process(self, **given: Any) -> InThread:
        self.jobs.append(InThread(**given))
        return self.jobs[-1]

    @contextmanager
    def serving(self) -> Iterator[httpx.Client]:
        """A client with the key of an admin."""
        names = self.world.names
        with Store.open(
            self.world.store, settings=Settings(reclaim=False, schedules=False)
        ) as store:
            self.app = create_app(store)
            with asking(self.app, (names["admin"], names["secret"])) as client:
                yield client

    def request(self, client: httpx.Client, asked: Asked) -> httpx.Request:
        names = self.world.names
        return client.build_request(
            asked.method,
            asked.place(names),
            content=asked.body(names),
            headers={"Content-Type": "application/json"} if asked.content else {},
        )

    def ask(self, asked: Asked, fault: Fault | None = None) -> Answer:
        """One request, of which a fault befalls a step, and what it leaves to a job."""
        steps = Steps(fault, everywhere=True)
        self.jobs = []
        with self.serving() as client:
            request = self.request(client, asked)
            with self.program.stepping.taking(steps):
                try:
                    found = client.send(request)
                    status, text = found.status_code, found.text
                except Exception as error:  # noqa: BLE001 - told apart by what became of the step
                    status, text = BROKEN_OFF, repr(error)
                for job in self.jobs:
                    job.join()
                self.app.state.import_threads.join()
        failed = [repr(job.error) for job in self.jobs if job.error is not None]
        return Answer(status, "; then ".join([text, *failed]), tuple(failed), steps)

    def normal(self, asked: Asked) -> Normal:
        if asked not in self._normal:
            self.world.reset()
            before = self.world.view()
            answer = self.ask(asked)
            assert answer.is_success, f"{asked}: {answer}"
            self.world.check_whole()
            after = self.world.view()
            assert before == after or not asked.reads, asked
            self._normal[asked] = Normal(before, after, tuple(answer.steps.places))
        return self._normal[asked]


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Requests]:
    world = made_world(tmp_path_factory.getbasetemp() / "small")
    with in_world(world) as program, pytest.MonkeyPatch.context() as patched:
        # A directory signs nothing; these URLs lead nowhere.
        patched.setattr(LocalStorage, "sign_put", lambda _, address, **__: f"signed:{address}")
        yield Requests(program, patched)


def test_every_route_has_a_request(requests: Requests) -> None:
    """By the application's own routes, which its description is made of."""
    with Store.open(requests.world.store, settings=Settings()) as store:
        routes = guarded_routes(create_app(store))
    asked = set[tuple[str, str]]()
    for each in ASKED:
        path = httpx.URL(PREFIX + each.place(requests.world.names)).path
        found = (
            route
            for route in routes
            if each.method in (route.methods or ()) and route.path_regex.match(path)
        )
        asked.add((each.method, next(found).path_format))
    assert asked == {(method, r.path_format) for r in routes for method in r.methods or ()}


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.drawn("steps of routes")
def test_each_step_of_a_route(requests: Requests, asked: Asked) -> None:
    for fault in faults_of(requests, asked):
        try_one(requests, asked, fault)


@randomized("steps of routes, by chance")
def test_a_step_of_a_route(requests: Requests, seed: int) -> None:
    try_by_chance(requests, ASKED, seed)


FOUND: Final[tuple[tuple[str, str, Kind], ...]] = (
    # An answer whose rest could not be read was told of in the log as a defect.
    ("GET /locators/", r"stream .*, the rest", "fails"),
    ("GET /repositories/lake/refs/main/objects?", r"stream .*, the rest", "fails"),
    # So was a purge whose end could not be kept, and a list for other collectors.
    ("POST /repositories/lake/purges", r"commit", "down"),
    ("POST /repositories/lake/gc/prepare_commits/async", r"put _ebbtide/gc/exports", "down"),
)
"""What was told wrongly once: the beginning of a request, its steps, what befalls them."""


@pytest.mark.parametrize(("words", "place", "kind"), FOUND)
def test_what_was_found(requests: Requests, words: str, place: str, kind: Kind) -> None:
    asked = next(each for each in ASKED if str(each).startswith(words))
    found = faults_at(requests.normal(asked).places, place, kind)
    for fault in found[-2:]:
        try_one(requests, asked, fault)


def faults_of(requests: Requests, asked: Asked) -> list[Fault]:
    """Nobody types Ctrl-C at a request."""
    found = faults(requests.normal(asked).places)
    return [fault for fault in found if not fault.kind.startswith("interrupted")]


def try_by_chance(requests: Requests, calls: Sequence[Asked], seed: int) -> None:
    chances = Random(seed)
    asked = chances.choice(calls)
    found = faults_of(requests, asked)
    if found:
        try_one(requests, asked, chances.choice(found))


def try_one(requests: Requests, asked: Asked, fault: Fault) -> None:
    """A fault befalls a request; then it is made again."""
    world, normal = requests.world, requests.normal(asked)
    world.reset()
    data = world.data()
    answer = requests.ask(asked, fault)
    what = f"{asked}\n{fault.kind} at {answer.steps.hit}\n{answer}"
    check_answer(asked, answer, what)
    view = world.view()
    if asked.reads:
        assert view == normal.before, what
    if answer.status in (400, 404, 409) or "othing was" in answer.text:
        assert without_runs(view) == without_runs(normal.before), what
        assert data <= world.data(), what
    if answer.is_success and not has_job(asked):
        assert is_done(view, normal.after, asked.adds), what
    world.check_whole()
    world.end_process()
    again = requests.ask(resumed(requests, asked))
    what = f"{what}\nthen: {again}"
    assert again.is_success or again.tells(asked.done), what
    assert is_done(world.view(), normal.after, asked.adds), what
    world.check_whole()


def resumed(requests: Requests, asked: Asked) -> Asked:
    """Returns the same request, or the request that resumes a purge that stopped after its plan:
    the purge has closed its objects, and they are not found any more. A request for a plan alone
    stays the same."""
    if not asked.url.endswith("/purges") or asked.content is None:
        return asked
    reason = json.loads(asked.content)["reason"]
    is_plan = ("lake", "planned", reason) in requests.normal(asked).after["purges"]
    stopped = [] if is_plan else requests.world.stopped_purges(reason)
    if not stopped:
        return asked
    body = json.dumps({"confirmation": asked.in_repository}).encode()
    return replace(asked, url=f"{asked.url}/{stopped[0]}/resume", content=body)


def has_job(asked: Asked) -> bool:
    """Whether the work goes on after the answer."""
    kinds = ("/runs", "/purges", "/import", "/repositories/lake/restore")
    return asked.method == "POST" and any(kind in asked.url for kind in kinds)


def check_answer(asked: Asked, answer: Answer, what: str) -> None:
    """It is one of the documented ones; what breaks off is the bytes of an object."""
    assert not answer.defects, what
    if answer.status == BROKEN_OFF:
        assert asked.method == "GET" and (
            "/objects?" in asked.url or "/content" in asked.url or "/locators/" in asked.url
        ), what
        assert answer.text == repr(AssertionError()), "it is not ended: " + what
        return
    if answer.status >= 400 and answer.is_page:
        assert answer.status in STATUS.values() and 'role="alert"' in answer.text, what
        assert "a defect in this program" not in answer.text, what
    elif answer.status >= 400 and asked.method != "HEAD":
        assert answer.kind != DEFECT, what
        assert STATUS[answer.kind] == answer.status, what
        assert json.loads(answer.text)["message"], what


BEFORE_IT_STARTS: Final = {"no store", "a newer schema", "a database that is none"}
"""In these states nobody can be served: `ebbtide serve` says so."""
STATES: Final = [state for state in SPOILED if state not in BEFORE_IT_STARTS]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.drawn("refusals of routes")
def test_each_route_in_a_state(requests: Requests, state: str) -> None:
    for asked in ASKED:
        try_state(requests, asked, state)


@randomized("refusals of routes, by chance")
def test_a_route_that_refuses(requests: Requests, seed: int) -> None:
    chances = Random(seed)
    try_state(requests, chances.choice(ASKED), chances.choice(STATES))


def try_state(requests: Requests, asked: Asked, state: str) -> None:
    world = requests.world
    world.reset()
    SPOILED[state](world, asked.in_repository)
    before, data = world.view(), world.data()
    answer = requests.ask(asked)
    what = f"{asked} where there is {state}\n{answer}"
    check_answer(asked, answer, what)
    if answer.status >= 400:
        assert without_runs(world.view()) == without_runs(before), what
        assert data <= world.data(), what
