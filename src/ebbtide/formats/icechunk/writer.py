"""The name that this program writes into the files that it makes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

WRITER: Final = f"ebbtide-{version('ebbtide')}"
