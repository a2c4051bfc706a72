"""The form of a policy: it says what the JSON says, both ways, and a browser's fields are read."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import InvalidInput
from ebbtide.retention.policy import COUNTS, Policy
from ebbtide.server.pages.html import render
from ebbtide.server.pages.policy_form import BRANCH_RULES_MAX, PolicyFields
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.server.pages.conftest import Browsers
from tests.server.pages.test_pages import text_of
from tests.support.randomized import examples, randomized

PLACE = "/repositories/lake/policy"
CHOICES = ("checkbox", "radio")

parts = st.dictionaries(st.sampled_from(COUNTS), st.integers(1, 10**6), max_size=4)
periods = st.integers(1, 10**6).map(lambda seconds: f"{seconds}s")
rules = st.one_of(
    st.just("keep"),
    periods,
    st.builds(lambda counts, within: {**counts, "keep_within": within}, parts, periods),
    parts.filter(bool),
)
plain = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=9)
policies = st.fixed_dictionaries(
    {"default": rules},
    optional={
        "branches": st.dictionaries(plain.filter(lambda name: name != "*"), rules, max_size=4),
        "tags": rules,
        "mode": st.sampled_from(["age", "rewrite"]),
        "holds": st.dictionaries(plain, st.one_of(st.just(""), plain), max_size=3),
    },
)


class Fields(HTMLParser):
    """The fields of a page, as a browser sends them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._area: str | None = None
        self._select: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "input" and (given.get("type") not in CHOICES or "checked" in given):
            self.found[name] = given.get("value") or ""
        elif tag == "textarea":
            self._area, self.found[name] = name, ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select is not None and "selected" in given:
            self.found[self._select] = given.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        self._area = None if tag == "textarea" else self._area
        self._select = None if tag == "select" else self._select

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self.found[self._area] += data


def read(fields: Mapping[str, str]) -> Policy:
    return PolicyFields.read(lambda name: fields.get(name, "")).policy()


@randomized("properties of values")
@examples("properties of values")
@given(policies)
def test_the_form_says_what_the_policy_says(written: dict[str, Any]) -> None:
    """The fields that a browser sends back, unchanged, are the same policy."""
    policy = Policy.parse(written)
    fields = PolicyFields.of(policy)
    assert fields is not None
    assert read(Fields(render("policy_rules.html", rules=fields)).found) == policy


def test_policies_that_only_json_can_say() -> None:
    """The form does not change them silently: it is not shown."""
    many = {f"b{number}": "3d" for number in range(BRANCH_RULES_MAX + 1)}
    for written in (
        {"default": "7d", "branches": {" spaced ": "3d"}},
        {"default": "7d", "holds": {"ab": "two\nlines"}},
        {"default": "7d", "holds": {"a b": "a blank in the id"}},
        {"default": "7d", "branches": {"turned\u202e": "3d"}},
        {"branches": many},
    ):
        assert PolicyFields.of(Policy.parse(written)) is None, written


def test_wrong_fields() -> None:
    twice = {"branch-0-pattern": "a", "branch-1-pattern": " a"}
    cases: tuple[tuple[dict[str, str], str], ...] = (
        ({}, "no rule is given"),
        ({"default-keep": "yes", "default-keep_last": "3"}, "clear its other fields"),
        ({"default-keep_last": "three"}, "is not a count"),
        ({"default-keep_last": "0"}, "is not a count"),
        ({"default-keep_within": "7"}, "has no unit"),
        ({"default-keep_within": "1m"}, "minutes or months"),
        ({"default-keep_within": "keep", "default-keep_last": "3"}, "clear its other fields"),
        ({"default-keep_within": "keep_last:3", "default-keep_last": "3"}, "it is given twice"),
        ({"default-keep_within": "keep_last:3,keep_last:4"}, "'keep_last' twice"),
        ({"branch-rows": "1", "branch-0-pattern": "main"}, "the rule is empty"),
        ({"branch-rows": "1", "branch-0-keep_last": "1"}, "an empty name"),
        ({"branch-rows": "x"}, "reload the page"),
        (
            {"branch-rows": "2", "branch-0-keep": "yes", "branch-1-keep": "yes", **twice},
            "two rows have this pattern",
        ),
    )
    for fields, problem in cases:
        with pytest.raises(InvalidInput, match=problem):
            read({"mode": "age", **fields})


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (" 30d ", "30d"),
        ("keep", "keep"),
        ("keep_last:3", {"keep_last": 3}),
        ("keep_within:2w,keep_monthly:12", {"keep_within": "14d", "keep_monthly": 12}),
    ],
)
def test_both_editors_take_what_the_command_takes(
    text: str, rule: Any, store: Store, browsers: Browsers
) -> None:
    """And say what they understood, before it is set."""
    lake = store.create_repository("lake")
    admin = browsers()
    policy = Policy.parse({"default": rule})
    means = f"Policy A means: {'; '.join(map(' '.join, policy.rules()))}."
    form = {"edited": "form", "mode": "age", "default-keep_within": text}
    for fields in ({"policy": text}, form):
        assert means in text_of(admin.post(f"{PLACE}/preview", **fields).json()["html"])
        assert admin.post(PLACE, action="set", **fields).status_code == 303
        assert lake.retention.get() == policy
        lake.retention.unset()
    wrong = admin.post(PLACE, policy="keep_last:x")
    assert wrong.status_code == 400 and "is not a count" in wrong.text


def test_both_editors_agree(store: Store, browsers: Browsers) -> None:
    lake = store.create_repository("lake")
    admin = browsers()
    typed = {
        "edited": "form",
        "mode": "age",
        "branch-rows": "1",
        "branch-0-pattern": "main",
        "branch-0-keep_last": "3",
        "default-keep_within": "9d",
        "policy": '{"default": "1d"}',
    }
    checked = admin.post(PLACE, action="try", **typed)
    found = Fields(checked.text).found
    assert json.loads(found["policy"])["branches"] == {"main": {"keep_last": 3}}
    assert "Effect, if set" in checked.text and lake.retention.get() is None
    assert found["branch-rows"] == "2" and found["edited"] == "form", "a row to write in"

    checked = admin.post(PLACE, action="try", policy='{"default": "1d", "tags": "90d"}')
    found = Fields(checked.text).found
    assert found["edited"] == "json", "the editor that was open"
    assert found["default-keep_within"] == "1d" and found["tags-keep_within"] == "90d"
    assert lake.retention.get() is None

    more = Fields(admin.post(PLACE, action="more", **typed, **{"default-keep_last": "x"}).text)
    assert more.found["default-keep_last"] == "x" and more.found["policy"] == '{"default": "1d"}'

    wrong = admin.post(PLACE, action="set", **typed, **{"default-keep_last": "x"})
    assert wrong.status_code == 400 and "is not a count" in html.unescape(wrong.text)
    assert Fields(wrong.text).found["default-keep_last"] == "x"
    assert lake.retention.get() is None
    assert admin.post(PLACE, action="set", **typed).status_code == 303
    policy = lake.retention.get()
    assert policy is not None and policy.default is not None
    assert policy.default.keep_within == timedelta(days=9)
    assert policy.branches["main"].keep_last == 3
    # What the page now shows is that policy, in both editors.
    shown = Fields(admin.get(PLACE).text).found
    assert read(shown) == Policy.parse(json.loads(shown["policy"])) == policy
    reader = browsers(Role.READER).get(PLACE).text
    assert "<button" not in reader.split("<main")[1].split("</main>")[0]


def test_the_preview_has_the_other_editor(store: Store, browsers: Browsers) -> None:
    store.create_repository("lake")
    admin = browsers()
    place, typed = f"{PLACE}/preview", {"mode": "age", "default-keep_last": "2"}
    of_form = admin.post(place, edited="form", policy="{", **typed).json()
    assert json.loads(of_form["policy"])["default"] == {"keep_last": 2} and "rules" not in of_form
    of_json = admin.post(place, edited="json", policy='{"default": "5d"}', **typed).json()
    assert Fields(of_json["rules"]).found["default-keep_within"] == "5d"
    assert "policy" not in of_json
    wrong = admin.post(place, edited="json", policy="{").json()
    assert wrong.keys() == {"html"}
    many = {"default": "7d", "branches": {f"b{number}": "3d" for number in range(60)}}
    too_many = admin.post(place, edited="json", policy=json.dumps(many)).json()
    assert "The form cannot show this policy" in too_many["rules"]
    assert not re.search(r"<input", too_many["rules"])
