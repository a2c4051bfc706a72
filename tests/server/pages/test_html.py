"""How values are written on pages."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from ebbtide.errors import InvalidInput
from ebbtide.retention.policy import Policy
from ebbtide.server.errors import STATUS
from ebbtide.server.pages.html import environment, explained, next_step, sentence
from ebbtide.server.pages.visit import NOTICES


def test_how_values_are_written() -> None:
    for value, expected in (
        ("a\x1b[2J<b>\u202e", "a\\x1b[2J&lt;b&gt;\\u202e"),
        ("default: 3d\r\ntags: keep\n", "default: 3d\ntags: keep\n"),
        (Markup("<b>&ndash;</b>"), "<b>&ndash;</b>"),
        (3, "3"),
    ):
        assert environment().from_string("{{ value }}").render(value=value) == expected


def test_messages_are_sentences() -> None:
    for text, expected in (
        ("there is no run 'x' of lake", "There is no run 'x' of lake."),
        ("reload the page.", "Reload the page."),
        ("icechunk:/data has no policy", "icechunk:/data has no policy."),
        ("'x' is not a count: write 3", "'x' is not a count: write 3."),
        ("ä?", "ä?"),
        ("", ""),
    ):
        assert sentence(text) == expected


def test_a_mistake_in_a_policy_names_its_place() -> None:
    with pytest.raises(InvalidInput) as caught:
        Policy.parse({"branches": {"main": {"keep_last": 0}}})
    text = explained(caught.value)
    assert text.startswith("'branches.main.keep_last' in the policy is wrong: 0 is not a count: ")
    assert text.endswith("leave it out.")


def test_every_status_has_a_next_step() -> None:
    for status in set(STATUS.values()):
        assert next_step(status).endswith(".")
    for text in NOTICES.values():
        assert text[0].isupper() and text.endswith(".")
