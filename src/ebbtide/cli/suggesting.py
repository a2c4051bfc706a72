"""Adds the nearest known names to the error about a name that does not exist.

Only the command line does so: its user may read the whole store. The server's answers name nothing
that the caller did not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from ebbtide.errors import EbbtideError, NotFound
from ebbtide.escaping import shown
from ebbtide.formats.schemes import is_elsewhere

if TYPE_CHECKING:
    from ebbtide.store.embedded import Store

NAMES_MAX: Final = 10_000
"""The most names that are compared. The comparison takes some ten microseconds for each."""
SUGGESTED_MAX: Final = 3

_ID_LIKE = re.compile(r"[0-9a-f]{6,}")
_AFTER_NAME = re.compile(r"[@~^:=]")


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns the text that suggests the nearest names, or an empty text."""
    close = get_close_matches(name, sorted(set(known))[:NAMES_MAX], SUGGESTED_MAX, cutoff)
    listed = " or ".join(shown(each) for each in close)
    return f"did you mean {listed}?" if close else ""


def with_suggestion(store: Store, error: NotFound, arguments: dict[str, Any]) -> NotFound:
    """Returns the error with the names that are nearest to the missing one, or the same error.

    `arguments` are those of the command line, by name. Ids are never guessed.
    """
    repository = arguments.get("repository")
    if not isinstance(repository, str) or is_elsewhere(repository):
        return error
    named = [each for each in _names(arguments) if shown(each) in error.message]
    missing = next((each for each in named if not _ID_LIKE.fullmatch(each)), None)
    if missing is None:
        return error
    try:
        known = _known(store, error.kind, repository)
    except EbbtideError:
        return error
    hint = did_you_mean(missing, known)
    return NotFound(error.kind, f"{error.message}; {hint}", **error.details) if hint else error


def _names(arguments: dict[str, Any]) -> Iterator[str]:
    """Yields the arguments, without what can follow the name of a ref."""
    for value in arguments.values():
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str):
                yield _AFTER_NAME.split(text, maxsplit=1)[0]


def _known(store: Store, kind: str, repository: str) -> list[str]:
    """Returns the names that the missing one could be: live ones alone."""
    if kind == "repository_not_found":
        return [each.info.name for each in store.catalog.list()]
    if kind not in ("branch_not_found", "tag_not_found", "ref_not_found"):
        return []
    found = store.repository(repository)
    names: list[str] = []
    if kind != "tag_not_found":
        names += [branch.name for branch in found.branches.list() if not branch.hidden]
    if kind != "branch_not_found":
        names += [tag.name for tag in found.tags.list()]
    return names
