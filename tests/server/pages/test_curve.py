"""The curve on the policy's page: its figures, where its points lead, and how it is drawn."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.api.looks import curve_json
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.server.pages.charts import Scale, over_lengths
from ebbtide.store.access.access_keys import Role
from ebbtide.text import count_text, size_text
from tests.server.pages.conftest import PLACE, Browser, Lake
from tests.server.pages.test_pages import rows_of
from tests.server.pages.test_policy_form import Fields
from tests.server.pages.test_trying import form_of, looked
from tests.support.engines import INLINE
from tests.support.randomized import examples, randomized

pytestmark = pytest.mark.xdist_group("pages")  # which share a lake

POLICY = f"{PLACE}/policy"


def test_the_curve_says_what_the_command_says(lake: Lake, admin: Browser) -> None:
    started = admin.post(f"{POLICY}/curve")
    assert started.status_code == 303
    place = started.headers["location"].removeprefix("/ui")
    drawn = looked(admin, admin.get(place).text).json()["html"]
    options = RunOptions.of(lake.store.settings, unsafe=True, mode="clean")
    found = curve_json(Collector(form_of(lake), engine=INLINE, options=options).curve(), None)
    rows = rows_of(drawn)
    assert len(found["points"]) > 30 and len(rows) == len(found["points"]) + 2
    for each in found["points"]:
        today = " today" if each["is_present"] else ""
        sizes = f"{size_text(each['kept_bytes'])} {size_text(each['candidate_bytes'])}"
        counts = f"{count_text(each['active_count'])} {count_text(each['lost_count'])}"
        assert f"{each['label']}{today} {sizes} {counts}" in rows
    assert any(each["lost_count"] for each in found["points"])
    assert drawn.count('class="dot"') == 2 * len(found["points"])
    assert drawn.count('class="ring"') == 2, "the period of today, in both charts"
    assert drawn.count('class="present"') == 4
    # Loaded again, the page still has the curve.
    assert rows_of(drawn)[3] in rows_of(admin.get(place).text)


def test_a_point_fills_the_form(lake: Lake, admin: Browser) -> None:
    """By its address, which needs no script; what else the policy says stays. Nothing is set."""
    before = lake.store.repository("lake").retention.get()
    assert before is not None
    for query, rule in (("keep_within=45d", "45d"), ("keep_last=5", {"keep_last": 5})):
        page = admin.get(f"{POLICY}?{query}").text
        fields = Fields(page).found
        assert json.loads(fields["policy"]) == before.to_mapping() | {"default": rule}
        assert "Effect, if set" in page
    assert fields["default-keep_last"] == "5" and fields["default-keep_within"] == ""
    assert fields["branch-0-keep_monthly"] == "3", "of main"
    page = admin.get(f"{POLICY}?keep_within=45d&rule=main").text
    written = json.loads(Fields(page).found["policy"])
    assert written["default"] == before.to_mapping()["default"]
    assert written["branches"]["main"] == {"keep_within": "45d", "keep_monthly": 3}
    for query in ("keep_within=45", "keep_last=x", "keep_last=0"):
        wrong = admin.get(f"{POLICY}?{query}")
        assert wrong.status_code == 400 and 'id="problem"' in wrong.text, query
    reader = lake.browsers(Role.READER).get(f"{POLICY}?keep_within=45d").text
    assert json.loads(Fields(reader).found["policy"]) == before.to_mapping()
    assert "Compute the curve" not in reader
    assert lake.store.repository("lake").retention.get() == before


def test_the_curve_of_another_rule(admin: Browser) -> None:
    """Its points lead to the form with that rule changed."""
    assert "<option>main</option>" in admin.get(POLICY).text
    place = admin.post(f"{POLICY}/curve", rule="main").headers["location"].removeprefix("/ui")
    drawn = looked(admin, admin.get(place).text).json()["html"]
    assert "its rule for <code>main</code>" in drawn
    assert "&amp;rule=main" in drawn
    assert "<option selected>main</option>" in admin.get(place).text


def test_only_a_known_curve_is_shown(lake: Lake, admin: Browser) -> None:
    """No look of another kind, and none of another repository."""
    page = admin.get(f"{POLICY}?curve={'0' * 32}").text
    assert "Compute the curve" in page and "data-progress" not in page
    tried = admin.post(POLICY, policy='{"default": "9d"}', action="try").text
    look_id = re.search(r'/looks/(\w+)"', tried)
    assert look_id is not None
    looked(admin, tried)
    assert "Compute the curve" in admin.get(f"{POLICY}?curve={look_id[1]}").text
    started = admin.post(f"{POLICY}/curve").headers["location"]
    lake.store.create_repository("beside")
    beside = started.removeprefix("/ui").replace("/lake/", "/beside/")
    assert "Compute the curve" in admin.get(beside).text
    looked(admin, admin.get(started.removeprefix("/ui")).text)
    lake.store.catalog.delete("beside")


lengths = st.lists(st.integers(1, 10**9), min_size=2, max_size=25, unique=True).map(sorted)
amounts = st.lists(st.integers(0, 10**14), min_size=25, max_size=25)


@randomized("properties of values")
@examples("properties of values")
@given(lengths, amounts, st.integers(0, 10**14), st.sampled_from(["bytes", "whole"]))
def test_points_are_where_the_axes_say(
    found: list[int], values: list[int], level: int, scale: Scale
) -> None:
    """Lengths on a logarithmic axis, values and the level below the highest mark."""
    rows = [(length, str(length), value) for length, value in zip(found, values, strict=False)]
    chart = over_lengths("t", rows, level=level, text=repr, scale=scale)
    top, height = float(chart.values[-1].label), chart.bottom - chart.values[-1].at
    width = chart.right - chart.left
    for (length, _, value), (x, y) in zip(rows, chart.points, strict=True):
        part = math.log(length / found[0]) / math.log(found[-1] / found[0])
        assert x == pytest.approx(chart.left + part * width, abs=0.06)
        assert y == pytest.approx(chart.bottom - height * value / top, abs=0.06)
    assert chart.level == pytest.approx(chart.bottom - height * level / top, abs=0.06)
    places = {str(length): x for length, (x, _) in zip(found, chart.points, strict=True)}
    assert [mark.at for mark in chart.marks] == [places[mark.label] for mark in chart.marks]
    assert chart.marks[-1].label == str(found[-1])
    distances = [b.at - a.at for a, b in zip(chart.marks, chart.marks[1:], strict=False)]
    assert min(distances, default=100) > 0.155 * width
