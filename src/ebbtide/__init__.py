"""Ebbtide: retention and garbage collection for versioned data on object storage.

`import ebbtide` gives the Python interface. Its modules are imported when a name is used first, so
that the import itself is fast; `__init__.pyi` has their types. The modules here are values and
helpers that all packages share; they import no package. A helper with a single user belongs beside
it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_PLACES: Final = {
    "CollectedRepository": "ebbtide.api.repositories",
    "PlannedRun": "ebbtide.api.repositories",
    "Policy": "ebbtide.retention",
    "RunReport": "ebbtide.gc.report",
    "open_repository": "ebbtide.api.repositories",
    "open_store": "ebbtide.api.repositories",
}
"""The module of each exported name."""

__all__ = [
    "CollectedRepository",
    "PlannedRun",
    "Policy",
    "RunReport",
    "errors",
    "open_repository",
    "open_store",
]


def __getattr__(name: str) -> Any:  # a value of any type, by its name
    """Imports an exported name on first use. Raises AttributeError for any other name."""
    if name == "errors":
        return import_module("ebbtide.errors")
    if name not in _PLACES:
        raise AttributeError(f"module 'ebbtide' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
