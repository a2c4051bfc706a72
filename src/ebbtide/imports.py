"""How libraries are loaded.

Leaving pandas alone: Arrow imports it where it is installed, to see whether a list is one of its
columns, which takes a third of a second in each process. Spark alone needs it.

Without threads for algebra: NumPy starts some as it is loaded, which wait for work as busily as if
they had any, a tenth of a second in each process. Nothing here is of matrices.

Before others are forked from a process: none of its threads would go with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

_ALGEBRA_THREADS: Final = "OPENBLAS_NUM_THREADS"
_MEMORY_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"


class _WithoutPandas:
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


def leave_algebra_alone() -> None:
    """Have NumPy, when this process and those that it starts load it, start no threads."""
    os.environ.setdefault(_ALGEBRA_THREADS, "1")


def allow_pandas() -> None:
    """From here on it is found again."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def prepare_forks() -> None:
    """In a process that others are forked from, before it imports anything large: leave alone what
    would start threads, or what no run needs. Arrow's own memory pool has a thread."""
    leave_algebra_alone()
    leave_pandas_alone()
    os.environ.setdefault(_MEMORY_POOL, "system")
