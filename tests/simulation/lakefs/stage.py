"""The stage of a lakeFS repository: what its clients, administrators and runs do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, TypeVar

from ebbtide.errors import NotFound
from ebbtide.formats.lakefs.repository import TOKEN_TTL
from ebbtide.formats.lakefs.server import AnsweredRules
from ebbtide.formats.notes import POLICY_ADDRESS
from ebbtide.gc.plan import Plan
from ebbtide.gc.report import RunReport
from tests.simulation import runs
from tests.simulation.bucket import ON_COPY
from tests.simulation.choosing import named
from tests.simulation.histories import Vocabulary
from tests.simulation.lakefs.world import DAY, DAYS, PARTITION, Known, LakefsWorld, Moment
from tests.simulation.runs import RepositoryStage, RunAct, open_repository
from tests.simulation.scheduler import Violation
from tests.simulation.simulation import Simulation
from tests.simulation.world import RUN_LEASE

PATHS: Final = ("a", "b", "c")
HOURS: Final = 48
"""What an hour of a history means here: rules count days."""
QUARANTINE: Final = 2 * DAY
SETTLED: Final = 30 * DAY
ROUNDS: Final = 3
POLICIES: Final = ({"default": "3d", "tags": "1d"}, {"default": "1d", "tags": "3d"})

_Answer = TypeVar("_Answer")


@dataclass(slots=True, kw_only=True)
class Act(RunAct):
    """An operation under way. `commits` are those that the server had when it began."""

    world: LakefsWorld
    known: Known
    commits: frozenset[str] = field(init=False)
    quarantine: timedelta = QUARANTINE

    def __post_init__(self) -> None:
        self.commits = frozenset(self.world.state.commits)

    def branch(self, place: int = 0) -> str:
        return self.pick([*self.world.state.branches], place)

    def commit(self, place: int = 0) -> str:
        """Any commit that the server knows, perhaps an expired one."""
        return self.pick([*self.world.state.commits], place)

    def serve(self, what: str, work: Callable[[], _Answer]) -> _Answer:
        """One request of a client."""
        return self.world.scheduler.call(
            f"serve {what}", lambda: self.world.changing(self.known, work)
        )

    def data(self, place: int) -> bytes:
        """The bytes of an object, sometimes those that others have too."""
        same = self.numbers[place] % 3 == 0
        return b"the same" if same else f"of {self.number}".encode()

    def planned(self, plan: Plan | RunReport) -> None:
        self.known.runs.append(plan.run_id)
        self.known.plans[plan.run_id] = self.commits

    def is_damage(self, kind: str) -> bool:
        return kind.startswith(("missing_tree", "missing_node", "corrupt_"))

    def told(self, report: RunReport) -> str:
        said = RunAct.told(self, report)
        if report.state == "swept" and report.run_id in self.known.plans:
            self.known.swept = self.known.plans[report.run_id]
        return said


# Clients


def save(act: Act) -> object:
    """Upload one object or two, delete one perhaps, and commit."""
    state, branch = act.world.state, act.branch()
    for offset in range(1 + act.numbers[1] % 2):
        _upload(act, branch, PATHS[(act.numbers[2] + offset) % len(PATHS)])
    if act.numbers[3] % 3 == 0:
        gone = PATHS[act.numbers[2] % len(PATHS)]
        act.serve("delete", lambda: state.delete(_there(act, branch), gone))
    made = act.serve("commit", lambda: state.commit(_there(act, branch)))
    act.known.made.append(made)
    act.known.expire_at.append(act.world.clock.now + DAYS * DAY)
    return made


def _there(act: Act, branch: str) -> str:
    """A branch that may have been deleted meanwhile."""
    if branch not in act.world.state.branches:
        raise NotFound("branch_not_found", branch)
    return branch


def _upload(act: Act, branch: str, path: str) -> None:
    data, since = act.data(3), act.world.clock.now
    given = _address(act)
    act.world.state.storage.put(given, data)
    _link(act, branch, path, (given, since), data)


def _link(act: Act, branch: str, path: str, given: tuple[str, datetime], data: bytes) -> None:
    """As long as the token of the address is good. An upload through the server takes no longer."""
    address, since = given

    def linked() -> object:
        if act.world.clock.now - since >= TOKEN_TTL:
            raise NotFound("object_not_found", f"the token of {address} has ended")
        return act.world.state.link(_there(act, branch), path, address, data)

    act.serve("link", linked)


def _address(act: Act) -> str:
    state, clock = act.world.state, act.world.clock
    if clock.now - act.world.rotated_at > PARTITION:
        state.rotate()
        act.world.rotated_at = clock.now
    return state.address()


def stage(act: Act) -> object:
    """Upload an object and leave it uncommitted, or drop what is staged."""
    branch, state = act.branch(), act.world.state
    if act.numbers[1] % 4 == 0:
        return act.serve("reset", lambda: state.branches[_there(act, branch)].staged.clear())
    _upload(act, branch, act.pick(PATHS, 2))
    return None


def give(act: Act) -> object:
    """Get an address, and upload there."""
    given = _address(act)
    act.world.state.storage.put(given, b"given")
    act.known.given.append((given, act.world.clock.now))
    return given


def link(act: Act) -> object:
    """Link what was uploaded before."""
    given = act.newest(act.known.given, 1)
    act.known.given.remove(given)  # a token links once
    _link(act, act.branch(), act.pick(PATHS, 2), given, b"given")
    return given[0]


def branch(act: Act) -> object:
    source, state = act.branch(), act.world.state
    act.serve("branch", lambda: state.branch(f"branch-{act.number}", _there(act, source)))
    return source


def branch_back(act: Act) -> object:
    """Make a branch from any commit, most often an expired one."""
    source, state = act.commit(), act.world.state
    act.serve("branch", lambda: state.branch(f"branch-{act.number}", _known(act, source)))
    return source


def _known(act: Act, commit_id: str) -> str:
    """A commit that a restored server may not know any more."""
    if commit_id not in act.world.state.commits:
        raise NotFound("commit_not_found", commit_id)
    return commit_id


def tag_back(act: Act) -> object:
    """Tag any commit, or delete a tag."""
    state = act.world.state
    if state.tags and act.numbers[1] % 3 == 0:
        name = act.newest([*state.tags], 0)
        act.serve("untag", lambda: state.tags.pop(name, None))
        return name
    source = act.commit()

    def tagged() -> None:
        state.tags[f"tag-{act.number}"] = _known(act, source)

    act.serve("tag", tagged)
    return source


def delete_branch(act: Act) -> object:
    name, state = act.newest([*act.world.state.branches][1:], 0), act.world.state
    act.serve("unbranch", lambda: state.branches.pop(name, None))
    return name


def hard_reset(act: Act) -> object:
    """Move a branch to any commit."""
    branch, source, state = act.branch(), act.commit(1), act.world.state
    act.serve("move", lambda: state.reset(_there(act, branch), _known(act, source)))
    return source


def merge(act: Act) -> object:
    """Merge a branch into another one, or revert a commit."""
    branch, state = act.branch(), act.world.state
    source = act.commit(1)
    work = state.revert if act.numbers[2] % 2 else state.merge
    return act.serve("merge", lambda: work(_there(act, branch), _known(act, source)))


# Administrators


def policy(act: Act) -> object:
    """Other rules of lakeFS, or a policy by which tags expire."""
    world, kind = act.world, act.numbers[0] % 4
    if kind < len(POLICIES):
        data = json.dumps(POLICIES[kind]).encode()
        return act.serve("policy", lambda: world.state.storage.put(POLICY_ADDRESS, data))

    def ruled() -> None:
        world.state.storage.delete([POLICY_ADDRESS])
        world.state.rules = AnsweredRules((DAYS, 1)[kind - len(POLICIES)], {})

    return act.serve("rules", ruled)


def back_up(act: Act) -> object:
    """Save the server's database, which goes on."""
    act.world.backups.append(act.world.state.backup())
    return save(act)


def restore(act: Act) -> object:
    """The server has a database that was saved before; or what it had before that once more."""
    world, known = act.world, act.known
    if world.lost is not None and act.numbers[1] % 2:
        before, world.lost = world.lost, None
        act.serve("true database", lambda: world.state.restore(before))
        known.pinned.clear()
        return "what it was"
    backup = act.newest(world.backups, 0)
    world.lost = world.lost or world.state.backup()
    world.look(known)
    commits = world.state.commits
    gone = known.swept - backup.commits.keys()
    has = (
        {entry.address for each in gone for entry in commits[each].entries.values()}
        if all(each in commits for each in gone)
        else set[str]()
    )
    known.pinned |= known.safe & has
    act.serve("old database", lambda: world.state.restore(backup))
    return f"without {len(gone)} commits that the last swept plan knew"


OPERATIONS: Final[Mapping[str, Callable[[Act], object]]] = {
    **runs.OPERATIONS,
    **named(
        *(save, stage, give, link, branch, branch_back, tag_back, delete_branch),
        *(hard_reset, merge, policy, back_up, restore),
    ),
}

LAKEFS: Final = Vocabulary(
    themes={
        **runs.THEMES,
        ("stage",): 2,
        ("give", "link"): 2,
        ("branch", "delete branch"): 2,
        ("hard reset",): 2,
        ("merge",): 2,
        ("policy", "tag back"): 3,
        ("plan", "branch back", "sweep"): 3,
        ("run aside", "branch back", "run"): 4,
        ("run aside", "tag back", "purge aside"): 2,
        ("back up", "run", "restore"): 8,
    },
    always="save",
    last=("run", "run", "run aside"),
    sleeps=(
        *(timedelta(0),) * 2,
        *(RUN_LEASE + timedelta(seconds=1),) * 2,
        DAY / 2,
        DAY * 2,
        DAY * 4,
    ),
    first=("policy", "save", "save", "save"),
    more=("branch", "save", "run", "tag back", "delete branch", "stage", "run aside", "save"),
    late="save",
    tours={
        0: ("stage", "give", "link", "branch", "save", "tag back", "hard reset", "merge"),
        1: ("branch", "delete branch", "plan", "sweep", "undo", "policy", "run"),
        2: ("run aside", "branch back", "run aside", "undo", "run aside", "purge aside", "run"),
        3: ("run aside", "copy repository", ON_COPY, "move", "undo"),
        4: ("back up", "run", "restore", "restore"),
    },
    instead={"link": "give", "delete branch": "branch", "restore": "back up", **runs.INSTEAD},
    hours=HOURS,
)


class LakefsStage(RepositoryStage[Known]):
    vocabulary = LAKEFS
    acts = Act
    operations = OPERATIONS

    world: LakefsWorld

    @cached_property
    def empty(self) -> Moment:
        return self.world.remember()

    def knowing(self) -> Known:
        return Known()

    def settle(self, known: Known) -> None:
        """See `Stage.settle`. What is needed and is gone is named by each run until it is back, and
        comes back from a quarantine that has it."""
        world = self.world
        world.look(known)
        aside = {each for each in world.missing(world.needed()) if world.has(each)}
        for _ in range(ROUNDS):
            world.clock.now += SETTLED
            world.state.rotate()
            report = self.last_run()
            if world.lost_commits(known):
                if report.state != "refused":
                    raise Violation("restored", f"the server lost commits, and {report.run_id} ran")
                return
            self.require_swept(report, known)
            gone = world.missing(world.needed())
            told = json.dumps(report.to_json())
            for address in sorted(gone):
                if address not in told:
                    raise Violation("told", f"{address} is needed and gone, and no run says so")
            if still := gone & aside:
                raise Violation("aside", f"{min(still)} was aside, and is not back")
        if left := world.left():
            raise Violation("left", f"nobody needs {', '.join(left)}")


def open_simulation() -> AbstractContextManager[Simulation]:
    """A simulation of a repository in memory."""
    world = LakefsWorld()
    return open_repository(LakefsStage(world), world)
