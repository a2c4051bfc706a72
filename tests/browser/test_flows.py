"""What only a real browser shows of the pages: each at both sizes and in both themes, by keyboard,
and looked at by axe; and flows that need its scripts. Forms alone: `tests/server/pages`."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import PHONE, SCREEN, THEMES, Visitors
from tests.support.lake import NAME
from tests.support.randomized import choose, sample
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.drawn("flows through pages"),
]

LAKE = f"/repositories/{NAME}"
PAGES = (
    "",
    "/totals",
    "/trash",
    "/runs",
    LAKE,
    f"{LAKE}/files",
    f"{LAKE}/files?prefix=tables/main/",
    f"{LAKE}/object?path=readme.txt",
    f"{LAKE}/commits",
    f"{LAKE}/commits/main",
    f"{LAKE}/compare?left=main&right=dev",
    f"{LAKE}/refs",
    f"{LAKE}/collections",
    f"{LAKE}/explain",
    f"{LAKE}/explain?what=main",
    f"{LAKE}/policy",
    f"{LAKE}/usage",
    f"{LAKE}/holds",
    f"{LAKE}/protection",
    f"{LAKE}/runs",
    f"{LAKE}/runs/trend",
    f"{LAKE}/runs/schedule",
    f"{LAKE}/runs/{{run}}",
    f"{LAKE}/runs/{{run}}/candidates",
    f"{LAKE}/runs/{{run}}/candidates?addresses=yes",
    f"{LAKE}/trash",
    f"{LAKE}/purges",
    "/repositories/empty",
    "/repositories/empty/commits",
)
PAGES_AT_A_TIME = 8
GRAVE = ("serious", "critical")
IMPACTS = (*GRAVE, "moderate", "minor")
SIZES = (PHONE, SCREEN)


def violations(page: Page, *, impacts: Collection[str] = IMPACTS) -> list[Any]:
    """What axe finds, of these impacts."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    found = page.evaluate(
        "axe.run({preload: false, resultTypes: ['violations']}).then(found => found.violations)"
    )
    return [
        (each["id"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found
        if each["impact"] in impacts
    ]


def check_looks(page: Page, place: str) -> None:
    """A page, as it stands, at each size in each theme: it is no wider than the window, and axe
    finds nothing; it is asked at one size in one theme, by chance."""
    examined = choose(place, [(size["width"], theme) for size in SIZES for theme in THEMES])
    for size in SIZES:
        page.set_viewport_size(size)
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, (place, size)
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            is_examined = (size["width"], theme) == examined
            assert not is_examined or violations(page) == [], (place, size, theme)
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            lightness = sum(map(int, re.findall(r"\d+", background)))
            assert lightness > 600 if theme == "light" else lightness < 150, (place, theme)


def test_every_page_fits_and_can_be_used_by_all(visitors: Visitors) -> None:
    stranger = visitors(None, size=PHONE)
    stranger.go("/login")
    check_looks(stranger.page, "/login")
    visitor = visitors(size=PHONE)
    found = re.search(r"/runs/([0-9a-f]{32})", visitor.go(f"{LAKE}/runs").content())
    assert found is not None
    for place in sample("pages", PAGES, PAGES_AT_A_TIME):
        visitor.go(place.format(run=found[1]))
        # Charts come once the page is there.
        visitor.page.wait_for_selector("[data-fragment] > p > a", state="detached")
        visitor.page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
        check_looks(visitor.page, place)


def test_the_graph_by_keyboard(visitors: Visitors) -> None:
    visitor = visitors("reader")
    page = visitor.go(f"{LAKE}/commits")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('tip')"):
            break
    bubble = page.locator(":focus + .bubble")
    assert bubble.is_visible()
    assert bubble.inner_text(), "the reason"
    assert page.locator(".bubble:visible").count() == 1
    page.keyboard.press("Escape")
    assert not bubble.is_visible()
    page.locator(".commit.gone .tip").first.hover()
    assert "deleted its data" in page.locator(".commit.gone .bubble:visible").inner_text()

    total = int(re.findall(r"of (\d+)", page.locator(".pages").first.inner_text())[0])
    seen = page.locator("li.commit").count()
    while page.locator("a[rel=next]").count():
        page.locator("a[rel=next]").first.focus()
        with page.expect_navigation():
            page.keyboard.press("Enter")
        seen += page.locator("li.commit").count()
    assert seen == total
    page.fill("#at", "user-ada")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "user-ada" in page.locator("li.commit").first.inner_text()


def test_every_control_is_reached_by_keyboard(visitors: Visitors) -> None:
    """Of a page with forms: Tab comes by each field and button, and shows where it is."""
    visitor = visitors()
    page = visitor.go(f"{LAKE}/runs")
    page.locator("summary").focus()
    page.keyboard.press("Enter")
    wanted = page.locator("main :is(a, button, input, select, textarea):visible").count()
    page.locator("#main").focus()
    reached: set[str] = set()
    for _ in range(3 * wanted):
        page.keyboard.press("Tab")
        seen = page.evaluate(
            "(() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.closest('main') ? (e.name || e.href || e.textContent) : '',"
            " s.outlineStyle] })()"
        )
        if seen[0]:
            assert seen[1] != "none", seen
            reached.add(seen[0])
    assert {"action", "mode", "grace", "allow_share", "Start"} <= reached


def test_the_form_and_the_json_follow_each_other(visitors: Visitors) -> None:
    """While one types in either, and with nothing set; a wrong text changes nothing elsewhere."""
    visitor = visitors(size=PHONE)
    page = visitor.go(f"{LAKE}/policy")
    page.fill("#default-keep_within", "45d")
    page.wait_for_selector("#comparison tbody th:text-is('A')")
    assert '"default": "45d"' in page.input_value("#policy")
    page.fill("#default-keep_within", "45")
    page.wait_for_selector("#comparison >> text=has no unit")
    assert '"default": "45d"' in page.input_value("#policy")
    page.click("label:text-is('JSON')")
    page.fill("#policy", '{"default": {"keep_last": 7}, "branches": {"x-*": "keep"}}')
    page.click("label:text-is('Form')")  # before the text was tried
    page.wait_for_selector("#branch-0-pattern[value='x-*']")
    assert page.input_value("#default-keep_last") == "7"
    assert page.is_checked("[name='branch-0-keep']")
    assert violations(page) == []
    visitor.go(f"{LAKE}/policy")
    assert page.input_value("#default-keep_within") == "14d"


def test_the_theme_without_script(browser: Browser, lake_server: Server) -> None:
    """The choice counts against what the system prefers, and stays for the next page."""
    context = browser.new_context(color_scheme="light", java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{lake_server.url}/ui/login")
    for theme, is_dark in (("Dark", True), ("System", False)):
        with page.expect_navigation():
            page.click(f".foot button:text-is('{theme}')")
        page.goto(f"{lake_server.url}/ui/login?next=/ui/trash")
        # Pages without script still have the style that a test can ask for.
        found = page.locator("body").evaluate("each => getComputedStyle(each).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", found))) < 150) is is_dark, found
    context.close()


def test_policies_are_tried_while_one_types(visitors: Visitors) -> None:
    visitor = visitors(size=PHONE)
    page = visitor.go(f"{LAKE}/policy")
    page.click("label:text-is('JSON')")
    page.fill("#policy", "{")
    page.wait_for_selector("#comparison >> text=Policy A: this is not JSON")
    page.fill("#policy", '{"default": {"keep_last": 1}}')
    page.wait_for_selector("#comparison tbody th:text-is('A')")
    lost = page.locator("#comparison tr:has(th:text-is('A')) [data-label='Restore points lost']")
    assert int(lost.first.inner_text()) > 0
    page.click("summary:has-text('Others')")
    page.fill("#policy_b", '{"default": "keep"}')
    page.wait_for_selector("#comparison tbody th:text-is('B')")
    assert violations(page) == []

    visitor.follow("button:text-is('Try')")
    page.wait_for_selector("text=Nothing was set, and nothing changed", timeout=60_000)
    sizes = page.locator("[data-progress] [data-label='Size']").all_inner_texts()
    assert len(sizes) == 3, sizes
    assert page.input_value("#policy_b") == '{"default": "keep"}'
    assert not page.locator("#outdated").is_visible()
    page.fill("#policy_b", '{"default": "90d"}')
    assert page.locator("#outdated").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page) == []


def test_a_run_from_start_to_end(visitors: Visitors) -> None:
    visitor = visitors()
    page = visitor.go(f"{LAKE}/runs")
    page.click("summary")
    page.click("text=Clean: list everything")
    page.click("button:has-text('Start')")
    page.wait_for_url(re.compile(r"/runs/[0-9a-f]{32}"))
    # The page follows the run, and loads anew at its end.
    page.wait_for_selector(".head .badge.planned", timeout=120_000)
    assert page.locator("[data-progress]").count() == 0

    visitor.go(f"{LAKE}/runs")
    runs = page.locator("tbody tr").count()
    assert runs == 3
    page.locator("tbody a").nth(1).click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f]{32}"))
    place = page.url
    page.wait_for_selector(".charts .chart")
    visitor.follow("text=look at them")
    page.wait_for_url(re.compile("/candidates$"))
    assert page.locator("tbody tr").count() == 40
    address = page.locator("tbody th").nth(3).inner_text()
    page.fill("#search", address)
    visitor.follow("button:has-text('Search')")
    page.wait_for_url(re.compile("[?]search="))
    assert page.locator("tbody tr").count() == 1

    page.goto(place)
    page.click("summary:has-text('Sweep')")
    button = page.locator("button.danger")
    assert button.is_disabled()
    page.fill("#confirmation", NAME + "x")
    assert button.is_disabled()
    page.fill("#confirmation", NAME)
    button.click()
    page.wait_for_selector(".head .badge.swept", timeout=120_000)

    # What went is aside for a week, and comes back.
    assert "40 files" in page.locator("#aside + p").inner_text()
    aside = page.locator(".figures div:has(dt:text-is('Quarantine')) dd").first.inner_text()
    assert re.match(r"[\d.]+ KiB$", aside)
    by_run = f"tr:has([href='{place.removeprefix(visitor.url)}'])"
    for listed, row in (("", "tr:has(th a:text-is('lake'))"), (f"{LAKE}/runs", by_run)):
        visitor.go(listed)
        assert page.locator(f"{row} [data-label='Quarantine']").inner_text() == aside, listed
    visitor.go(LAKE)
    assert page.locator(".figures div:has(dt:text-is('Quarantine')) dd").first.inner_text() == aside
    page.goto(place)
    page.click("button:has-text('Undo')")
    page.wait_for_selector(".head .badge.undone", timeout=120_000)
    assert page.locator(".figures div:has(dt:text-is('Quarantine'))").count() == 0
    visitor.go(f"{LAKE}/explain")
    page.fill("#what", address)
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('Kept')")
