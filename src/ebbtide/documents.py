"""Documents of things: JSON with the names and units that programs can rely on.

A thing is declared once, as a dataclass with `@documented`. Its fields, and its properties with
`@in_document`, are the fields of its document, in the command line and in the API. Times are
ISO 8601 in UTC, sizes are bytes. Fields are added, never renamed. Not for: the names of other
programs' wire formats, and texts for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Document = dict[str, Any]  # JSON-ready

_NAME: Final = "document"
HIDDEN: Final[Mapping[str, str]] = {_NAME: ""}
"""The metadata of a field that is not in the document."""
INLINE: Final[Mapping[str, str]] = {_NAME: "*"}
"""The metadata of a field whose value is a thing, and whose fields are fields of the document."""


Thing = TypeVar("Thing", bound="DataclassInstance")
Function = TypeVar("Function", bound=Callable[..., Any])

_SIMPLE: Final = {str, int, float, bool, type(None)}
_PARTS: Final[dict[type, tuple[tuple[str, str], ...]]] = {}


def named(name: str) -> Mapping[str, str]:
    """Returns the metadata of a field that has another name in the document."""
    return {_NAME: name}


def in_document(function: Function) -> Function:
    """Marks the function of a property as a field of the document."""
    function.__dict__[_NAME] = function.__name__
    return function


def documented(thing: type[Thing]) -> type[Thing]:
    """Declares that the dataclass has a document. Without it, none of its fields gets out."""
    parts = [(each.metadata.get(_NAME, each.name), each.name) for each in fields(thing)]
    for base in reversed(thing.__mro__):
        for name, found in vars(base).items():
            if isinstance(found, property) and _NAME in getattr(found.fget, "__dict__", {}):
                parts.append((name, name))
    _PARTS[thing] = tuple(dict.fromkeys(part for part in parts if part[0]))
    return thing


def is_documented(thing: object) -> bool:
    """Whether a class has a document."""
    return isinstance(thing, type) and thing in _PARTS


def things() -> Iterable[type]:
    """Yields all classes that have a document, of the modules that are imported."""
    yield from _PARTS


def parts_of(thing: type) -> Iterable[tuple[str, str, bool]]:
    """Yields the parts of a class's document: the name, the attribute with the value, and whether
    the value's own fields stand in place of it."""
    for name, attribute in _PARTS[thing]:
        yield name, attribute, name == INLINE[_NAME]


def document_of(thing: object, *, omit_none: bool = False) -> Document:
    """Returns the document of a thing. With `omit_none`, fields without a value are left out.

    Raises TypeError for a class that is not `documented`.
    """
    if type(thing) not in _PARTS:
        raise TypeError(f"{type(thing).__name__} has no document")
    found: Document = {}
    for name, attribute in _PARTS[type(thing)]:
        value = getattr(thing, attribute)
        if type(value) in _SIMPLE:
            if value is not None or not omit_none:
                found[name] = value
        elif name == INLINE[_NAME]:
            found |= document_of(value, omit_none=omit_none)
        else:
            found[name] = _plain(value, omit_none=omit_none)
    return found


def instant(value: datetime | None) -> str | None:
    """Returns an instant as text, or None."""
    return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(value: object, *, omit_none: bool) -> Any:  # JSON
    """Returns a value as JSON. Values that users gave are JSON already, and keep their nulls."""
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: _plain(each, omit_none=omit_none) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, omit_none=omit_none) for each in value]
    return document_of(value, omit_none=omit_none)
