"""XML of S3: answers are built as texts, and bodies of requests are parsed.

Not for: what the elements mean.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"

_UNWRITABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML 1.0 cannot express, not even as references."""


class Markup(str):
    """A text that is XML already."""

    __slots__ = ()


def element(name: str, *content: str | int) -> Markup:
    """Returns an element. Texts among its content are escaped; elements are not."""
    inner = "".join(each if isinstance(each, Markup) else text_of(str(each)) for each in content)
    return Markup(f"<{name}>{inner}</{name}>")


def root(name: str, *content: Markup) -> Markup:
    """Returns a root element in S3's namespace."""
    return Markup(f'<{name} xmlns="{NAMESPACE}">{"".join(content)}</{name}>')


def document(content: str) -> bytes:
    """Returns a document with its declaration."""
    return declaration() + content.encode()


def declaration() -> bytes:
    """Returns the declaration that begins every document."""
    return b'<?xml version="1.0" encoding="UTF-8"?>\n'


def text_of(text: str) -> str:
    """Returns a text as XML content. Characters that XML cannot express become U+FFFD."""
    # A parser turns a carriage return into a line break unless it is a reference.
    return _UNWRITABLE.sub("\ufffd", escape(text, {'"': "&quot;", "\r": "&#13;"}))


def key_text(key: str, *, encoded: bool) -> str:
    """Returns a key for a listing, percent-encoded if the client asked for `encoding-type=url`."""
    return quote(key, safe="/") if encoded else key


def date_text(date: datetime) -> str:
    """Returns a date as S3 writes it, with milliseconds."""
    return f"{date:%Y-%m-%dT%H:%M:%S}.{date.microsecond // 1000:03d}Z"


def parsed(body: bytes, root_name: str) -> Element | None:
    """Returns the root element of a body; None if it is not well-formed, has another root, or
    declares entities or a document type. Names of elements lose their namespace."""
    try:
        found: Element = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        return None
    for each in found.iter():
        each.tag = each.tag.rpartition("}")[2]
    return found if found.tag == root_name else None
