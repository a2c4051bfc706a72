"""How values are written on pages."""

from __future__ import annotations

from markupsafe import Markup

from ebbtide.server.pages.rendering import environment


def written(value: object) -> str:
    return environment().from_string("{{ value }}").render(value=value)


def test_control_characters_are_escaped() -> None:
    assert written("a\x1b[2J<b>\u202e") == "a\\x1b[2J&lt;b&gt;\\u202e"


def test_lines_of_a_text_field_stay() -> None:
    assert written("default: 3d\r\ntags: keep\n") == "default: 3d\ntags: keep\n"


def test_what_is_no_text_is_left_alone() -> None:
    assert written(Markup("<b>&ndash;</b>")) == "<b>&ndash;</b>"
    assert written(3) == "3"
