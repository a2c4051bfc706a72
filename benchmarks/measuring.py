"""Runs a program, and measures its time, and the processor time and memory of all its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
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

REAPER: Final = """
import ctypes, json, os, resource, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
started = time.monotonic()
code = subprocess.call(sys.argv[2:])
seconds = time.monotonic() - started
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
os.write(int(sys.argv[1]), json.dumps([code, seconds, used.ru_utime + used.ru_stime]).encode())
"""
"""Runs a program, and becomes the parent of processes that outlive it, such as a JVM: only a parent
that waits is told their processor seconds. 36 is PR_SET_CHILD_SUBREAPER of `linux/prctl.h`."""


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
    cpu_seconds: float = 0.0
    """Processor seconds, user and system, of all processes."""


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


def measure(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> Measured:
    """Runs a program in a process of its own. Returns its whole wall time, and what all processes
    took that it started, until the last of them ended."""
    if command[0] == PROGRAM:
        results.ran(command, environment)
    peaks = Peaks()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile() as told:
        pipe = told.fileno()
        words = [sys.executable, "-ISc", REAPER, str(pipe), *command]
        with subprocess.Popen(words, stdout=output, env=environment, pass_fds=[pipe]) as program:
            root = psutil.Process(program.pid)
            found: list[psutil.Process] = []
            first: psutil.Process | None = None
            looked = 0.0
            while True:
                if time.monotonic() - looked > TREE_EVERY or first is None:
                    found = _children(root)
                    looked = time.monotonic()
                    first = first or next(iter(found), None)
                if first is not None:
                    peaks.sample(first, [each for each in found if each != first])
                try:
                    program.wait(RSS_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    continue
        told.seek(0)
        code, seconds, cpu_seconds = json.loads(told.read() or b"[1, 0, 0]")
        output.seek(0)
        text = output.read()
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}\n{text[:2000]}")
    return Measured(seconds, peaks, text, cpu_seconds)


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []
