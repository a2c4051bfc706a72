"""Stores results as files: the figures, the machine, the versions and the command."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil

RESULTS: Final = Path(__file__).with_name("results")
PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "obstore", "SQLAlchemy", "duckdb")


def machine() -> dict[str, Any]:
    """Describes the machine, without anything that names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.partition(": ")[2] for line in lines if line.startswith("model name")}
    return {
        "processor": sorted(models),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def read(name: str) -> dict[str, Any]:
    """Returns a stored result; an empty one if there is none."""
    target = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    return found


def write(name: str, content: dict[str, Any]) -> Path:
    """Writes a result, in place of an earlier one of the same name. Returns its path."""
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{name}.json"
    # Absolute paths differ between machines, and say nothing.
    options = [each for each in sys.argv[1:] if not each.startswith("/")]
    whole = {
        **content,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *options],
        "machine": machine(),
    }
    target.write_text(json.dumps(whole, indent=1) + "\n")
    return target
