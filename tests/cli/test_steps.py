"""Every command, each of whose steps fails or is interrupted: what is said is true, and the same
call, or the one that is named, goes on from there.

`calls.py` says how each command is called; a step is a call of the storage, a statement or commit
of the database, a write to stdout or to a file. A commit tries some, drawn by chance; a long run,
or whoever names the tests, tries all.
"""

from __future__ import annotations

import gc
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

import pytest
import typer

from ebbtide.errors import KINDS as ERROR_KINDS
from tests.cli.calls import CALLS, COMMANDS, Call
from tests.cli.test_examples import check as check_command_line
from tests.support.program import Program, Result, in_world, made_world
from tests.support.randomized import randomized, sample
from tests.support.small_world import View, is_done, without_runs
from tests.support.steps import Fault, Kind, Place, faults, faults_at
from tests.test_errors import documented

CODES: Final[dict[str, set[int]]] = {}
for (_, known_kind), (exit_code, *_others) in documented().items():
    CODES.setdefault(known_kind, set()).add(exit_code)
INTERRUPTED: Final = 130
CLAIMS: Final = re.compile(r"[Nn]othing was (changed|stored|written|deleted)")
NAMED: Final = re.compile(r"(?:Continue with|Start it again with): (ebbtide .*)$", re.MULTILINE)
TOLD: Final = r"^(error: |[Ii]nterrupted)"
QUOTED: Final = re.compile(r"'ebbtide ([a-z][^']*)'")
CLEAN: Final = ("--mode", "clean", "--grace", "1s", "--unsafe", "--yes")
NO_DOCUMENT: Final = ("fs cat", "fs get lake dirty", "collection get lake p/c source")
"""What writes bytes to stdout."""


# What an interrupt leaves open ends with a process, which here goes on.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.xdist_group("small world"),
]


@dataclass(frozen=True)
class Normal:
    before: View
    after: View
    files: frozenset[str]
    places: tuple[Place, ...]


class Calls:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.world = program.world
        self._normal: dict[Call, Normal] = {}

    def done(self, call: Call) -> Result:
        """What the call answers where nothing befalls it: one document, and nothing else."""
        as_json = not call.words.startswith(NO_DOCUMENT)
        result = self.program([*call.arguments(self.world.names), *["--json"] * as_json])
        assert (result.code, result.err) == (0, ""), result
        if as_json:
            check_document(result, str(result))
        return result

    def normal(self, call: Call) -> Normal:
        if call not in self._normal:
            self.world.reset()
            before = self.world.view()
            told = self.done(call)
            self.world.check_whole()
            after = self.world.view()
            assert before == after or not call.reads, call
            self._normal[call] = Normal(
                before, after, frozenset(self.world.files()), tuple(told.steps.places)
            )
        return self._normal[call]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    world = made_world(tmp_path_factory.getbasetemp() / "small")
    with in_world(world) as program:
        yield Calls(program)
    # Here, where its warnings are ignored, not amid the next module's tests.
    gc.collect()


def test_every_command_has_a_call() -> None:
    assert {call.command for call in CALLS} == COMMANDS


def test_answers_are_documents(calls: Calls) -> None:
    """All of what reads, and some others, by chance."""
    calls.world.reset()
    for call in CALLS:
        if call.reads:
            calls.done(call)
    for call in sample("documents", [each for each in CALLS if not each.reads], 12):
        calls.normal(call)


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.drawn("steps of commands")
def test_each_step_of_a_command(calls: Calls, call: Call) -> None:
    for fault in faults(calls.normal(call).places):
        try_one(calls, call, fault, Random(fault.number))


@randomized("steps of commands, by chance")
def test_a_step_of_a_command(calls: Calls, seed: int) -> None:
    chances = Random(seed)
    call = chances.choice(CALLS)
    try_one(calls, call, chances.choice(faults(calls.normal(call).places)), chances)


FOUND: Final[tuple[tuple[str, str, Kind], ...]] = (
    # A storage that failed in a task of a run was told of as a gate's refusal.
    ("gc plan lake --grace", r"get _ebbtide/ranges", "fails"),
    # One that failed while a commit was looked at left the commit closed for good.
    ("gc undo swept {run}", r"get _ebbtide/trees", "fails"),
    # A purge that broke off behind its plan did not say how to go on.
    ("purge run lake --reason now", r"list _ebbtide/purges", "fails"),
    # Whoever only looked was led to what deletes.
    ("purge run lake --reason look", r"replace _ebbtide/OWNER", "interrupted"),
    # A record that could not be read was told of as one that is not as it should be.
    ("purge verify", r"get _ebbtide/purges", "fails"),
    # What was made though the answer got lost was in the way the next time, or lacked its tree.
    ("repo create fresh --expires-in", r"put _ebbtide/OWNER", "late"),
    ("repo create fresh --expires-in", r"commit", "late"),
    ("repo create fresh --expires-in", r"get_versioned _ebbtide/OWNER", "down"),
    # That an answer was lost was no error of stdout's.
    ("key create", r"write", "fails"),
    ("fs get lake main a out/a", r"write", "fails"),
    ("init {work}/fresh", r"mkdir", "fails"),
    # Whoever interrupted what came behind the report was sent to sweep a run that was swept.
    ("gc run lake --grace", r"BEGIN", "interrupted behind"),
    # A purge whose deletes failed ended with exit code 4, and no error.
    ("purge run swept --reason whole", r"delete _ebbtide/gc/EPOCH", "fails"),
)
"""What was found to be told wrongly once: the beginning of a call, its steps, what befalls them."""


@pytest.mark.parametrize(("words", "place", "kind"), FOUND)
def test_what_was_found(calls: Calls, words: str, place: str, kind: Kind) -> None:
    call = next(each for each in CALLS if each.words.startswith(words))
    found = faults_at(calls.normal(call).places, place, kind)
    # The seeds choose both forms: with a document and without.
    for seed in (0, 1):
        try_one(calls, call, found[-1 - seed % len(found)], Random(seed))


def try_one(calls: Calls, call: Call, fault: Fault, chances: Random) -> None:
    """A fault befalls a call; then it is made again."""
    world = calls.world
    calls.normal(call)
    world.reset()
    data = world.data()
    arguments = call.arguments(world.names)
    as_json = not call.words.startswith(NO_DOCUMENT) and chances.random() < 0.5
    given = [*arguments, *["--json"] * as_json]
    result = calls.program(given, fault, unbuffered=chances.random() < 0.5)
    what = f"{shlex.join(given)}\n{fault.kind} at {result.steps.hit}\n{result}"
    if result.steps.hit is None:
        assert result.code == 0, what
        return
    check_told(call, result, fault, as_json=as_json, what=what)
    check_state(calls, call, result, data, what)
    left_something = world.data() != data or world.view() != calls.normal(call).before
    world.end_process()
    go_on(calls, call, arguments, result, what, left_something=left_something)


def check_told(call: Call, result: Result, fault: Fault, *, as_json: bool, what: str) -> None:
    """The exit code, and the form of what is said."""
    # A server ends when it is interrupted.
    codes_of_interrupts = (INTERRUPTED, 0) if call.words.startswith("serve") else (INTERRUPTED,)
    for word in ("Traceback", "a defect", "Exception ignored"):
        assert word not in result.err + result.out, what
    assert result.steps.hit is not None
    service = result.steps.hit.service
    nobody_reads = service == "stdout" and fault.kind == "down"
    if fault.kind.startswith("interrupted"):
        assert result.code in codes_of_interrupts, what
    elif service == "stdout":
        assert result.code == 1, what
    else:
        assert result.code in (0, 1, 3, 4), what
    if result.code != 0:
        assert nobody_reads != bool(re.search(TOLD, result.err, re.MULTILINE)), what
    if as_json and service != "stdout":
        check_document(result, what)
    for words in QUOTED.findall(result.err):
        check_named(words, what)


def check_document(result: Result, what: str) -> None:
    document = json.loads(result.out) if result.out else {}
    assert document or result.code, what
    error = document.get("error")
    if error:
        assert error["kind"] in ERROR_KINDS, what
        assert error["kind"] == "interrupted" or result.code in CODES[error["kind"]], what


def check_named(words: str, what: str) -> None:
    if words.endswith(" --help"):
        return  # which every command has
    try:
        check_command_line([*shlex.split(words), "…"])
    except typer.TyperException as error:
        pytest.fail(f"{error}\n{what}")


def check_state(calls: Calls, call: Call, result: Result, data: set[str], what: str) -> None:
    """What is said of the state is so; nobody lost anything."""
    world, normal = calls.world, calls.normal(call)
    view = world.view()
    told = CLAIMS.findall(result.err)
    if result.code in (2, 3) or {"changed", "stored", "written"} & set(told):
        assert without_runs(view) == without_runs(normal.before), what
    if "deleted" in told:
        assert data <= world.data(), what
    if call.reads:
        assert view == normal.before, what
    if result.code == 0:
        assert is_done(view, normal.after, call.adds), what
        assert world.files().keys() == normal.files, what
    assert not [name for name in world.files() if name.endswith(".partial")], what
    assert result.steps.hit is not None
    if result.steps.hit.service != "database":
        assert not world.is_held(), what
    world.check_whole()


def go_on(
    calls: Calls,
    call: Call,
    arguments: list[str],
    result: Result,
    what: str,
    *,
    left_something: bool,
) -> None:
    """The command that was named, or the same call, brings all to its end; and a run that looks at
    everything takes nothing that anybody needs, where something was left behind."""
    world, normal = calls.world, calls.normal(call)
    named = NAMED.search(result.err)
    again = shlex.split(named[1])[1:] if named else arguments
    if result.code == 0 and call.adds:
        return
    repeated = calls.program(again)
    what = f"{what}\nthen: {shlex.join(again)}\n{repeated}"
    if repeated.code != 0:
        shown = calls.program([*again, "--json"])
        kind = json.loads(shown.out).get("error", {}).get("kind")
        assert kind in call.done, what
    assert is_done(world.view(), normal.after, call.adds), what
    world.check_whole()
    if left_something and call.in_repository == "lake" and "repo delete" not in call.words:
        world.age()
        run = calls.program(["gc", "run", "lake", *CLEAN])
        assert run.code == 0, f"{what}\nthen: {run}"
        world.check_whole()
