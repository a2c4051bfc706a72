"""Partial updates: a field that an update does not give keeps its value."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal


class Unchanged(Enum):
    """The value of a field that was not given. For fields in which None has a meaning."""

    KEEP = "keep"


Keep = Literal[Unchanged.KEEP]
KEEP: Final = Unchanged.KEEP


def given(**values: Any) -> dict[str, Any]:  # values of any field
    """Returns the values that were given."""
    return {name: value for name, value in values.items() if value is not KEEP}
