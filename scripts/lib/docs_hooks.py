"""What MkDocs does besides for this project: pages from outside `docs/`, and links that lead there.

Documents link to each other, and to code, as files of a checkout. A link to a page of the site is
turned to that page. What is not part of the site is named by its path, for no site has it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
OUTSIDE: Final = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "benchmarks.md": "benchmarks/README.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site by the documents that they are made of, which lie outside `docs/`."""

_LINK: Final = re.compile(
    r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    for src_uri, document in OUTSIDE.items():
        files.append(File.generated(config, src_uri, abs_src_path=str(ROOT / document)))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_others: object) -> str:
    """Turn the links of a page's document into links of the site."""
    places = {Path(str(file.abs_src_path)).resolve(): file.src_uri for file in files}
    return turned(markdown, Path(str(page.file.abs_src_path)).resolve(), places)


def on_post_page(output: str, **_others: object) -> str:
    """Name the search for those who do not see it, which the theme leaves out."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def turned(markdown: str, document: Path, places: Mapping[Path, str]) -> str:
    """Returns the text of a document, whose links to files of the checkout become links of the
    site, or paths. `places` maps the files of the site to their places in it.

    A link to a directory leads to its first document. If a link's text is the path of a document,
    it becomes the document's title. A picture that is not part of the site, and a link to a missing
    file, stay as they are, and MkDocs reports them.
    """
    here = posixpath.dirname(places[document]) or "."

    def replaced(found: re.Match[str]) -> str:
        path = (document.parent / found["target"]).resolve()
        inside = sorted(place for place in places if path in (place, place.parent))
        if inside:
            text = title_of(inside[0]) if found["text"].endswith(".md") else found["text"]
            target = posixpath.relpath(places[inside[0]], here) + (found["anchor"] or "")
            return f"{found['picture']}[{text}]({target})"
        if found["picture"] or not path.exists():
            return found[0]
        name = f"`{path.relative_to(ROOT)}`"
        return name if found["text"].strip("`/") in name else f"{found['text']} ({name})"

    return _LINK.sub(replaced, markdown)


def title_of(document: Path) -> str:
    """The first heading, with which every document begins."""
    with document.open() as lines:
        return next(lines).removeprefix("# ").rstrip()
