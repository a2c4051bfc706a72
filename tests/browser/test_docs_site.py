"""The documentation as a site, opened from its files in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import PHONE, SCREEN, THEMES, WAIT_MILLISECONDS, Theme
from tests.browser.test_flows import GRAVE, violations
from tests.support.randomized import choose, sample
from tests.support.site import build

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.drawn("pages of the documentation"),
]

PAGES_AT_A_TIME = 4
EXAMINED_AT_A_TIME = 2
LOOKED_AT = ("index", "concepts", "operations", "server", "retention", "errors")
SCHEMES: dict[Theme, str] = {"light": "default", "dark": "slate"}
"""What the site calls them."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("docs") / "site"
    done = build(directory)
    assert done.returncode == 0, done.stderr
    return directory


@contextmanager
def reading(browser: Browser) -> Iterator[Page]:
    """A page of a browser, which loads files alone, and of which nothing is wrong."""
    context = browser.new_context(viewport=SCREEN, color_scheme="light", reduced_motion="reduce")
    context.set_default_timeout(WAIT_MILLISECONDS)
    page = context.new_page()
    loaded: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    context.close()
    assert loaded
    assert [url for url in loaded if not url.startswith("file:")] == []
    assert said == []


def test_every_page_fits_and_can_be_used_by_all(browser: Browser, site: Path) -> None:
    """None is wider than the window; tables and code that are scroll by themselves. Some are tried
    at a time, by chance. Axe looks at some of those that have tables, code of each kind and
    pictures among them, in one theme by chance."""
    # The one page that only a server shows has addresses as on a server.
    paths = {*site.rglob("*.html")} - {site / "404.html"}
    looked_at = {site / f"{name}.html" for name in LOOKED_AT}
    assert looked_at < paths
    examined = sample("examined", sorted(looked_at), EXAMINED_AT_A_TIME)
    with reading(browser) as page:
        for path in [*sample("pages", sorted(paths - looked_at), PAGES_AT_A_TIME), *examined]:
            page.emulate_media(color_scheme="light")
            page.goto(path.as_uri())
            for size in (PHONE, SCREEN):
                page.set_viewport_size(size)
                width = page.evaluate("document.documentElement.scrollWidth")
                assert width <= size["width"], (path, size)
            pictures = "[...document.querySelectorAll('article img')]"
            assert page.evaluate(f"{pictures}.every(each => each.naturalWidth > 0)"), path
            if path in examined:
                theme = choose(path.name, THEMES)
                page.emulate_media(color_scheme=theme)
                page.wait_for_selector(f"body[data-md-color-scheme={SCHEMES[theme]}]")
                # The theme's buttons that copy code have lesser findings.
                assert violations(page, impacts=GRAVE) == [], (path, theme)


def test_searching_without_a_server(browser: Browser, site: Path) -> None:
    with reading(browser) as page:
        page.goto((site / "design" / "012-safety.html").as_uri())
        page.click("input.md-search__input")
        page.keyboard.type("EBBTIDE_SHARE_MAX")
        page.locator(".md-search-result__link", has_text="Settings").first.click()
        page.wait_for_url("**/settings.html*")
