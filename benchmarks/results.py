"""Stores results as files: the figures, the machine, the versions and the command."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = Path(__file__).with_name("results")
PACKAGES: Final = ("ebbtide", "pyspark", "pyarrow", "numpy", "obstore", "SQLAlchemy", "duckdb")
PACKAGES_OF_PEERS: Final = ("icechunk", "lakefs-sdk", "pyiceberg", "deltalake")
LOAD_AT_START: Final = os.getloadavg()[0]
PREFIX: Final = "EBBTIDE_"
_RAN: Final = list[list[str]]()
"""The commands of Ebbtide that this process has run."""


def option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that stores the figures."""
    parser.add_argument("--save", metavar="NAME", help="write benchmarks/results/NAME.json")


def save(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Stores the figures under the name that the options give, if they give one."""
    if options.save:
        directory = getattr(options, "directory", None) or tempfile.gettempdir()
        print(write(options.save, figures, Path(directory)))


def ran(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """Records a command of Ebbtide with its settings, to be stored with the figures."""
    settings = (f"{name}={_word(each)}" for name, each in environment.items() if _is_shown(name))
    words = [*sorted(settings), "ebbtide", *map(_word, command[1:])]
    if words not in _RAN:
        _RAN.append(words)


def write(name: str, figures: dict[str, Any], directory: Path) -> Path:
    """Writes a result, in place of an earlier one of the same name. Returns its path. `directory`
    lies on the disk that was measured."""
    target = RESULTS / f"{name}.json"
    content = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _output("git", "rev-parse", "HEAD"),
        # Results of other benchmarks change nothing of what was measured.
        "dirty": bool(_output("git", "status", "--porcelain", "--", ".", ":!benchmarks/results")),
        "command": ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *_options()],
        "ran": _RAN,
        "machine": machine(directory),
        "versions": {"python": platform.python_version(), **_versions()},
        "figures": figures,
    }
    target.write_text(json.dumps(content, indent=1) + "\n")
    return target


def machine(directory: Path) -> dict[str, Any]:
    """Describes the machine, and the disk of a directory, without anything that names them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.partition(": ")[2] for line in lines if line.startswith("model name")}
    return {
        "processor": sorted(models),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "disk": disk(directory),
        "load": LOAD_AT_START,
        "system": f"{platform.system()} {platform.release()}",
    }


def _options() -> list[str]:
    """Returns the program's options, without places of this machine and keys of servers."""
    words = list(map(_word, sys.argv[1:]))
    pairs = zip(["", *words], words, strict=False)
    return ["ID:SECRET" if before.endswith("-key") else word for before, word in pairs]


def _word(text: str) -> str:
    """Returns an argument. Places of this machine become words."""
    if "://" in text:
        return "URL"
    return re.sub(r"^((?:\w+:)?)/.*", r"\1DIR", text)


def _is_shown(name: str) -> bool:
    """Returns whether a variable is a setting that is no secret. Those of tests are none."""
    hidden = ("SECRET", "PASSWORD", "KEY", "TOKEN", "EBBTIDE_TEST_")
    return name.startswith(PREFIX) and not any(each in name for each in hidden)


def _versions() -> dict[str, str]:
    found = {}
    for name in (*PACKAGES, *PACKAGES_OF_PEERS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def disk(directory: Path) -> str:
    """Returns the file system of a directory, and the kind of its disk, as far as it is known."""
    place = directory.resolve()
    mounted = [each for each in psutil.disk_partitions(all=True) if place.is_relative_to(each[1])]
    kind = max(mounted, key=lambda each: len(each.mountpoint)).fstype
    number = place.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    is_virtual = "hypervisor" in Path("/proc/cpuinfo").read_text()
    return f"{kind}, {kind_of_device(device, is_virtual=is_virtual)}"


def kind_of_device(device: Path, *, is_virtual: bool) -> str:
    """Returns the kind of the disk whose description is in a directory of /sys. On a virtual
    machine that says nothing of the real disk."""
    for each in () if is_virtual else (device, device.parent):  # a partition lies in its disk
        turns = each / "queue" / "rotational"
        if turns.exists():
            return "turning disk" if turns.read_text().strip() == "1" else "solid-state disk"
    return "unknown kind of disk"


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
