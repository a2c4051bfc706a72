"""Templates, the filters that format values in them, and messages of errors as sentences.

The messages of the API and the command line are one clause, without a capital letter and a full
stop. Not for: the notices after an action (`visit`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ebbtide.errors import EbbtideError, NotFound
from ebbtide.gc import commits_text
from ebbtide.model import EPOCH
from ebbtide.purge.request import asked_by
from ebbtide.server.pages.browser import ROOT, assets
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
        "states": lambda counts: commits_text(*counts),
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


_PLAIN_WORD: Final = re.compile(r"[a-z]+(?=[\s,]|: )")
_ENDS: Final = (".", "!", "?")

NEXT_STEPS: Final[Mapping[int, str]] = {
    400: "Go back, correct the form or the address, and send it again.",
    401: "Log in, and send it again.",
    403: "Go back, or log in with another key. An admin can make one with another role.",
    404: "Check the address, or look for the item in its list. It may be in the trash.",
    405: "Go back, and use the links and buttons of the pages.",
    409: "Reload the page to see what has changed, and decide again.",
    410: "Choose a commit that still has its data.",
    413: "Send less at a time, or ask the operator for a higher limit.",
    500: "Ask the operator of this server to read its log.",
    503: "Try again in a minute. If it fails again, ask the operator to read the server's log.",
}
"""What to do about an error page, by its status."""


def sentence(text: str) -> str:
    """Returns a message as a sentence: with a capital letter, unless it begins with a name, and a
    full stop."""
    if _PLAIN_WORD.match(text):
        text = text[0].upper() + text[1:]
    return text if not text or text.endswith(_ENDS) else f"{text}."


def clause(error: EbbtideError) -> str:
    """Returns the message of an error, to follow other words. The place of a mistake in a policy
    becomes part of the clause."""
    key: Any = error.details.get("key")
    prefix = f"policy: {key}: "
    if not isinstance(key, str) or not error.message.startswith(prefix):
        return error.message
    return f"{key!r} in the policy is wrong: {error.message.removeprefix(prefix)}"


def explained(error: EbbtideError) -> str:
    """Returns the message of an error as a sentence. A message about a missing item that says
    nothing to do gets a second sentence."""
    text = sentence(clause(error))
    is_bare = isinstance(error, NotFound) and ": " not in text
    return f"{text} Check the name, and send it again." if is_bare else text


def next_step(status: int) -> str:
    """Returns what to do about an error page."""
    return NEXT_STEPS.get(status, NEXT_STEPS[503] if status > 500 else NEXT_STEPS[400])
