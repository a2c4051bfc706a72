"""The theme: chosen by a button, remembered by a cookie, and nothing that another site can set."""

from __future__ import annotations

import re

from ebbtide.store.access.keys import Role
from tests.server.pages.conftest import ORIGIN, Browsers


def theme_of(page: str) -> tuple[str | None, list[str]]:
    """The theme of a page, and the pressed buttons."""
    found = re.search(r'<html lang="en" data-theme="(\w+)">', page)
    pressed = re.findall(r'value="(\w+)" aria-pressed="true"', page)
    return (None if found is None else found[1]), pressed


def test_a_theme_is_remembered(shared_browsers: Browsers) -> None:
    """Also before a login."""
    stranger, reader = shared_browsers(None), shared_browsers(Role.READER)
    for browser, place in ((stranger, "/login"), (reader, "/trash")):
        assert theme_of(browser.get(place).text) == (None, ["system"])
        fields = {
            "form_token": "" if browser is stranger else reader.token(),
            "next": f"/ui{place}",
        }
        for theme, shown in (("dark", "dark"), ("light", "light"), ("system", None)):
            answer = browser.http.post("/ui/theme", data=fields | {"theme": theme}, headers=ORIGIN)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/ui{place}")
            assert "SameSite=lax" in answer.headers["set-cookie"]
            page = browser.get(place).text
            assert theme_of(page) == (shown, [theme])
            assert f'name="next" value="/ui{place}"' in page
            found = re.search(r'name="color-scheme" content="([\w ]+)"', page)
            assert found is not None and found[1] == (shown or "light dark")


def test_other_texts(shared_browsers: Browsers) -> None:
    browser = shared_browsers(Role.READER)
    assert browser.post("/theme", theme='"><script>').status_code == 400
    away = browser.post("/theme", theme="dark", next="https://evil.example/ui")
    assert away.headers["location"] == "/ui"
    browser.http.cookies.set("ebbtide_theme", "bright", domain="test.local", path="/ui")
    assert theme_of(browser.get("/trash").text) == (None, ["system"])


def test_the_page_to_come_back_to(shared_browsers: Browsers) -> None:
    """With its search, without its notice; of a refused form, a page that there is."""
    browser = shared_browsers()
    page = browser.get("/trash?after=a%26b&notice=restored").text
    assert 'name="next" value="/ui/trash?after=a%26b"' in page
    assert 'name="next" value="/ui"' in browser.post("", name="?").text
