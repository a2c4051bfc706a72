"""The processors and the memory that this process may use, and memory that it gives back.

In a container these are less than the machine has. Linux limits them by control groups, in two
versions: `cpu.max` and `memory.max` (Linux, `admin-guide/cgroup-v2.rst`), or `cpu.cfs_quota_us`,
`cpu.cfs_period_us` and `memory.limit_in_bytes` (`scheduler/sched-bwc.rst`, `cgroup-v1/memory.rst`).
A group is limited by all groups around it, too.

Not for: what uses them.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path("/")
ARENAS_MAX: Final = 2
_M_ARENA_MAX: Final = -8
"""The number of the option in glibc's `malloc.h`."""
UNLIMITED_BYTES: Final = 1 << 60
"""Version 1 writes a number near 2^63 if there is no limit."""
_GROUPS: Final = "proc/self/cgroup"
_MOUNTS: Final = "sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of control groups: processors, which can be a fraction, and bytes of memory. None
    where there is no limit."""

    processors: float | None = None
    memory_bytes: int | None = None


def read_limits(root: Path = ROOT) -> Limits:
    """Returns the smallest limits of this process's groups. `root` is the root of the file system.

    A file that is missing or cannot be read is no limit. Raises nothing.
    """
    processors: list[float] = []
    memory: list[int] = []
    for controllers, group in _groups(root):
        for folder in _around(root, controllers, group):
            processors.extend(_processors_of(folder))
            memory.extend(_memory_of(folder))
    return Limits(min(processors, default=None), min(memory, default=None))


def processor_count(root: Path = ROOT) -> int:
    """Returns how many processors this process may use, 1 at least.

    This is the number that the affinity of the process allows, or the limit of the control groups
    if that is less. A part of a processor counts as a whole one.
    """
    available = len(os.sched_getaffinity(0))
    limit = read_limits(root).processors
    return max(1, available if limit is None else min(available, math.ceil(limit)))


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """Returns the memory that the control groups allow this process, in bytes; None without a
    limit."""
    return read_limits(root).memory_bytes


def _groups(root: Path) -> Iterator[tuple[frozenset[str], PurePosixPath]]:
    """Yields the groups of this process: the controllers of a hierarchy, and the path in it.
    Version 2 has one hierarchy, whose controllers are not listed."""
    for line in _read(root / _GROUPS).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number.isdecimal() and path.startswith("/"):
            yield frozenset(filter(None, controllers.split(","))), PurePosixPath(path)


def _around(root: Path, controllers: frozenset[str], group: PurePosixPath) -> Iterator[Path]:
    """Yields the folders of a group and of all groups around it.

    In a container the path can be that of the machine, of which the container sees only its own
    part, mounted as the root of the hierarchy. Such folders do not exist here, and are no limit.
    """
    mounts = root / _MOUNTS
    if not controllers:
        # With both versions, that of version 2 is beside the hierarchies of version 1.
        tops = [mounts, mounts / "unified"]
    elif "cpu" in controllers or "memory" in controllers:
        tops = [mounts / name for name in (",".join(sorted(controllers)), *sorted(controllers))]
    else:
        return
    parts = [part for part in group.parts[1:] if part != ".."]
    for top in tops:
        for depth in range(len(parts) + 1):
            yield top.joinpath(*parts[:depth])


def _processors_of(folder: Path) -> Iterator[float]:
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota = _read(folder / "cpu.cfs_quota_us").strip()
        period = _read(folder / "cpu.cfs_period_us").strip()
    # Without a limit the quota is `max`, or -1.
    if quota.isdecimal() and period.isdecimal() and int(period):
        yield int(quota) / int(period)


def _memory_of(folder: Path) -> Iterator[int]:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _read(folder / name).strip()
        if text.isdecimal() and 0 < int(text) < UNLIMITED_BYTES:
            yield int(text)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def limit_arenas() -> None:
    """Lets glibc keep memory for at most ARENAS_MAX groups of threads (`mallopt`, `M_ARENA_MAX`).

    Else there are up to eight for each processor, and each keeps memory that it freed. To be
    called before threads start. Nothing happens if MALLOC_ARENA_MAX is set, or with another C
    library.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        option(_M_ARENA_MAX, ARENAS_MAX)


def give_back_memory() -> None:
    """Gives free memory of the C library back to the system.

    glibc keeps such memory for each thread. After a large upload it would count as used, and other
    threads would take more for the next one. Other C libraries have no such call (`malloc_trim`,
    glibc manual, section "Malloc Tunable Parameters"), and then nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
