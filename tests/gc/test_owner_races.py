"""Two copies of a database that move the epoch of one storage at the same moment."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.errors import Refused
from ebbtide.store.repositories.owner import OWNER_ADDRESS, Ownership
from tests.support.copies import OpenedWorld
from tests.support.faulty import FaultyStorage, OncePut
from tests.support.histories import PlannedWorld
from tests.support.refusals import check_readable, check_refused, nothing_deleted
from tests.support.world import START


@pytest.fixture
def clone(planned: PlannedWorld, tmp_path: Path) -> Iterator[OpenedWorld]:
    """A store whose database is a copy of the one of `planned`, with the same storage."""
    directory = tmp_path / "clone"
    shutil.copytree(
        planned.directory / "store",
        directory / "store",
        ignore=shutil.ignore_patterns("storage"),
    )
    world = OpenedWorld(directory, now=START)
    yield world
    world.close()


def test_epochs_that_count_alike(planned: PlannedWorld, clone: OpenedWorld) -> None:
    """The copy has checked OWNER, and would write it after the original did: both count one
    more."""
    context = clone.lake.context
    during = OncePut(OWNER_ADDRESS, planned.lake.context.ownership.move)
    slow = Ownership(
        context.metadata,
        store_id=clone.store.store_id,
        repository_id=context.repository_id,
        storage=FaultyStorage(context.storage, before=during),
        host_now=clone.clock.host_now,
    )
    with pytest.raises(Refused, match="never wrote") as refused:
        slow.move()
    assert refused.value.kind == "storage_foreign"
    assert during.done
    assert planned.collector().sweep(planned.run_id).state == "swept"


def test_a_copy_that_takes_the_storage_during_a_sweep(
    planned: PlannedWorld, clone: OpenedWorld
) -> None:
    def take(step: str, event: str) -> None:
        if (step, event) == ("recheck", "start"):
            clone.lake.context.ownership.adopt()

    with nothing_deleted(planned):
        report = planned.collector(observer=take).sweep(planned.run_id)
    check_refused(report, "storage_foreign", "never wrote")
    check_readable(planned)
