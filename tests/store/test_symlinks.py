"""Symlink files: what is in them, and random requests beside commits and runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any, Final

import pytest

from ebbtide.errors import EbbtideError, Failed, NotFound
from ebbtide.store.content.layout import SYMLINKS_PREFIX
from ebbtide.store.objects import symlinks
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.faulty import FaultyStorage, with_storage
from tests.support.memory_world import MemoryWorld, Place
from tests.support.randomized import randomized

ZERO: Final[dict[str, Any]] = {"grace": timedelta(0), "unsafe": True}
STEPS: Final = 40
HOUR: Final = timedelta(hours=1)
MAIN: Final = f"{SYMLINKS_PREFIX}lake/main/"
LOCATIONS: Final = ("", "", "t/", "t/p")
PATHS: Final = ("x", "t/a", "t/p=1/a", "t/p=1/b", "t/p=2/a", "t/p=2/q/a", "t/z")


def files(repository: Repository) -> dict[str, list[str]]:
    addresses = [
        str(address)
        for batch in repository.storage.list(MAIN)
        for address in batch.column("address").to_pylist()
    ]
    return {
        address.removeprefix(MAIN).removesuffix("symlink.txt").rstrip("/"): (
            repository.storage.get(address).decode().split("\n")
        )
        for address in addresses
    }


def wanted(repository: Repository, location: str) -> dict[str, list[str]]:
    """What a request should write now: from the definition."""
    found: dict[str, list[str]] = {}
    root = repository.info.storage_url
    for each in repository.objects.list("main@", prefix=location).entries:
        directory = each.path.rpartition("/")[0]
        found.setdefault(directory, []).append(f"{root}/{each.address}")
    return found


def keepers(repository: Repository) -> list[str]:
    return [each.name for each in repository.tags.list() if each.name.startswith("symlinks/main/")]


def test_the_files_of_a_branch(repository: Repository) -> None:
    for path in PATHS:
        repository.objects.put("main", path, path.encode())
    commit = repository.commits.commit("main", "").commit_id
    repository.objects.put("main", "t/staged", b"")
    result = repository.symlinks.write("main")
    assert result.url == f"{repository.info.storage_url}/_ebbtide/gc/symlinks"
    assert (result.commit_id, result.file_count) == (commit, 5)
    assert files(repository) == wanted(repository, "")
    assert files(repository)["t"][0].endswith(repository.objects.stat("main@", "t/a").address)
    assert repository.tags.get(result.tag).commit_id == commit


def test_a_slash_in_the_name_of_a_branch(repository: Repository) -> None:
    repository.branches.create("main/t", "main")
    for branch in ("main", "main/t"):
        repository.objects.put(branch, "t/a", branch.encode())
        repository.commits.commit(branch, "")
        repository.symlinks.write(branch)
    file = f"{SYMLINKS_PREFIX}lake/main%2Ft/t/symlink.txt"
    address = repository.objects.stat("main/t@", "t/a").address
    assert repository.storage.get(file).decode().endswith(address)
    assert files(repository) == wanted(repository, "")


def test_what_is_refused(repository: Repository) -> None:
    """Branches and locations that do not exist, and directories that can have no file."""
    long = repository.branches.create("b" * 250, "main").name
    for kind, branch, location in (
        ("branch_not_found", "none", ""),
        ("invalid_argument", "main", "\0"),
        ("invalid_name", long, ""),
    ):
        with raises(kind):
            repository.symlinks.write(branch, location)
    repository.objects.put("main", "a/b/c", b"")
    for path in ("/a/b", "a/../b", "a/symlink.txt/b"):
        repository.objects.put("main", path, b"")
        repository.commits.commit("main", "")
        with raises("invalid_path"):
            repository.symlinks.write("main")
        repository.objects.delete("main", path)
    assert not files(repository)
    assert not keepers(repository)
    repository.symlinks.write("main", "a/b/")
    assert files(repository) == wanted(repository, "a/b/")


def test_what_happens_during_a_request(repository: Repository, clock: ManualClock) -> None:
    """It takes too long, or its tag is deleted."""
    repository.objects.put("main", "a", b"")
    repository.commits.commit("main", "")
    half = repository.context.settings.write_ttl / 2

    def wait(method: str, _address: str) -> None:
        if method == "put":
            clock.advance(half)

    def delete(method: str, _address: str) -> None:
        if method == "put":
            for name in keepers(repository):
                repository.tags.delete(name)

    for hook, kind, left in ((wait, "write_expired", 1), (delete, "tag_not_found", 0)):
        with raises(kind):
            with_storage(repository, FaultyStorage(repository.storage, hook)).symlinks.write("main")
        assert len(keepers(repository)) == left, "what was written names objects that are kept"


class History:
    """What happens by chance. Whatever a symlink file names must be there at any time."""

    def __init__(self, world: MemoryWorld, random: Random) -> None:
        self.world = world
        self.random = random
        self.storage = world.lake.storage
        self.depth = 0

    @property
    def lake(self) -> Repository:
        return self.world.lake

    def run(self) -> None:
        steps: Sequence[Callable[[], None]] = (
            *(self.put, self.delete, self.commit) * 2,
            *(self.write,) * 5,
            *(self.wait,) * 2,
            self.collect,
        )
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.check()
        self.settle()

    def put(self) -> None:
        self.lake.objects.put("main", self.random.choice(PATHS), self.random.randbytes(4))

    def delete(self) -> None:
        with suppress(NotFound):
            self.lake.objects.delete("main", self.random.choice(PATHS))

    def commit(self) -> None:
        self.lake.commits.commit("main", "m", allow_empty=True)

    def wait(self) -> None:
        self.world.clock.advance(self.random.choice([5 * HOUR, 13 * HOUR, 25 * HOUR]))

    def collect(self) -> None:
        mode = self.random.choice(["clean", "auto"])
        assert self.world.collect(**ZERO, mode=mode).state == "swept"

    def write(self) -> None:
        """Alone, or while something else happens, which may be another request; or it fails."""
        if self.depth > 1:
            return
        self.depth += 1
        location = self.random.choice(LOCATIONS)
        meanwhile = self.random.choice([None, self.fail, self.meet, self.meet])
        was_alone = meanwhile is None and self.depth == 1

        def before(method: str, address: str) -> None:
            nonlocal meanwhile
            if (method == "list" or address.startswith(SYMLINKS_PREFIX)) and (
                self.random.random() < 0.4
            ):
                happening, meanwhile = meanwhile, None
                if happening is not None:
                    happening()

        repository = with_storage(self.lake, FaultyStorage(self.storage, before))
        try:
            repository.symlinks.write("main", location)
        except EbbtideError as error:
            assert not was_alone
            assert error.kind in ("storage_error", "write_expired"), error
        else:
            if was_alone:
                found = files(self.lake)
                expected = wanted(self.lake, location)
                assert {each: found.get(each) for each in expected} == expected
                assert all(
                    f"{each}/".startswith(location) <= (each in expected) for each in found if each
                )
        finally:
            self.depth -= 1

    def meet(self) -> None:
        """In the middle of a request: the branch changes, and another request is made."""
        for act in (self.put, self.delete, self.commit, self.write, self.commit, self.wait):
            if self.random.random() < 0.7:
                act()
        if self.random.random() < 0.3:
            self.collect()

    def fail(self) -> None:
        raise Failed("storage_error", "no")

    def check(self) -> None:
        root = f"{self.lake.info.storage_url}/"
        there = self.world.files("data/")
        for directory, lines in files(self.lake).items():
            for line in lines:
                assert line.removeprefix(root) in there, directory

    def settle(self) -> None:
        """At last each location has one tag; and without them nothing is kept for them."""
        for location in sorted(set(LOCATIONS)):
            self.world.clock.advance(timedelta(hours=25))
            self.lake.symlinks.write("main", location)
        assert len(keepers(self.lake)) == len(set(LOCATIONS))
        for name in keepers(self.lake):
            self.lake.tags.delete(name)
        self.lake.commits.commit("main", "m", allow_empty=True)
        for _ in range(2):
            self.world.clock.advance(26 * HOUR)
            self.collect()
        shown = self.lake.objects.list("main").entries
        assert self.world.files("data/") == {each.address for each in shown}


@randomized("histories of symlink files")
def test_histories(place: Place, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symlinks, "THREADS", 1)  # a history can be told again
    random = Random(seed)
    settings = {
        "lease_ttl": random.choice(["0s", "1h"]),
        "trash_time": random.choice(["0s", "3h"]),
        "write_ttl": "24h",
    }
    world = MemoryWorld(place, settings=settings, seed=seed)
    world.keep(default={"keep_last": 1})
    History(world, random).run()
