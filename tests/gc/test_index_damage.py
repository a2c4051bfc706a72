"""Parts of the address index with other content, which are well-formed still: a disk changed some
bits. What they say is not believed, or live files would go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.formats.base import INDEX_PREFIX
from tests.support.world import DAY, World

Row = dict[str, Any]  # of a part of the index

PATHS = [f"{number:02d}" for number in range(8)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Its ranges are small, so that a tree has several."""
    made = World(tmp_path, settings={"range_entries_target": 2})
    yield made
    made.close()


def with_other_keys(row: Row) -> Row:
    """A node whose addresses have other keys."""
    return row | {"keys": [key ^ 1 for key in row["keys"]]}


def with_fewer_nodes(row: Row) -> Row:
    """A tree with its first node alone. Rows of nodes have no list."""
    return row if row["nodes"] is None else row | {"nodes": row["nodes"][:1]}


def change(path: Path, change_row: Callable[[Row], Row]) -> None:
    """Writes a part with changed rows under the name that it has."""
    with pa.OSFile(str(path), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    rows = [change_row(row) for row in table.to_pylist()]
    changed = pa.Table.from_pylist(rows, schema=table.schema)
    assert not changed.equals(table)
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(changed)


@pytest.mark.parametrize(
    ("family", "change_row"), [("nodes", with_other_keys), ("trees", with_fewer_nodes)]
)
def test_a_part_that_was_changed_lets_nothing_go(
    world: World, family: str, change_row: Callable[[Row], Row]
) -> None:
    world.save("main", days_ago=1, put=PATHS)
    world.clock.advance(DAY)
    assert world.collect().state == "swept"
    parts = sorted((world.root / INDEX_PREFIX).glob(f"{family}-*.arrow"))
    assert parts
    for part in parts:
        change(part, change_row)

    report = world.collect()

    assert report.state == "swept"
    assert report.counts["candidate"].objects == 0
    assert world.contents() == set(PATHS)
