"""Templates, and the filters that format values in them."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ebbtide.model import EPOCH
from ebbtide.purge.request import asked_by
from ebbtide.server.pages.assets import assets
from ebbtide.server.pages.guarding import ROOT
from ebbtide.server.pages.messages import explained, next_step, sentence
from ebbtide.text import (
    age_text,
    count_text,
    date_text,
    escaped_lines,
    known_size_text,
    one_line,
    short_id,
)


def link(*segments: str, **query: object) -> str:
    """Returns the URL path of a page. Path segments may contain any character. Query values that
    are None or empty are left out."""
    path = "/".join([ROOT, *(quote(segment, safe="") for segment in segments)])
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return path + ("?" + urlencode(given) if given else "")


def seconds_text(seconds: float) -> str:
    """Formats a duration: `0.4 s`, `12 s`, `3 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def when(instant: datetime | None) -> Markup:
    """Formats an instant for people and for programs; None and EPOCH become a dash."""
    if instant is None or instant == EPOCH:
        return Markup('<span class="muted">&ndash;</span>')
    return Markup('<time datetime="{}">{} UTC</time>').format(
        instant.isoformat(), date_text(instant)
    )


def left_text(until: datetime, now: datetime) -> str:
    """Formats the time until an instant: `3 days left`."""
    left = until - now
    return f"{age_text(left)} left" if left >= timedelta(seconds=1) else "ending now"


@cache
def environment() -> Environment:
    """Returns the template environment. Every value is escaped. A template that uses an undefined
    name fails."""
    made = Environment(
        loader=PackageLoader("ebbtide.server.pages"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    made.filters |= {
        "size": known_size_text,
        "count": count_text,
        "age": age_text,
        "short": short_id,
        "line": one_line,
        "seconds": seconds_text,
        "when": when,
        "asked_by": asked_by,
        "sentence": sentence,
        "explained": explained,
    }
    made.globals |= {"link": link, "left": left_text, "asset": _asset_url, "next_step": next_step}
    return made


def render(template: str, **values: Any) -> str:  # the values that the template shows
    """Returns the HTML that a template makes."""
    return environment().get_template(template).render(values)


def _finalized(value: Any) -> Any:  # any value that a template writes
    """Escapes control characters, which names may contain. Browsers end the lines of a text field
    with CR LF, which becomes LF."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return escaped_lines(value.replace("\r\n", "\n"))


def _asset_url(name: str) -> str:
    return assets()[name].url
