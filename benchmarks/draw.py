"""Draws the time and memory of the bottom-line case over its scale, from the results.

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
SIZES: Final = ", sizes of all"
"""The suffix of runs that asked for the sizes of all files."""
STEPS: Final = {
    "list": ("list",),
    "reach, mark": ("reach", "mark", "recall"),
    "subtract": ("subtract",),
    "recheck": ("sweep: recheck",),
    "delete": ("sweep: delete tree", "sweep: delete range", "sweep: delete object"),
}


def main() -> None:
    """Reads the results, draws them, and writes the picture."""
    found = [json.loads(file.read_text()) for file in RESULTS.glob("bottom-line-[0-9]*.json")]
    found.sort(key=lambda each: float(each["files"]))
    # Without random ids and dates, equal results give an equal picture.
    mpl.rcParams.update({"svg.hashsalt": "ebbtide", "svg.fonttype": "none", "font.size": 9})
    figure, (whole, steps, memory) = plt.subplots(1, 3, figsize=(12, 4.4), layout="constrained")
    millions = [each["files"] / 1e6 for each in found]
    for number, (kind, name) in enumerate(RUNS.items()):
        color = f"C{number}"
        for suffix, style, more in (("", "-", ""), (SIZES, ":", SIZES)):
            points = [
                (m, each[kind + suffix])
                for m, each in zip(millions, found, strict=True)
                if kind + suffix in each
            ]
            if not points:
                continue
            drawn = {"color": color, "marker": "o" if style == "-" else "^", "linestyle": style}
            whole.plot(*_pairs(points, "seconds"), label=name + more, **drawn)
            used = [(m, run["program_bytes_max"] / 2**20) for m, run in points]
            memory.plot(*zip(*used, strict=True), label=name + more, **drawn)
    for kind, style in (("cold", "-"), ("warm", ":")):
        usual = [
            (m, each[kind]["peers"]["common"]["total_seconds"])
            for m, each in zip(millions, found, strict=True)
            if "common" in each.get(kind, {}).get("peers", {})
        ]
        if usual:
            drawn = {"color": "grey", "marker": "s", "linestyle": style}
            usual_name = f"usual method, beside {RUNS[kind]}"
            whole.plot(*zip(*usual, strict=True), label=usual_name, **drawn)
    for number, (name, parts) in enumerate(STEPS.items()):
        for kind, style in (("cold", "-"), ("cold" + SIZES, ":")):
            spent = [
                (m, sum(each[kind]["steps"].get(part, 0.0) for part in parts))
                for m, each in zip(millions, found, strict=True)
                if kind in each
            ]
            if spent:
                label = name if style == "-" else None
                drawn = {"color": f"C{number}", "marker": "o" if style == "-" else "^"}
                steps.plot(*zip(*spent, strict=True), linestyle=style, label=label, **drawn)
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
        axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.savefig(TARGET, metadata={"Date": None})
    print(TARGET)


def _pairs(points: list[tuple[float, dict[str, Any]]], name: str) -> tuple[Any, Any]:
    return [m for m, _ in points], [run[name] for _, run in points]


if __name__ == "__main__":
    main()
