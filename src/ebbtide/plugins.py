"""Plug-ins: classes that installed distributions name as entry points, this one and others.

Not for: what a group of them has to have (`formats.schemes`, `server.doors`).

Source: Python Packaging User Guide, "Entry points specification".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points


@cache
def plugins_of(group: str) -> Mapping[str, EntryPoint]:
    """Returns the entry points of a group by their names, sorted. Nothing is imported yet."""
    return {each.name: each for each in sorted(entry_points(group=group), key=lambda it: it.name)}
