"""Gates on the run: one at a time, and clocks that agree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import product

import pytest

from ebbtide.errors import ExitCode, Gone, Refused
from ebbtide.formats.base import RunHold, unguarded
from ebbtide.gc.parts import Answers
from ebbtide.gc.report import EXIT_CODES, RunReport
from ebbtide.gc.runs import RunFolder, announce_epoch
from ebbtide.gc.sweeping.outcomes import delete_parts
from ebbtide.processes import this_process
from ebbtide.store.repositories import leases
from ebbtide.store.repositories.leases import beat
from tests.support.copies import listing, tombstoned
from tests.support.engines import INLINE
from tests.support.histories import EXPIRED_ONLY, GRACE, PlannedWorld
from tests.support.refusals import (
    check_both_refused,
    check_readable,
    check_refused,
    nothing_deleted,
)

OTHER_RUN = "f" * 32
LEASE = timedelta(seconds=30)


@contextmanager
def taken_over(world: PlannedWorld) -> Iterator[RunHold]:
    """Another run takes the repository after a lease without a heartbeat."""
    world.clock.advance(LEASE)
    with world.format().hold(OTHER_RUN, deletes=True) as hold:
        announce_epoch(world.lake.storage, run_epoch=hold.run_epoch, run_id=OTHER_RUN)
        yield hold


def sweep_taken_over(world: PlannedWorld, at: str) -> RunReport:
    """A sweep that loses the repository as it comes to a step."""
    with ExitStack() as stack:

        def take(step: str, event: str) -> None:
            if (step, event) == (at, "start"):
                stack.enter_context(taken_over(world))

        return world.collector(observer=take).sweep(world.run_id)


def test_second_run(planned: PlannedWorld) -> None:
    with planned.format().hold(OTHER_RUN, deletes=True) as hold:
        planned.clock.advance(LEASE - timedelta(seconds=1))
        check_both_refused(planned, "run_in_progress", OTHER_RUN, "29 s ago", "wait for it to end")
        hold.check()
    check_readable(planned)


def test_heartbeat_keeps_the_repository(planned: PlannedWorld) -> None:
    repository = planned.format()
    with repository.hold(OTHER_RUN, deletes=True) as hold:
        for _ in range(3):
            planned.clock.advance(LEASE * 0.9)
            beat(planned.store.metadata, hold.lease)
        check_refused(planned.collector().plan(), "run_in_progress")


def test_silent_run_is_replaced(planned: PlannedWorld) -> None:
    with planned.format().hold("0" * 32, deletes=True) as old:
        with taken_over(planned) as new:
            assert new.run_epoch > old.run_epoch
            with pytest.raises(Refused) as lost:
                old.check()
            with pytest.raises(Refused) as beaten:
                beat(planned.store.metadata, old.lease)
            new.check()
        with pytest.raises(Refused):
            old.check()
    assert lost.value.kind == beaten.value.kind == "lease_lost"
    assert OTHER_RUN in lost.value.message
    assert "deletes nothing more" in lost.value.message
    with planned.format().hold(OTHER_RUN, deletes=True) as hold:
        hold.check()


def test_run_of_a_process_on_this_machine(
    planned: PlannedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease lasts as long as it does: a dead one's is free at once. Which is dead:
    `tests/test_processes.py`."""
    with planned.format().hold(OTHER_RUN, deletes=True):
        monkeypatch.setattr(leases, "is_dead", lambda holder: holder == this_process())
        with planned.format().hold("0" * 32, deletes=True) as hold:
            hold.check()


def test_lease_lost_before_the_fence(planned: PlannedWorld) -> None:
    with nothing_deleted(planned):
        report = sweep_taken_over(planned, "fence")
    check_refused(report, "lease_lost", OTHER_RUN)
    check_readable(planned)


def test_lease_lost_amid_the_deletes(planned: PlannedWorld) -> None:
    """What was deleted is deleted: the run is incomplete, not refused."""
    only = next(
        planned.root / entry.address
        for entry in planned.lake.objects.walk(planned.history.expired)
        if entry.path == EXPIRED_ONLY
    )
    report = sweep_taken_over(planned, "delete object")
    assert report.state == "incomplete"
    assert EXIT_CODES[report.state] == ExitCode.INCOMPLETE
    assert report.error is not None
    for mention in ("another run", "sweep the run again"):
        assert mention in report.error["message"]
    assert only.is_file()
    assert listing(planned.root).keys() < planned.template.files.keys()
    assert planned.collector().show(planned.run_id).state == "incomplete"

    finished = planned.collector().sweep(planned.run_id)
    assert finished.state == "swept"
    assert finished.counts["deleted"] == finished.counts["candidate"]
    assert not only.exists()


def test_old_run_does_not_open_what_the_new_one_deletes(planned: PlannedWorld) -> None:
    """Two sweeps of one plan: the first stalls behind its fence, the second finishes."""
    finished: list[RunReport] = []

    def stall(step: str, event: str) -> None:
        if (step, event) == ("recheck", "start"):
            planned.clock.advance(LEASE)
            finished.append(planned.collector().sweep(planned.run_id))

    report = planned.collector(observer=stall).sweep(planned.run_id)

    assert [each.state for each in finished] == ["swept"]
    check_refused(report, "lease_lost")
    assert planned.history.expired in tombstoned(planned)
    with pytest.raises(Gone):
        planned.lake.objects.get(planned.history.expired, EXPIRED_ONLY)
    with pytest.raises(Gone):
        planned.lake.branches.create("back", planned.history.expired)


CLOCKS = {
    "host_offset": "this host",
    "database_offset": "the database",
    "storage_offset": "the storage",
}


def test_clock_that_is_off(planned: PlannedWorld) -> None:
    for (clock, named), minutes in product(CLOCKS.items(), (-10, 10)):
        setattr(planned.clock, clock, timedelta(minutes=minutes))
        check_both_refused(planned, "clock_skew", named, "600 s ahead", "set the clocks right")
        setattr(planned.clock, clock, timedelta(0))
    check_readable(planned)


MINUTE = timedelta(minutes=1)


def test_the_clock_that_is_behind_counts(planned: PlannedWorld) -> None:
    """By any other a file would seem older than it is."""
    garbage = next((planned.root / "data").iterdir()) / ("a" * 32)
    for clock, minutes in product(CLOCKS, (-4, 4)):
        offset = minutes * MINUTE
        setattr(planned.clock, clock, offset)
        cutoff = planned.clock.now + min(offset, timedelta(0)) - GRACE
        for written_at, is_young in ((cutoff + MINUTE, True), (cutoff - MINUTE, False)):
            garbage.write_bytes(b"nobody needs it")
            os.utime(garbage, times=(written_at.timestamp(),) * 2)
            planned.swept()
            assert garbage.exists() == is_young, (clock, minutes)
        setattr(planned.clock, clock, timedelta(0))


EPOCH = 7


def delete_candidates(world: PlannedWorld) -> Answers:
    """Deletes the candidates of the plan, as executors of its run under EPOCH."""
    storage = world.lake.storage
    return delete_parts(
        INLINE,
        storage=storage,
        folder=RunFolder.inside(storage, world.run_id),
        parts=world.collector().plan_of(world.run_id).candidates,
        epoch=EPOCH,
        run_id=world.run_id,
        guard=unguarded,
    )


@pytest.mark.parametrize(
    ("run_id", "epoch"),
    [
        pytest.param(OTHER_RUN, EPOCH + 1, id="another run"),
        pytest.param(OTHER_RUN, EPOCH, id="a run of a copied database, whose epochs count alike"),
        pytest.param(OTHER_RUN, EPOCH - 1, id="a run of a restored database"),
        pytest.param(None, EPOCH + 1, id="the same run, swept again"),
    ],
)
def test_a_hold_that_was_replaced_deletes_nothing(
    planned: PlannedWorld, run_id: str | None, epoch: int
) -> None:
    announce_epoch(planned.lake.storage, run_epoch=epoch, run_id=run_id or planned.run_id)
    with nothing_deleted(planned), pytest.raises(Refused) as refused:
        delete_candidates(planned)
    assert refused.value.kind == "lease_lost"


def test_the_hold_that_the_storage_names_deletes(planned: PlannedWorld) -> None:
    announce_epoch(planned.lake.storage, run_epoch=EPOCH, run_id=planned.run_id)
    assert any(each.of == "deleted" for each in delete_candidates(planned).counts)
