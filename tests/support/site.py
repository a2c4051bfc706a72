"""The documentation as a site, built without a network, and what its pages hold."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from tests.support.commands import captured

ROOT = Path(__file__).parents[2]
ALONE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise AssertionError(f"the build wants the network: {event} {arguments}")

sys.addaudithook(refuse)
from mkdocs.__main__ import cli

cli()
"""
"""MkDocs, in a process that can reach nobody."""
LOADS = {"audio", "embed", "iframe", "img", "object", "script", "source", "track", "video"}
"""Elements whose content a browser fetches by itself; so it does for most `link`s."""


def build(directory: Path) -> subprocess.CompletedProcess[str]:
    return captured(
        [sys.executable, "-W", "error", "-c", ALONE, "build", "--site-dir", directory],
        cwd=ROOT,
        timeout=300,
    )


@dataclass
class Shown(HTMLParser):
    """What one page holds: places that it loads, that it links to, and that can be linked to."""

    html: str
    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    navigation: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    paragraphs: list[str] = field(default_factory=list)
    """The text of paragraphs, without what is code."""

    def __post_init__(self) -> None:
        super().__init__()
        self._inside: list[str] = []
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag in LOADS:
            self.loads += [given[name] for name in ("src", "data", "srcset") if name in given]
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given["href"])
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])
            if "md-nav__link" in given.get("class", ""):
                self.navigation.append(given["href"])
        if tag == "p":
            self.paragraphs.append("")
        if tag in ("p", "code"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "code") and self._inside:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside == ["p"]:
            self.paragraphs[-1] += data
