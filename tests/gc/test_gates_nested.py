"""The root of another repository below the root of the one that is collected: no run deletes there,
and each says what to do. Other foreign files are kept and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from ebbtide.formats.icechunk.ids import new_id_text
from ebbtide.gc.collector import Collector
from ebbtide.storage import Storage, open_storage
from ebbtide.store.content.layout import OWNER_ADDRESS
from tests.formats.lakefs.tables import partition
from tests.formats.lakefs.world import DAY, START, open_lakefs_world
from tests.support.gone import expire_repository, fill, remover
from tests.support.icechunk import build_random
from tests.support.icechunk_lake import IcechunkLake
from tests.support.refusals import check_refused
from tests.support.world import World

XID = partition(START, 0x1234)
ICECHUNK = {"repo": b"", f"snapshots/{new_id_text()}": b"", f"chunks/{new_id_text()}": b"theirs"}
LAKEFS = {"_lakefs/dummy": b"", f"data/{XID}/{XID}": b"theirs"}
LAKEFS_OLD = {"dummy": b"", f"_lakefs/{'0a' * 32}": b"", f"data/{XID}/{XID}": b"theirs"}
EBBTIDE = {OWNER_ADDRESS: b'{"format": 1}', f"data/{'0' * 32}/{'1' * 32}": b"theirs"}
ENDED = {OWNER_ADDRESS: b'{"format": 1, "closed": true}', f"data/{'0' * 32}/{'1' * 32}": b"left"}
NESTED: Mapping[str, Mapping[str, bytes]] = {
    "Icechunk": ICECHUNK,
    "lakeFS": LAKEFS,
    "an old lakeFS": LAKEFS_OLD,
    "Ebbtide": EBBTIDE,
}
PLACES = ("inner/", "data/inner/", "chunks/inner/", "data/")
FOREIGN = {
    "data/raw/customers.csv": b"a user's own file",
    "data/README.txt": b"a user's own file",
    "data/team-b/dummy": b"of nobody knows whom",
    f"data/{XID}/{XID}x": b"nearly a name of lakeFS",
    f"data/inner/data/{XID}/{XID}": b"deeper than any name",
    f"chunks/{new_id_text().lower()}": b"in lower case",
    "table/_delta_log/00000000000000000000.json": b"a table of Delta Lake",
    "table/metadata/00000-a.metadata.json": b"a table of Iceberg",
    **{f"ended/{name}": data for name, data in ENDED.items()},
}


class Case:
    """A repository with something to delete, on a storage where others write too."""

    def __init__(self, storage: Storage, collector: Callable[[], Collector]) -> None:
        self.storage = storage
        self.collector = collector

    def put(self, files: Mapping[str, bytes], place: str = "") -> None:
        for name, data in files.items():
            self.storage.put(place + name, data)

    def lacks(self, files: Iterable[str], place: str = "") -> set[str]:
        return {name for name in files if self.storage.head(place + name) is None}


@contextmanager
def _lakefs(_directory: Path) -> Iterator[tuple[Case, Callable[[], None]]]:
    with open_lakefs_world() as world:
        world.state.upload("main", "a", b"dropped")
        world.state.delete("main", "a")
        for number in range(3):
            world.state.upload("main", f"kept{number}", b"kept")
        world.state.commit("main")
        yield Case(world.state.storage, world.collector), lambda: world.grow_old(3 * DAY)


@contextmanager
def _icechunk(directory: Path) -> Iterator[tuple[Case, Callable[[], None]]]:
    build_random(directory / "lake", 1, 2)
    lake = IcechunkLake(directory / "lake")
    storage = open_storage(str(lake.path))
    storage.put(f"chunks/{new_id_text()}", b"of no snapshot")
    yield Case(storage, lake.collector), lake.age


@contextmanager
def _embedded(directory: Path) -> Iterator[tuple[Case, Callable[[], None]]]:
    world = World(directory)
    world.save("main", days_ago=30, put=["a"])
    world.save("main", days_ago=20, put=["b"], delete=["a"])
    world.save("main", days_ago=1, put=["c"])
    world.keep(default="7d")
    yield Case(open_storage(str(world.root)), world.collector), lambda: world.clock.advance(3 * DAY)
    world.close()


FORMATS = {"lakeFS": _lakefs, "Icechunk": _icechunk, "Ebbtide": _embedded}


@pytest.mark.parametrize("name", FORMATS)
def test_another_root_refuses(tmp_path: Path, name: str) -> None:
    """Inside, or the same. Other foreign files are kept and counted, and do not stop a run."""
    with FORMATS[name](tmp_path) as (case, grow_old):

        def check(files: Mapping[str, bytes], place: str, *says: str) -> None:
            case.put(files, place)
            grow_old()
            check_refused(case.collector().run(), "nested_root", "root of its own", *says)
            assert not case.lacks(files, place)
            case.storage.delete([place + each for each in files])

        for files, place in product(NESTED.values(), PLACES):
            check(files, place, place.rstrip("/"), "run again")
        for inner in {*FORMATS} - {name}:
            files = {each: data for each, data in NESTED[inner].items() if case.lacks([each])}
            check(files, "", "is the root of this repository")
        case.put(FOREIGN)
        grow_old()
        report = case.collector().run()
        assert (report.state, report.error) == ("swept", None)
        assert report.counts["deleted"].objects
        assert report.kinds["foreign"].objects == len(FOREIGN)
        assert not case.lacks(FOREIGN)


@pytest.mark.parametrize("name", ["lakeFS", "Icechunk"])
def test_the_owner_of_an_ended_repository_does_not_refuse(tmp_path: Path, name: str) -> None:
    with FORMATS[name](tmp_path) as (case, grow_old):
        case.put(ENDED)
        grow_old()
        assert case.collector().run().state == "swept"
        assert not case.lacks(ENDED)


def test_a_gone_repository_with_another_inside_is_not_removed(tmp_path: Path) -> None:
    world = World(tmp_path, settings={"trash_time": 7 * DAY})
    fill(world)
    storage = open_storage(str(world.root))
    for name, data in ICECHUNK.items():
        storage.put(f"inner/{name}", data)
    report = remover(world.store, expire_repository(world)).run()
    check_refused(report, "nested_root", "inner", "root of its own")
    assert all(storage.head(f"inner/{name}") for name in ICECHUNK)
    world.close()
