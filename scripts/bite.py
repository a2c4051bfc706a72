"""Mutation testing: breaks a copy of the code, one fault at a time, and runs the tests that should
notice.

Run it through `scripts/bite`. The faults are data, in `scripts/lib/faults.toml`. Each run of the
tests has a copy of `src` and `tests` of its own, so that the checkout is never touched.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FAULTS_FILE: Final = Path(__file__).resolve().parent / "lib" / "faults.toml"
COPIED: Final = ("src", "tests")
"""The rest of the checkout is linked into a copy."""
TEST_SECONDS_MAX: Final = 300
"""A test that a fault makes wait for ever has noticed it by then."""
FAST_SECONDS: Final = 120
"""One process tests for as long as the two of `scripts/test --fast` together."""
TEST_FAILED: Final = 1
"""pytest's exit code for tests that failed, and for nothing else."""
LINES_SHOWN: Final = 25

FOUND: Final = "found"
SURVIVED: Final = "survived"
OUT_OF_DATE: Final = "out of date"
NOT_RUN: Final = "not run"
OUTCOMES: Final = (FOUND, SURVIVED, OUT_OF_DATE, NOT_RUN)
"""Whether a test failed; all passed; the text to replace is not in the file once; or the tests
could not run."""

COLUMNS: Final = "300"
"""Of what pytest says in a line: a test, and why it failed."""

_FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake: in `file`, `old` becomes `new`. `harm` says what it would do to a user; one of
    `tests`, files or directories, should fail."""

    name: str
    harm: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    spark: bool = False
    """Whether these tests start Spark. It takes longer to start than most faults survive."""

    def broken(self, root: Path) -> str | None:
        """The file's text with the fault; None where `old` is not there exactly once."""
        text = (root / self.file).read_text()
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a fault: the test that found it, and why it failed, with the seed of that
    number; and for how many seconds of testing it survived. `output` is pytest's, where the tests
    could not run."""

    fault: Fault
    outcome: str
    test: str = ""
    why: str = ""
    seed_number: int = 0
    seconds: float = 0.0
    output: str = ""

    def line(self) -> str:
        """The result for people."""
        if self.outcome == FOUND:
            how = f"seed {self.seed_number}, by {self.test}: {self.why:.100}"
        else:
            how = self.outcome.upper()
        return f"{self.seconds:7.1f} s  {self.fault.name:36}  {how}"


def read_faults(path: Path = FAULTS_FILE) -> list[Fault]:
    """All faults of a file, by name."""
    tables = tomllib.loads(path.read_text())
    faults = [
        Fault(name, **{**table, "tests": tuple(table["tests"])}) for name, table in tables.items()
    ]
    return sorted(faults, key=lambda fault: fault.name)


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """A copy of the checkout that may be broken. RuntimeError unless it is the one imported."""
    with tempfile.TemporaryDirectory(prefix="ebbtide-bite-", ignore_cleanup_errors=True) as name:
        copy = Path(name)
        for entry in root.iterdir():
            if entry.name in COPIED:
                # Compiled files are copied too: they stay good for what is not changed.
                shutil.copytree(entry, copy / entry.name, ignore=shutil.ignore_patterns("*.pyc.*"))
            else:
                (copy / entry.name).symlink_to(entry)
        command = [sys.executable, "-c", "import ebbtide; print(ebbtide.__file__)"]
        imported = subprocess.run(
            command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=True
        ).stdout.strip()
        if not Path(imported).is_relative_to(copy / "src"):
            raise RuntimeError(f"{imported} is imported, and not the copy in {copy}")
        yield copy


def environment(copy: Path) -> dict[str, str]:
    """What the programs run with that should import the copy. Entries of PYTHONPATH come before
    those of the environment that the checkout is installed in."""
    return os.environ | {
        "PYTHONPATH": str(copy / "src"),
        "COLUMNS": COLUMNS,
        # A file that is broken within the second in which it was compiled, and keeps its length,
        # would be taken for the one that was compiled.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def run_tests(
    copy: Path, tests: Sequence[str], seed: int, *options: str, spark: bool
) -> subprocess.CompletedProcess[str]:
    """Runs tests in a copy, those that start Spark only if asked to."""
    command = [sys.executable, "-m", "pytest", "-q", "--drawn", "-p", "no:cacheprovider"]
    command += ["--tb=short"]
    command += [f"--randomly-seed={seed}", f"--timeout={TEST_SECONDS_MAX}", *options]
    command += [*tests] if spark or not tests else ["-m", "not spark", *tests]
    return subprocess.run(
        command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False
    )


def try_fault(root: Path, fault: Fault, seeds: Sequence[int], *, fast: bool) -> Result:
    """Breaks a copy, and runs the tests with one seed after the other until one fails. `fast`: the
    tests that a fast run chooses, not those of the fault."""
    tests = () if fast else fault.tests
    options = ["-x", f"--fast={FAST_SECONDS}"] if fast else ["-x"]
    broken = fault.broken(root)
    if broken is None:
        return Result(fault, OUT_OF_DATE)
    with copy_of(root) as copy:
        (copy / fault.file).write_text(broken)
        began = time.monotonic()
        for number, seed in enumerate(seeds, 1):
            run = run_tests(copy, tests, seed, *options, spark=fault.spark)
            seconds = time.monotonic() - began
            failed = _FAILURE.search(run.stdout)
            if run.returncode == TEST_FAILED and failed is not None:
                return Result(fault, FOUND, failed[1], failed[2] or "", number, seconds)
            if run.returncode:
                output = run.stdout + run.stderr
                return Result(fault, NOT_RUN, seed_number=number, seconds=seconds, output=output)
    return Result(fault, SURVIVED, seed_number=len(seeds), seconds=seconds)


def check_unbroken(root: Path, faults: Sequence[Fault], seed: int, jobs: int) -> bool:
    """Whether all tests of these faults pass in a copy without any."""
    tests = sorted({test for fault in faults for test in fault.tests})
    side_by_side = () if jobs == 1 else (f"--numprocesses={jobs}", "--dist=loadgroup")
    with copy_of(root) as copy:
        run = run_tests(
            copy, tests, seed, *side_by_side, spark=any(fault.spark for fault in faults)
        )
    print(run.stdout.rstrip().rpartition("\n")[2])
    if run.returncode:
        print(_end_of(run.stdout + run.stderr))
    return run.returncode == 0


def bite(
    root: Path, faults: Sequence[Fault], seeds: Sequence[int], jobs: int, *, fast: bool = False
) -> list[Result]:
    """Tries faults, so many at a time, and prints each result as it comes."""
    results: list[Result] = []
    with ThreadPoolExecutor(jobs) as pool:
        tried = [pool.submit(try_fault, root, each, seeds, fast=fast) for each in faults]
        for future in as_completed(tried):
            result = future.result()
            results.append(result)
            print(result.line(), flush=True)
            if result.outcome == NOT_RUN:
                print(_end_of(result.output), flush=True)
    return results


def tell(results: Sequence[Result]) -> None:
    """Prints all results, those that survived longest first, and how many came to which end."""
    print("\n    survived  fault")
    for result in sorted(results, key=lambda each: (each.outcome == FOUND, -each.seconds)):
        print(result.line())
    counts = Counter(result.outcome for result in results)
    tries = Counter(result.seed_number for result in results if result.outcome == FOUND)
    print()
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES))
    print(", ".join(f"{count} with seed {number}" for number, count in sorted(tries.items())))


def _end_of(output: str) -> str:
    return "\n".join(f"    {line}" for line in output.rstrip().splitlines()[-LINES_SHOWN:])


def main(
    arguments: Sequence[str] | None = None, *, root: Path = ROOT, path: Path = FAULTS_FILE
) -> int:
    """The program: 0 if every fault was found, and by nothing but tests that pass without one."""
    parser = argparse.ArgumentParser(prog="scripts/bite", description="Breaks a copy of the code.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these faults, not all")
    parser.add_argument("--list", action="store_true", help="say what the faults are")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds for each fault")
    parser.add_argument("--seed", type=int, metavar="SEED", help="the first of them")
    parser.add_argument(
        "--fast", action="store_true", help="by the tests of 'scripts/test --fast', with one seed"
    )
    parser.add_argument("--part", type=int, metavar="N", help="so many faults, drawn by the seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    asked = parser.parse_args(arguments)
    known = {fault.name: fault for fault in read_faults(path)}
    if unknown := sorted(set(asked.names) - known.keys()):
        parser.error(f"there is no fault {unknown[0]}: see --list")
    faults = [known[name] for name in asked.names] or list(known.values())
    if asked.list:
        for fault in faults:
            print(f"{fault.name}\n    {fault.harm}\n    {fault.file}: {', '.join(fault.tests)}")
        return 0
    seed = secrets.randbits(31) if asked.seed is None else asked.seed
    if asked.part is not None:
        faults = random.Random(seed).sample(faults, min(asked.part, len(faults)))
    count = 1 if asked.fast else asked.seeds
    first = "by fast runs:" if asked.fast else "first, without any:"
    print(f"{len(faults)} faults, {count} seeds each, --seed={seed}; {first}")
    # A fast run chooses its tests by what is broken.
    if not asked.fast and not check_unbroken(root, faults, seed, asked.jobs):
        print("the tests fail without a fault: they would find anything")
        return 1
    results = bite(root, faults, range(seed, seed + count), asked.jobs, fast=asked.fast)
    tell(results)
    return 0 if all(result.outcome == FOUND for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
