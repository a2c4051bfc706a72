"""Makes the pictures of the pages that the documentation shows, with Chromium, in both themes.

    python scripts/pictures.py [NAME …]     # all of them, or those whose names begin so

The repository in them is the one of the tests (`tests/support/lake.py`), so that its shape is the
same each time; ids and dates are those of the day.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from ebbtide.settings import Settings  # noqa: E402
from ebbtide.store.embedded import Store  # noqa: E402
from tests.browser.conftest import PHONE, Theme, Visitor, find_chromium  # noqa: E402
from tests.support.lake import NAME, fill_lake, leave_garbage  # noqa: E402
from tests.support.server import Server, new_server  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ViewportSize

TARGET: Final = ROOT / "docs" / "pictures" / "pages"
WIDE: Final[ViewportSize] = {"width": 1600, "height": 1000}
HEIGHT_MAX: Final = 1500
COLOURS: Final = 96
SCALE: Final = 60
LAKE: Final = f"/repositories/{NAME}"
POLICIES: Final = (
    '{"default": "30d", "branches": {"user-*": "3d"}}',
    '{"default": {"keep_last": 2}}',
)
NARROWER: Final = {"default": "7d", "branches": {"main": "12d", "user-*": "1d"}}
"""What the plan in the pictures goes by, so that there is something that it lets go."""
SHOTS: Final = {
    "repositories": "",
    "repository-trash": "/trash",
    "overview": LAKE,
    "files": f"{LAKE}/files?ref=dev&prefix=tables/dev/",
    "commits": f"{LAKE}/commits",
    "refs": f"{LAKE}/refs",
    "collections": f"{LAKE}/collections?project={{project}}",
    "policy": f"{LAKE}/policy",
    "holds": f"{LAKE}/holds",
    "protection": f"{LAKE}/protection",
    "trend": f"{LAKE}/runs/trend",
    "runs": f"{LAKE}/runs",
    "run": f"{LAKE}/runs/{{planned}}",
    "run-swept": f"{LAKE}/runs/{{swept}}",
    "candidates": f"{LAKE}/runs/{{planned}}/candidates",
    "usage": f"{LAKE}/usage",
    "explain": f"{LAKE}/explain?what=main&path=readme.txt",
    "trash": f"{LAKE}/trash",
    "purges": f"{LAKE}/purges",
}
ON_A_PHONE: Final = ("commits", "run")


def main() -> None:
    """Make a store, serve it, and take the pictures."""
    wanted = tuple(sys.argv[1:])
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ebbtide-pictures-") as directory:
        server = new_server(
            Path(directory) / "store",
            EBBTIDE_RECLAIM="false",
            EBBTIDE_GRACE="0s",
            EBBTIDE_PRICE_GB_MONTH="0.023",
        ).start()
        try:
            places = _fill(server)
            with sync_playwright() as started:
                # Its own sandbox needs rights that root and containers do not have.
                browser = started.chromium.launch(
                    executable_path=find_chromium(), args=["--no-sandbox"]
                )
                _take_all(browser, server, places, wanted)
                browser.close()
        finally:
            server.stop()


def _fill(server: Server) -> dict[str, str]:
    """What the pictures show; the ids that are in their addresses."""
    with Store.open(server.directory, settings=Settings()) as store:
        lake = fill_lake(store, odd="Field notes", scale=SCALE)
        project = lake.projects.find("genomes/2026").project_id
        fill_lake(store, name="tides", days=60, odd="Gauges", scale=SCALE)
        store.create_repository("scratch")
        store.create_repository("superseded")
        store.catalog.delete("superseded")
    for name, action, *more in (
        (NAME, "run", "--quarantine", "7d"),
        ("tides", "run", "--quarantine", "none"),
        (NAME, "plan", "--mode", "clean"),
    ):
        with Store.open(server.directory, settings=Settings()) as store:
            leave_garbage(store.repository(name), scale=SCALE)
            if action == "plan":
                store.repository(name).retention.set(NARROWER)
        done = server.command(
            "gc", action, name, "--grace", "0s", "--unsafe", "--allow-share", *more,
            *(["--yes"] if action == "run" else []),
        )  # fmt: skip
        assert done.returncode == 0, done
    with Store.open(server.directory, settings=Settings()) as store:
        lake = store.repository(NAME)
        lake.protection.add("main")
        lake.objects.put("dev", "tables/dev/day=000.parquet", b"x" * 70_000)
        lake.objects.delete("dev", "tables/dev/day=001.parquet")
    return {"project": project}


def _take_all(
    browser: Browser, server: Server, places: dict[str, str], wanted: tuple[str, ...]
) -> None:
    themes: tuple[Theme, ...] = ("light", "dark")
    for theme in themes:
        visitor = _visitor(browser, server, WIDE, theme)
        if not wanted or "login".startswith(wanted):
            visitor.go("/login")
            _save(visitor, f"login-{theme}")
        visitor.log_in(server, "admin")
        visitor.go(f"{LAKE}/runs")
        places["planned"], places["swept"] = re.findall(
            r'<a href="[^"]*/runs/([0-9a-f]{32})"', visitor.page.content()
        )[:2]
        for name, place in SHOTS.items():
            if not wanted or name.startswith(wanted):
                _take(visitor, name, place.format(**places), theme)
    phone = _visitor(browser, server, PHONE, "light")
    phone.log_in(server, "admin")
    for name in ON_A_PHONE:
        if not wanted or name.startswith(wanted):
            phone.go(SHOTS[name].format(**places))
            phone.page.wait_for_load_state("networkidle")
            _save(phone, f"{name}-phone")


def _visitor(browser: Browser, server: Server, size: ViewportSize, theme: Theme) -> Visitor:
    context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
    return Visitor(context.new_page(), server.url)


def _take(visitor: Visitor, name: str, place: str, theme: str) -> None:
    visitor.go(place)
    page = visitor.page
    page.wait_for_load_state("networkidle")
    if name == "policy":
        page.click("summary:has-text('Others')")
        for field, text in zip(("#policy_b", "#policy_c"), POLICIES, strict=True):
            page.fill(field, text)
        page.click("button:text-is('Try')")
        page.wait_for_selector("text=Nothing was set, and nothing changed", timeout=120_000)
    elif name == "usage" and theme == "light":  # the other theme finds it computed
        page.click("button:has-text('Compute the usage')")
        page.wait_for_selector("h2:has-text('By holder')", timeout=120_000)
    elif name == "commits":
        page.locator(".commit.expired .tip, .commit.gone .tip").first.hover()
    elif name == "purges":
        page.click("summary")
    _save(visitor, f"{name}-{theme}")


def _save(visitor: Visitor, name: str) -> None:
    """As a palette: pages have few colours."""
    page = visitor.page
    taken = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    shot = taken.crop((0, 0, taken.width, min(taken.height, HEIGHT_MAX)))
    palette = shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    path = TARGET / f"{name}.png"
    palette.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)} {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    os.environ.pop("EBBTIDE_STORE", None)
    main()
