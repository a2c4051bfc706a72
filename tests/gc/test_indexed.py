"""What parts of the address index hold, in tables: against the rows that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.arrow import first_of_each, numbered, texts
from ebbtide.formats.base import NODES_SCHEMA
from ebbtide.gc.relations.indexed import (
    KEYED_SCHEMA,
    TREES_SCHEMA,
    IndexedTrees,
    TreeRows,
    key_counts,
    keyed,
    keys_in,
)
from ebbtide.gc.relations.keys import KeySet
from ebbtide.gc.relations.trees import FLAGGED, each_once
from tests.support.randomized import examples, randomized

Node = tuple[str, str, int]
Tree = tuple[str, str, list[Node], int]

NODES = st.tuples(
    st.sampled_from(["a", "a/x", "b", "c", "d", "e"]),
    st.sampled_from(["x", "x/x", "y"]),
    st.integers(0, 2),
)
TREES = st.tuples(
    st.text("tree", max_size=3), st.text("sum", max_size=3), st.lists(NODES), st.integers(0, 9)
)
FLAGS = st.tuples(st.booleans(), st.booleans())
KEY = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
KEYED = st.lists(st.tuples(st.lists(KEY, max_size=4), st.booleans()))
CHOICES = st.lists(st.tuples(TREES, st.booleans()), max_size=6)


def nodes_table(nodes: Sequence[Node]) -> pa.Table:
    rows = [dict(zip(NODES_SCHEMA.names, node, strict=True)) for node in nodes]
    return pa.Table.from_pylist(rows, schema=NODES_SCHEMA)


def nodes_of(table: pa.Table) -> list[Node]:
    columns = (table.column(name).to_pylist() for name in NODES_SCHEMA.names)
    return list(zip(*columns, strict=True))


def trees_of(table: pa.Table) -> tuple[list[Tree], list[Node]]:
    """The trees of a part, and its nodes."""
    indexed = IndexedTrees.of(table)
    trees: list[Tree] = []
    for place, tree_id in enumerate(texts(indexed.ids)):
        nodes = nodes_of(indexed.nodes.take(indexed.numbers[place].values))
        trees.append(
            (tree_id, indexed.checksums[place].as_py(), nodes, int(indexed.read_at[place]))
        )
    return trees, nodes_of(indexed.nodes)


def part_of(trees: Sequence[Tree]) -> pa.Table:
    rows = TreeRows()
    for tree_id, checksum, nodes, read_at in trees:
        rows.add(tree_id, checksum, nodes_table(nodes), read_at=read_at)
    return rows.table()


@randomized("properties of values")
@examples("properties of values")
@given(
    parts=st.lists(CHOICES, max_size=4),
    read=st.lists(TREES, max_size=4),
    at_once=st.integers(1, 9),
)
def test_a_part_is_made_of_trees_read_and_of_some_of_other_parts(
    parts: list[list[tuple[Tree, bool]]], read: list[Tree], at_once: int
) -> None:
    rows = TreeRows(at_once)
    for tree_id, checksum, nodes, read_at in read:
        rows.add(tree_id, checksum, nodes_table(nodes), read_at=read_at)
    expected = list(read)
    for choices in parts:
        trees = [tree for tree, _ in choices]
        table = part_of(trees)
        assert trees_of(table)[0] == trees
        chosen = [wanted for _, wanted in choices]
        rows.add_known(IndexedTrees.of(table), pa.array(chosen, pa.bool_()))
        expected += [tree for tree, wanted in choices if wanted]
    made = rows.table()
    assert made.schema.equals(TREES_SCHEMA)
    assert all(column.num_chunks <= 1 for column in made.columns)
    trees, nodes = trees_of(made)
    assert trees == expected
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == {node for tree in expected for node in tree[2]}


@randomized("properties of values")
@examples("properties of values")
@given(parts=st.lists(KEYED), others=st.lists(KEY), slices=st.booleans())
def test_keys_of_neighbours_come_together(
    parts: list[list[tuple[list[int], bool]]], others: list[int], slices: bool
) -> None:
    """Of a table in one piece or several, which may be slices of larger ones."""
    tables = [KEYED_SCHEMA.empty_table()]
    for part in parts:
        arrays = [np.array(keys, np.int64) for keys, _ in part]
        tables.append(keyed([("n", "x", 0)] * len(part), arrays, read_at=0))
    table = pa.concat_tables(tables)
    rows = [row for part in parts for row in part]
    if slices and rows:
        table, rows, parts = table.slice(1), rows[1:], _without_first(parts)
    chosen = np.array([wanted for _, wanted in rows], np.bool_)
    found = list(keys_in(table, chosen))
    expected = [key for keys, wanted in rows if wanted for key in keys]
    assert [key for keys in found for key in keys.tolist()] == expected
    assert key_counts(table).tolist() == [len(keys) for keys, _ in rows]
    among = KeySet(np.array(others, np.int64))
    few = [key for keys in keys_in(table, chosen, among=among) for key in keys.tolist()]
    assert few == [key for key in expected if key in others]
    flags = [[wanted for _, wanted in part] for part in parts]
    assert len(found) == sum(b > a for part in flags for a, b in pairwise([False, *part]))


def _without_first(parts: list[Any]) -> list[Any]:
    """The parts without the first row of the first that has any."""
    place = next(number for number, part in enumerate(parts) if part)
    return [*parts[:place], parts[place][1:], *parts[place + 1 :]]


@randomized("properties of values")
@examples("properties of values")
@given(parts=st.lists(st.lists(st.tuples(NODES, FLAGS), max_size=8), max_size=4))
def test_each_node_once(parts: list[list[tuple[Node, tuple[bool, bool]]]]) -> None:
    """One id with two checksums is two nodes. A flag is what one row says so of."""
    expected: dict[Node, tuple[bool, bool]] = {}
    tables = []
    for part in parts:
        table = nodes_table([node for node, _ in part])
        for place, name in enumerate(("data", "required")):
            flags = pa.array([each[place] for _, each in part], pa.bool_())
            table = table.append_column(FLAGGED.field(name), flags)
        tables.append(table)
        for node, (data, required) in part:
            known = expected.get(node, (False, False))
            expected[node] = known[0] or data, known[1] or required
    found = each_once(tables)
    assert found.schema.equals(FLAGGED)
    assert found.num_rows == len(expected)
    both = zip(*(found.column(name).to_pylist() for name in ("data", "required")), strict=True)
    assert dict(zip(nodes_of(found), both, strict=True)) == expected


@randomized("properties of values")
@examples("properties of values")
@given(words=st.lists(st.sampled_from(["", "a", "b", "c"])), pieces=st.integers(1, 4))
def test_texts_are_numbered_as_they_come(words: list[str], pieces: int) -> None:
    chunks = [words[number::pieces] for number in range(pieces)]
    whole = [text for chunk in chunks for text in chunk]
    numbers = numbered(pa.chunked_array(chunks, pa.string()))
    order = list(dict.fromkeys(whole))
    assert numbers.tolist() == [order.index(text) for text in whole]
    firsts = [text not in whole[:place] for place, text in enumerate(whole)]
    assert first_of_each(numbers).tolist() == firsts
