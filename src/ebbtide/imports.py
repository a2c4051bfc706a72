"""Controls the import of libraries, so that processes start fast and can be forked.

Extras: a plain installation lacks libraries of some features. `require_extra` names the packages.

Pandas: if it is installed, Arrow imports it to check whether a list is a pandas column. This takes
a third of a second in each process, and only Spark needs pandas.

Threads for algebra: NumPy starts them when it is imported. They wait for work in a busy loop, for a
tenth of a second in each process. Nothing here computes with matrices.

Forks: a forked process has none of its parent's threads, so that a process to fork from should
start none.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from ebbtide.errors import Failed

_ALGEBRA_THREADS: Final = "OPENBLAS_NUM_THREADS"
_MEMORY_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"


def require_extra(what: str, extra: str, *modules: str) -> None:
    """Raises Failed `extra_missing` if one of the modules is not installed. `what` begins the
    message, and needs the packages of the extra."""
    for name in modules:
        try:
            is_there = find_spec(name) is not None
        except ModuleNotFoundError:  # its parent package is missing
            is_there = False
        if not is_there:
            raise Failed(
                "extra_missing",
                f"{what} needs Python's package {name}, which is not installed here: "
                + shlex.join(["pip", "install", *_packages(extra)]),
            )


def _packages(extra: str) -> Iterator[str]:
    """Yields the packages of an extra. They are on an index; this program need not be."""
    from importlib.metadata import requires  # takes a tenth of the start of a command

    for line in requires("ebbtide") or ():
        needed, _, condition = line.partition("; ")
        if condition == f'extra == "{extra}"':
            yield from _packages(needed[8:-1]) if needed.startswith("ebbtide[") else [needed]


class _WithoutPandas:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raises ModuleNotFoundError for pandas, as if it were not installed."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left alone until Spark needs it", name=fullname)


_finder = _WithoutPandas()


def leave_pandas_alone() -> None:
    """Hides pandas from imports from now on, unless it was imported before."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def leave_algebra_alone() -> None:
    """Makes NumPy start no threads, in this process and in processes that it starts."""
    os.environ.setdefault(_ALGEBRA_THREADS, "1")


def allow_pandas() -> None:
    """Lets imports find pandas again."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def prepare_forks() -> None:
    """Prepares a process that others are forked from. Called before large imports.

    Hides libraries that no run needs, and prevents threads: NumPy's, and the thread of Arrow's own
    memory pool.
    """
    leave_algebra_alone()
    leave_pandas_alone()
    os.environ.setdefault(_MEMORY_POOL, "system")
