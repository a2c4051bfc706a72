"""Gates that close between plan and sweep, and sweeps after one that was broken off."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import Gone
from ebbtide.formats.base import RUNS_PREFIX
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.storage import DeleteOutcome, LocalStorage
from ebbtide.storage.failures import LOCKED
from tests.support.copies import contents_of, listing, tombstoned, verify
from tests.support.dying import Died
from tests.support.engines import INLINE
from tests.support.histories import EXPIRED_ONLY, PlannedWorld, kept_contents
from tests.support.icechunk_lake import candidates
from tests.support.refusals import check_readable, check_refused, nothing_deleted


def break_off(world: PlannedWorld, at: str) -> None:
    """Sweep until a step has ended."""

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
    """What an earlier run remembered is gone: everything is listed."""
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
