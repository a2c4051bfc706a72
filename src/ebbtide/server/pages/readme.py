"""The README of a repository as HTML: CommonMark with tables, rendered by markdown-it.

The text is a user's. Nothing in it runs or loads: HTML is shown as text, an image as its
description, and only links of safe schemes are links. Not for: other files (`previews`).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from ebbtide.errors import EbbtideError
from ebbtide.server.pages.html import link
from ebbtide.server.pages.previews import TEXT_BYTES_MAX, decode_text, read_range
from ebbtide.store.repository import Repository
from ebbtide.text import escaped_lines

README: Final = "README.md"
HEADINGS_BELOW: Final = 2
"""The level of the page's heading above the README."""
_KEPT: Final = 16


@dataclass(frozen=True, slots=True)
class Readme:
    """A README as HTML. If `is_cut`, only its first TEXT_BYTES_MAX bytes are shown."""

    ref: str
    html: Markup
    is_cut: bool


def read_readme(repository: Repository) -> Readme | None:
    """Returns the README at the root of the default branch; None if there is none that can be read
    as text."""
    ref = repository.info.default_branch
    try:
        found = repository.objects.open(ref, README)
        data = read_range(found, 0, TEXT_BYTES_MAX)
    except EbbtideError:  # the page has more to show than a README
        return None
    is_cut = found.entry.size_bytes > len(data)
    text = decode_text(data, is_cut=is_cut)
    return None if text is None else Readme(ref, _rendered(text, repository.info.name, ref), is_cut)


@lru_cache(_KEPT)  # a text that was made for it takes two seconds
def _rendered(text: str, repository: str, ref: str) -> Markup:
    """Returns CommonMark as HTML. Relative links lead to files of the ref."""
    markdown = _markdown()
    tokens = markdown.parse(escaped_lines(text.replace("\r\n", "\n")))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + HEADINGS_BELOW)}"
        for child in token.children or ():
            if child.type == "link_open":
                target = _target(str(child.attrs["href"]), repository, ref)
                child.attrs = {"href": target, "rel": "nofollow noopener noreferrer"}
        if token.children:
            token.children = [_without_image(child) for child in token.children]
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def _without_image(token: Token) -> Token:
    """Returns the description in place of an image."""
    return Token("text", "", 0, content=token.content) if token.type == "image" else token


def _target(href: str, repository: str, ref: str) -> str:
    """Returns the URL of a link: relative ones lead to the page of a file or of a directory."""
    try:
        parts = urlsplit(href)
    except ValueError:  # no address
        return "#"
    if parts.scheme or parts.netloc or not parts.path:
        return href
    path = posixpath.normpath("/" + unquote(parts.path)).lstrip("/")
    if parts.path.endswith("/"):
        return link("repositories", repository, "files", ref=ref, prefix=path and f"{path}/")
    return link("repositories", repository, "object", ref=ref, path=path)
