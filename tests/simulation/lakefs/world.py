"""The world of a lakeFS repository: a clock, a bucket, a server, and what is needed on them.

lakeFS closes no commit: a branch can be made from an expired one at any time. So no answer promises
anything here. What must hold follows from what the server has. An object that was needed all the
time since it was linked is there. One that nobody needed for a while is not lost once it is needed
again, unless a run was at work then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from ebbtide.formats.lakefs.repository import GRACE, LakefsRepository
from ebbtide.formats.lakefs.server import AnsweredCommit, AnsweredRules, DumpedRefs, Namespace
from ebbtide.formats.notes import POLICY_ADDRESS
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.settings import Settings
from tests.formats.lakefs.fake import Backup, FakeLakefs, State, needed
from tests.formats.lakefs.oracle import KnownCommit, active
from tests.simulation.bucket import LAKE_PREFIX
from tests.simulation.runs import COPY, OPERATIONS, KnownRuns
from tests.simulation.scheduler import READ, Scheduler, Task, Violation
from tests.simulation.world import LAKE, RUN_LEASE, START, TRASH, URL, BucketWorld
from tests.support.engines import INLINE
from tests.support.memory import Stored

NAMESPACE: Final = f"{URL}/{LAKE}/"
DAY: Final = timedelta(days=1)
DAYS: Final = 3
"""Of the rules that a repository begins with."""
PARTITION: Final = timedelta(minutes=20)
"""After this time a server begins a new partition."""
SETTINGS: Final = Settings(
    run_lease_ttl=RUN_LEASE,
    run_heartbeat=timedelta(seconds=10),
    share_max=1.0,
)
RUN_OPTIONS: Final = replace(
    RunOptions.of(SETTINGS, sessions=GRACE, patience=timedelta(0)), undo_hold=TRASH
)

_Answer = TypeVar("_Answer")


class SimulatedLakefs(FakeLakefs):
    """A server whose answers are points of a history."""

    __slots__ = ("scheduler",)
    scheduler: Callable[[], Scheduler]

    def _ask(self, what: str, answer: Callable[[], _Answer]) -> _Answer:
        return self.scheduler().call(f"ask {what}", answer, allowed=READ, effect=False)

    def rules(self) -> AnsweredRules | None:
        return self._ask("rules", partial(FakeLakefs.rules, self))

    def dump(self) -> DumpedRefs:
        return self._ask("dump", partial(FakeLakefs.dump, self))

    def branches(self) -> dict[str, str]:
        return self._ask("branches", partial(FakeLakefs.branches, self))

    def tags(self) -> dict[str, str]:
        return self._ask("tags", partial(FakeLakefs.tags, self))

    def commit(self, commit_id: str) -> AnsweredCommit:
        return self._ask("commit", partial(FakeLakefs.commit, self, commit_id))

    def uncommitted(self) -> list[str]:
        return self._ask("uncommitted", partial(FakeLakefs.uncommitted, self))

    def address_at(self, ref: str, path: str) -> str:
        return self._ask("object", partial(FakeLakefs.address_at, self, ref, path))


@dataclass(slots=True)
class Known(KnownRuns):
    """What must hold, by addresses in the repository.

    - `seen` were needed at some time.
    - `safe` were needed all the time since they were linked.
    - `back` are needed again, and were there or aside when that began, while no run was at work.
    - `pinned` belong to commits that a restored server does not know, and that the last swept plan
      knew.
    - `plans` has the commits that the server had when a plan began, `swept` those of the last plan
      that was swept.
    """

    seen: set[str] = field(default_factory=set)
    safe: set[str] = field(default_factory=set)
    back: set[str] = field(default_factory=set)
    pinned: set[str] = field(default_factory=set)
    plans: dict[str, frozenset[str]] = field(default_factory=dict)
    swept: frozenset[str] = frozenset()
    made: list[str] = field(default_factory=list)
    """The commits that clients made, also those that a restored server does not know."""
    given: list[tuple[str, datetime]] = field(default_factory=list)
    """Addresses for uploads, and when they were given."""
    expire_at: list[datetime] = field(default_factory=list)

    def copy(self) -> Known:
        return deepcopy(self)

    def end(self, number: int, now: datetime) -> None:
        """See `Knowledge.end`: nothing here depends on it."""

    def ends(self) -> list[datetime]:
        """See `Knowledge.ends`: when commits expire by the first rules."""
        return self.expire_at


@dataclass(frozen=True, slots=True)
class Moment:
    """What a world was at an instant."""

    now: datetime
    objects: dict[str, Stored]
    server: Backup
    partition: str
    count: int


class LakefsWorld(BucketWorld):
    """A repository of a server. `backups` are what the database was, as
    somebody saved it; `lost` is what it was before one of them was restored."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket.move_back()
        self.server = self._server(LAKE)
        self.on_copy: SimulatedLakefs | None = None
        self.backups: list[Backup] = []
        self.lost: Backup | None = None
        self.rotated_at = START
        self.state.rules = AnsweredRules(DAYS, {})

    def _server(self, place: str) -> SimulatedLakefs:
        plain = self.bucket.plain(f"{URL}/{place}")
        made = SimulatedLakefs(plain, self.clock, f"{URL}/{place}/")
        object.__setattr__(made, "scheduler", lambda: self.scheduler)
        return made

    @property
    def state(self) -> State:
        return self.server.state

    def remember(self) -> Moment:
        state = self.state
        server = state.backup()
        return Moment(
            self.clock.now, dict(self.bucket.objects), server, state.partition, state.count
        )

    def begin(self, state: Moment, after_slice: Callable[[Task], None]) -> Scheduler:
        """Bring a moment back, for a history."""
        self.state.restore(state.server)
        self.state.partition, self.state.count = state.partition, state.count
        self.on_copy, self.backups, self.lost = None, [], None
        self.rotated_at = START
        return self.bring_back(state.now, state.objects, after_slice)

    def collector(self, *, on_copy: bool = False, **options: Any) -> Collector:
        """See `RepositoryWorld.collector`. A moved repository has the namespace that it had."""
        place = COPY if on_copy else LAKE
        server = self.on_copy if on_copy else self.server
        assert server is not None
        url = f"s3://{self.bucket.shown}/{place}"
        repository = LakefsRepository(
            server,
            Namespace(server.state.namespace, f"{url}/"),
            self.bucket.storage(url),
            clock=self.clock,
        )
        return Collector(repository, engine=INLINE, options=replace(RUN_OPTIONS, **options))

    def copy(self) -> None:
        """See `RepositoryWorld.copy`: a server with a copy of the database."""
        self.on_copy = self._server(COPY)
        self.on_copy.state.restore(self.state.backup())

    # What is needed

    def needed(self) -> set[str]:
        """The addresses that clients can read by the rules: in active commits and on branches."""
        state, now = self.state, self.clock.now
        days, tag_days = self._rules()
        commits = {
            name: KnownCommit(each.parents, each.created) for name, each in state.commits.items()
        }
        tagged = [
            each
            for each in state.tags.values()
            if tag_days is None or commits[each].created > now - tag_days
        ]
        heads = [each.head for each in state.branches.values()]
        return needed(state, active(commits, heads, tagged, now=now, days=days))

    def _rules(self) -> tuple[timedelta, timedelta | None]:
        """The days of branches, and those of tags if they have a rule."""
        written = self.bucket.objects.get(LAKE_PREFIX + POLICY_ADDRESS)
        if written is None:
            assert self.state.rules is not None
            return self.state.rules.default_days * DAY, None
        policy: Mapping[str, str] = json.loads(written.data)
        return tuple(int(policy[name].removesuffix("d")) * DAY for name in ("default", "tags"))  # type: ignore[return-value]

    def look(self, known: Known) -> set[str]:
        """Drops what must be held and is not needed now. Returns the needed objects."""
        found = self.needed()
        known.safe &= found | known.pinned
        known.back &= found
        return found

    def changing(self, known: Known, work: Callable[[], _Answer]) -> _Answer:
        """Does what may make objects needed."""
        before = self.look(known)
        answer = work()
        now_needed = self.needed() - before
        fresh = now_needed - known.seen
        known.safe |= fresh
        known.seen |= fresh
        if not self._collecting():
            known.back |= {each for each in now_needed - fresh if self.has(each)} - known.safe
        return answer

    def _collecting(self) -> bool:
        """Whether a run is under way, perhaps asleep, that may delete what it has looked at."""
        return any(
            task.kind in OPERATIONS and not task.is_over and not task.is_dead
            for task in self.scheduler.tasks
        )

    def has(self, address: str) -> bool:
        """Whether an object is there, or aside."""
        end = f"/quarantine/{address}"
        objects = self.bucket.objects
        return LAKE_PREFIX + address in objects or any(
            key.endswith(end) and key.startswith(LAKE_PREFIX) for key in objects
        )

    def missing(self, addresses: set[str]) -> set[str]:
        """Those that are not there."""
        return {each for each in addresses if LAKE_PREFIX + each not in self.bucket.objects}

    def lost_commits(self, known: Known) -> frozenset[str]:
        """What the last swept plan knew, and the server does not."""
        return known.swept - self.state.commits.keys()

    # Checks

    def check(self, known: Known) -> None:
        """Raises Violation for an object that must be there and is not."""
        if self.missing(known.safe) or not all(map(self.has, known.back)):
            self.look(known)
            for address in sorted(self.missing(known.safe)):
                raise Violation("safe", f"{address} was needed all the time, and is gone")
            for address in sorted(known.back):
                if not self.has(address):
                    raise Violation("back", f"{address} is needed again, and is gone")

    def left(self) -> list[str]:
        """The addresses of objects that nobody needs, and of what is aside."""
        found = self.needed()
        keys = [key for key in self.bucket.objects if key.startswith(LAKE_PREFIX)]
        addresses = [key.removeprefix(LAKE_PREFIX) for key in keys]
        return sorted(
            each
            for each in addresses
            if (each.startswith("data/") and each not in found) or "/quarantine/" in each
        )
