"""Leaving pandas alone: Arrow imports it where it is installed, to see whether a list is one of its
columns, which takes a third of a second in each process. Spark alone needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _WithoutPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Say that it is not installed."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left alone until Spark needs it", name=fullname)


_finder = _WithoutPandas()


def leave_pandas_alone() -> None:
    """From here on it is not found, unless it was imported before."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def allow_pandas() -> None:
    """From here on it is found again."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
