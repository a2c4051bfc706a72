"""The collector on a real server of Azure's interface: quarantine, undo and purge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ebbtide.arrow import texts
from ebbtide.ids import new_id
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.world import AT_ONCE, DAY, collector_of

USELESS: Final = 60
KEPT: Final = 5


def data_of(lake: Repository) -> set[str]:
    return {name for batch in lake.storage.list("data/") for name in texts(batch["address"])}


def held_of(lake: Repository, run_id: str) -> set[str]:
    prefix = f"_ebbtide/gc/runs/{run_id}/quarantine/"
    found = (name for batch in lake.storage.list(prefix) for name in texts(batch["address"]))
    return {name.removeprefix(prefix) for name in found}


def filled(store: Store, url: str) -> tuple[Repository, set[str], set[str]]:
    """A repository, the files that it needs, and those that it does not."""
    lake = store.create_repository("lake", storage_url=url)
    lake.objects.put_many("main", (NewObject(f"kept/{n}", b"kept") for n in range(KEPT)))
    lake.commits.commit("main", "kept")
    used = data_of(lake)
    lake.objects.put_many("main", (NewObject(f"no/{n}", b"no") for n in range(USELESS)))
    lake.commits.reset("main")
    useless = data_of(lake) - used
    assert (len(used), len(useless)) == (KEPT, USELESS)
    return lake, used, useless


def check_quarantine(store: Store, clock: ManualClock, url: str) -> None:
    """A run with a quarantine, its undo, a later run, and the end of its quarantine."""
    lake, used, useless = filled(store, url)
    clock.now = datetime.now(UTC) + timedelta(seconds=5)  # later than the dates of all files
    collector = collector_of(store, lake, quarantine=DAY)
    first = collector.run()
    assert first.state == "swept", first.error
    assert first.counts["quarantined"].objects == USELESS
    assert (data_of(lake), held_of(lake, first.run_id)) == (used, useless)

    undone = collector.undo(first.run_id)
    assert undone.state == "undone", undone.error
    assert (data_of(lake), held_of(lake, first.run_id)) == (used | useless, set())

    clock.advance(30 * DAY)  # the restored files are protected for a time
    second = collector.run()
    assert second.counts["quarantined"].objects == USELESS
    collector.purge(second.run_id)
    assert (data_of(lake), held_of(lake, second.run_id)) == (used, set())
    assert {lake.objects.get("main", f"kept/{n}") for n in range(KEPT)} == {b"kept"}


def test_a_run_with_quarantine_undo_and_purge(azure_url: str, tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=AT_ONCE, clock=clock) as store:
        check_quarantine(store, clock, f"{azure_url}/{new_id()}")
