"""The world of an Icechunk repository: a clock, a bucket, and what was promised on them.

An Icechunk session holds no lease. What is promised is one of time: who reads or writes for no
longer than the grace loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ebbtide.formats.icechunk.repository import IcechunkRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.settings import Settings
from tests.simulation.icechunk.client import CLIENTS, Client, Content, Repo, pointed_at, snapshot_in
from tests.simulation.runs import COPY, KnownRuns
from tests.simulation.scheduler import Scheduler, Task, Violation
from tests.simulation.world import LAKE, LEASE, RUN_LEASE, TRASH, BucketWorld
from tests.support.engines import INLINE
from tests.support.memory import Stored

GRACE: Final = LEASE
SKEW_MAX: Final = timedelta(minutes=1)
PREFIX: Final = f"{LAKE}/"
SETTINGS: Final = Settings(
    icechunk_grace=GRACE,
    run_lease_ttl=RUN_LEASE,
    run_heartbeat=timedelta(seconds=10),
    clock_skew_max=SKEW_MAX,
    share_max=1.0,
)
OPTIONS: Final = replace(
    RunOptions.of(SETTINGS, sessions=GRACE, patience=timedelta(0), sizes="all"), undo_hold=TRASH
)
KINDS: Final = ("chunks/", "manifests/", "snapshots/", "transactions/")


@dataclass(frozen=True, slots=True)
class Promise:
    """Files that stay until a time."""

    keys: frozenset[str]
    until: datetime


@dataclass(slots=True)
class Known(KnownRuns):
    """All that the answers of a history say. It is `spoilt` when a session wrote a ref later than a
    grace after it began, or with a date that was not true any more: then nothing is promised."""

    promises: dict[str, Promise] = field(default_factory=dict)
    contents: dict[str, Content] = field(default_factory=dict)
    branches: list[str] = field(default_factory=lambda: ["main"])
    tags: list[str] = field(default_factory=list)
    spoilt: bool = False

    def shorten(self, late: timedelta) -> None:
        """A ref was written that much later than its date, from which runs count the grace."""
        for name, promise in self.promises.items():
            self.promises[name] = replace(promise, until=promise.until - late)

    def copy(self) -> Known:
        copied = deepcopy(replace(self, contents={}))
        copied.contents = dict(self.contents)  # what is in a snapshot never changes
        return copied

    def end(self, number: int, now: datetime) -> None:
        """See `Knowledge.end`: no promise here depends on it."""

    def ends(self) -> list[datetime]:
        return [each.until for each in self.promises.values()]


@dataclass(frozen=True, slots=True)
class State:
    """What a world was at an instant."""

    now: datetime
    objects: dict[str, Stored]


class IcechunkWorld(BucketWorld):
    def __init__(self, spec_version: int) -> None:
        super().__init__()
        self.spec_version = spec_version

    def remember(self) -> State:
        return State(self.clock.now, dict(self.bucket.objects))

    def begin(self, state: State, after_slice: Callable[[Task], None]) -> Scheduler:
        """Bring back a state, for a history."""
        return self.bring_back(state.now, state.objects, after_slice)

    def client(self, known: Known) -> Client:
        """A client whose session begins now."""
        began = self.clock.now

        def note(dated: datetime) -> None:
            took, late = self.clock.now - began, self.clock.now - dated
            known.spoilt |= took >= GRACE or late > SKEW_MAX
            known.shorten(late)

        storage = self.bucket.storage(self._url(LAKE))
        made = CLIENTS[2 if self.is_second else self.spec_version]
        return made(storage, self.clock.host_now, known.contents, note)

    @property
    def is_second(self) -> bool:
        """Whether the repository is of version 2 by now."""
        return f"{PREFIX}repo" in self.bucket.objects

    def repository(self, place: str = LAKE) -> IcechunkRepository:
        url = self._url(place)
        return IcechunkRepository(
            self.bucket.storage(url), name=f"icechunk:{url}", settings=SETTINGS, clock=self.clock
        )

    def collector(self, *, on_copy: bool = False, **options: Any) -> Collector:
        repository = self.repository(COPY if on_copy else LAKE)
        return Collector(repository, engine=INLINE, options=replace(OPTIONS, **options))

    def copy(self) -> None:
        """See `RepositoryWorld.copy`: there is nothing but files."""

    def _url(self, place: str) -> str:
        return f"s3://{self.bucket.shown}/{place}"

    # Checks

    def check(self, known: Known) -> None:
        """Whether all that was promised is there. Raises Violation."""
        if known.spoilt:
            return
        there = self.bucket.objects.keys()
        for name, promise in known.promises.items():
            if self.clock.now < promise.until and not promise.keys <= there:
                raise Violation("promise", f"{name} lacks {min(promise.keys - there)}")
        for address in self.needed(known):
            if PREFIX + address not in there:
                raise Violation("open", f"a branch or tag needs {address}")

    def needed(self, known: Known) -> set[str]:
        """What refs reach. Raises Violation for a snapshot below which nobody can look."""
        repo = Repo.of(self.bucket.objects[f"{PREFIX}repo"].data) if self.is_second else None
        tips = self._tips() if repo is None else [*repo.refs.values()]
        found: set[str] = set()
        seen: set[str] = set()
        for tip in tips:
            place: str | None = tip
            while place is not None and place not in seen:
                seen.add(place)
                found |= known.contents[place].whole
                if repo is not None:
                    found |= {f"transactions/{log}" for log in repo.logs(place)}
                place = self._parent(place) if repo is None else repo.parents[place]
        return found

    def _tips(self) -> list[str]:
        objects = self.bucket.objects
        refs = [key for key in objects if key.startswith(f"{PREFIX}refs/")]
        return [
            pointed_at(objects[key].data)
            for key in refs
            if key.endswith("/ref.json") and f"{key}.deleted" not in objects
        ]

    def _parent(self, snapshot_id: str) -> str | None:
        found = self.bucket.objects.get(f"{PREFIX}snapshots/{snapshot_id}")
        if found is None:
            raise Violation("open", f"a branch or tag needs snapshots/{snapshot_id}")
        return snapshot_in(found.data).parent_id

    def left(self, known: Known) -> list[str]:
        """The addresses of what nobody needs, but for copies of `repo` and records of runs."""
        needed = self.needed(known)
        keys = [key for key in self.bucket.objects if key.startswith(PREFIX)]
        addresses = [key.removeprefix(PREFIX) for key in keys]
        return sorted(
            each
            for each in addresses
            if (each.startswith(KINDS) and each not in needed) or "/quarantine/" in each
        )
