"""The documentation as a site: it has every document, leads nowhere wrong, and loads nothing."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from scripts.lib.docs_hooks import OUTSIDE, ROOT, turned
from tests.support.site import Shown, build

pytestmark = pytest.mark.xdist_group("site")  # which is built once

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. Its build is strict: what MkDocs warns of makes it fail."""
    directory = tmp_path_factory.mktemp("docs") / "site"
    done = build(directory)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Shown]:
    """Every page by its file; but for the one that a server shows where there is none."""
    found = {path: Shown(path.read_text()) for path in sorted(site.rglob("*.html"))}
    del found[site / "404.html"]
    return found


def test_every_document_is_a_page_and_in_the_navigation(
    site: Path, pages: dict[Path, Shown]
) -> None:
    sources = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} | set(OUTSIDE)
    wanted = {site / Path(source).with_suffix(".html") for source in sources}
    assert set(pages) == wanted
    for path, page in pages.items():
        places = {urlsplit(link).path for link in page.navigation}
        assert {(path.parent / place).resolve() for place in places if place} | {path} == wanted


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Shown]) -> None:
    """To a file of the site, and to a place in it that is there."""
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert not parts.scheme and not parts.netloc and target.is_file(), (path, link)
            assert target.is_relative_to(site)
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids | {"__skip"}, (path, link)


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Shown]) -> None:
    """Pages load files of the site. A browser tells what scripts load."""
    for path, page in pages.items():
        assert page.loads, path
        for place in page.loads:
            parts = urlsplit(place)
            assert not parts.scheme and not parts.netloc, (path, place)
    for path in site.rglob("*.css"):
        for place in re.findall(r"url\(\s*[\"']?([^)\"']+)|@import", path.read_text()):
            assert place.startswith(("data:", "#")), (path, place)


def test_a_site_reads_markdown_as_code_hosts_do(pages: dict[Path, Shown]) -> None:
    """No list, table or heading that a line before it makes part of a paragraph; no mark left."""
    for path, page in pages.items():
        for paragraph in page.paragraphs:
            for line in paragraph.splitlines():
                assert not re.match(r"\s*([-*+|#] |\d+\. |```)", line), (path, line)
            assert not re.search(r"\]\(|\*\*|`", paragraph), (path, paragraph)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[policies](docs/retention.md)", "[policies](retention.md)"),
        ("[docs/safety.md](docs/safety.md#a)", "[Why a run deletes no live data](safety.md#a)"),
        ("[decisions](docs/design/)", "[decisions](design/001-foundations.md)"),
        ("[ARCHITECTURE.md](ARCHITECTURE.md)", "[Architecture](architecture.md)"),
        ("![A run](docs/run.svg)", "![A run](run.svg)"),
        ("[`demo`](scripts/demo)", "`scripts/demo`"),
        ("[the rules](src/ebbtide/retention)", "the rules (`src/ebbtide/retention`)"),
        ("[gone](docs/no-such.md)", "[gone](docs/no-such.md)"),
        ("[peer](https://example.org/a.md)", "[peer](https://example.org/a.md)"),
    ],
)
def test_links_of_a_checkout_become_links_of_the_site(text: str, wanted: str) -> None:
    inside = ["retention.md", "safety.md", "run.svg"]
    inside += ["design/002-icechunk.md", "design/001-foundations.md"]
    places = {DOCS / name: name for name in inside}
    places |= {ROOT / document: name for name, document in OUTSIDE.items()}
    assert turned(text, ROOT / "README.md", places) == wanted
