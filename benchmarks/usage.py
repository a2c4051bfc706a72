"""What `usage` and the curve of retention cost, beside a plan of the same store.

    .venv/bin/python -m benchmarks.usage [--scale 0.1] [--rounds 3] [--directory DIR]

The store is that of `bottom_line`: 2 million objects at scale 0.1. On each engine the three
commands take turns, each as a program of its own, with the index of a plan before them. The limit
is a clean plan. Each of them must find as many files to delete as the plan.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import measuring, results
from benchmarks.bottom_line_store import built
from benchmarks.measuring import Measured, measure
from ebbtide.retention import Policy

ENGINES: Final = ("spark", "duckdb")
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "plan": ("gc", "plan", "lake", "--mode", "clean", "--unsafe", "--allow-share"),
    "usage": ("usage", "lake"),
    "curve": ("what-if", "lake", "--curve"),
}


def to_delete(name: str, found: dict[str, Any]) -> int:
    """Returns the number of files that a command says would be deleted."""
    if name == "usage":
        found = found["unheld"]["would_be_deleted"]
        return int(found["objects"])
    return int(found["candidate_count"] if name == "plan" else found["present"]["candidate_count"])


def run(name: str, engine: str, directory: Path) -> Measured:
    """Runs a command on the store."""
    environment = {
        **os.environ,
        "EBBTIDE_ENGINE": engine,
        "EBBTIDE_GRACE": measuring.GRACE,
        "EBBTIDE_LEASE_TTL": "0s",
        "EBBTIDE_SLICE_AGE_MAX": "1s",
    }
    command = [measuring.PROGRAM, "--store", str(directory), *COMMANDS[name], "--json"]
    return measure(command, environment)


def check(counts: dict[str, int]) -> None:
    """Ends the program if the commands differ about what would be deleted, or found nothing."""
    if len({*counts.values(), 0}) != 2:
        sys.exit(f"they differ, or nothing would be deleted: {counts}")


def rows(engine: str, directory: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Measures the commands in turns on one engine. Returns the medians of each."""
    run("plan", engine, directory)
    found: dict[str, list[Measured]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        counts = {}
        for name, taken in found.items():
            taken.append(run(name, engine, directory))
            counts[name] = to_delete(name, json.loads(taken[-1].output))
        check(counts)
    limit = median(each.seconds for each in found["plan"])
    rows: dict[str, dict[str, float]] = {}
    for name, taken in found.items():
        seconds = median(each.seconds for each in taken)
        print(f"{name}, {engine}: {seconds:.1f} s, {seconds / limit:.2f} x a plan", flush=True)
        rows[f"{name}, {engine}"] = {
            "seconds": seconds,
            "ratio": seconds / limit,
            "cpu_seconds": median(each.cpu_seconds for each in taken),
            "peak_mib": measuring.mib(max(each.peaks.tree for each in taken)),
        }
    return rows


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--directory", type=Path, help="where to build, or what was built; kept")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Reads the options and measures."""
    options = parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary:
        directory = options.directory or Path(temporary) / "store"
        with built(directory, options.scale) as (history, _, lake):
            lake.retention.set(Policy.parse(history.policy(history.changes)))
            files = len(history.slice_of)
        os.sync()
        time.sleep(measuring.AGE_SECONDS)
        runs: dict[str, dict[str, float]] = {}
        for engine in options.engines:
            runs |= rows(engine, directory, options.rounds)
        results.save(options, {"files": files, "runs": runs})


if __name__ == "__main__":
    main()
