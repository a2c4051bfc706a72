"""What a power cut takes: files of a run that nobody waited for. No sweep needs them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ebbtide.storage.local import LocalStorage
from tests.gc.test_gates_sweep import break_off
from tests.support.copies import contents_of
from tests.support.histories import PlannedWorld, kept_contents


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
