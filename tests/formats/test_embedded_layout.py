"""What an address says by itself, against the definition."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.formats.embedded_layout import EmbeddedLayout
from tests.support.randomized import examples, randomized

DIRECTORY = st.sampled_from(
    ["data/", "data/a/", "data/b/", "data/a/b/", "data//", "data/a\n/", "dat/a/", "_ebbtide/gc/"]
)
ADDRESS = st.builds(str.__add__, DIRECTORY, st.sampled_from(["", "x", "ü", "x\n", "x/y"]))
RUNS = st.lists(st.tuples(st.lists(ADDRESS | st.none(), max_size=3), st.integers(1, 30)))


@randomized("properties of values")
@examples("properties of values")
@given(runs=RUNS, ahead=st.integers(0, 5))
def test_a_slice_is_the_directory_under_data(
    runs: list[tuple[list[str | None], int]], ahead: int
) -> None:
    addresses = [each for some, times in runs for each in some * times]
    matches = [each and re.match("data/([^/]+)/", each) for each in addresses]
    found = EmbeddedLayout().slices(pa.array(addresses, pa.string()).slice(ahead))
    assert found.type == pa.string()
    assert found.to_pylist() == [match and match[1] for match in matches][ahead:]
