"""Gates on the run: one at a time, and clocks that agree; gates that close between plan and sweep,
and sweeps after one that was broken off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode, Gone, Refused
from ebbtide.formats.base import RUNS_PREFIX, RunHold, unguarded
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc.deletes import delete_parts, tally
from ebbtide.gc.parts import Count
from ebbtide.gc.report import EXIT_CODES, RunReport
from ebbtide.gc.runs import RunFolder, announce_epoch
from ebbtide.processes import this_process
from ebbtide.storage import DeleteOutcome, LocalStorage
from ebbtide.storage.clients import LOCKED
from ebbtide.store.repositories import leases
from ebbtide.store.repositories.leases import beat
from tests.support.copies import contents_of, listing, tombstoned, verify
from tests.support.dying import Died
from tests.support.engines import INLINE
from tests.support.histories import EXPIRED_ONLY, GRACE, PlannedWorld, kept_contents
from tests.support.icechunk_lake import candidates
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
    with world.format().hold(OTHER_RUN) as hold:
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
    with planned.format().hold(OTHER_RUN) as hold:
        planned.clock.advance(LEASE - timedelta(seconds=1))
        check_both_refused(planned, "run_in_progress", OTHER_RUN, "29 s ago", "wait for it to end")
        hold.check()
    check_readable(planned)
    with planned.format().hold(OTHER_RUN) as hold:
        for _ in range(3):
            planned.clock.advance(LEASE * 0.9)
            beat(planned.store.metadata, hold.lease)
        check_refused(planned.collector().plan(), "run_in_progress")


def test_silent_run_is_replaced(planned: PlannedWorld) -> None:
    with planned.format().hold("0" * 32) as old:
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
    with planned.format().hold(OTHER_RUN) as hold:
        hold.check()


def test_run_of_a_process_on_this_machine(
    planned: PlannedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease lasts as long as it does. Which process is dead: `tests/test_processes.py`."""
    with planned.format().hold(OTHER_RUN):
        monkeypatch.setattr(leases, "is_dead", lambda holder: holder == this_process())
        with planned.format().hold("0" * 32) as hold:
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
    check_closed(planned)


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


def delete_candidates(world: PlannedWorld) -> Count:
    """Deletes the candidates of the plan, as executors of its run under EPOCH."""
    folder = RunFolder.inside(world.lake.storage, world.run_id)
    delete_parts(
        INLINE,
        storage=folder.storage,
        folder=folder,
        parts=world.collector().plan_of(world.run_id).candidates,
        epoch=EPOCH,
        run_id=world.run_id,
        guard=unguarded,
    )
    return tally(INLINE, folder).counts["deleted"]


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
    # The hold that the storage names deletes.
    announce_epoch(planned.lake.storage, run_epoch=EPOCH, run_id=planned.run_id)
    assert delete_candidates(planned).objects


def break_off(world: PlannedWorld, at: str) -> None:
    def stop(step: str, event: str) -> None:
        if (step, event) == (at, "end"):
            raise Died

    with pytest.raises(Died):
        world.collector(observer=stop).sweep(world.run_id)


def commit_and_spoil(world: PlannedWorld) -> tuple[Path, bytes]:
    """A new commit whose range is then damaged; the range's file, and its bytes before."""
    before = world.files("_ebbtide/ranges")
    world.save("main", days_ago=0, put=["new"])
    (address,) = world.files("_ebbtide/ranges") - before
    file = world.root / address
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    return file, data


def check_closed(world: PlannedWorld) -> None:
    """Nothing leads back to the expired commit."""
    assert world.history.expired in tombstoned(world)
    with pytest.raises(Gone):
        world.lake.objects.get(world.history.expired, EXPIRED_ONLY)
    with pytest.raises(Gone):
        world.lake.branches.create("back", world.history.expired)


def test_gate_that_closes_behind_the_fence(planned: PlannedWorld) -> None:
    file, data = commit_and_spoil(planned)
    with nothing_deleted(planned):
        report = planned.collector().sweep(planned.run_id)
    check_refused(report, "corrupt_node", file.name, "restore it")
    check_readable(planned)
    # Nothing was let go: a branch may still be made from what the plan would take.
    planned.lake.branches.create("back", planned.history.expired)
    planned.lake.branches.delete("back")
    assert planned.collector().show(planned.run_id).state == "planned"
    file.write_bytes(data)
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    assert report.counts["deleted"] == report.counts["candidate"]
    assert contents_of(planned, "main")["new"] == b"new"
    check_closed(planned)


def test_refusal_does_not_open_what_an_earlier_attempt_let_go(planned: PlannedWorld) -> None:
    break_off(planned, "delete object")
    file, data = commit_and_spoil(planned)
    check_refused(planned.collector().sweep(planned.run_id), "corrupt_node", file.name)
    check_closed(planned)
    assert planned.collector().show(planned.run_id).state == "incomplete"
    file.write_bytes(data)
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    assert report.counts["deleted"] == report.counts["candidate"]
    assert kept_contents(planned, planned.history)[planned.history.head]


def test_refusal_does_not_open_what_another_run_let_go(planned: PlannedWorld) -> None:
    """The first run closed it, the second one deleted it, the first one comes back."""
    break_off(planned, "fence")
    assert planned.collector().run().state == "swept"
    check_closed(planned)
    file, _ = commit_and_spoil(planned)
    check_refused(planned.collector().sweep(planned.run_id), "corrupt_node", file.name)
    check_closed(planned)


def test_half_written_record_is_no_record(planned: PlannedWorld) -> None:
    """A process that is killed as it writes leaves a temporary file behind."""
    break_off(planned, "delete tree")
    records = planned.root / RUNS_PREFIX / planned.run_id / "deleted"
    (part, *_) = records.rglob("*.parquet")
    part.with_name(f"{part.name}#123456").write_bytes(part.read_bytes()[:20])
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    assert report.counts["deleted"] == report.counts["candidate"]


FOLDERS = {"tree": "_ebbtide/trees/", "range": "_ebbtide/ranges/", "object": "data/"}


@pytest.mark.parametrize("kind", ["tree", "range"])
def test_what_it_points_at_stays(planned: PlannedWorld, kind: str) -> None:
    doomed = candidates(planned.collector().show(planned.run_id))
    locked = planned.root / next(name for name in doomed if name.startswith(FOLDERS[kind]))
    data = locked.read_bytes()
    locked.unlink()
    locked.mkdir()  # a file that cannot be deleted
    report = planned.collector().sweep(planned.run_id)
    assert (report.state, report.counts["failed"].objects) == ("incomplete", 1)
    order = EmbeddedLayout().delete_order
    behind = [FOLDERS[each] for each in order[order.index(kind) + 1 :] if each in FOLDERS]
    held_back = {name for name in doomed if name.startswith(tuple(behind))}
    assert held_back
    assert held_back <= listing(planned.root).keys()
    locked.rmdir()
    locked.write_bytes(data)
    assert planned.collector().sweep(planned.run_id).state == "swept"
    assert not doomed.keys() & listing(planned.root).keys()
    verify(planned)


def test_files_of_which_a_lock_keeps_versions_hold_nothing_back(
    planned: PlannedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are hidden. A directory stands for a bucket with object lock."""

    def refuse(_self: LocalStorage, addresses: list[str]) -> list[DeleteOutcome]:
        return [DeleteOutcome(each, "failed", f"{LOCKED}until tomorrow") for each in addresses]

    planned.engine = INLINE
    doomed = candidates(planned.collector().show(planned.run_id))
    assert len({each.partition("/")[0] for each in doomed}) > 1
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete_versions", refuse)
        report = planned.collector(delete_versions=True).sweep(planned.run_id)
    assert report.state == "incomplete"
    assert report.counts["locked"] == report.counts["failed"]
    assert report.counts["failed"].objects == len(doomed)
    assert not doomed.keys() & listing(planned.root).keys()
    assert planned.collector(delete_versions=True).sweep(planned.run_id).state == "swept"
    verify(planned)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Addresses that were written without waiting for the disk; they are collected in it."""
    found: set[str] = set()
    put = LocalStorage.put

    def note(storage: LocalStorage, address: str, data: Any, **options: Any) -> None:
        put(storage, address, data, **options)
        found.discard(address)
        if not options.get("durable", True):
            found.add(address)

    monkeypatch.setattr(LocalStorage, "put", note)
    return found


def cut_power(world: PlannedWorld, lost: set[str]) -> None:
    """As a file system does that wrote down the names and not yet the content."""
    assert lost
    for address in lost:
        file = world.root / address
        if file.exists():
            file.write_bytes(b"")
    lost.clear()


@pytest.mark.parametrize("step", ["fence", "delete object", "delete tree"])
def test_a_sweep_goes_on_after_a_power_cut(
    planned: PlannedWorld, lost: set[str], step: str
) -> None:
    run_id = planned.collector().plan().run_id
    assert not {each for each in lost if "/candidates/" in each or "/deleted/" in each}
    planned.run_id = run_id
    break_off(planned, step)
    cut_power(planned, lost)
    report = planned.collector().sweep(run_id)
    assert report.state == "swept"
    assert report.counts["deleted"] == report.counts["candidate"]
    assert kept_contents(planned, planned.history) == planned.template.contents


def test_the_run_after_a_power_cut(planned: PlannedWorld, lost: set[str]) -> None:
    """The list of what remained after an earlier run is gone: everything is listed."""
    young = planned.lake.objects.put("main", "young", b"young").address
    planned.lake.objects.delete("main", "young")
    os.utime(planned.root / young, ((planned.now + timedelta(hours=9)).timestamp(),) * 2)
    planned.clock.advance(timedelta(hours=3))
    assert planned.collector(mode="auto").run().state == "swept"
    planned.lake.objects.put("main", "later", b"later")
    planned.clock.advance(timedelta(hours=3))
    cut_power(planned, lost)
    report = planned.collector(mode="auto").run()
    assert (report.state, report.mode) == ("swept", "clean")
    assert "not as it was written" in str(report.mode_reason)
    assert kept_contents(planned, planned.history)[planned.history.head]
    assert contents_of(planned, "main")["later"] == b"later"
