"""Stores results as files: the figures, the machine, the versions and the command."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = Path(__file__).with_name("results")
PACKAGES: Final = ("ebbtide", "pyspark", "pyarrow", "numpy", "obstore", "SQLAlchemy", "duckdb")
PACKAGES_OF_PEERS: Final = ("icechunk", "lakefs-sdk")
LOAD_AT_START: Final = os.getloadavg()[0]


def option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that stores the figures."""
    parser.add_argument("--save", metavar="NAME", help="write benchmarks/results/NAME.json")


def save(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Stores the figures under the name that the options give, if they give one."""
    if options.save:
        print(write(options.save, figures))


def write(name: str, figures: dict[str, Any]) -> Path:
    """Writes a result, in place of an earlier one of the same name. Returns its path."""
    target = RESULTS / f"{name}.json"
    content = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _output("git", "rev-parse", "HEAD"),
        "command": ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *_options()],
        "machine": machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "figures": figures,
    }
    target.write_text(json.dumps(content, indent=1) + "\n")
    return target


def machine() -> dict[str, Any]:
    """Describes the machine, without anything that names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.partition(": ")[2] for line in lines if line.startswith("model name")}
    return {
        "processor": sorted(models),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "disk": _disk(),
        "load": LOAD_AT_START,
        "system": f"{platform.system()} {platform.release()}",
    }


def _options() -> list[str]:
    """Returns the program's options. Places of this machine and keys of servers become words."""
    found = []
    for each in sys.argv[1:]:
        if each.startswith("/"):
            each = "DIR"
        elif "://" in each:
            each = "URL"
        found.append(each)
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in (*PACKAGES, *PACKAGES_OF_PEERS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _disk() -> str:
    """Returns the file system of the directory for temporary files, and whether its disk turns."""
    kind = _output("stat", "--file-system", "--format=%T", os.environ.get("TMPDIR", "/tmp"))
    turning = {path.read_text().strip() for path in Path("/sys/block").glob("vd*/queue/rotational")}
    return f"{kind}, {'rotating' if '1' in turning else 'virtual disk'}"


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
