"""Processes: whether one that held something is gone, from the name it left behind; and those that
end with their parent; how this one was started, and is set up for many rows.

Not for: processes of other machines, of which nothing is known but that they fell silent.
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
NO_SPARK: Final = "none"
"""What stands in place of a Spark master for runs in the process alone."""
REMOTE: Final = "sc://"
"""What the address of a server of Spark Connect begins with, in place of a Spark master."""


def this_process() -> str | None:
    """Machine, process namespace, process and its start: enough to tell that it is gone.

    None where the system does not say (no `/proc`).
    """
    machine = _machine()
    start = _start_of(str(os.getpid()))
    return f"{machine} {os.getpid()} {start}" if machine and start else None


def is_dead(holder: str | None) -> bool:
    """Whether `holder`, as `this_process` gave it, ran on this machine and is gone.

    Unsure is not dead: neither is None, nor a text that `this_process` can't have given.
    """
    parts = (holder or "").rsplit(" ", 2)
    if len(parts) != 3 or not parts[1].isdecimal():
        return False
    machine, pid, start = parts
    return machine == _machine() and _start_of(pid) != start


def _machine() -> str | None:
    """The running kernel and the namespace of process ids: equal only where ids are comparable."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _start_of(pid: str) -> str | None:
    """When process `pid` started, in the kernel's own ticks; None when there is none (or it is
    a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def was_submitted() -> bool:
    """Whether `spark-submit` started this program: its JVM runs, and knows the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def collect_seldom() -> None:
    """Have Python look for cycles less often: rows by the hundred thousand have none, and to look
    through them each time that some were made takes as long as to make them."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


def follow_parent() -> None:
    """In a process of `multiprocessing`: leave interrupts to the parent, and end when it does,
    however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
