"""The collector on a real server of Azure's interface: quarantine, undo and purge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ebbtide.arrow import texts
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.engines import INLINE

SETTINGS: Final = Settings(lease_ttl=timedelta(0), trash_time=timedelta(0), share_max=1.0)
DAY: Final = timedelta(days=1)
USELESS: Final = 60
KEPT: Final = 5


def data_of(lake: Repository) -> set[str]:
    return {name for batch in lake.storage.list("data/") for name in texts(batch["address"])}


def held_of(lake: Repository, run_id: str) -> set[str]:
    prefix = f"_ebbtide/gc/runs/{run_id}/quarantine/"
    found = (name for batch in lake.storage.list(prefix) for name in texts(batch["address"]))
    return {name.removeprefix(prefix) for name in found}


def test_a_run_with_quarantine_undo_and_purge(azure_url: str, tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=SETTINGS, clock=clock) as store:
        lake = store.create_repository("lake", storage_url=f"{azure_url}/{new_id()}")
        kept = (NewObject(f"kept/{n}", b"kept") for n in range(KEPT))
        lake.objects.put_many("main", kept)
        lake.commits.commit("main", "kept")
        used = data_of(lake)
        lake.objects.put_many("main", (NewObject(f"no/{n}", b"no") for n in range(USELESS)))
        lake.commits.reset("main")
        useless = data_of(lake) - used
        assert (len(used), len(useless)) == (KEPT, USELESS)
        clock.advance(timedelta(seconds=5))
        repository = EmbeddedRepository(lake.context, store_id=store.store_id)

        def collector(quarantine: timedelta | None) -> Collector:
            options = RunOptions.of(
                SETTINGS, grace=timedelta(0), unsafe=True, mode="clean", quarantine=quarantine
            )
            return Collector(repository, engine=INLINE, options=options)

        first = collector(DAY).run()
        assert first.state == "swept", first.error
        assert first.counts["quarantined"].objects == USELESS
        assert data_of(lake) == used
        assert held_of(lake, first.run_id) == useless

        undone = collector(DAY).undo(first.run_id)
        assert undone.state == "undone", undone.error
        assert data_of(lake) == used | useless
        assert held_of(lake, first.run_id) == set()

        clock.advance(30 * DAY)  # the restored files are protected for a time
        second = collector(DAY).run()
        assert second.counts["quarantined"].objects == USELESS
        collector(DAY).purge(second.run_id)
        assert held_of(lake, second.run_id) == set()
        assert data_of(lake) == used
        assert {lake.objects.get("main", f"kept/{n}") for n in range(KEPT)} == {b"kept"}


def test_one_absent_file_is_counted_as_such(azure_url: str, tmp_path: Path) -> None:
    """Sixty files go, and another program has deleted one of them after the plan was made."""
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=SETTINGS, clock=clock) as store:
        lake = store.create_repository("lake", storage_url=f"{azure_url}/{new_id()}")
        lake.objects.put_many("main", (NewObject(f"no/{n}", b"no") for n in range(USELESS)))
        lake.commits.reset("main")
        clock.advance(timedelta(seconds=5))
        repository = EmbeddedRepository(lake.context, store_id=store.store_id)
        options = RunOptions.of(SETTINGS, grace=timedelta(0), unsafe=True, mode="clean")
        collector = Collector(repository, engine=INLINE, options=options)

        def absent_by_now(*_: object) -> bool:
            lake.storage.delete([sorted(data_of(lake))[0]])
            return True

        report = collector.run(confirm=absent_by_now)
        assert report.state == "swept", report.error
        assert report.counts["missing"].objects == 1
        assert report.counts["deleted"].objects == USELESS - 1
