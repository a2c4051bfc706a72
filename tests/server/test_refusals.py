"""Every route in every state in which it should refuse: the documented status, words for people,
and nothing changed. Who may not ask is refused in `test_roles.py`.

`calls.py` says how each route is called, `tests/support/spoiling.py` what the states are.
"""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from tests.server.calls import ASKED, Asked
from tests.server.test_steps import Requests, check_answer
from tests.server.test_steps import requests as requests
from tests.support.randomized import randomized
from tests.support.small_world import without_runs
from tests.support.spoiling import SPOILED

pytestmark = pytest.mark.xdist_group("small world")  # which is made once

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
