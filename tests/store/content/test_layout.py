"""What an address is, by its shape."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.ids import descending_id, new_id
from ebbtide.storage.local import temporary_targets
from ebbtide.store.content.layout import (
    Kind,
    classify,
    new_object_address,
    range_address,
    tree_address,
)
from tests.support.randomized import examples, randomized

SLICE = descending_id(datetime(2026, 1, 1, tzinfo=UTC))
OBJECT = new_object_address(SLICE, 7)
TREE, RANGE = tree_address(new_id()), range_address(new_id())
EXPECTED: dict[str, Kind] = {
    OBJECT: "object",
    TREE: "tree",
    RANGE: "range",
    "_ebbtide/OWNER": "system",
    "_ebbtide/gc/EPOCH": "system",
    "_ebbtide/gc/runs/x/plan.json": "system",
    "_ebbtide/gc/runs/x/plan.json#12": "system",
    "_ebbtide/gc/new\nline": "system",
    f"{OBJECT}#1": "temporary",
    f"{TREE}#123456789012": "temporary",
    f"{RANGE}#0": "temporary",
    "_ebbtide/OWNER#7": "temporary",
    "": "foreign",
    "README": "foreign",
    "data": "foreign",
    "data/x": "foreign",
    "data/x#1": "foreign",
    f"data/{SLICE}": "foreign",
    f"data/{SLICE}/{SLICE}/x": "foreign",
    f"data/{SLICE}/short": "foreign",
    f"{OBJECT}\n": "foreign",
    f"{OBJECT}#": "foreign",
    f"{OBJECT}#1a": "foreign",
    f"{OBJECT}#1#2": "foreign",
    f"{OBJECT}#1\n": "foreign",
    f"x{OBJECT}": "foreign",
    f"/{OBJECT}": "foreign",
    f"\n{OBJECT}": "foreign",
    OBJECT.upper(): "foreign",
    OBJECT.replace("data/", "data//"): "foreign",
    TREE.replace("parquet", "Parquet"): "foreign",
    TREE.replace(".parquet", "xparquet"): "foreign",
    f"{TREE}.bak": "foreign",
    "_ebbtide/trees/x.parquet": "foreign",
    "_ebbtide/gc": "foreign",
    "_ebbtide/gc/": "foreign",
    "_ebbtide/gcx/y": "foreign",
    "_ebbtide/OWNER2": "foreign",
    "_ebbtide/other": "foreign",
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
    addresses = [OBJECT, f"{OBJECT}#12", "a#b", "a#1#2", "a#1\n"]
    targets = temporary_targets(pa.array(addresses)).to_pylist()
    assert targets == [None, OBJECT, None, "a#1", None]
    finals = [target or address for target, address in zip(targets, addresses, strict=True)]
    assert finals == [OBJECT, OBJECT, "a#b", "a#1", "a#1\n"]


def test_targets_of_some_of_an_array() -> None:
    addresses = pa.array(["a#1", OBJECT, "b#2", OBJECT])
    assert temporary_targets(addresses.slice(1, 1)).to_pylist() == [None]
    assert temporary_targets(addresses.slice(1)).to_pylist() == [None, "b", None]


@pytest.mark.parametrize("addresses", [[], [OBJECT, "a"], [None, OBJECT], [None]])
def test_where_nothing_is_temporary_nothing_has_a_target(addresses: list[str | None]) -> None:
    targets = temporary_targets(pa.array(addresses, pa.string()))
    assert targets.to_pylist() == [None] * len(addresses)
    assert targets.type == pa.string()
