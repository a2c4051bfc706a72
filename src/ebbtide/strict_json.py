"""Reads JSON that people write, strictly: a key that is twice in one object is an error.

Python's own reader uses the last value of such a key. The rule that a person reads first would then
not be the rule in force. Not for files that the program itself wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ebbtide.errors import InvalidInput
from ebbtide.text import shown


def unique_keys(kind: str, what: str) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """Returns a hook for Python's reader (`object_pairs_hook`) that accepts each key once.

    The hook raises InvalidInput of this `kind`, with `what` as the subject of its message.
    """

    def read(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(kind, f"{what} has the key {shown(twice)} twice: keep one of them")
        return found

    return read


def read_document(text: str | bytes, *, kind: str, what: str) -> object:
    """Returns the value of a JSON text.

    Raises InvalidInput of this `kind`, with `what` as the subject of its message, if the text is
    not JSON or has a key twice in one object.
    """
    try:
        return json.loads(text, object_pairs_hook=unique_keys(kind, what))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(kind, f"{what} is not JSON: {error}") from None
