"""A disk that becomes full: a run says so, says what it did, and goes on once there is room."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ebbtide.errors import Failed, disk_full
from ebbtide.gc.report import RunReport
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.repository import Repository
from tests.support.copies import listing, verify
from tests.support.faulty import SharedFaultyStorage, with_storage
from tests.support.histories import PlannedWorld, Template, kept_contents
from tests.support.randomized import randomized

LAST_WRITES = 4


class Disk:
    """Full from the `room`-th write of a file or transaction on, counted from 0; None never is."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.count = 0

    def write(self, method: str = "put", address: str = "") -> None:
        if method in ("put", "replace"):
            self.count += 1
            if self.room is not None and self.count > self.room:
                raise disk_full(
                    f"the disk of {address or 'the database'}", "no space left on device"
                )


class OnDisk(Metadata):
    def __init__(self, inner: Metadata, disk: Disk) -> None:
        super().__init__(inner.engine, inner.clock)
        self._writing = inner._writing
        self._disk = disk

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with super().transaction() as tx:
            yield tx
            self._disk.write()


def on_disk(lake: Repository, disk: Disk) -> Repository:
    there = with_storage(lake, SharedFaultyStorage(lake.storage, before=disk.write))
    return Repository(replace(there.context, metadata=OnDisk(lake.context.metadata, disk)))


def attempt(world: PlannedWorld, *, new: bool = False) -> RunReport | Failed:
    """What becomes of a sweep of the plan, or of a run. A full disk takes no word that the one
    before has ended, and its process is this one."""
    world.clock.advance(world.settings.run_lease_ttl)
    collector = world.collector()
    try:
        return collector.run() if new else collector.sweep(world.run_id)
    except Failed as error:
        assert error.kind == "disk_full"
        return error


def check(world: PlannedWorld, found: RunReport | Failed, before: dict[str, bytes]) -> bool:
    """Nothing is lost, and what is told is so. Whether there is nothing left to do."""
    assert kept_contents(world, world.history) == world.template.contents
    if isinstance(found, Failed):
        assert "is full" in found.message and "docs/operations.md" in found.message
        assert "deleted nothing" in found.message
        assert listing(world.root) == before
        return False
    if found.state == "swept":
        assert {each["kind"] for each in found.unfinished} == {"disk_full"}
        assert all("is full" in each["message"] for each in found.unfinished)
        return True
    assert found.state == "incomplete"
    assert found.error is not None and "is full" in found.error["message"]
    return False


@pytest.fixture(scope="module")
def swept(
    template: Template, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], int]:
    """The files that a sweep leaves that has room, and how many writes it takes."""
    world = PlannedWorld(template, tmp_path_factory.mktemp("whole"))
    disk = Disk()
    world.lake = on_disk(world.lake, disk)
    found = attempt(world)
    world.close()
    assert isinstance(found, RunReport) and found.state == "swept"
    return listing(world.root), disk.count


@randomized("full disks")
def test_a_sweep_goes_on_once_there_is_room(
    template: Template, swept: tuple[dict[str, bytes], int], tmp_path: Path, seed: int
) -> None:
    fill_up(template, swept, tmp_path, room=Random(seed).randrange(swept[1]))


@pytest.mark.parametrize("from_end", range(1, LAST_WRITES + 1))
def test_nor_do_its_last_writes_fit(
    template: Template, swept: tuple[dict[str, bytes], int], tmp_path: Path, from_end: int
) -> None:
    fill_up(template, swept, tmp_path, room=swept[1] - from_end)


def fill_up(
    template: Template, swept: tuple[dict[str, bytes], int], directory: Path, *, room: int
) -> None:
    """A sweep comes to the end of the disk behind so many writes, and goes on later."""
    left, writes = swept
    world, disk = PlannedWorld(template, directory), Disk()
    world.lake = on_disk(world.lake, disk)
    before = listing(world.root)
    disk.room = room
    found = attempt(world)
    # To give the lease back is the last write: nobody misses it.
    is_done = check(world, found, before) if room < writes - 1 else True
    assert not is_done or isinstance(found, Failed) or found.state == "swept"
    disk.room = None
    if not is_done:
        found = attempt(world)
        assert isinstance(found, RunReport) and found.state == "swept", found
    verify(world)
    assert listing(world.root) == left
    world.close()


def test_a_directory_without_room_says_so(planned: PlannedWorld) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"some"
        raise OSError(errno.ENOSPC, "No space left on device")

    before = listing(planned.root)
    with pytest.raises(Failed, match=r"is full .*No space left") as caught:
        planned.lake.storage.put("data/x", pieces())
    assert caught.value.kind == "disk_full"
    assert listing(planned.root) == before
