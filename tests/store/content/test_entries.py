"""Entries as values and as columns."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.store.content.entries import (
    ENTRY_SCHEMA,
    Entry,
    from_table,
    is_external,
    same_content,
    to_table,
)
from tests.support.randomized import examples, randomized

TEXT = st.text(max_size=20)
INSTANTS = st.datetimes(
    min_value=datetime(1900, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)
)
ENTRIES = st.builds(
    Entry,
    path=TEXT,
    address=TEXT,
    size_bytes=st.integers(0, 2**63 - 1),
    checksum=TEXT,
    mtime=INSTANTS,
    content_type=st.none() | TEXT,
    metadata=st.dictionaries(TEXT, TEXT, max_size=3),
)
ENTRY = Entry("p", "data/x", 1, "sum", datetime(2026, 1, 1, tzinfo=UTC), "text/plain", {"a": "b"})


@randomized("properties of values")
@examples("properties of values")
@given(st.lists(ENTRIES, max_size=20))
def test_a_table_gives_back_what_it_was_made_of(entries: list[Entry]) -> None:
    table = to_table(entries)
    assert table.schema.equals(ENTRY_SCHEMA)
    table.validate(full=True)
    assert from_table(table) == entries


@randomized("properties of values")
@examples("properties of values")
@given(st.lists(st.text(), max_size=20))
def test_python_sorts_paths_by_their_bytes(paths: list[str]) -> None:
    assert sorted(paths) == sorted(paths, key=str.encode)


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"address": "data/y"}, True),
        ({"mtime": datetime(2020, 1, 1, tzinfo=UTC)}, True),
        ({"checksum": "other"}, False),
        ({"size_bytes": 2}, False),
        ({"content_type": None}, False),
        ({"metadata": {}}, False),
        ({"checksum": ""}, False),
    ],
)
def test_what_makes_a_difference_to_users(changed: dict[str, object], *, same: bool) -> None:
    other = dataclasses.replace(ENTRY, **changed)  # type: ignore[arg-type]  # each field its own
    assert same_content(ENTRY, other) is same
    assert same_content(other, ENTRY) is same


def test_without_checksums_only_the_address_tells() -> None:
    unknown = dataclasses.replace(ENTRY, checksum="")
    assert same_content(unknown, unknown)
    assert not same_content(unknown, dataclasses.replace(unknown, address="data/y"))


def test_no_entry_differs_from_one() -> None:
    assert same_content(None, None)
    assert not same_content(None, ENTRY)
    assert not same_content(ENTRY, None)


def test_entries_can_be_kept_in_sets() -> None:
    assert len({ENTRY, dataclasses.replace(ENTRY)}) == 1


@pytest.mark.parametrize(
    ("address", "external"),
    [("s3://bucket/x", True), ("file:///x", True), ("data/a/b", False), ("data/a:b", False)],
)
def test_external_addresses(address: str, *, external: bool) -> None:
    assert is_external(address) is external
