"""The bottom-line case: 20 M objects, 30,000 commits on 1,000 branches, 1 M to delete.

    .venv/bin/python -m benchmarks.bottom_line [--scale 0.1] [--directory DIR] [--peers ...]
                                               [--objects files|inventory]
                                               [--sizes auto|all|candidates]

Writes a repository through the store's own writers of ranges and trees. This takes a while, and is
not part of the figures. Then runs `ebbtide gc run`, each time as a program of its own:

1. a clean run from cold: nothing is known of the repository;
2. an incremental run after 1 % of everything has changed;
3. a clean run after 1 % more has changed: its address index is warm.

A directory that was built before is used again, with a change of 1 % before each run. Each run must
delete exactly the objects that nothing needs. They are known from the way the history was made.
Prints the ratio of each run to a bare listing of the same files. Before a cold run the system's
caches are emptied, if the program may do that.

With `--peers` each clean run is compared with the programs of `benchmarks.peers`, or with the named
ones. `common` is the method in common use, on the same store, before the run. `deletes` is obstore
deleting the same files in a loop. Files that a peer deletes are written again. `benchmarks.join`
measures the join by itself.

With `--sizes all` the runs ask for size and date of every file, and with `candidates` only for
those of possible candidates. Their figures are kept beside the others.

With `--objects inventory` no object is a file. An inventory in S3's form lists the objects, and a
plan is made from it. The plan must name exactly the objects that nothing needs. Nothing is deleted.

At scale 1 there are 120,000 ranges with 50 M pairs of range and address. 5 M staged objects are in
the same 2,000 slices as the others. 1 M objects are to be deleted, and half of these never had a
reference. Objects are empty files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import measuring, results
from benchmarks.bottom_line_store import (
    History,
    built,
    change,
    put_back,
    save,
    write_inventory,
)
from ebbtide.arrow import texts
from ebbtide.formats.base import INDEX_PREFIX
from ebbtide.gc.parts import read_part
from ebbtide.gc.runs import RunFolder
from ebbtide.retention import Policy
from ebbtide.store.repository import Repository

NAMES: Final = {
    "cold": "clean run, cold",
    "incremental": "incremental run after 1 %",
    "warm": "clean run, warm",
}


@dataclass(slots=True)
class Figures:
    """The figures of one run, measured from outside. `program` and `everything` are the peak memory
    of the program and of all its processes, in bytes, without files that they have mapped."""

    name: str
    report: dict[str, Any]
    seconds: float
    program: int = 0
    everything: int = 0
    peers: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the part that is stored in the results."""
        counted = ("listed_count", "live_count", "candidate_count", "deleted_count")
        return {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": self.seconds,
            "steps": self.report["seconds"],
            **{name: self.report[name] for name in counted},
            "program_mib": self.program / 2**20,
            "all_processes_mib": self.everything / 2**20,
            **({"peers": self.peers} if self.peers else {}),
        }


def run(name: str, directory: Path, work: Sequence[str], more: Mapping[str, str]) -> Figures:
    """Runs `ebbtide gc` with the arguments `work`, and `more` variables in its environment."""
    command = [
        *(measuring.PROGRAM, "--store", str(directory)),
        *("gc", *work, "--json", "--grace", measuring.GRACE, "--unsafe", "--allow-share"),
    ]
    environment = {
        **os.environ,
        "EBBTIDE_LEASE_TTL": "0s",
        "EBBTIDE_TRASH_TIME": "0s",
        # Each run then finds the slices of earlier changes closed, as if changes were days apart.
        "EBBTIDE_SLICE_AGE_MAX": "1s",
        **more,
    }
    results.ran(command, environment)
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        found = Figures(name, {}, 0)
        watcher = threading.Thread(target=_watch, args=(psutil.Process(program.pid), found))
        watcher.start()
        assert program.stdout is not None
        found.report = json.loads(program.stdout.read())
        program.wait()
        found.seconds = time.monotonic() - started
    watcher.join()
    return found


def _watch(process: psutil.Process, figures: Figures) -> None:
    with contextlib.suppress(psutil.Error):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            own = _memory(process.pid)
            figures.program = max(figures.program, own)
            children = 0
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    children += _memory(child.pid)
            figures.everything = max(figures.everything, own + children)
            time.sleep(0.1)


def _memory(pid: int) -> int:
    """Returns the bytes of a process's own memory. Mapped files are the system's cache."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def deleted_objects(report: dict[str, Any]) -> set[str]:
    """Returns the addresses of the objects that a run deleted, by its record."""
    return _objects(report, "deleted", ("outcome", "deleted"))


def planned_objects(report: dict[str, Any]) -> set[str]:
    """Returns the addresses of the objects that a plan names."""
    return _objects(report, "candidates")


def _objects(report: dict[str, Any], what: str, *conditions: tuple[str, str]) -> set[str]:
    folder = RunFolder.at(report["run_path"])
    found: set[str] = set()
    for name in folder.names(what):
        table = read_part(folder, name)
        for column, value in (("kind", "object"), *conditions):
            wanted = pc.equal(table.column(column), pa.scalar(value, pa.string()))
            table = table.filter(wanted)
        found.update(texts(table.column("address")))
    return found


def bare_listing(directory: Path) -> float:
    """Returns the seconds that one process needs to list the files with sizes and dates."""
    started = time.monotonic()
    waiting = [str(directory)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
    return time.monotonic() - started


def show(figures: Figures, limit: float | None) -> None:
    """Prints a run's figures."""
    report = figures.report
    share = "" if limit is None else f", {figures.seconds / limit:.1f} x a bare listing"
    print(f"{figures.name}: {figures.seconds:.1f} s{share}")
    print(f"  {report['state']}, {report['mode']} {report['mode_reason'] or ''}")
    for name in ("listed", "live", "candidate", "deleted"):
        print(f"  {name:<10}{report[f'{name}_count']:>12,} files")
    print("  " + ", ".join(f"{step} {spent:.1f}" for step, spent in report["seconds"].items()))
    print(
        f"  peak memory: the program {figures.program / 2**20:.0f} MiB, "
        f"all its processes {figures.everything / 2**20:.0f} MiB",
        flush=True,
    )


PEERS: Final = ("deletes", "common")
DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")


def peer(*arguments: object) -> dict[str, Any]:
    """Runs a peer as a program of its own. Returns its figures."""
    command = [sys.executable, "-m", "benchmarks.peers", *map(str, arguments)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(f"{arguments[0]}: {found}", flush=True)
    return found


def delete_again(history: History, numbers: set[int], directory: Path, lake: Repository) -> Any:
    """Returns the figures of deleting the same files in a loop. They are written again first, and
    looked at as a plan did."""
    put_back(history, numbers, lake)
    listed = directory.with_name(f"{directory.name}.deletes")
    listed.write_text("\n".join(sorted(map(history.address, numbers))))
    forget_files()
    found = peer("deletes", directory / "storage" / "lake", listed)
    listed.unlink()
    return found


def ratios(figures: Figures) -> dict[str, float]:
    """Prints and returns the ratios of a run to its peers. Ends the program if a peer deleted
    another number of objects."""
    found, count = figures.peers, figures.report["deleted_count"]
    if "common" in found and found["common"]["deleted"] != count:
        sys.exit(f"the method in common use found other things: {found}")
    spent = figures.report["seconds"]
    result = {}
    if "deletes" in found:
        own = sum(s for step, s in spent.items() if step.startswith("sweep: delete"))
        result["rate of deletes / obstore's"] = found["deletes"]["seconds"]["delete"] / own
    if "common" in found:
        result["common / run"] = found["common"]["total_seconds"] / figures.seconds
    for name, ratio in result.items():
        print(f"{name}: {ratio:.2f}", flush=True)
    return result


def forget_files() -> bool:
    """Empties the system's caches, so that files are read from the disk again. Returns whether this
    program may do that."""
    os.sync()
    try:
        DROP_CACHES.write_text("3")
    except OSError:
        return False
    return True


def measure(
    directory: Path,
    scale: float,
    kinds: Sequence[str],
    *,
    is_listed: bool,
    peers: Sequence[str],
    has_files: bool = True,
    sizes: str = "auto",
) -> dict[str, Any]:
    """Builds the store, and makes, checks and prints each run, with a change before it. Returns the
    figures."""
    suffix = "" if sizes == "auto" else f", sizes of {sizes}"
    with built(directory, scale, has_files=has_files) as (history, store, lake):
        content: dict[str, Any] = {"scale": history.scale, "files": len(history.slice_of)}
        limit = None
        if is_listed and kinds:
            limit = bare_listing(directory / "storage")
            print(f"bare listing: {limit:.1f} s", flush=True)
            content["bare_listing_seconds"] = limit
        for kind in kinds:
            if history.is_collected:
                change(history, lake, store)
                save(history, directory)
            if kind == "cold":
                shutil.rmtree(directory / "storage" / "lake" / INDEX_PREFIX, ignore_errors=True)
            policy = history.policy(history.changes)
            lake.retention.set(Policy.parse(policy))
            peers_now = () if kind == "incremental" else peers
            useless = history.useless(policy)
            found: dict[str, Any] = {}
            if "common" in peers_now:
                if kind == "cold":
                    forget_files()
                found["common"] = peer("common", directory)
                put_back(history, useless, lake)
            are_read_anew = kind == "cold" and forget_files()
            if history.has_files:
                figures = collect(kind, history, useless, directory, {"EBBTIDE_SIZES": sizes})
            else:
                figures = plan_by_inventory(kind, history, useless, directory, lake)
            save(history, directory)
            show(figures, limit)
            if "deletes" in peers_now:
                found["deletes"] = delete_again(history, useless, directory, lake)
            if found:
                figures.peers = found
                found["ratios"] = ratios(figures)
            content[kind + suffix] = figures.to_json() | {"caches_emptied": are_read_anew}
        compare_kinds(content, suffix)
        return content


def compare_kinds(content: dict[str, Any], suffix: str) -> None:
    """Adds the ratio of an incremental run to each kind of clean run, and prints it."""
    incremental = content.get(f"incremental{suffix}")
    for kind in ("cold", "warm"):
        clean = content.get(kind + suffix)
        if incremental and clean:
            ratio = incremental["seconds"] / clean["seconds"]
            print(f"incremental / {kind}{suffix}: {ratio:.3f}")
            content[f"incremental / {kind}{suffix}"] = ratio


def collect(
    kind: str,
    history: History,
    expected: set[int],
    directory: Path,
    more: Mapping[str, str] | None = None,
) -> Figures:
    """Makes a run, and checks that it deleted the `expected` objects. The program has `more` in its
    environment."""
    os.sync()  # the run must not wait for the disk to have the files that were made for it
    time.sleep(measuring.AGE_SECONDS)
    mode = "incremental" if kind == "incremental" else "clean"
    work = ("run", "lake", "--yes", "--quarantine", "none", "--mode", mode)
    figures = run(NAMES[kind], directory, work, more or {})
    check(figures, deleted_objects(figures.report), history, expected)
    history.gone |= expected
    return figures


def plan_by_inventory(
    kind: str, history: History, expected: set[int], directory: Path, lake: Repository
) -> Figures:
    """Writes an inventory, makes a plan from it, and checks that the plan names the `expected`
    objects."""
    inventory = directory.with_name(f"{directory.name}.inventory")
    begun_at = write_inventory(history, lake, inventory)
    given = ("--inventory", str(inventory), "--inventory-date", begun_at.isoformat())
    figures = run(f"plan, {kind}", directory, ("plan", "lake", *given), {})
    check(figures, planned_objects(figures.report), history, expected)
    return figures


def check(figures: Figures, found: set[str], history: History, expected: set[int]) -> None:
    """Ends the program if a run deleted or named other objects than the `expected` ones."""
    wanted = {history.address(number) for number in expected}
    if found != wanted:
        show(figures, None)
        sys.exit(f"{len(found - wanted)} too many, {len(wanted - found)} too few")
    history.is_collected = True


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--directory", type=Path, help="where to build, or what was built; kept")
    parser.add_argument("--runs", nargs="*", choices=NAMES, help="none: build")
    parser.add_argument("--objects", choices=("files", "inventory"), default="files")
    parser.add_argument("--sizes", choices=("auto", "all", "candidates"), default="auto")
    parser.add_argument("--no-listing", action="store_true", help="measure no bare listing")
    parser.add_argument(
        *("--peers", "-p"), nargs="*", choices=PEERS, help="compare clean runs with these, or all"
    )
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Reads the options and measures."""
    options = parsed(arguments)
    has_files = options.objects == "files"
    kinds = [each for each in NAMES if has_files or each != "incremental"]
    if not has_files and (options.peers is not None or "incremental" in (options.runs or ())):
        sys.exit("by an inventory there are clean plans alone, and nothing to compare them with")
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary:
        directory = options.directory or Path(temporary) / "store"
        content = measure(
            directory,
            options.scale,
            kinds if options.runs is None else options.runs,
            is_listed=has_files and not options.no_listing,
            peers=() if options.peers is None else options.peers or PEERS,
            has_files=has_files,
            sizes=options.sizes,
        )
        results.save(options, content)


if __name__ == "__main__":
    main()
