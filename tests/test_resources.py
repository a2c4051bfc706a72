"""The limits of control groups, on made-up trees of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.gc.engines.spark.conf import driver_memory_of
from ebbtide.resources import Limits, memory_limit_bytes, processor_count, read_limits
from ebbtide.settings import Settings

MEBIBYTE = 1 << 20
HUGE = "9223372036854771712"
V1 = "3:memory:/kube/pod\n2:cpu,cpuacct:/kube/pod\n1:name=systemd:/kube/pod\n"


def tree(root: Path, files: str) -> Path:
    """Writes files below `root`, each given by its name and content, with bars between them. Those
    of control groups are named below their mount."""
    for name, text in (each.split(" ", 1) for each in files.split("|") if each):
        file = root / ("proc/self/cgroup" if name == "groups" else f"sys/fs/cgroup/{name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


OF_V1 = f"groups {V1}|cpu,cpuacct/kube/pod/cpu.cfs_period_us 100000|"
"""A group of version 1, and how long its periods are."""


TWO = "groups 0::/|cpu.max 150000 100000|memory.max 1048576"
AROUND = (
    "groups 0::/a.slice/b.service|a.slice/cpu.max 50000 100000|a.slice/memory.max max"
    "|a.slice/b.service/cpu.max max 100000|a.slice/b.service/memory.max 2097152|other/memory.max 1"
)
OF_A_MACHINE = "groups 0::/../../host/pod|cpu.max 200000 100000"
ONE = (
    f"{OF_V1}cpu,cpuacct/kube/pod/cpu.cfs_quota_us 250000"
    f"|memory/kube/memory.limit_in_bytes 1048576|memory/kube/pod/memory.limit_in_bytes {HUGE}"
)
ONE_IN_A_CONTAINER = (
    f"groups {V1}|cpu/cpu.cfs_quota_us 100000|cpu/cpu.cfs_period_us 50000"
    "|memory/memory.limit_in_bytes 2097152"
)
ONE_WITHOUT = (
    f"{OF_V1}cpu,cpuacct/kube/pod/cpu.cfs_quota_us -1|memory/kube/pod/memory.limit_in_bytes {HUGE}"
)
BOTH = (
    f"groups {V1}0::/unit|unified/unit/cpu.max 100000 100000|memory/memory.limit_in_bytes 1048576"
)
UNREADABLE = "groups nothing\n::\n0:|cpu.max 1 0|memory.max x"


@pytest.mark.parametrize(
    ("files", "processors", "memory"),
    [
        ("", None, None),
        (TWO, 1.5, MEBIBYTE),
        (AROUND, 0.5, 2 * MEBIBYTE),
        (OF_A_MACHINE, 2.0, None),
        (ONE, 2.5, MEBIBYTE),
        (ONE_IN_A_CONTAINER, 2.0, 2 * MEBIBYTE),
        (ONE_WITHOUT, None, None),
        (BOTH, 1.0, MEBIBYTE),
        (UNREADABLE, None, None),
    ],
)
def test_limits(tmp_path: Path, files: str, processors: float | None, memory: int | None) -> None:
    root = tree(tmp_path, files)
    assert read_limits(root) == Limits(processors, memory)
    assert memory_limit_bytes(root) == memory


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("1000 100000", 1), ("150000 100000", 2), ("9900000 100000", 99), ("max 100000", 99)],
)
def test_processors(tmp_path: Path, quota: str, expected: int) -> None:
    """A part counts as a whole one, and the affinity is a limit too."""
    root = tree(tmp_path, f"groups 0::/|cpu.max {quota}")
    assert processor_count(root) == min(expected, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("mebibytes", "expected"),
    [(None, "2g"), (8192, "2g"), (3000, "1500m"), (256, "512m")],
)
def test_the_memory_of_the_driver(tmp_path: Path, mebibytes: int | None, expected: str) -> None:
    limit = "max" if mebibytes is None else str(mebibytes * MEBIBYTE)
    root = tree(tmp_path, f"groups 0::/|memory.max {limit}")
    assert driver_memory_of(Settings(), root) == expected
    assert driver_memory_of(Settings(spark_driver_memory="7g"), root) == "7g"


THREADS = """
import re, sys, threading
from pathlib import Path
from ebbtide.resources import give_back_memory, limit_arenas

limit_arenas()

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

start = resident()
kept = []

def work():
    pieces = [bytes(100_000) for _ in range(300)]
    kept.append(pieces[-1])

threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
before = resident()
give_back_memory()
print(before - start, resident() - start)
"""


def test_memory_is_given_back_and_kept_for_few_threads() -> None:
    """In a process of its own: threads that freed memory keep none of it."""
    told = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, check=True)
    before, after = map(int, told.stdout.split())
    assert after <= before
    assert after < 10_000
