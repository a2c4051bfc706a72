"""The address index: what it spares, what it does not trust, and that it changes nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.formats.base import INDEX_PREFIX
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc import committed as live
from ebbtide.gc import index as index_module
from ebbtide.gc import keys
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.index import Index
from ebbtide.gc.keys import (
    SET_AT_ONCE,
    KeySet,
    keys_of,
)
from tests.support.engines import on_engines
from tests.support.randomized import examples, randomized
from tests.support.refusals import check_refused
from tests.support.world import DAY, World

SETTINGS = {"range_entries_target": 2}
"""Ranges are so small that commits share some with their parents."""
KEEP = {"default": "3d"}
PATHS = tuple(f"table/{number:02d}" for number in range(12))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    for name in ("read_tree", "read_node"):
        monkeypatch.setattr(EmbeddedLayout, name, _noting(getattr(EmbeddedLayout, name), seen))
    return seen


def _noting(method: Any, seen: list[str]) -> Any:
    def noting(self: EmbeddedLayout, storage: Any, read_id: str, *rest: Any, **more: Any) -> Any:
        seen.append(read_id)
        return method(self, storage, read_id, *rest, **more)

    return noting


def write(world: World, number: int) -> None:
    path = PATHS[number % len(PATHS)]
    world.lake.objects.put("main", path, f"{number}".encode())
    world.lake.commits.commit("main", str(number))
    world.clock.advance(timedelta(hours=2))


def fill(world: World) -> None:
    for path in PATHS:
        world.lake.objects.put("main", path, path.encode())
    world.lake.commits.commit("main", "all")
    world.clock.advance(timedelta(hours=2))


def index_files(world: World, family: str = "") -> list[Path]:
    return sorted((world.root / INDEX_PREFIX).glob(f"{family}*.arrow"))


@pytest.mark.parametrize("mode", ["clean", "incremental"])
def test_a_node_is_read_once(world: World, read: list[str], mode: str) -> None:
    fill(world)
    world.swept(mode=mode)
    assert len(read) == len(set(read)) > 4
    read.clear()
    world.swept(mode=mode)
    assert read == []
    write(world, 1)
    world.swept(mode=mode)
    (node_id, *others) = world.lake.context.tree_of(world.lake.commits.get("main")).ranges
    assert 2 <= len(read) == len(set(read)) < 2 + len([node_id, *others])


@pytest.mark.parametrize("mode", ["clean", "incremental"])
def test_many_are_divided_among_tasks(
    world: World, read: list[str], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """What tasks wrote is found, whichever task looks for it."""
    monkeypatch.setattr("ebbtide.gc.engines.base.ROWS_PER_TASK_MIN", 1)
    world.engine = DuckEngine(cores=2)
    fill(world)
    for number in range(5):
        world.swept(mode=mode)
        known = {*world.lake.context.tree_of(world.lake.commits.get("main")).ranges}
        write(world, 5 * number)
        read.clear()
        world.swept(mode=mode)
        new = {*world.lake.context.tree_of(world.lake.commits.get("main")).ranges} - known
        assert {*read} >= {each.range_id for each in new}
        assert len(read) == len(new) + 1
    assert len(index_files(world, "nodes")) == len(index_files(world, "keys")) > 5


def test_parts_that_nothing_reads_are_dropped(world: World, read: list[str]) -> None:
    """Those of an earlier version; and keys whose entries were never written, after a day."""
    fill(world)
    world.swept()
    before, seen = index_files(world), set(read)
    folder = world.root / INDEX_PREFIX
    for name in (f"trees-0a-{'0' * 32}.arrow", "else.arrow", f"keys-{'1' * 32}.arrow"):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (world.now.timestamp(),) * 2)
    world.swept()
    assert index_files(world) == sorted([*before, folder / f"keys-{'1' * 32}.arrow"])
    world.clock.advance(2 * DAY)
    world.swept()
    assert index_files(world) == before
    assert set(read) == seen


def test_it_is_read_but_not_written_for_a_plan_elsewhere(
    world: World, read: list[str], tmp_path: Path
) -> None:
    fill(world)
    world.swept()
    write(world, 1)
    before, seen = index_files(world), len(set(read))
    read.clear()
    report = world.collector(run_dir=str(tmp_path / "elsewhere")).plan()
    assert report.state == "planned"
    assert 0 < len(read) < seen
    assert index_files(world) == before


def _other(path: Path) -> None:
    others = [each for each in path.parent.iterdir() if each != path]
    path.write_bytes(others[0].read_bytes())


def _changed(path: Path) -> None:
    """Well-formed still, as if a disk changed some bits: other keys, nodes in another order, fewer
    nodes of trees. If it were believed, live files would go."""
    with pa.OSFile(str(path), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    rows = table.to_pylist()
    for row in rows:
        if path.name.startswith("keys"):
            row["keys"] = [key ^ 1 for key in row["keys"]]
        elif row.get("nodes") is not None:
            row["nodes"] = row["nodes"][:1]
    changed = pa.Table.from_pylist(rows, schema=table.schema)
    if path.name.startswith("nodes"):
        changed = changed.take(list(range(len(rows)))[::-1])
    assert not changed.equals(table)
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(changed)


def test_parts_that_are_not_as_they_were_written(world: World, read: list[str]) -> None:
    fill(world)
    world.swept()
    first = set(read)
    damages: list[Callable[[Path], object]] = [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b"no Arrow"),
        _other,
        _changed,
        Path.unlink,
    ]
    for damage, family in product(damages, ("trees", "nodes", "keys")):
        read.clear()
        for path in index_files(world, family):
            damage(path)
        assert world.swept().counts["candidate"].objects == 0
        assert set(read) <= first
        assert read, (damage, family)
        read.clear()
        world.swept()
        assert read == []


def test_a_part_under_a_name_of_another_kind(world: World) -> None:
    """Its bytes are as its name says, and are of the other family."""
    fill(world)
    world.swept()
    (trees,) = index_files(world, "trees")
    for path in index_files(world, "nodes"):
        path.unlink()
    os.link(trees, trees.with_name(trees.name.replace("trees", "nodes")))
    assert world.swept().counts["candidate"].objects == 0


def test_files_that_were_written_over_since_or_are_gone(world: World, read: list[str]) -> None:
    fill(world)
    world.swept()
    for family in ("trees", "ranges"):
        read.clear()
        for path in (world.root / "_ebbtide" / family).iterdir():
            os.utime(path, (world.now.timestamp(),) * 2)
        world.clock.advance(DAY)
        world.swept()
        assert read, family
        read.clear()
        world.swept()
        assert read == []
    for family, kind in (("ranges", "node"), ("trees", "tree")):
        for path in (world.root / "_ebbtide" / family).iterdir():
            path.unlink()
        check_refused(world.collect(mode="clean"), f"missing_{kind}")


def test_small_parts_are_put_together(
    world: World, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "SMALL_MAX", 2)
    fill(world)
    for number in range(10):
        write(world, number)
        world.swept(mode="incremental")
        for family in ("trees", "nodes", "keys"):
            assert len(index_files(world, family)) <= index_module.SMALL_MAX + 1
    read.clear()
    world.swept()
    assert read == []


def test_what_is_of_no_use_is_dropped(world: World) -> None:
    fill(world)
    for number in range(20):
        write(world, number)
    world.swept()
    before = _size(world)
    world.clock.advance(4 * DAY)
    world.swept()
    world.swept()
    assert _size(world) < before


def _size(world: World) -> int:
    return sum(path.stat().st_size for path in index_files(world, "keys"))


def test_large_parts_are_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "KEYS_PER_PART", 3)
    fill(world)
    world.swept()
    assert len(index_files(world, "keys")) >= len(PATHS) // 4
    write(world, 1)
    monkeypatch.setattr(index_module, "SMALL_MAX", 0)
    world.swept()
    world.swept()
    assert len(index_files(world, "keys")) >= len(PATHS) // 4
    assert world.collector().plan().counts["candidate"].objects == 0


def test_a_run_that_dies_between_writing_and_dropping(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there twice changes nothing, and goes with the next run."""
    fill(world)
    for number in range(12):
        write(world, number)
        world.swept(mode="incremental")

    def die(_self: Index, _names: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(index_module, "SMALL_MAX", 0)
        patched.setattr(Index, "drop", die)
        with pytest.raises(KeyboardInterrupt):
            world.collect(mode="clean")
    world.clock.advance(DAY)
    assert world.swept().counts["deleted"].objects == 0
    assert world.contents() >= {path for path in PATHS[1:] if path.endswith("/00")}


@on_engines("inline", "spark")
def test_the_same_plan_with_and_without_it(world: World, engine: Engine) -> None:
    world.engine = engine
    fill(world)
    for number in range(6):
        write(world, number)
        world.swept(mode="incremental")
    world.clock.advance(4 * DAY)
    warm = world.collector(mode="clean").plan()
    for path in index_files(world):
        path.unlink()
    cold = world.collector(mode="clean").plan()
    assert warm.counts == cold.counts
    assert warm.counts["candidate"].objects > 0


def test_addresses_with_one_key_keep_garbage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And never drop what is live."""
    fill(world)
    world.lake.objects.put("main", "dropped", b"dropped")
    world.lake.objects.delete("main", "dropped")
    world.clock.advance(timedelta(hours=2))
    for module in (keys, index_module, live):
        monkeypatch.setattr(module, "keys_of", lambda addresses: keys_of(addresses) % 3)
    monkeypatch.setattr("ebbtide.gc.candidates.keys_of", lambda addresses: keys_of(addresses) % 3)
    world.swept()
    assert world.contents() >= set(PATHS)
    assert "dropped" in world.contents()


KEYS = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=20)


@randomized("properties of values")
@examples("properties of values")
@given(few=KEYS, many=KEYS)
def test_what_of_many_keys_is_in_a_set(few: list[int], many: list[int]) -> None:
    found = KeySet(np.array(few, np.int64)).among(np.array(many, np.int64))
    assert found.tolist() == [key for key in many if key in few]


def test_a_set_is_exact_where_all_bits_but_one_are_the_same() -> None:
    few = np.array([5, 5 << 40], np.int64)
    for bit in range(63):
        assert KeySet(few).among(few ^ (1 << bit)).tolist() == [], bit
    # XXH3 with 64 bits of nothing at all, as its specification has it.
    found = keys_of(pa.array([""], pa.string()))
    assert found.view(np.uint64).tolist() == [0x2D06800538D394C2]


@pytest.mark.parametrize("count", [0, 1, SET_AT_ONCE, SET_AT_ONCE + 1, 3 * SET_AT_ONCE])
@randomized("keys in large numbers")
def test_a_set_goes_through_keys_some_at_a_time(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    many = rng.integers(-(2**63), 2**63 - 1, count, dtype=np.int64)
    found = KeySet(np.concatenate([many[:: SET_AT_ONCE - 1], many[-2:]]))
    expected = sorted({*range(0, count, SET_AT_ONCE - 1), *range(max(0, count - 2), count)})
    assert found.places(many).tolist() == expected
    assert found.has(many).nonzero()[0].tolist() == expected
