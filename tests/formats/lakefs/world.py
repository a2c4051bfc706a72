"""A repository of a fake lakeFS server over a bucket in memory, and its collector."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from ebbtide.formats.lakefs.repository import GRACE, LakefsRepository
from ebbtide.formats.lakefs.server import LOCAL, Namespace
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from tests.formats.lakefs.fake import NAMESPACE, Entry, FakeLakefs, State
from tests.support.clock import ManualClock
from tests.support.engines import INLINE
from tests.support.memory import Bucket, opened_in_memory
from tests.support.memory_world import TruthfulClock

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
DAY: Final = timedelta(days=1)
SETTINGS: Final = Settings(share_max=1.0)


@dataclass
class LakefsWorld:
    clock: TruthfulClock
    server: FakeLakefs
    bucket: Bucket

    @property
    def state(self) -> State:
        return self.server.state

    def repository(self) -> LakefsRepository:
        namespace = Namespace(NAMESPACE, NAMESPACE)
        storage = open_storage(namespace.storage_url)
        return LakefsRepository(self.server, namespace, storage, clock=self.clock)

    def collector(
        self, repository: LakefsRepository | None = None, *, engine: Engine = INLINE, **options: Any
    ) -> Collector:
        chosen = RunOptions.of(SETTINGS, sessions=GRACE, patience=timedelta(0), **options)
        return Collector(repository or self.repository(), engine=engine, options=chosen)

    def objects(self) -> set[str]:
        return {
            key.removeprefix("repo/") for key in self.bucket.objects if key.startswith("repo/data/")
        }

    def grow_old(self, by: timedelta = 3 * DAY) -> None:
        """Time passes, and the server begins a new partition."""
        self.clock.advance(by)
        self.state.rotate()


def old_commit(world: LakefsWorld, count: int = 1, *, branch: str = "main") -> tuple[str, Entry]:
    """A commit whose objects no later one has, older than the rules keep it; and the first one."""

    def commit(data: str) -> tuple[str, Entry]:
        made = [
            world.state.upload(branch, f"a{n}", b"%s%d" % (data.encode(), n)) for n in range(count)
        ]
        return world.state.commit(branch), made[0]

    found = commit("old")
    world.grow_old()
    commit("new")
    world.grow_old(8 * DAY)
    return found


def step(world: LakefsWorld, random: Random) -> None:
    """A move of a client: every kind of ref is made, moved, deleted and made again."""
    state, name, path = world.state, f"r{random.randrange(4)}", f"p{random.randrange(6)}"
    branch, commit_id = random.choice([*state.branches]), random.choice([*state.commits])
    # Of a commit that is dated before its parent the definition keeps less than we do.
    earliest = state.commits[state.branches[branch].head].created
    dated = max(world.clock.now - DAY * random.choice((0, 0, 0, 5, 20)), earliest)
    moves: list[Callable[[], object]] = [
        *[lambda: state.upload(branch, path, b"x" * random.randrange(1, 4))] * 4,
        *[lambda: state.commit(branch, dated=dated)] * 3,
        lambda: state.branch(name, branch),
        lambda: state.branch(name, commit_id),
        lambda: state.delete(branch, path),
        lambda: state.tags.update({name: commit_id}),
        lambda: state.tags.update({name: state.branches[branch].head}),
        lambda: state.tags.pop(name, None),
        lambda: state.branches.pop(name, None),
        lambda: state.reset(branch, commit_id),
        lambda: state.merge(branch, random.choice([*state.branches])),
        lambda: state.revert(branch, commit_id),
    ]
    random.choice(moves)()


def play(world: LakefsWorld, random: Random) -> None:
    for _ in range(random.randrange(5, 40)):
        step(world, random)
        if random.random() < 0.5:
            world.grow_old(timedelta(hours=random.randrange(1, 72)))


def on_disk(world: LakefsWorld, directory: Path) -> LakefsRepository:
    """The repository copied into a directory for other processes. Files keep their dates."""
    for key, stored in world.bucket.objects.items():
        target = directory / key.removeprefix("repo/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(stored.data)
        seconds = stored.modified.timestamp()
        os.utime(target, (seconds, seconds))
    storage = open_storage(str(directory))
    world.state.storage = storage
    namespace = Namespace(NAMESPACE, f"{LOCAL}{directory}/")
    clock = ManualClock(world.clock.now)
    return LakefsRepository(world.server, namespace, storage, clock=clock)


@contextmanager
def open_lakefs_world() -> Iterator[LakefsWorld]:
    clock = TruthfulClock(START)
    bucket = Bucket("lake", clock.host_now)
    with opened_in_memory({"lake": bucket}):
        storage = open_storage(NAMESPACE.rstrip("/"))
        yield LakefsWorld(clock, FakeLakefs(storage, clock), bucket)
