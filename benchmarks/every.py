"""Runs the benchmarks of `tables.toml`, one after the other, and stores their results.

    benchmarks/all DIR [--only NAME ...]

A table with `minutes` has a benchmark for one machine of two cores and 24 GB, with nothing else to
do. Stores and other files are made in `DIR`, and removed again. If a benchmark fails, the others
run nevertheless, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def planned() -> Iterator[tuple[str, list[str], int]]:
    """Yields each result's name, the command that makes it, and its expected minutes."""
    tables = tomllib.loads((ROOT / "benchmarks" / "tables.toml").read_text())
    for table in tables.values():
        for name, command in table["results"].items() if "minutes" in table else ():
            words = [sys.executable, "-m", *shlex.split(command), "--save", name]
            yield name, words, table["minutes"]


def main(arguments: list[str] | None = None) -> int:
    """Runs them. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="results to make")
    given = parser.parse_args(arguments)
    chosen = [each for each in planned() if given.only is None or each[0] in given.only]
    print(f"{len(chosen)} benchmarks, about {sum(each[2] for each in chosen)} minutes", flush=True)
    place = given.directory.resolve()
    environment = {**os.environ, "TMPDIR": str(place)}
    failed = []
    for name, words, minutes in chosen:
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=place) as own:
            command = [own if word == "DIR" else word for word in words]
            print(f"\n{name}: about {minutes} minutes: {shlex.join(command)}", flush=True)
            if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
                failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
