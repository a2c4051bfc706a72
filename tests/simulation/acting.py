"""An operation under way: what its answer promises, and what it should do exactly.

Not for: the operations themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from ebbtide.errors import EbbtideError
from ebbtide.store.repository import Repository
from tests.simulation.choosing import Chances
from tests.simulation.definition import State, check_closed, check_forgotten, read_state
from tests.simulation.exact import Refused, View
from tests.simulation.knowledge import Checker, Known
from tests.simulation.looking import compare, look, require_refused
from tests.simulation.scheduler import Violation
from tests.simulation.world import Process, World

Rule = Callable[[View], View]


@dataclass(frozen=True, slots=True)
class Expected:
    """The view before an operation, and its rule. A run may forget commits."""

    repository_id: str
    before: View
    rule: Rule
    forgets: bool


@dataclass(slots=True, kw_only=True)
class Act(Chances):
    """An operation under way: where, and by which process."""

    world: World
    known: Known
    process: Process
    expected: Expected | None = None

    @property
    def checker(self) -> Checker:
        return Checker(self.world, self.known)

    def points_at(self, lake: Repository, name: str, commit_id: str) -> str:
        """An answer said that a ref points at a commit, whose id this returns."""
        repository_id = lake.info.repository_id
        content = self.checker.content_of(repository_id, commit_id)
        if commit_id not in self.known.commits:
            self.known.commits.append(commit_id)
        if content is not None:
            self.known.points_at(name, self.number, repository_id, content.keys)
        return commit_id

    def begin(self, name: str) -> None:
        """This may give or take back a promise."""
        self.known.begin(name, self.number, self.world.clock.now)

    def moving(self, name: str) -> None:
        """This may move a ref."""
        self.known.moving(name, self.number, self.world.clock.now)

    def lessen(self, name: str) -> None:
        """This may move a ref to the trash."""
        self.begin(name)
        self.known.lessen(name, self.world.clock.now + self.world.trash)

    def take_back(self, name: str) -> None:
        """This may end a promise."""
        self.begin(name)
        self.known.promises.pop(name, None)

    @property
    def is_exact(self) -> bool:
        """Whether it is known what the operation does: nothing is under way beside it, and nobody
        purged, or ran over a copy of the database."""
        is_plain = not (self.known.copied_run or self.known.purged_paths)
        return is_plain and self.world.scheduler.is_alone

    def expects(self, lake: Repository, rule: Rule, *, forgets: bool = False) -> None:
        """Where nothing happens beside it, the operation does what the rule says."""
        if self.is_exact:
            repository_id = lake.info.repository_id
            before = look(self.checker, repository_id)
            self.expected = Expected(repository_id, before, rule, forgets)

    def check(self, error: EbbtideError | None) -> None:
        """Compares what it did with its rule. Raises Violation."""
        expected = self.expected
        if expected is None or not self.is_exact:
            return
        refused: Refused | None = None
        try:
            after = expected.rule(expected.before)
        except Refused as raised:
            after, refused = raised.view, raised
        if error is not None:
            require_refused(error, refused)
            after = expected.before if refused is None else after
        elif refused is not None:
            raise Violation("answer", f"it should have been refused: {refused.kinds}")
        found = look(self.checker, expected.repository_id)
        if expected.forgets:
            after, found = replace(after, commits={}), replace(found, commits={})
        compare(after, found)

    def make_branch(self, name: str) -> str:
        """Makes a branch of a branch or of any commit. Returns the id of its head."""
        lake = self.process.lake()
        source = self.pick([*self.known.branches, *self.known.commits], 0)
        self.begin(f"branch {name}")
        self.expects(lake, lambda view: view.branch(name, source))
        made = lake.branches.create(name, source)
        self.known.branches.append(name)
        return self.points_at(lake, f"branch {name}", made.commit_id)

    def state(self, lake: Repository) -> State | None:
        """The repository for the definition; None where others may change it meanwhile."""
        return read_state(self.world, lake.info.repository_id) if self.is_exact else None

    def check_closed(
        self, lake: Repository, before: State | None, began: datetime, run_id: str
    ) -> None:
        """A run that ended closed the commits that had expired, and no others. Raises Violation."""
        after = self.state(lake)
        if before is not None and after is not None:
            doomed = self.known.doomed.get(run_id, frozenset())
            check_closed(before, after, (began, self.world.clock.now), run_id, doomed)
            check_forgotten(before, after, run_id)
