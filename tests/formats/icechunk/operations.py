"""Repositories of version 2 in use: what becomes of the operations log while copies of `repo` are
collected, and what refs reached at any time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import zarr
from icechunk import Repository, Session, SnapshotInfo

from ebbtide.errors import Refused
from ebbtide.formats.icechunk.repo import BACKUPS_PREFIX, RepoFile
from ebbtide.formats.icechunk.repository import IcechunkRepository
from ebbtide.formats.icechunk.state import RECENT, load_repo, read_state
from ebbtide.settings import Settings
from ebbtide.storage import Storage, open_storage
from tests.support.icechunk import RandomHistory, instant_between, open_repository
from tests.support.icechunk_files import files_of


def operate(path: Path, choices: random.Random) -> str:
    """One operation that the log names, and its name there."""
    repository = open_repository(path)
    match choices.randrange(4):
        case 0:
            repository.create_tag(f"{choices.random()}", repository.lookup_branch("main"))
            return "TagCreated"
        case 1 if tags := repository.list_tags():
            repository.delete_tag(min(tags))
            return "TagDeleted"
        case 2:
            repository.set_metadata({"number": choices.random()})
            return "MetadataChanged"
        case _:
            commit(repository)
            return "NewCommit"


def commit(repository: Repository, branch: str = "main", **metadata: Any) -> str:
    session = repository.writable_session(branch)
    root = zarr.open_group(session.store, mode="a")
    root.attrs["number"] = random.random()
    return session.commit("a commit", metadata=metadata)


def commit_array(repository: Repository, name: str, value: float, branch: str = "main") -> str:
    """Make a commit that writes all of an array with four chunks; its id."""
    session = repository.writable_session(branch)
    root = zarr.open_group(session.store, mode="a")
    array = root.require_array(name, shape=(16,), chunks=(4,), dtype="float64", compressors=None)
    array[...] = value
    return session.commit(name)


def log_of(path: Path) -> list[tuple[str, datetime]]:
    return [(str(each.kind), each.updated_at) for each in open_repository(path).ops_log()]


def chain_of(storage: Storage, file: RepoFile) -> set[str]:
    """The names of the copies that a file's log goes on in."""
    found: set[str] = set()
    while file.previous is not None:
        found.add(file.previous)
        file = load_repo(storage, f"{BACKUPS_PREFIX}{file.previous}")
    return found


@dataclass(frozen=True)
class Moment:
    """An instant after an operation, and what refs reached from then until the next one."""

    at: datetime
    reached: frozenset[str]


class History(RandomHistory):
    """Random operations on a repository, and what refs reached after each.

    With `revives`, refs are put on any snapshot that the repository still lists, else only on what
    a ref reaches.
    """

    def __init__(self, path: Path, seed: int, *, revives: bool) -> None:
        super().__init__(path, random.Random(seed), 2)
        self.place, self.revives = path, revives
        self.steps = {self._commit: 4} | dict.fromkeys(
            [self._amend, self._create_branch, self._create_tag, self._delete_branch,
             self._delete_tag, self._reset_branch, self._expire], 2,
        )  # fmt: skip
        self.moments: list[Moment] = []
        self.parents: defaultdict[str, set[str]] = defaultdict(set)
        """All that a snapshot ever had: an expiry gives it another."""
        self._note()

    def step(self) -> None:
        super().step()
        self._note()

    def since(self, cutoff: datetime) -> frozenset[str]:
        """All that refs reached at the cutoff or later."""
        ends = [moment.at for moment in self.moments[1:]] + [datetime.max.replace(tzinfo=UTC)]
        sets = [each.reached for each, end in zip(self.moments, ends, strict=True) if end > cutoff]
        return frozenset().union(*sets)

    def with_ancestors(self, names: frozenset[str]) -> frozenset[str]:
        found: set[str] = set()
        waiting = set(names)
        while waiting:
            found |= waiting
            waiting = set().union(*(self.parents[each] for each in waiting)) - found
        return frozenset(found)

    def _note(self) -> None:
        refs = [("branch", name) for name in self.branches()]
        refs += [("tag", name) for name in self.tags()]
        reached = {s.id for kind, name in refs for s in self.repository.ancestry(**{kind: name})}
        for each in self._listed():
            if (parent := each.get("parent_id")) is not None:
                self.parents[str(each["id"])].add(str(parent))
        self.moments.append(Moment(instant_between(self.place), frozenset(reached)))

    def _listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.repository.inspect_repo_info()["snapshots"]
        return found

    def _any_snapshot(self) -> SnapshotInfo:
        known = {str(each["id"]) for each in self._listed()} if self.revives else ()
        names = sorted(known or self.moments[-1].reached)
        return self.repository.lookup_snapshot(self.choices.choice(names))

    def _reset_branch(self) -> None:
        self.repository.reset_branch(self._any_branch(), self._any_snapshot().id)

    def _edit(self, branch: str) -> Session:
        session = self.repository.writable_session(branch)
        zarr.open_group(session.store, mode="a").attrs["number"] = random.random()
        return session


def check_history(path: Path, history: History) -> None:
    """For a cutoff before any operation: what refs reached since then is reached, or held."""
    storage, files = open_storage(str(path)), files_of(path, "snapshots").keys()
    for number, moment in enumerate(history.moments[:-1]):
        state = read_state(storage, cutoff=moment.at, quiet=False, first_seen={})
        reached = state.history.reached()
        assert reached == history.moments[-1].reached
        since = history.since(moment.at)
        missed = (since & files) - reached - state.held.keys()
        assert not missed, f"cut off after operation {number}"
        # Nothing else is held for having been reached but what such a snapshot came from before
        # an expiry cut it off, be the ref on it younger than that.
        recent = {name for name, why in state.held.items() if why == RECENT}
        assert recent <= history.with_ancestors(since) - reached


class Hold:
    """A hold that nobody takes away."""

    run_epoch = 1

    def check(self) -> None:
        """Nobody does."""


def collect_copies(
    path: Path, cutoff: datetime, *, between: Callable[[], object] = lambda: None
) -> int:
    """What a collection does to the copies of `repo`: read what is protected, forget, and delete
    what was there and was not protected; how many that were. `between` happens before forgetting,
    which makes it look again."""
    settings = Settings(run_heartbeat=timedelta(seconds=1))
    storage = open_storage(str(path))
    repository = IcechunkRepository(storage, name="it", settings=settings, quiet=True)
    listed = {f"{BACKUPS_PREFIX}{name}" for name in files_of(path, "overwritten")}
    while True:
        with repository.reading(cutoff) as reading:
            protected = {row["address"] for t in reading.protected() for row in t.to_pylist()}
        between()
        between = int
        try:
            repository.forget(Hold(), "run", [])
            break
        except Refused as error:
            assert error.kind == "repository_changed"
    for address in listed - protected:
        (path / address).unlink()
    return len(listed - protected)
