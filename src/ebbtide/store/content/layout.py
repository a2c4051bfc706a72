"""The layout of the embedded store under its storage root: addresses and their kinds.

Not for: deciding which files are deleted. A file with any other name is `foreign`: reported and
kept.
"""

from __future__ import annotations

from typing import Final, Literal

import pyarrow as pa

from ebbtide.arrow import first_match
from ebbtide.ids import ID_PATTERN, numbered_id
from ebbtide.storage.local import TEMPORARY_SUFFIX

Kind = Literal["object", "tree", "range", "temporary", "system", "foreign"]

OWNER_ADDRESS: Final = "_ebbtide/OWNER"
COLLECTOR_PREFIX: Final = "_ebbtide/gc/"
DUMPS_PREFIX: Final = f"{COLLECTOR_PREFIX}dumps/"
SYMLINKS_PREFIX: Final = f"{COLLECTOR_PREFIX}symlinks/"
PURGES_PREFIX: Final = "_ebbtide/purges/"
DATA_PREFIX: Final = "data/"
TREES_PREFIX: Final = "_ebbtide/trees/"
RANGES_PREFIX: Final = "_ebbtide/ranges/"
POINTER_SUFFIX: Final = ".parquet"

_OBJECT: Final = f"{DATA_PREFIX}{ID_PATTERN}/{ID_PATTERN}"
_TREE: Final = rf"{TREES_PREFIX}{ID_PATTERN}\.parquet"
_RANGE: Final = rf"{RANGES_PREFIX}{ID_PATTERN}\.parquet"
OWN_FILE: Final = (
    f"(?:(?:{_OBJECT}|{_TREE}|{_RANGE})(?:{TEMPORARY_SUFFIX})?|{OWNER_ADDRESS}{TEMPORARY_SUFFIX})"
)
"""A regular expression for the addresses of all files that a run can delete or quarantine."""

_PATTERNS: Final[tuple[tuple[Kind, str], ...]] = (
    ("object", _OBJECT),
    ("tree", _TREE),
    ("range", _RANGE),
    # Files under the prefixes of the collector and of purges are never collected, not even
    # temporary ones.
    ("system", f"{OWNER_ADDRESS}|(?:{COLLECTOR_PREFIX}|{PURGES_PREFIX})(?s:.)+"),
    ("temporary", f"(?:{_OBJECT}|{_TREE}|{_RANGE}|{OWNER_ADDRESS}){TEMPORARY_SUFFIX}"),
)


def tree_address(tree_id: str) -> str:
    """Returns the address of a tree's file."""
    return f"{TREES_PREFIX}{tree_id}{POINTER_SUFFIX}"


def range_address(range_id: str) -> str:
    """Returns the address of a range's file."""
    return f"{RANGES_PREFIX}{range_id}{POINTER_SUFFIX}"


def slice_of(address: str) -> str:
    """Returns the slice of an object's address."""
    return address.removeprefix(DATA_PREFIX).partition("/")[0]


def new_object_address(slice_id: str, number: int) -> str:
    """Returns a new address for an object in a slice, whose id is a descending id. If the numbers
    ascend, the database rows of consecutive writes lie close together."""
    return f"{DATA_PREFIX}{slice_id}/{numbered_id(number)}"


def classify(addresses: pa.StringArray) -> pa.StringArray:
    """Returns the Kind of each address, by its form alone. Nulls are `foreign`.

    Check the listing's `regular` too: a symbolic link can have the name of an object.
    """
    return first_match(addresses, _PATTERNS, otherwise="foreign")
