"""Missing, damaged or foreign ranges and trees: an error each, never data; shapes of addresses."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import Failed, Refused
from ebbtide.ids import descending_id, new_id
from ebbtide.storage import Storage
from ebbtide.storage.local import temporary_targets
from ebbtide.store.content.entries import Entry, to_table
from ebbtide.store.content.layout import (
    Kind,
    classify,
    new_object_address,
    range_address,
    tree_address,
)
from ebbtide.store.content.ranges import (
    RangeInfo,
    checksum_of,
    encode,
    read_range,
    read_range_addresses,
    write_range,
)
from ebbtide.store.content.trees import Tree, read_tree, write_tree
from tests.support.randomized import examples, randomized

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENTRIES = [Entry(f"path/{n:04}", f"data/s/{n}", n, f"sum{n}", NOW) for n in range(100)]

Read = Callable[[], object]


@pytest.fixture
def info(storage: Storage) -> RangeInfo:
    return write_range(storage, ENTRIES, range_id=new_id())


@pytest.fixture
def tree(info: RangeInfo) -> Tree:
    other = dataclasses.replace(info, range_id=new_id(), first_path="q", last_path="r")
    return Tree(new_id(), (info, other))


def readers(storage: Storage, info: RangeInfo) -> list[Read]:
    return [
        lambda: read_range(storage, info),
        lambda: read_range_addresses(
            storage, info.range_id, info.checksum, entry_count=info.entry_count
        ),
    ]


def refused(read: Read, address: str) -> str:
    with pytest.raises(Refused) as caught:
        read()
    assert caught.value.details["address"] == address
    assert address in caught.value.message
    return caught.value.kind


def rewritten(storage: Storage, info: RangeInfo, data: bytes) -> RangeInfo:
    """What a tree would say of a range whose file was written with these bytes."""
    storage.put(info.address, data)
    return dataclasses.replace(info, checksum=checksum_of(data))


def test_what_was_written_is_read_and_missing_files_are_told(
    storage: Storage, info: RangeInfo, tree: Tree
) -> None:
    addresses = [entry.address for entry in ENTRIES]
    assert info == RangeInfo(
        info.range_id, "path/0000", "path/0099", 100, sum(range(100)), info.checksum
    )
    # How columns are encoded is the writer's.
    data = encoded_by_another(to_table(ENTRIES), {b"ebbtide.format": b"1", b"more": b"x"})
    for encoded in (None, data):
        changed = info if encoded is None else rewritten(storage, info, encoded)
        entries, found = readers(storage, changed)
        assert entries() == ENTRIES
        assert found() == pa.array(addresses)
    for each in (tree, Tree(new_id())):
        assert read_tree(storage, each.tree_id, write_tree(storage, each)) == each
    checksum = write_tree(storage, tree)
    storage.delete([info.address, tree.address])
    for read in readers(storage, info):
        assert refused(read, info.address) == "missing_node"
    assert refused(partial(read_tree, storage, tree.tree_id, checksum), tree.address) == (
        "missing_tree"
    )


@randomized("damaged trees")
def test_any_flipped_bit_and_any_truncation(
    storage: Storage, info: RangeInfo, tree: Tree, seed: int
) -> None:
    checksum = write_tree(storage, tree)
    kinds: list[tuple[str, str, list[Read]]] = [
        (info.address, "corrupt_node", readers(storage, info)),
        (tree.address, "corrupt_tree", [lambda: read_tree(storage, tree.tree_id, checksum)]),
    ]
    generator = random.Random(seed)
    for address, kind, reads in kinds:
        whole = storage.get(address)
        damaged = [whole[:cut] for cut in (0, 1, 4, len(whole) // 2, len(whole) - 1)]
        for _ in range(50):
            flipped = bytearray(whole)
            flipped[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
            damaged.append(bytes(flipped))
        for data in [*damaged, whole + b"\0"]:
            storage.put(address, data)
            for read in reads:
                assert refused(read, address) == kind
        storage.put(address, whole)


def test_another_version(
    storage: Storage, info: RangeInfo, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("2", "", "\xff"):
        with monkeypatch.context() as patch:
            patch.setattr("ebbtide.store.content.ranges.FORMAT_VERSION", version)
            info = write_range(storage, ENTRIES, range_id=info.range_id)
            checksum = write_tree(storage, tree)
        for read in readers(storage, info):
            assert refused(read, info.address) == "unknown_format_version"
        tree_read = partial(read_tree, storage, tree.tree_id, checksum)
        assert refused(tree_read, tree.address) == "unknown_format_version"


def encoded_by_another(table: pa.Table, metadata: dict[bytes, bytes] | None = None) -> bytes:
    """As Arrow writes unless told: with dictionaries, statistics, and its own schema."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return sink.getvalue().to_pybytes()


def test_files_whose_checksum_is_right_and_that_are_still_wrong(
    storage: Storage, info: RangeInfo
) -> None:
    good = to_table(ENTRIES)
    wrong = {
        "no Parquet": b"hello",
        "empty": b"",
        "no version": encoded_by_another(good),
        "a column less": encode(good.drop_columns(["checksum"])),
        "another type": encode(
            good.set_column(2, "size_bytes", good.column("size_bytes").cast(pa.int32()))
        ),
        "no entries": encode(good.slice(0, 0)),
        "an entry less": encode(good.slice(1)),
    }
    for name, data in wrong.items():
        for read in readers(storage, rewritten(storage, info, data)):
            assert refused(read, info.address) == "corrupt_node", name


def test_entries_that_are_not_as_the_tree_says(storage: Storage, info: RangeInfo) -> None:
    for entries in (
        [ENTRIES[1], ENTRIES[0], *ENTRIES[2:]],
        [ENTRIES[0], ENTRIES[0], *ENTRIES[2:]],
        [*ENTRIES[:-1], dataclasses.replace(ENTRIES[-1], path="z")],
        [dataclasses.replace(ENTRIES[0], path="a"), *ENTRIES[1:]],
    ):
        changed = rewritten(storage, info, encode(to_table(entries)))
        assert refused(partial(read_range, storage, changed), info.address) == "corrupt_node"


def test_no_range_is_written_out_of_order_or_empty(storage: Storage) -> None:
    for entries in ([], [ENTRIES[1], ENTRIES[0]], [ENTRIES[0], ENTRIES[0]]):
        with pytest.raises(ValueError, match="ascend"):
            write_range(storage, entries, range_id=new_id())
    assert list(storage.list()) == []


def test_trees_whose_ranges_are_not_in_order(
    storage: Storage, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tree.ranges
    for ranges in (
        (second, first),
        (first, dataclasses.replace(second, first_path=first.last_path)),
        (dataclasses.replace(first, first_path="z"), second),
        (dataclasses.replace(first, entry_count=0), second),
        (dataclasses.replace(first, range_id="../../etc"), second),
    ):
        bad = Tree(tree.tree_id, ranges)
        with pytest.raises(ValueError, match="range"):
            write_tree(storage, bad)
        with monkeypatch.context() as patch:
            patch.setattr("ebbtide.store.content.trees._problem", lambda _: None)
            checksum = write_tree(storage, bad)
        read = partial(read_tree, storage, tree.tree_id, checksum)
        assert refused(read, tree.address) == "corrupt_tree"


def test_a_tree_is_no_range_nor_the_other_way_round(
    storage: Storage, info: RangeInfo, tree: Tree
) -> None:
    checksum = write_tree(storage, tree)
    storage.put(range_address(tree.tree_id), storage.get(tree.address))
    storage.put(tree_address(info.range_id), storage.get(info.address))
    as_range = dataclasses.replace(info, range_id=tree.tree_id, checksum=checksum)
    for read in readers(storage, as_range):
        assert refused(read, as_range.address) == "corrupt_node"
    as_tree = lambda: read_tree(storage, info.range_id, info.checksum)  # noqa: E731
    assert refused(as_tree, tree_address(info.range_id)) == "corrupt_tree"


def test_a_storage_that_fails_is_no_damage(
    storage: Storage, info: RangeInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_storage: Storage, _address: str) -> bytes:
        raise Failed("storage_error", "the network is down")

    monkeypatch.setattr(type(storage), "get", broken)
    for read in readers(storage, info):
        with pytest.raises(Failed):
            read()


SLICE = descending_id(datetime(2026, 1, 1, tzinfo=UTC))
OBJECT = new_object_address(SLICE, 7)
TREE, RANGE = tree_address(new_id()), range_address(new_id())
EXPECTED: dict[str, Kind] = {
    OBJECT: "object",
    TREE: "tree",
    RANGE: "range",
    "_ebbtide/OWNER": "system",
    "_ebbtide/gc/runs/x/plan.json": "system",
    "_ebbtide/gc/runs/x/plan.json#12": "system",
    f"{OBJECT}#1": "temporary",
    f"{TREE}#123456789012": "temporary",
    "_ebbtide/OWNER#7": "temporary",
    "": "foreign",
    "data": "foreign",
    "data/x": "foreign",
    f"data/{SLICE}/{SLICE}/x": "foreign",
    f"data/{SLICE}/short": "foreign",
    f"{OBJECT}\n": "foreign",
    f"{OBJECT}#": "foreign",
    f"{OBJECT}#1#2": "foreign",
    f"{OBJECT}#1\n": "foreign",
    f"x{OBJECT}": "foreign",
    OBJECT.upper(): "foreign",
    TREE.replace(".parquet", "xparquet"): "foreign",
    f"{TREE}.bak": "foreign",
    "_ebbtide/trees/x.parquet": "foreign",
    "_ebbtide/gc": "foreign",
    "_ebbtide/gc/": "foreign",
    "_ebbtide/OWNER2": "foreign",
    "x/_ebbtide/OWNER": "foreign",
}


def test_all_at_once_also_in_slices_and_with_nulls() -> None:
    addresses = pa.array([None, *EXPECTED], pa.string())
    assert classify(addresses).to_pylist() == ["foreign", *EXPECTED.values()]
    assert classify(addresses.slice(3)).to_pylist() == [*EXPECTED.values()][2:]
    assert classify(pa.array([], pa.string())).to_pylist() == []


@randomized("properties of values")
@examples("properties of values")
@given(st.text(alphabet="0a/#_.\n", max_size=40), st.sampled_from([OBJECT, TREE, RANGE, ""]))
def test_only_whole_shapes_are_ours(noise: str, base: str) -> None:
    (kind,) = classify(pa.array([base + noise])).to_pylist()
    suffix, digits = noise[:1], noise[1:]
    if base and not noise:
        assert kind == EXPECTED[base]
    elif base and suffix == "#" and digits and not digits.strip("0"):
        assert kind == "temporary"
    else:
        assert kind == "foreign"


def test_what_a_temporary_file_is_for() -> None:
    addresses = pa.array([OBJECT, f"{OBJECT}#12", "a#b", "a#1#2", "a#1\n", None])
    targets = temporary_targets(addresses)
    assert targets.to_pylist() == [None, OBJECT, None, "a#1", None, None]
    assert targets.type == pa.string()
    assert temporary_targets(addresses.slice(1, 1)).to_pylist() == [OBJECT]
    for start, stop in ((0, 0), (0, 1), (5, 6)):
        nothing = temporary_targets(addresses.slice(start, stop - start))
        assert nothing.to_pylist() == [None] * (stop - start)
        assert nothing.type == pa.string()
