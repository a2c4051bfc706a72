"""Runs a program, and measures its time and the memory of all its processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks import results

PROGRAM = str(Path(sys.executable).with_name("ebbtide"))
"""The command that runs are measured with."""
GRACE, AGE_SECONDS = "1s", 2
"""The grace of runs, and the age that all files have when a run begins."""
RSS_EVERY: Final = 0.05
TREE_EVERY: Final = 0.25
PSS_GROWTH: Final = 1.05
"""PSS is added up only when the tree's RSS grew by this factor: it takes the kernel tens of
milliseconds."""


@dataclass(slots=True)
class Peaks:
    """The peak memory of a tree of processes, in bytes: PSS of all, RSS of each part."""

    tree: int = 0
    driver: int = 0
    jvm: int = 0
    workers: int = 0
    _last_rss: float = 0.0

    def sample(self, root: psutil.Process, others: Iterable[psutil.Process]) -> None:
        """Looks at the processes now."""
        parts = {"driver": _rss(root), "jvm": 0, "workers": 0}
        alive = [root, *others]
        for process in alive[1:]:
            parts["jvm" if _name(process) == "java" else "workers"] += _rss(process)
        self.driver = max(self.driver, parts["driver"])
        self.jvm = max(self.jvm, parts["jvm"])
        self.workers = max(self.workers, parts["workers"])
        total = sum(parts.values())
        if total > self._last_rss * PSS_GROWTH:
            self._last_rss = total
            self.tree = max(self.tree, sum(map(_pss, alive)))


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures and the output of a program that ran to its end."""

    seconds: float
    peaks: Peaks
    output: str


def itself(name: str) -> list[str]:
    """Returns the command that runs a benchmark in a process of its own."""
    return [sys.executable, "-m", f"benchmarks.{name}"]


def mib(size: int) -> float:
    """Converts bytes to MiB."""
    return size / 2**20


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def measure(command: Sequence[str]) -> Measured:
    """Runs a program in a process of its own. Returns its whole wall time, and its peaks."""
    if command[0] == PROGRAM:
        results.ran(command)
    peaks = Peaks()
    with tempfile.TemporaryFile("w+") as output:
        started = time.monotonic()
        with subprocess.Popen(command, stdout=output) as program:
            root = psutil.Process(program.pid)
            others: list[psutil.Process] = []
            looked = 0.0
            while True:
                if time.monotonic() - looked > TREE_EVERY:
                    others = _children(root)
                    looked = time.monotonic()
                peaks.sample(root, others)
                try:
                    program.wait(RSS_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    continue
        seconds = time.monotonic() - started
        output.seek(0)
        text = output.read()
    if program.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {program.returncode}\n{text[:2000]}")
    return Measured(seconds, peaks, text)


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []
