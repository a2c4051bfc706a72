"""Gates on what holds the live data, and on roots: trees and ranges that are missing, damaged or
newer; and the root of another repository below the one that is collected. No run deletes there, and
each says what to do. Other foreign files are kept and counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from ebbtide.errors import Gone
from ebbtide.formats.icechunk.ids import new_id_text
from ebbtide.gc.collector import Collector
from ebbtide.storage import Storage, open_storage
from ebbtide.store.content.layout import OWNER_ADDRESS, tree_address
from ebbtide.store.content.trees import Tree, read_tree
from tests.formats.lakefs.tables import partition
from tests.formats.lakefs.world import DAY, START, open_lakefs_world
from tests.support.collections import raises
from tests.support.copies import contents_of
from tests.support.gone import expire_repository, fill, remover
from tests.support.histories import PlannedWorld
from tests.support.icechunk import build_random
from tests.support.icechunk_lake import IcechunkLake
from tests.support.refusals import check_readable, check_refused, nothing_deleted
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


Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def hurt(world: PlannedWorld, damage: Damage, file: Path) -> None:
    damage(file)
    if file.exists():
        os.utime(file, (world.now.timestamp(),) * 2)


def tree_of(world: PlannedWorld, commit_id: str) -> Tree:
    record = world.lake.commits.get(commit_id)
    return read_tree(world.lake.storage, *record.require_tree())


def test_a_damaged_range_or_tree(planned: PlannedWorld) -> None:
    """A range that a kept commit needs; a tree that a ref reaches, though its commit expired."""
    history = planned.history
    tree = tree_of(planned, history.middle)
    kept_range, kept_tree = (planned.root / each.address for each in (tree.ranges[0], tree))
    expired_tree = planned.root / tree_of(planned, history.expired).address
    damages: list[tuple[Path, Damage]] = [
        (kept_range, Path.unlink),
        (kept_range, flip),
        (kept_tree, Path.unlink),
        (kept_tree, flip),
        (expired_tree, Path.unlink),
        (expired_tree, flip),
    ]
    for file, damage in damages:
        data = file.read_bytes()
        hurt(planned, damage, file)
        with nothing_deleted(planned):
            report = planned.collector().run()
        what = "missing" if damage is Path.unlink else "corrupt"
        kind = f"{what}_node" if file is kept_range else f"{what}_tree"
        check_refused(report, kind, file.name, "restore it", "give up")
        if file is kept_range:
            check_readable(planned)
        file.write_bytes(data)
        hurt(planned, Path.touch, file)
    planned.swept()


def test_damaged_commit_can_be_given_up(planned: PlannedWorld) -> None:
    history = planned.history
    hurt(planned, flip, planned.root / tree_of(planned, history.middle).ranges[0].address)
    check_refused(planned.collector().run(), "corrupt_node")
    kept = contents_of(planned, history.head)
    planned.lake.give_up(history.middle, "the disk lost it")
    report = planned.collector().run()
    assert report.state == "swept"
    assert contents_of(planned, history.head) == kept
    assert contents_of(planned, "main") == kept | {"staged": b"staged"}
    with pytest.raises(Gone) as gone:
        planned.lake.objects.get(history.middle, "one")
    assert gone.value.kind == "commit_expired"
    assert "the disk lost it" in gone.value.message


def test_missing_tree_is_no_empty_one(planned: PlannedWorld) -> None:
    """The initial commit's tree holds nothing, and its file must be there all the same."""
    initial = planned.lake.commits.log("main")[-1]
    assert not tree_of(planned, initial.commit_id).ranges
    assert initial.tree_id is not None
    (planned.root / tree_address(initial.tree_id)).unlink()
    with nothing_deleted(planned):
        check_refused(planned.collector().plan(), "missing_tree")


def test_roots_apart(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    (tmp_path / "link").symlink_to(world.directory)
    path = "store/storage/lake/data/inner"
    before = {*world.directory.rglob("*")}
    for url in (
        f"{world.directory}/{path}//",
        f"{world.directory}/store/../{path}/.",
        f"{tmp_path}/link/{path}",
        (world.directory / path).as_uri(),
    ):
        with raises("nested_root"):
            world.store.create_repository("second", storage_url=url)
    assert {each for each in world.directory.rglob("*") if ".db-" not in each.name} <= before
    world.close()
