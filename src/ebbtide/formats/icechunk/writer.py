"""The program's name and version, for the files that it writes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

WRITER: Final = f"ebbtide-{version('ebbtide')}"
