"""Measures the collection of a real Icechunk repository, by Ebbtide and by Icechunk itself.

    python -m benchmarks.icechunk [--commits 1000 --chunks 500 --keep 100]
    python -m benchmarks.icechunk --decode

Builds a repository with Icechunk. This takes a while, and is not part of the figure. The first
commit fills an array, and each of the others replaces some of its chunks. Copies of the repository
are expired down to the newest snapshots and collected: one by Icechunk and one by `ebbtide`, each
in fresh processes. Then the deleted files are compared. With `--decode`, only the reading of a
manifest is timed.

The two collected copies are full copies. To delete a file that has another name (a hard link) is at
most half of the work, because it frees nothing on the disk. The copy that is only planned consists
of hard links.

The memory figure is that of the whole tree of processes, with shared pages counted once (PSS).
Beside it are the resident sets (RSS) of the parts, each at its own peak.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import icechunk
import numpy as np
import zarr
from flatbuffers import number_types
from flatbuffers.table import Table
from zarr.buffer.cpu import Buffer

from benchmarks import measuring, results
from benchmarks.measuring import Measured, measure, mib
from ebbtide.formats.icechunk.files import FileType, unpack
from ebbtide.formats.icechunk.snapshots import manifest_chunks

SEED: Final = 20_240_607
CHUNK_VALUES: Final = 128  # float64: 1 KiB, so that a chunk is a file
ARRAY: Final = "values"

OPEN: Final = """
import json, sys
from datetime import UTC, datetime, timedelta
import icechunk
icechunk.set_logs_filter("error")
repository = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
"""
EXPIRE: Final = (
    OPEN + "print(len(repository.expire_snapshots(datetime.fromisoformat(sys.argv[2]))))"
)
COLLECT: Final = (
    OPEN
    + """
found = repository.garbage_collect(
    datetime.now(UTC) + timedelta(days=1), dry_run=sys.argv[2] == "dry"
)
names = ("chunks", "manifests", "snapshots", "transaction_logs")
print(json.dumps({name: getattr(found, f"{name}_deleted") for name in names}))
"""
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The size and version of a repository."""

    spec_version: int
    commits: int
    chunks: int
    array_chunks: int

    @property
    def name(self) -> str:
        """The name of the repository's directory. A repository of the same shape is used again."""
        return f"v{self.spec_version}-{self.commits}x{self.chunks}-of-{self.array_chunks}"


@dataclass(slots=True)
class Comparison:
    """The figures of both programs, by the name of the step."""

    icechunk: dict[str, Measured] = field(default_factory=dict)
    ebbtide: dict[str, Measured] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the part that is stored in the results."""
        return {
            step: {
                "seconds": mine.seconds,
                "peak_mib": mib(mine.peaks.tree),
                "peer_seconds": self.icechunk[step].seconds,
                "peer_peak_mib": mib(self.icechunk[step].peaks.tree),
            }
            for step, mine in self.ebbtide.items()
        }

    def show(self) -> None:
        """Prints the table."""
        print(f"{'':<12}{'Icechunk':>20}{'Ebbtide':>20}{'ratio':>16}")
        print(f"{'':<12}" + f"{'s':>10}{'MiB':>10}" * 2 + f"{'s':>8}{'MiB':>8}")
        for step, mine in self.ebbtide.items():
            its = self.icechunk[step]
            figures = "".join(f"{m.seconds:>10.2f}{mib(m.peaks.tree):>10.0f}" for m in (its, mine))
            memory = mine.peaks.tree / its.peaks.tree
            print(f"{step:<12}{figures}{mine.seconds / its.seconds:>8.1f}{memory:>8.1f}")
        for step, mine in self.ebbtide.items():
            peaks = mine.peaks
            parts = ((n, mib(getattr(peaks, n))) for n in ("driver", "jvm", "workers"))
            print(f"RSS, ebbtide, {step}: " + ", ".join(f"{n} {m:.0f} MiB" for n, m in parts))


def open_repository(path: Path) -> icechunk.Repository:
    """Opens the repository at `path`."""
    icechunk.set_logs_filter("error")  # it warns that a local disk is not for many writers
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def built(directory: Path, shape: Shape) -> Path:
    """Returns the path of the repository, which is built unless it exists."""
    path = directory / shape.name
    if path.exists():
        print(f"{path} is used again")
        return path
    unfinished = directory / f"{shape.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    started = time.monotonic()
    build(unfinished, shape)
    unfinished.rename(path)
    print(f"built in {time.monotonic() - started:.0f} s")
    return path


def build(path: Path, shape: Shape) -> None:
    """Makes a commit that fills the array, then commits that each replace random chunks."""
    icechunk.set_logs_filter("error")
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(path)), spec_version=shape.spec_version
    )
    rng = np.random.default_rng(SEED)
    session = repository.writable_session("main")
    create_array(session, shape.array_chunks, values=CHUNK_VALUES)
    write_chunks(session, range(shape.array_chunks), rng)
    session.commit("fill")
    for number in range(shape.commits):
        session = repository.writable_session("main")
        chosen = rng.choice(shape.array_chunks, shape.chunks, replace=False)
        write_chunks(session, chosen.tolist(), rng)
        session.commit(f"commit {number}")


def create_array(session: icechunk.Session, chunks: int, *, values: int) -> None:
    """Makes an uncompressed array of float64, in `chunks` chunks of `values` values each."""
    zarr.create_array(
        session.store,
        name=ARRAY,
        shape=(chunks * values,),
        chunks=(values,),
        dtype="float64",
        compressors=None,
    )


def write_chunks(
    session: icechunk.Session,
    indices: Iterable[int],
    rng: np.random.Generator,
    *,
    values: int = CHUNK_VALUES,
) -> None:
    """Writes whole chunks of random bytes directly to the store, because zarr would take longer
    than Icechunk."""

    async def write() -> None:
        await asyncio.gather(
            *(
                session.store.set(f"{ARRAY}/c/{index}", Buffer.from_bytes(rng.bytes(8 * values)))
                for index in indices
            )
        )

    asyncio.run(write())


def copy(source: Path, target: Path, *, links: bool = False) -> Path:
    """Copies a repository. The files are made in the order of the `source`, so that they are on the
    disk as in a repository in use. With `links` the copy consists of hard links."""
    target.mkdir()
    if links:
        subprocess.run(["cp", "-al", f"{source}/.", str(target)], check=True)
        return target
    made = sorted((path.lstat().st_mtime_ns, path) for path in source.rglob("*") if path.is_file())
    names = b"".join(bytes(path.relative_to(source)) + b"\0" for _, path in made)
    with tempfile.TemporaryFile() as listed:
        listed.write(names)
        listed.seek(0)
        pack = ["tar", "--create", "--directory", str(source), "--null", "--files-from=-"]
        unpack = ["tar", "--extract", "--directory", str(target)]
        with subprocess.Popen(pack, stdin=listed, stdout=subprocess.PIPE) as packing:
            subprocess.run(unpack, stdin=packing.stdout, check=True)
    if packing.returncode:
        raise SystemExit(f"tar: exit code {packing.returncode}")
    return target


def files(path: Path) -> frozenset[str]:
    """Returns the files that both programs must agree on. Left out are the copies of `repo`, which
    each program makes itself, and Ebbtide's own files."""
    found = set()
    waiting = [entry.path for entry in os.scandir(path) if entry.is_dir()]
    for name in ("overwritten", "_ebbtide"):
        if str(path / name) in waiting:
            waiting.remove(str(path / name))
    start = len(str(path)) + 1
    while waiting:
        for entry in os.scandir(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            else:
                found.add(entry.path[start:])
    return frozenset(found)


def digest(path: Path) -> str:
    """Returns the hash of all values of the newest snapshot, read with Icechunk."""
    session = open_repository(path).readonly_session("main")
    values: Any = zarr.open_array(session.store, path=ARRAY, mode="r")[...]
    return hashlib.sha256(values.tobytes()).hexdigest()


def run_icechunk(path: Path, threshold: datetime) -> dict[str, Measured]:
    """Expires and collects with Icechunk. Returns the figures of each step."""

    def program(code: str, argument: str) -> Measured:
        return measure([sys.executable, "-P", "-c", code, str(path), argument])

    return {
        "expire": program(EXPIRE, threshold.isoformat()),
        "dry run": program(COLLECT, "dry"),
        "collect": program(COLLECT, "wet"),
    }


def run_ebbtide(planned: Path, path: Path, threshold: datetime) -> dict[str, Measured]:
    """Expires and collects `path` with Ebbtide. `planned` is only expired and planned. Returns the
    figures of each step."""
    options = (
        *("--grace", measuring.GRACE, "--unsafe"),
        *("--quiet-repository", "--allow-share", "--json"),
    )

    def expire(place: Path) -> Measured:
        date = ("--older-than", threshold.isoformat())
        return measure(
            [measuring.PROGRAM, "expire", f"icechunk:{place}", *date, "--unsafe", "--yes"]
        )

    expire(planned)
    measured = {"expire": expire(path)}
    time.sleep(measuring.AGE_SECONDS)
    measured["dry run"] = measure(
        [measuring.PROGRAM, "gc", "plan", f"icechunk:{planned}", *options]
    )
    deleting = [*options, "--quarantine", "none", "--yes"]
    measured["collect"] = measure([measuring.PROGRAM, "gc", "run", f"icechunk:{path}", *deleting])
    return measured


def collect(directory: Path, shape: Shape, *, keep: int, ebbtide_first: bool) -> dict[str, Any]:
    """Collects copies of the repository with both programs, compares and prints. Returns the
    figures."""
    source = built(directory, shape)
    newest = open_repository(source).ancestry(branch="main")
    threshold = next(info for number, info in enumerate(newest, 1) if number == keep).written_at
    before, values = files(source), digest(source)
    with tempfile.TemporaryDirectory(prefix="copies-", dir=directory) as scratch:
        started = time.monotonic()
        its, mine = (copy(source, Path(scratch) / name) for name in ("icechunk", "ebbtide"))
        planned = copy(source, Path(scratch) / "planned", links=True)
        os.sync()  # the disk must not be busy with the copies
        print(f"{len(before):,} files, copied three times in {time.monotonic() - started:.0f} s")
        # While the second program deletes, the disk still works on the files of the first.
        if ebbtide_first:
            ebbtide = run_ebbtide(planned, mine, threshold)
            found = Comparison(run_icechunk(its, threshold), ebbtide)
        else:
            its_own = run_icechunk(its, threshold)
            found = Comparison(its_own, run_ebbtide(planned, mine, threshold))
        print(f"load average {os.getloadavg()[0]:.1f}")
        found.show()
        check(found, before, {"Icechunk": its, "Ebbtide": mine}, values)
        started = time.monotonic()
    print(f"the copies are gone in {time.monotonic() - started:.0f} s")
    return {"files": len(before), "steps": found.to_json()}


def check(found: Comparison, before: frozenset[str], after: dict[str, Path], values: str) -> None:
    """Prints the results of both. Ends the program if the deleted files differ, or if a copy is
    damaged."""
    deleted = {name: before - files(path) for name, path in after.items()}
    for step in ("dry run", "collect"):
        measured = found.ebbtide[step]
        report = json.loads(measured.output)
        print(f"ebbtide, {step}: {report['state']}")
        for name in ("listed", "live", "protected", "young", "candidate", "deleted"):
            print(f"  {name:<22}{report[f'{name}_count']:>10,} files")
        for name, spent in report["seconds"].items():
            print(f"  {name:<22}{spent:>10.2f} s")
        rest = measured.seconds - sum(report["seconds"].values())
        print(f"  {'start and end':<22}{rest:>10.2f} s")
    print(f"Icechunk says, dry run: {found.icechunk['dry run'].output.strip()}")
    print(f"Icechunk says, collect: {found.icechunk['collect'].output.strip()}")
    for name, gone in deleted.items():
        backups = len(list((after[name] / "overwritten").glob("*")))
        print(f"{name} deleted {len(gone):,} files; copies of `repo` that are left: {backups:,}")
    if deleted["Icechunk"] != deleted["Ebbtide"]:
        strange = sorted(deleted["Icechunk"] ^ deleted["Ebbtide"])
        raise SystemExit(f"not the same files: {len(strange):,}, such as {strange[:5]}")
    for name, path in after.items():
        if digest(path) != values:
            raise SystemExit(f"{name} damaged the newest snapshot")
    print("both deleted the same files, and the newest snapshot reads as before")


def decode(directory: Path, *, references: int, spec_version: int) -> None:
    """Times the reading of one real manifest on one core, and by the library of FlatBuffers."""
    path = directory / f"decode-v{spec_version}-{references}"
    if not path.exists():
        build_manifest(path, references, spec_version)
    file = max((path / "manifests").iterdir(), key=lambda each: each.stat().st_size)
    data = file.read_bytes()
    payload = unpack(data, FileType.MANIFEST).payload
    count = len(chunk_ids(payload, references))
    assert count == references, "Icechunk split the manifest"

    def numpy() -> None:
        manifest_chunks(payload, file.name, entry_count=count)

    def with_zstd() -> None:
        unpacked = unpack(data, FileType.MANIFEST).payload
        manifest_chunks(unpacked, file.name, entry_count=count)

    sample = min(count, 50_000)
    mine, both = (count / cpu_seconds(work) / 1e6 for work in (numpy, with_zstd))
    library = sample / cpu_seconds(lambda: chunk_ids(payload, sample)) / 1e6
    print(f"a manifest of {count:,} references, {len(data):,} bytes, {len(payload):,} unpacked")
    print(f"million references a second of one core: {mine:.2f}, with zstd {both:.2f}")
    print(f"FlatBuffers' library, only the ids: {library:.2f}, ratio {mine / library:.1f}")


def build_manifest(path: Path, references: int, spec_version: int) -> None:
    """Makes a repository with one commit of `references` chunks, 8 bytes each, none inline."""
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0)
    icechunk.set_logs_filter("error")
    storage = icechunk.local_filesystem_storage(str(path))
    repository = icechunk.Repository.create(storage, config=config, spec_version=spec_version)
    session = repository.writable_session("main")
    create_array(session, references, values=1)
    rng = np.random.default_rng(SEED)
    for start in range(0, references, 10_000):
        indices = range(start, min(start + 10_000, references))
        write_chunks(session, indices, rng, values=1)
    session.commit("fill")


def chunk_ids(payload: bytes, limit: int) -> list[bytes]:
    """Returns the ids of the first chunks, by the accessors that generated code uses."""
    uoffset = number_types.UOffsetTFlags
    root = Table(payload, uoffset.py_type(Table(payload, 0).Get(uoffset, 0)))
    array = _element(root, _vector(root, 1), 0)
    refs = _vector(array, 1)
    found = []
    for index in range(min(limit, array.VectorLen(array.Offset(6)))):
        ref = _element(array, refs, index)
        offset = ref.Offset(12)
        if offset:
            position = ref.Pos + offset
            found.append(payload[position : position + 12])
    return found


def _vector(table: Any, slot: int) -> int:
    return int(table.Vector(table.Offset(4 + 2 * slot)))


def _element(table: Any, vector: int, index: int) -> Any:
    return Table(table.Bytes, table.Indirect(vector + 4 * index))


def cpu_seconds(work: Callable[[], object], *, times: int = 7) -> float:
    """Returns the median of several times. It is processor time, so that other programs matter
    less."""
    spent = []
    for _ in range(times):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return statistics.median(spent)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commits", type=int, default=1_000)
    parser.add_argument("--chunks", type=int, default=500, help="that each commit replaces")
    parser.add_argument("--array-chunks", type=int, default=10_000)
    parser.add_argument("--keep", type=int, default=100, help="newest snapshots that stay")
    parser.add_argument("--spec-version", type=int, choices=(1, 2), default=2)
    parser.add_argument("--ebbtide-first", action="store_true", help="else Icechunk collects first")
    parser.add_argument("--decode", action="store_true", help="time the reading of a manifest")
    parser.add_argument("--references", type=int, default=200_000, help="with --decode")
    parser.add_argument("--directory", type=Path, help="build here and leave it for the next time")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Builds the repository, runs both programs, compares and prints."""
    options = parsed(arguments)
    shape = Shape(options.spec_version, options.commits, options.chunks, options.array_chunks)
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary:
        directory = (options.directory or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        if options.decode:
            decode(directory, references=options.references, spec_version=shape.spec_version)
        else:
            content = collect(
                directory, shape, keep=options.keep, ebbtide_first=options.ebbtide_first
            )
            results.save(options, content)


if __name__ == "__main__":
    main()
