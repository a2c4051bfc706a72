"""Every command in every state in which it should refuse, and with every name wrong: one of the
documented exit codes, words for people, and nothing changed.

`calls.py` says how each command is called, `tests/support/spoiling.py` what the states are. A
commit tries some, drawn by chance; a long run, or whoever names the tests, tries all.
"""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from tests.cli.calls import CALLS, Call
from tests.cli.test_steps import QUOTED, Calls, check_document, check_named
from tests.cli.test_steps import calls as calls
from tests.support.program import Result
from tests.support.randomized import randomized
from tests.support.small_world import without_runs
from tests.support.spoiling import SPOILED

pytestmark = pytest.mark.xdist_group("small world")  # which is made once

WRONG: Final = (
    *("no-such-thing", "", "..", "a//b", "/", "-", "@", ":", "main~99", "x" * 5000),
    *("0" * 32, "ü", "\udcff", "a\nb", "{}", "icechunk:", "icechunk:/nowhere", "s3://"),
    *("memory:x", "-1", "9" * 30),
)
"""In place of each argument."""


@pytest.mark.parametrize("state", SPOILED)
@pytest.mark.drawn("refusals of commands")
def test_each_command_in_a_state(calls: Calls, state: str) -> None:
    for number, call in enumerate(CALLS):
        try_state(calls, call, state, Random(number))


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.drawn("refusals of commands")
def test_each_argument_of_a_command(calls: Calls, call: Call) -> None:
    for place in range(len(call.command.split()) - 1, len(call.arguments(calls.world.names))):
        for number, wrong in enumerate(WRONG):
            try_argument(calls, call, place, wrong, Random(number))


@randomized("refusals of commands, by chance")
def test_a_command_that_is_refused(calls: Calls, seed: int) -> None:
    chances = Random(seed)
    call = chances.choice(CALLS)
    words = call.arguments(calls.world.names)
    places = range(len(call.command.split()) - 1, len(words))
    if not places or chances.random() < 0.5:
        try_state(calls, call, chances.choice(list(SPOILED)), chances)
    else:
        try_argument(calls, call, chances.choice(places), chances.choice(WRONG), chances)


def try_state(calls: Calls, call: Call, state: str, chances: Random) -> None:
    world = calls.world
    world.reset()
    SPOILED[state](world, call.in_repository or "lake")
    check(calls, call.arguments(world.names), f"{call} where there is {state}", chances)


def try_argument(calls: Calls, call: Call, place: int, wrong: str, chances: Random) -> None:
    calls.world.reset()
    words = call.arguments(calls.world.names)
    words[place] = wrong
    check(calls, words, f"{words!r:.2000}", chances)


def check(calls: Calls, words: list[str], what: str, chances: Random) -> None:
    world = calls.world
    before, data = world.view(), world.data()
    as_json = chances.random() < 0.5
    result: Result = calls.program([*words, "--json"] if as_json else words)
    what = f"{what}\n{result}"
    for word in ("Traceback", "a defect", "Exception ignored"):
        assert word not in result.err + result.out, what
    assert result.code in (0, 1, 2, 3, 4), what
    if result.code == 0:
        return
    # Of what verifies, the differences are the answer.
    assert result.err or "verify" in words, what
    assert len(result.err) < 3000, what
    if as_json and result.out:
        check_document(result, what)
    for named in QUOTED.findall(result.err):
        check_named(named, what)
    if result.code != 4:
        assert without_runs(world.view()) == without_runs(before), what
        assert data <= world.data(), what
