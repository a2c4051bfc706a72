"""The stage of an Icechunk repository: what its clients, runs and expiries do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Final

from ebbtide.gc.hold import expire as carry_out
from ebbtide.retention.expiry import ExpiryRequest
from tests.simulation import runs
from tests.simulation.bucket import ON_COPY
from tests.simulation.choosing import Nothing, named
from tests.simulation.histories import MINUTE, Vocabulary
from tests.simulation.icechunk.client import Client, FirstClient
from tests.simulation.icechunk.world import (
    GRACE,
    OPTIONS,
    PREFIX,
    IcechunkWorld,
    Known,
    Promise,
    State,
)
from tests.simulation.runs import RepositoryStage, RunAct, open_repository
from tests.simulation.scheduler import Violation
from tests.simulation.simulation import Simulation
from tests.simulation.world import QUARANTINE, RUN_LEASE, SETTLED

ARRAYS: Final = ("a", "b")
ROUNDS: Final = 3
"""Runs, a long time apart, until nothing is left: version 1 waits for a grace from the first on."""


@dataclass(slots=True, kw_only=True)
class Act(RunAct):
    world: IcechunkWorld
    known: Known
    client: Client = field(init=False)
    quarantine: timedelta = QUARANTINE

    def __post_init__(self) -> None:
        self.client = self.world.client(self.known)

    def is_damage(self, kind: str) -> bool:
        # A run that slept for hours looks for a copy that another one took since.
        is_damage = kind.startswith(("missing_", "corrupt_")) and kind != "missing_backup"
        return is_damage and not self.known.spoilt

    def snapshot(self) -> str:
        """What a branch points at, or its parent, or the parent of that."""
        found = self.client.head(self.pick(self.known.branches, 0))
        for _ in range(self.numbers[1] % 3):
            found = self.client.parent(found) or found
        return found


# Clients


def create(act: Act) -> object:
    return act.client.create()


def write(act: Act) -> object:
    """A session that writes some chunks and commits."""
    branch = act.pick(act.known.branches, 0)
    base = act.client.head(branch)
    content = act.client.write(base, act.pick(ARRAYS, 1))
    act.client.commit(branch, base, content)
    return content.snapshot_id


def read(act: Act) -> object:
    """A session that reads for as long as the grace."""
    until = act.world.clock.now + GRACE
    snapshot_id = act.snapshot()
    keys = frozenset(PREFIX + each for each in act.known.contents[snapshot_id].read)
    act.known.promises[f"session {act.number} on {snapshot_id}"] = Promise(keys, until)
    return f"{snapshot_id} until {until}"


def branch(act: Act) -> object:
    name, source = f"branch-{act.number}", act.snapshot()
    act.client.create_ref("branch", name, source)
    act.known.branches.append(name)
    return source


def tag(act: Act) -> object:
    """Make a tag, or delete one."""
    if act.known.tags and act.numbers[2] % 3 == 0:
        name = act.newest(act.known.tags, 0)
        act.known.tags.remove(name)
        act.client.delete_ref("tag", name)
        return name
    name, source = f"tag-{act.number}", act.snapshot()
    act.client.create_ref("tag", name, source)
    act.known.tags.append(name)
    return source


def reset(act: Act) -> object:
    """Make a branch point at what another one has, or at an older snapshot."""
    source = act.snapshot()
    act.client.reset(act.pick(act.known.branches, 2), source)
    return source


def delete_branch(act: Act) -> object:
    name = act.newest(act.known.branches[1:], 0)
    act.known.branches.remove(name)
    act.client.delete_ref("branch", name)
    return name


def upgrade(act: Act) -> object:
    """To version 2. Nobody should have a session meanwhile, but reading ones go on."""
    if not isinstance(act.client, FirstClient):
        raise Nothing
    act.client.upgrade()
    return "version 2"


# Runs


def expire(act: Act) -> object:
    """Cut histories."""
    now = act.world.clock.now
    kind = act.numbers[0] % 4
    request = ExpiryRequest.of(
        now=now,
        sessions=GRACE,
        older_than=None if kind == 0 else now - GRACE * kind,
        rule={"keep_last": 1} if kind == 0 else None,
        delete_refs=("branch", "tag") if kind == 3 else (),
    )
    _, made = carry_out(act.world.repository(), request, OPTIONS)
    return sorted(made.released)


OPERATIONS: Final[Mapping[str, Callable[[Act], object]]] = {
    **runs.OPERATIONS,
    **named(
        *(create, write, read, branch, tag, reset, delete_branch, upgrade, expire),
    ),
}

ICECHUNK: Final = Vocabulary(
    themes={
        ("read",): 4,
        ("branch", "delete branch"): 4,
        ("reset",): 4,
        ("read", "reset"): 3,
        ("tag",): 2,
        ("expire",): 4,
        ("expire", "branch"): 2,
        ("expire", "read"): 2,
        **runs.THEMES,
        ("upgrade",): 1,
        ("reset", "upgrade"): 1,
        ("run aside", "upgrade", "undo"): 1,
    },
    always="write",
    last=("run",),
    sleeps=(
        *(timedelta(0),) * 2,
        *(RUN_LEASE + timedelta(seconds=1),) * 2,
        GRACE * 0.4,
        GRACE * 0.9,
        GRACE * 0.9,
        GRACE + MINUTE,
    ),
    first=("create", "write", "write", "write"),
    more=("branch", "write", "run", "tag", "expire", "reset", "run", "plan"),
    late="write",
    tours={
        0: ("read", "branch", "write", "tag", "tag", "reset", "delete branch"),
        1: ("branch", "reset", "delete branch", "plan", "sweep", "undo", "expire", "run"),
        2: ("expire", "run aside", "undo", "run aside", "purge aside", "run", "upgrade"),
        3: ("run aside", "copy repository", ON_COPY, "move", "undo"),
    },
    instead={"delete branch": "branch", **runs.INSTEAD},
)


class IcechunkStage(RepositoryStage[Known]):
    vocabulary = ICECHUNK
    acts = Act
    operations = OPERATIONS

    world: IcechunkWorld

    @cached_property
    def empty(self) -> State:
        return State(self.world.clock.now, {})

    def knowing(self) -> Known:
        return Known()

    def settle(self, known: Known) -> None:
        if known.spoilt:
            return
        for _ in range(ROUNDS):
            self.world.clock.now += SETTLED
            report = self.last_run()
            if (report.error or {}).get("kind") == "repository_mixed":
                return  # an upgrade that broke off, beside a client of version 1
            self.require_swept(report, known)
        if left := self.world.left(known):
            raise Violation("left", f"nobody needs {', '.join(left)}")


def open_simulation(spec_version: int) -> AbstractContextManager[Simulation]:
    """A simulation of a repository in memory."""
    world = IcechunkWorld(spec_version)
    return open_repository(IcechunkStage(world), world)
