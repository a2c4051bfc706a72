"""How long what a store promises lasts is the store's own: no process breaks what another one
promised, whatever its environment says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.settings import Settings
from ebbtide.store.collections.contents import ContentChange, Files, Located
from ebbtide.store.embedded import Store
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repositories.repository_rows import PROMISED
from ebbtide.store.staging.uploads import NewObject
from tests.support.collections import raises
from tests.support.world import DAY, World

HOUR: Final = timedelta(hours=1)
SECOND: Final = timedelta(seconds=1)
LONG: Final[dict[str, Any]] = {"lease_ttl": 2 * HOUR, "trash_time": 7 * DAY}
SHORT: Final[dict[str, Any]] = dict.fromkeys(("lease_ttl", "trash_time"), timedelta(0)) | {
    "upload_ttl": SECOND,
    "prepare_ttl": SECOND,
    "share_max": 1.0,
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, settings=LONG)
    yield made
    made.close()


@pytest.fixture
def other(world: World) -> Iterator[Store]:
    """A process that was told shorter times."""
    with Store.open(
        world.directory / "store", settings=Settings(**SHORT), clock=world.clock
    ) as store:
        yield store


def run_by(store: Store, world: World) -> None:
    """A whole run of another process, which reclaims too."""
    context = store.repository("lake").context
    options = RunOptions.of(store.settings, grace=SECOND, unsafe=True, mode="clean")
    report = Collector(
        EmbeddedRepository(context, store_id=store.store_id), engine=world.engine, options=options
    ).run()
    assert report.state == "swept"
    Reclaimer(store).once()


def test_a_process_goes_by_what_the_store_promises(world: World, other: Store) -> None:
    for name, told in SHORT.items():
        promised = getattr(world.store.settings, name)
        assert getattr(other.settings, name) == (promised if name in PROMISED else told)
    signed = world.lake.locators.upload(b"data")
    other.signing_keys.rotate()
    world.clock.advance(HOUR)
    other.signing_keys.rotate()
    assert b"".join(world.lake.locators.read(signed.locator).pieces) == b"data"


def test_times_are_promised_when_somebody_says_so(world: World, other: Store) -> None:
    wrong: tuple[tuple[dict[str, timedelta], str], ...] = (
        ({"grace": HOUR}, "invalid_argument"),
        ({"lease_ttl": HOUR, "no such": HOUR}, "invalid_argument"),
        ({"upload_ttl": timedelta(0)}, "invalid_setting"),
    )
    for times, kind in wrong:
        with raises(kind):
            world.store.promise(times)
    with Store.open(world.directory / "store", clock=world.clock) as again:
        assert (again.settings.lease_ttl, again.settings.trash_time) == tuple(LONG.values())
    world.lake.branches.create("side", "main")
    world.lake.branches.delete("side")
    other.promise({"trash_time": HOUR})
    world.clock.advance(HOUR)
    run_by(other, world)
    with raises("branch_not_found"):
        world.lake.branches.restore("side")


@pytest.mark.parametrize("promised_later", [False, True])
def test_no_process_breaks_what_another_promised(world: World, promised_later: bool) -> None:
    place, settings = world.directory / "store", Settings(**SHORT)
    lake = world.lake
    if promised_later:
        world.store.promise({name: SHORT[name] for name in LONG})
    with Store.open(place, settings=settings, clock=world.clock) as other:
        if promised_later:
            # The other process has been running since before.
            world.store.promise(LONG)
        world.keep(default={"keep_last": 1})
        world.save("main", days_ago=30, put=["a"])
        lake.branches.create("side", "main")
        world.save("side", days_ago=20, put=["b"])
        lake.objects.put("side", "c", b"staged")
        project_id = lake.projects.create("project").project_id
        made = lake.collections.create(
            project_id, "one", ContentChange([Files([NewObject("file", b"collected")])])
        )
        signed = lake.locators.sign_path("side~1", "a")
        lake.branches.delete("side")
        lake.collections.delete(made.collection_id)
        world.save("main", days_ago=1, delete=["a"])
        for lasts in (HOUR, 6 * DAY):
            world.clock.advance(lasts)
            run_by(other, world)
            if lasts == HOUR:
                used = ContentChange([Located({"file": signed.locator})])
                kept = lake.collections.create(project_id, "kept", used).collection_id
        lake.branches.restore("side")
        lake.collections.restore(made.collection_id)
        assert lake.objects.get("side", "b") == b"b"
        assert lake.objects.get("side", "c") == b"staged"
        for collection_id, content in ((kept, b"a"), (made.collection_id, b"collected")):
            assert b"".join(lake.collections.open(collection_id, "file").stream()) == content
