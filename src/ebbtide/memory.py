"""How a process asks the system for memory and gives it back: settings of Arrow's and of glibc's.

The program itself holds little, and gives back at once what it held. A worker process goes through
much, and keeps what it frees for what comes next: a page that the system gives anew, which it
empties first, costs more than most of what is done with it.

glibc alone has such settings; with other systems' libraries Arrow's choice is all there is.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)
_LARGE_BYTES: Final = 128 * 1024
_LARGEST_BYTES: Final = 32 * 1024 * 1024
"""The most that glibc takes for the least that it asks the system for separately."""
_KEPT_BYTES: Final = 256 * 1024 * 1024


def load_arrow_lightly() -> None:
    """Load Arrow, if it is not loaded yet, with the system's memory for all that it does: what it
    writes Parquet with asks for no other pool later. Processes started from here have their own."""
    chosen = os.environ.get(_ARROW_POOL)
    os.environ.setdefault(_ARROW_POOL, "system")
    try:
        import pyarrow as pa

        pa.default_memory_pool()  # chosen now, and for good
    finally:
        if chosen is None:
            del os.environ[_ARROW_POOL]


def hold_little() -> None:
    """Have Arrow ask the system for what it needs, and give it back at once. Its own pool is
    quicker, and twice as large: for a process that itself does little with much.

    glibc would keep what each thread frees for that thread, and learn from each large piece to keep
    such pieces.
    """
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    _set({_ARENA_MAX: 1, _MMAP_THRESHOLD: _LARGE_BYTES})


def keep_freed() -> None:
    """Keep what is freed, until this process ends; what Arrow frees, too, unless another pool was
    chosen for it, or it is loaded already. Its own pool would set up room for many threads."""
    os.environ.setdefault(_ARROW_POOL, "system")
    _set({_ARENA_MAX: 1, _MMAP_THRESHOLD: _LARGEST_BYTES, _TRIM_THRESHOLD: _KEPT_BYTES})


def give_back() -> None:
    """Have the system take back what was freed: what comes next seldom needs as much."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _set(options: dict[int, int]) -> None:
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        for option, value in options.items():
            set_option(option, value)
