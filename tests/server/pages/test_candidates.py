"""The files of a plan, read in parts: pages and searches find what a plain filter finds, and charts
add up to what a plain sum does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.arrow import table_of
from ebbtide.errors import Refused
from ebbtide.gc.parts import Part, PartRows
from ebbtide.gc.planning.subtract import CANDIDATE_SCHEMA
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import descending_id, new_id
from ebbtide.server.pages import candidate_reading
from ebbtide.server.pages.candidate_reading import (
    AGES,
    CandidateFilter,
    CandidateRow,
    Charts,
    draw,
    find,
)
from ebbtide.storage import open_storage
from tests.support.randomized import examples, randomized

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
KINDS = ("object", "range", "tree")

candidates = st.builds(
    CandidateRow,
    address=st.builds(
        lambda folder, name: f"{folder}{name}",
        st.sampled_from(["data/x/", "data/y/", "_ebbtide/trees/", ""]),
        st.text("abc.%é", min_size=1, max_size=4),
    ),
    size_bytes=st.sampled_from([0, 1, 999, 1000]) | st.integers(0, 2000),
    last_modified=st.builds(lambda hours: NOW - timedelta(hours=hours), st.integers(0, 24 * 500)),
    kind=st.just("object"),
)
groups = st.lists(st.tuples(st.sampled_from(KINDS), st.lists(candidates, min_size=1)), max_size=5)
searches = st.builds(
    CandidateFilter,
    text=st.text("ab.%é", max_size=2),
    kind=st.sampled_from(["", *KINDS]),
    bytes_min=st.sampled_from([0, 1, 1000]),
)


def write(groups: list[tuple[str, list[CandidateRow]]]) -> tuple[RunFolder, list[Part]]:
    folder, answer = RunFolder(open_storage(f"memory:{new_id()}"), "run/"), PartRows()
    for number, (kind, rows) in enumerate(groups):
        table = table_of(
            [(r.address, r.size_bytes, r.last_modified, kind, None, None) for r in rows],
            CANDIDATE_SCHEMA,
        )
        answer.wrote(folder, f"candidates/{number:03d}.parquet", table, kind=kind)
    return folder, sorted(answer.parts(), key=lambda part: part.name)


def pages(
    folder: RunFolder, parts: list[Part], search: CandidateFilter, amount: int
) -> Iterator[CandidateRow]:
    position: int | None = 0
    while position is not None:
        found = find(folder, parts, search, position=position, amount=amount)
        assert len(found.rows) <= amount
        yield from found.rows
        assert found.next_position is None or found.next_position > position
        position = found.next_position


@randomized("pages of candidates")
@examples("pages of candidates")
@given(groups, searches, st.integers(1, 7), st.sampled_from([1, 10, 10**6]))
def test_pages_and_charts_against_a_plain_filter(
    groups: list[tuple[str, list[CandidateRow]]],
    search: CandidateFilter,
    amount: int,
    scanned_max: int,
) -> None:
    folder, parts = write(groups)
    expected = [
        (row.address, row.size_bytes, kind)
        for kind, rows in groups
        for row in rows
        if search.text in row.address
        and search.kind in ("", kind)
        and row.size_bytes >= search.bytes_min
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidate_reading, "SCANNED_MAX", scanned_max)
        found = list(pages(folder, parts, search, amount))
    assert [(row.address, row.size_bytes, row.kind) for row in found] == expected
    check_charts(draw(folder, parts, now=NOW), groups)


def check_charts(charts: Charts, groups: list[tuple[str, list[CandidateRow]]]) -> None:
    """They add up to what a plain sum does."""
    rows = [row for _, rows in groups for row in rows]
    for number, (label, age_max) in enumerate(AGES):
        age_min = AGES[number - 1][1] if number else timedelta(0)
        fits = [row for row in rows if age_min <= NOW - row.last_modified < age_max]
        bar = charts.ages[number]
        sums = (label, len(fits), sum(row.size_bytes for row in fits))
        assert (bar.label, bar.count, bar.size_bytes) == sums
    for bars in (charts.ages, charts.places, charts.kinds):
        assert sum(bar.count for bar in bars) == len(rows)
        assert sum(bar.size_bytes or 0 for bar in bars) == sum(row.size_bytes for row in rows)
    top = sum(row.size_bytes for row in rows if "/" not in row.address)
    assert sum(bar.size_bytes or 0 for bar in charts.places if bar.label == "(top)") == top


def test_many_places_are_gathered() -> None:
    rows = [
        CandidateRow(
            f"data/{descending_id(NOW - timedelta(hours=number))}/f", number, NOW, "object"
        )
        for number in range(1, 41)
    ]
    charts = draw(*write([("object", rows)]), now=NOW)
    assert charts.places[0].label == "data, written from 2029-12-30 20:00"
    assert charts.places[-1].label == "28 others"
    assert charts.places[-1].size_bytes == sum(range(1, 29))


def test_only_what_a_page_needs_is_read() -> None:
    """A part that nobody needs may be damaged; one that is needed may not."""
    row = CandidateRow("data/x/a", 1, NOW, "object")
    folder, parts = write([("object", [row] * 3), ("range", [row]), ("object", [row] * 3)])
    folder.storage.put(folder.address(str(parts[1].name)), b"damaged")
    assert len(find(folder, parts, CandidateFilter(), position=0, amount=2).rows) == 2
    assert len(find(folder, parts, CandidateFilter(kind="object"), position=0, amount=9).rows) == 6
    assert len(find(folder, parts, CandidateFilter(), position=5, amount=9).rows) == 2
    with pytest.raises(Refused):
        find(folder, parts, CandidateFilter(), position=2, amount=9)
