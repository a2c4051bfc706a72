"""Changes in part: what an update says nothing of stays as it is."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal


class Unchanged(Enum):
    """Stands for what was not given, where None means something."""

    KEEP = "keep"


Keep = Literal[Unchanged.KEEP]
KEEP: Final = Unchanged.KEEP


def given(**values: Any) -> dict[str, Any]:  # whatever the fields hold
    """Those of the values that were given."""
    return {name: value for name, value in values.items() if value is not KEEP}
