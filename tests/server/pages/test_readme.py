"""The README on a repository's page: rendered, and nothing in it runs, loads or leads astray."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.ids import new_id
from ebbtide.server.pages.previews import TEXT_BYTES_MAX
from ebbtide.server.pages.readme import _rendered
from ebbtide.store.embedded import Store
from tests.server.pages.conftest import Browsers
from tests.server.pages.test_pages import text_of
from tests.support.randomized import examples, randomized

PLACE = "/repositories/lake"
TAGS = {
    *("h3", "h4", "h5", "h6", "p", "a", "em", "strong", "s", "code", "pre", "ul", "ol", "li"),
    *("blockquote", "hr", "br", "table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"href", "rel", "title", "class", "start"}
PIECES = (
    *("# ", "- ", "1. ", "> ", "```", "`", "**", "~~", "|", "\n", "\n\n", "    ", "a b"),
    *("<script>alert(1)</script>", "<img src=x onerror=y>", "![", "[", "](", ")", "]: ", "<", ">"),
    *("javascript:x", "JaVaScRiPt&colon;x", "data:text/html,x", "https://e.org/x.png", "//e.org"),
    *("vbscript:x", "file:///etc/passwd", '"', "'", "onclick=", "&#106;avascript:x", "\\"),
)


class Tags(HTMLParser):
    """The tags and attributes in a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@randomized("properties of values")
@examples("properties of values")
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_nothing_runs_or_loads(text: str) -> None:
    for tag, attributes in Tags(_rendered(text, "lake", "main")).found:
        assert tag in TAGS and attributes.keys() <= ATTRIBUTES, (tag, attributes)
        scheme = re.match(r"\s*([a-z]+):", attributes.get("href") or "", re.IGNORECASE)
        assert scheme is None or scheme[1].lower() in ("http", "https", "mailto")


@pytest.mark.parametrize(
    ("target", "href"),
    [
        ("docs/start.md", "/ui/repositories/lake/object?ref=main&amp;path=docs%2Fstart.md"),
        ("./a%20b.csv#top", "/ui/repositories/lake/object?ref=main&amp;path=a+b.csv"),
        ("../../.hidden", "/ui/repositories/lake/object?ref=main&amp;path=.hidden"),
        ("tables/", "/ui/repositories/lake/files?ref=main&amp;prefix=tables%2F"),
        ("https://example.org/x?y=1", "https://example.org/x?y=1"),
        ("#part", "#part"),
        ("http://[::g]", "#"),
    ],
)
def test_links(target: str, href: str) -> None:
    shown = _rendered(f"[text]({target})", "lake", "main")
    assert f'<a href="{href}" rel="nofollow noopener noreferrer">text</a>' in shown


def test_the_overview_shows_it(store: Store, browsers: Browsers) -> None:
    lake = store.create_repository("lake", storage_url=f"memory:{new_id()}")
    reader = browsers()

    def page(content: bytes) -> str:
        lake.objects.put("main", "README.md", content)
        return reader.get(PLACE).text

    assert "README" not in reader.get(PLACE).text
    shown = page(
        b"# Tides\r\n\r\n| a | b |\r\n|---|---|\r\n| 1 | 2 |\r\n\r\n![a chart](x.png) **daily**"
    )
    assert "<h3>Tides</h3>" in shown and "<td>2</td>" in shown
    assert "a chart <strong>daily</strong>" in shown and "<img" not in shown
    hostile = page("<script>alert(1)</script> \u202eturned".encode())
    assert "&lt;script&gt;" in hostile and "<script>alert" not in hostile
    assert r"\u202eturned" in hostile
    assert "The first 64 KiB" not in hostile
    long = page(b"word " * (TEXT_BYTES_MAX // 5 + 10) + b"the-end")
    assert "The first 64 KiB" in long and "the-end" not in long
    assert "README" not in page(b"\xff\x00not text"), "the rest of the page is shown"
    assert "Commits by branch" in text_of(page(b"\xff\x00"))


def test_a_text_that_is_slow_to_render_is_rendered_once() -> None:
    slow = ("![" * TEXT_BYTES_MAX)[:TEXT_BYTES_MAX]
    _rendered(slow, "lake", "main")
    began = time.perf_counter()
    assert slow in _rendered(slow, "lake", "main")
    assert time.perf_counter() - began < 0.1
