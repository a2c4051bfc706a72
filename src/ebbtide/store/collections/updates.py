"""Partial updates: a field that an update does not give keeps its value."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal

from ebbtide.store.names import check_item_name, check_properties, check_text

DESCRIPTION_BYTES_MAX: Final = 64 * 1024


class Omitted(Enum):
    """The value of a field that was not given. For fields in which None has a meaning."""

    KEEP = "keep"


Keep = Literal[Omitted.KEEP]
KEEP: Final = Omitted.KEEP


def given(**values: Any) -> dict[str, Any]:  # values of any field
    """Returns the values that were given."""
    return {name: value for name, value in values.items() if value is not KEEP}


def check_asked(asked: Mapping[str, Any]) -> None:  # values by the columns' names
    """Checks the fields that projects and collections share, if they are given.

    Raises InvalidInput `invalid_name`, `invalid_argument`.
    """
    if "name" in asked:
        check_item_name(asked["name"])
    if "description" in asked:
        check_text("the description", asked["description"], bytes_max=DESCRIPTION_BYTES_MAX)
    if "properties" in asked:
        check_properties(asked["properties"])
