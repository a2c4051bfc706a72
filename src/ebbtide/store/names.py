"""Rules for the names of repositories, branches, tags, projects, collections and objects, and for
the sizes of objects.

Not for: whether something of that name exists.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.ids import ID_PATTERN
from ebbtide.text import shown

REF_LENGTH_MAX: Final = 255
REPOSITORY_LENGTH_MAX: Final = 63
PATH_BYTES_MAX: Final = 1024
METADATA_BYTES_MAX: Final = 16 * 1024
ITEM_BYTES_MAX: Final = 255
SUFFIX_BYTES_MAX: Final = 8
"""What a name that is taken gets behind it, with its number."""
PROPERTIES_BYTES_MAX: Final = 64 * 1024
PROPERTIES_DEPTH_MAX: Final = 32
SIZE_BYTES_MAX: Final = 5 * 2**50
"""More than any object store holds in one object."""
TOTAL_BYTES_MAX: Final = 2**63 - 1
"""The largest sum of sizes that a column holds."""

_REPOSITORY: Final = re.compile(rf"[a-z0-9][a-z0-9-]{{2,{REPOSITORY_LENGTH_MAX - 1}}}")
_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
_FULL_ID: Final = re.compile(ID_PATTERN)
_REPOSITORY_RULE: Final = (
    "use 3 to 63 lower-case letters, digits and hyphens, with a letter or digit first"
)
_REF_RULE: Final = (
    f"use at most {REF_LENGTH_MAX} letters, digits and _ - . /, with a letter, digit or _ first, "
    "no '..' or '//', and no '/', '.' or '.lock' at the end"
)
PATH_RULE: Final = f"use 1 to {PATH_BYTES_MAX} bytes of UTF-8 without zero bytes"
_ITEM_RULE: Final = (
    f"use 1 to {ITEM_BYTES_MAX} bytes of UTF-8 without '/' and control characters, without blanks "
    "at the ends, and neither '.' nor '..' nor 32 hexadecimal digits, which are an id"
)


def check_repository_name(name: str) -> None:
    """Checks a repository's name. Raises InvalidInput `invalid_name`, with the rule."""
    if not _REPOSITORY.fullmatch(name):
        raise InvalidInput(
            "invalid_name", f"{shown(name)} is no name for a repository: {_REPOSITORY_RULE}"
        )
    if _FULL_ID.fullmatch(name):
        raise InvalidInput(
            "invalid_name",
            f"{shown(name)} looks like the id of a repository: choose a name that does not",
        )


def check_ref_name(name: str) -> None:
    """Checks a branch's or tag's name. Raises InvalidInput `invalid_name`, with the rule."""
    is_allowed = (
        len(name) <= REF_LENGTH_MAX
        and _REF.fullmatch(name)
        and ".." not in name
        and "//" not in name
        and not name.endswith(("/", ".", ".lock"))
    )
    if not is_allowed:
        raise InvalidInput(
            "invalid_name", f"{shown(name)} is no name for a branch or tag: {_REF_RULE}"
        )
    if _FULL_ID.fullmatch(name):
        raise InvalidInput(
            "invalid_name",
            f"{shown(name)} looks like the id of a commit: choose a name that does not",
        )


def check_item_name(name: str) -> None:
    """Checks a project's or collection's name. Raises InvalidInput `invalid_name`, with the
    rule."""
    is_allowed = (
        _is_text(name, bytes_max=ITEM_BYTES_MAX)
        and name not in (".", "..")
        and "/" not in name
        and not any(unicodedata.category(character) == "Cc" for character in name)
        and name == name.strip()
        and not _FULL_ID.fullmatch(name)
    )
    if not is_allowed:
        raise InvalidInput(
            "invalid_name", f"{shown(name)} is no name for a project or collection: {_ITEM_RULE}"
        )


def free_name(
    name: str, is_taken: Callable[[str], object], *, form: str = "{}-{}", bytes_max: int
) -> str:
    """Returns the name if it is free, else the first free one that `form` makes of the name and a
    number, counted from 2. A long name is cut first, so that the result has at most `bytes_max`
    bytes."""
    if not is_taken(name):
        return name
    cut = name.encode()[: bytes_max - SUFFIX_BYTES_MAX].decode(errors="ignore")
    numbered = (form.format(cut, number) for number in count(2))
    return next(candidate for candidate in numbered if not is_taken(candidate))


def check_properties(properties: Mapping[str, Any]) -> None:  # JSON
    """Checks the properties of a project or collection. Raises InvalidInput `invalid_argument`."""
    if not isinstance(properties, Mapping):
        raise InvalidInput("invalid_argument", "properties must be a JSON object")
    level: list[Any] = [properties]
    for _ in range(PROPERTIES_DEPTH_MAX):
        level = [inner for value in level for inner in _inside(value)]
    if level:
        raise InvalidInput(
            "invalid_argument", f"the properties nest more than {PROPERTIES_DEPTH_MAX} deep"
        )
    try:
        text = json.dumps(properties, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        raise InvalidInput(
            "invalid_argument", "the properties hold a value that JSON cannot express"
        ) from None
    check_text("the properties", text, bytes_max=PROPERTIES_BYTES_MAX)


def _inside(value: Any) -> list[Any]:  # JSON
    """Returns the values directly in an object or list, and an object's names. Raises InvalidInput
    `invalid_argument`."""
    if isinstance(value, str) and "\0" in value:
        raise InvalidInput("invalid_argument", "the properties hold a zero byte")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidInput("invalid_argument", "the names of properties must be texts")
        return [*value, *value.values()]
    return list(value) if isinstance(value, list | tuple) else []


def is_path(path: str) -> bool:
    """Whether an object can have a path."""
    return _is_text(path, bytes_max=PATH_BYTES_MAX)


def check_path(path: str) -> None:
    """Checks an object's path. Raises InvalidInput `invalid_path`, with the rule.

    Like lakeFS, the store takes any text as a path, such as `/x`, `a/../b` or one with a line feed.
    A path never becomes the name of a file in the storage. Commands that write files of this
    machine check paths again.
    """
    if not is_path(path):
        raise InvalidInput("invalid_path", f"{shown(path)} is no path: {PATH_RULE}")


def check_size(size_bytes: int) -> None:
    """Checks the size of an object that is told and not counted. Raises InvalidInput
    `invalid_argument`."""
    if not 0 <= size_bytes <= SIZE_BYTES_MAX:
        raise InvalidInput(
            "invalid_argument", f"a size is from 0 to {SIZE_BYTES_MAX} bytes (5 PiB): {size_bytes}"
        )


def checked_total(size_bytes: int) -> int:
    """Returns a sum of sizes. Raises InvalidInput `invalid_argument` if no column can hold it."""
    if size_bytes > TOTAL_BYTES_MAX:
        raise InvalidInput(
            "invalid_argument",
            f"the files have {size_bytes} bytes together, at most {TOTAL_BYTES_MAX} are allowed: "
            "give them the sizes that they have",
        )
    return size_bytes


def check_text(what: str, text: str, *, bytes_max: int) -> None:
    """Checks any other text that is stored. Raises InvalidInput `invalid_argument`."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput("invalid_argument", f"{what} is not valid Unicode") from None
    if size > bytes_max:
        raise InvalidInput(
            "invalid_argument", f"{what} has {size} bytes, at most {bytes_max} are allowed"
        )
    if "\0" in text:
        raise InvalidInput("invalid_argument", f"{what} holds a zero byte")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Checks the metadata of an object, commit or repository. Raises InvalidInput
    `invalid_argument`."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput("invalid_argument", "metadata maps text to text")
    text = "".join(f"{key}{value}" for key, value in metadata.items())
    check_text("the metadata", text, bytes_max=METADATA_BYTES_MAX)


def _is_text(text: str, *, bytes_max: int) -> bool:
    """Whether the databases can store a text, and it has 1 to `bytes_max` bytes."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 1 <= size <= bytes_max and "\0" not in text
