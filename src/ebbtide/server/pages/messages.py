"""Messages of errors as sentences for people, with the next step.

The messages of the API and the command line are one clause, without a capital letter and a full
stop. Not for: the notices after an action (`visit`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ebbtide.errors import EbbtideError, NotFound

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
