"""Entries as values and as columns."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

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


def test_what_makes_a_difference_to_users() -> None:
    """Without checksums only the address tells."""
    unknown = dataclasses.replace(ENTRY, checksum="")
    for one, other, same in (
        (ENTRY, dataclasses.replace(ENTRY), True),
        (ENTRY, dataclasses.replace(ENTRY, address="data/y"), True),
        (ENTRY, dataclasses.replace(ENTRY, mtime=datetime(2020, 1, 1, tzinfo=UTC)), True),
        (ENTRY, dataclasses.replace(ENTRY, checksum="other"), False),
        (ENTRY, dataclasses.replace(ENTRY, size_bytes=2), False),
        (ENTRY, dataclasses.replace(ENTRY, content_type=None), False),
        (ENTRY, dataclasses.replace(ENTRY, metadata={}), False),
        (ENTRY, unknown, False),
        (unknown, unknown, True),
        (unknown, dataclasses.replace(unknown, address="data/y"), False),
        (None, None, True),
        (None, ENTRY, False),
    ):
        assert same_content(one, other) is same_content(other, one) is same
    assert len({ENTRY, dataclasses.replace(ENTRY)}) == 1


def test_external_addresses() -> None:
    addresses = {"s3://bucket/x": True, "file:///x": True, "data/a/b": False, "data/a:b": False}
    assert {each: is_external(each) for each in addresses} == addresses
