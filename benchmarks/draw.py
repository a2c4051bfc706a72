"""Draws what the bottom-line case costs over its scale, from the results.

    .venv/bin/python -m benchmarks.draw

Reads `benchmarks/results/bottom-line-*.json`, writes `docs/performance.svg`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.results import RESULTS

TARGET: Final = Path(__file__).parents[1] / "docs" / "performance.svg"
RUNS: Final = {"cold": "clean, cold", "warm": "clean, warm", "incremental": "incremental, 1 %"}
SIZES: Final = ", sizes of candidates"
"""What the figures of runs are called that asked for no others."""
STEPS: Final = {
    "list": ("list",),
    "reach, mark": ("reach", "mark", "recall"),
    "subtract": ("subtract",),
    "recheck": ("sweep: recheck",),
    "delete": ("sweep: delete tree", "sweep: delete range", "sweep: delete object"),
}


def main() -> None:
    """Read, draw, write."""
    found = [json.loads(file.read_text()) for file in RESULTS.glob("bottom-line-[0-9]*.json")]
    found.sort(key=lambda each: float(each["files"]))
    # Ids and dates that differ from drawing to drawing say nothing.
    mpl.rcParams.update({"svg.hashsalt": "ebbtide", "svg.fonttype": "none", "font.size": 9})
    figure, (whole, steps, memory) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    millions = [each["files"] / 1e6 for each in found]
    for kind, name in RUNS.items():
        fewer = [
            (m, each[kind + SIZES])
            for m, each in zip(millions, found, strict=True)
            if kind + SIZES in each
        ]
        if fewer:
            whole.plot(*_pairs(fewer, "seconds"), marker="^", linestyle=":", label=f"{name} (1)")
        points = [(m, each[kind]) for m, each in zip(millions, found, strict=True) if kind in each]
        whole.plot(*_pairs(points, "seconds"), marker="o", label=name)
        used = [(m, run["program_bytes_max"] / 2**20) for m, run in points]
        memory.plot(*zip(*used, strict=True), marker="o", label=name)
    usual = [
        (m, each["peers"]["common"]["total_seconds"])
        for m, each in zip(millions, found, strict=True)
        if "common" in each.get("peers", {})
    ]
    if usual:
        whole.plot(*zip(*usual, strict=True), marker="s", color="grey", label="usual method")
    for name, parts in STEPS.items():
        spent = [
            (m, sum(each["cold"]["steps"].get(part, 0.0) for part in parts))
            for m, each in zip(millions, found, strict=True)
            if "cold" in each
        ]
        steps.plot(*zip(*spent, strict=True), marker="o", label=name)
    for axes, title, unit in (
        (whole, "whole run", "seconds"),
        (steps, "steps of the cold run", "seconds"),
        (memory, "peak memory of the program", "MiB"),
    ):
        axes.set(xscale="log", yscale="log", title=title, xlabel="million files", ylabel=unit)
        if axes is memory:
            axes.set_yscale("linear")
            axes.set_ylim(bottom=0)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(TARGET, metadata={"Date": None})
    print(TARGET)


def _pairs(points: list[tuple[float, dict[str, Any]]], name: str) -> tuple[Any, Any]:
    return [m for m, _ in points], [run[name] for _, run in points]


if __name__ == "__main__":
    main()
