"""The runs over time: charts whose axes are right, and a table of the same numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.gc.runs import RunFolder
from ebbtide.server.pages.charts import PLOT_HEIGHT, PLOT_WIDTH, Scale, over_dates
from ebbtide.server.pages.trends import read_figures
from ebbtide.text import known_size_text, size_text
from tests.server.pages.conftest import PLACE, Browser, Lake
from tests.server.pages.test_pages import rows_of, text_of
from tests.support.randomized import examples, randomized

pytestmark = pytest.mark.xdist_group("pages")  # which share a lake

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
values = st.one_of(st.just(0), st.integers(0, 10**15), st.floats(0.001, 10**6))
rows = st.lists(
    st.tuples(st.integers(0, 10**8).map(lambda s: BEGIN + timedelta(seconds=s)), values),
    min_size=2,
    max_size=30,
    unique_by=lambda row: row[0],
)


@randomized("properties of values")
@examples("properties of values")
@given(rows, st.sampled_from(get_args(Scale)))
def test_points_are_where_the_axes_say(found: list[tuple[datetime, float]], scale: Scale) -> None:
    """Each value is between the marks that enclose it; the marks are few, even, and begin at 0."""
    chart = over_dates("t", found, text=repr, scale=scale)
    assert chart is not None
    marks = [(tick.at, float(tick.label)) for tick in chart.values]
    assert 2 <= len(marks) <= 6 and marks[0] == (chart.bottom, 0.0)
    steps = [after[1] - before[1] for before, after in pairwise(marks)]
    assert max(steps) == pytest.approx(min(steps))
    top, height = marks[-1][1], chart.bottom - marks[-1][0]
    for (_, value), (x, y) in zip(sorted(found), chart.points, strict=True):
        assert chart.left <= x <= chart.right and 0 <= y <= chart.bottom
        assert value <= top * 1.000001
        assert y == pytest.approx(chart.bottom - height * value / top, abs=0.06)
    assert chart.points[0][0] == chart.left and chart.points[-1][0] == chart.right
    assert all(0 <= tick.at <= PLOT_WIDTH for tick in chart.marks)
    assert chart.bottom < PLOT_HEIGHT


def test_the_page(lake: Lake, admin: Browser) -> None:
    for few in ([(BEGIN, 1.0)], []):
        assert over_dates("t", few, text=repr, scale="any") is None
    page = admin.get(f"{PLACE}/runs/trend").text
    assert len(re.findall(r"<figure", page)) == 5 and len(re.findall(r'class="dot"', page)) == 10
    assert f'href="/ui{PLACE}/runs/trend"' in admin.get(f"{PLACE}/runs").text
    newest, older = rows_of(page)[1:]
    assert re.search(r" planned [\d.]+ KiB 0 B 0 B ", newest) and " 40 " in newest
    form = lake.store.repository("lake")
    swept = read_figures(lake.swept, RunFolder.inside(form.storage, lake.swept))
    assert swept is not None and swept.freed_bytes > 0
    assert (
        f" swept {known_size_text(swept.size_bytes)} {size_text(swept.freed_bytes)} 0 B " in older
    )
    lake.store.create_repository("no-runs")
    empty = text_of(admin.get("/repositories/no-runs/runs/trend").text)
    assert "No run has made a plan yet" in empty
    lake.store.catalog.delete("no-runs")
