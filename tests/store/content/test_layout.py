"""What an address is, by its shape."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
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
