"""Helpers for processes: whether the holder of a lease is dead, how this process was started, and
how a worker ends with its parent.

Not for: processes of other machines. Only the end of their heartbeat is known.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Final

OBJECTS_BETWEEN_COLLECTIONS: Final = 50_000
SPARK: Final = "spark"
DUCKDB: Final = "duckdb"
"""The names of the engines of runs. DUCKDB can stand in place of a Spark master."""
LOCAL_MASTER: Final = "local[*]"
NO_SPARK: Final = "none"
"""Another name for DUCKDB in place of a Spark master."""
REMOTE: Final = "sc://"
"""The beginning of the address of a Spark Connect server, in place of a Spark master."""


def this_process() -> str | None:
    """Returns machine, process namespace, process id and start time, for `is_dead`.

    None if the system does not provide them (no `/proc`).
    """
    machine = _machine()
    start = _start_of(str(os.getpid()))
    return f"{machine} {os.getpid()} {start}" if machine and start else None


def is_dead(holder: str | None) -> bool:
    """Whether the process `holder`, a text of `this_process`, ran on this machine and is gone.

    False in doubt: for None, and for any other text.
    """
    parts = (holder or "").rsplit(" ", 2)
    if len(parts) != 3 or not parts[1].isdecimal():
        return False
    machine, pid, start = parts
    return machine == _machine() and _start_of(pid) != start


def _machine() -> str | None:
    """Returns the boot id of the kernel and the namespace of process ids. If two processes have the
    same text, their ids can be compared."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _start_of(pid: str) -> str | None:
    """Returns the start time of process `pid` in the kernel's ticks. None if there is no such
    process, or if it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def was_submitted() -> bool:
    """Whether `spark-submit` started this program. Its JVM is then running, and knows the
    master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def collect_seldom() -> None:
    """Makes Python look for reference cycles less often.

    Hundreds of thousands of rows have no cycles, and the search takes as long as making the rows.
    """
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


def follow_parent() -> None:
    """Makes a process of `multiprocessing` ignore interrupts, and end when its parent ends for any
    reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
