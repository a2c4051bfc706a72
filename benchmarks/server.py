"""Measures the server through lakeFS's client: uploads, stats, gets, lists, a large commit.

    .venv/bin/python -m benchmarks.server [--directory DIR] [--requests 1000]
        [--listed 240000] [--committed 100000]

There are one server process and one client process, with one thread and with eight. Each figure has
its ratio to a practical limit, which is measured right after it:

- for uploads, writing the same bytes to as many new files of the same disk, each flushed, by as
  many threads;
- for all others, a bare FastAPI application on uvicorn, which answers with the same bytes through
  the same client.

Then a listing of many staged objects and a commit of many are measured. Their rows are written
directly to the database, and the files do not exist. Fails if an object reads as other bytes, or if
a listing or the commit has another number of objects.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import lakefs
import psutil
from lakefs.client import Client

from benchmarks import measuring, results
from benchmarks.prepare_uncommitted import EPOCH, insert_staged
from ebbtide.ids import descending_id
from ebbtide.model import ONE_MICROSECOND
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.layout import new_object_address
from ebbtide.store.embedded import Store
from ebbtide.store.refs.ref_rows import require_branch

PROGRAM: Final = [sys.executable, "-c", "from ebbtide.program import main; main()"]
API: Final = "/api/v1"
REPOSITORY: Final = "lake"
OBJECT_BYTES: Final = 1024
THREADS: Final = (1, 8)
PAGE: Final = 1000
PAGES: Final = 30
LISTED_SECONDS_MAX, COMMITTED_SECONDS_MAX = 16.0, 10.0
SEED: Final = 20_240_607

Work = Callable[[int], object]
"""One request, by its number."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The seconds that `units` took, and the processor seconds of client and server."""

    units: int
    seconds: float
    client_seconds: float
    server_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """The units per second."""
        return self.units / self.seconds

    def row(self, what: str, threads: int, limit: Figure) -> str:
        """Returns one line of the table."""
        per_unit = 1e6 / self.units
        return (
            f"| {what} | {threads} | {self.rate:,.0f} | {limit.rate / self.rate:.1f} "
            f"| {self.server_seconds * per_unit:,.0f} | {limit.server_seconds * per_unit:,.0f} "
            f"| {self.client_seconds * per_unit:,.0f} |"
        )


@dataclass(frozen=True, slots=True)
class Running:
    """A server process."""

    url: str
    process: psutil.Process

    def measure(self, work: Work, *, requests: int, threads: int, units: int = 1) -> Figure:
        """Calls `work` for each number, in threads. Each call counts as `units`."""
        busy = _processor_seconds(self.process)
        client = time.process_time()
        started = time.monotonic()
        _spread(work, requests=requests, threads=threads)
        return Figure(
            requests * units,
            time.monotonic() - started,
            time.process_time() - client,
            _processor_seconds(self.process) - busy,
        )


def _processor_seconds(process: psutil.Process) -> float:
    """Of a process and those that it started."""
    found = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(times.user + times.system for times in found))


def _spread(work: Work, *, requests: int, threads: int) -> None:
    if threads == 1:
        for number in range(requests):
            work(number)
        return
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work, number) for number in range(requests)]:
            future.result()


@contextmanager
def served(arguments: list[str], **environment: str) -> Iterator[Running]:
    """Runs a process that prints its URL in its first line."""
    if arguments[: len(PROGRAM)] == PROGRAM:
        results.ran(arguments[len(PROGRAM) - 1 :], os.environ | environment)
    process = subprocess.Popen(
        arguments, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield Running(process.stdout.readline().split()[-1], psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@dataclass(frozen=True, slots=True)
class Requests:
    """The measured requests to one server. Each thread has its own connection, from the client's
    pool."""

    repository: lakefs.Repository

    @classmethod
    def to(cls, url: str, key: tuple[str, str]) -> Requests:
        """Returns requests to a server, through a client of its own."""
        client = Client(host=url, username=key[0], password=key[1])
        return cls(lakefs.Repository(REPOSITORY, client=client))

    def upload(self, number: int) -> object:
        """Uploads a small new object."""
        return self._object(number).upload(_content(number), pre_sign=False)

    def stat(self, number: int) -> object:
        """Asks for the metadata of a staged object."""
        return self._object(number).stat()

    def get(self, number: int) -> object:
        """Reads all bytes of an object."""
        return self._object(number).reader(pre_sign=False).read()

    def page(self, _number: int) -> object:
        """Lists the first page of objects."""
        found = self.repository.branch("listed").objects(max_amount=PAGE, amount=PAGE)
        return list(found)

    def _object(self, number: int) -> lakefs.WriteableObject:
        return self.repository.branch("main").object(_path(number))


def check(what: str, found: object, expected: object) -> None:
    """Ends the program if an answer is another than it must be."""
    if found != expected:
        raise SystemExit(f"{what}: {str(found)[:200]}, not {str(expected)[:200]}")


def _path(number: int) -> str:
    return f"tables/part-{number:08d}.parquet"


def _content(number: int) -> bytes:
    return random.Random(number).randbytes(OBJECT_BYTES)


def answers(url: str, key: tuple[str, str]) -> dict[str, str]:
    """Returns the server's answers by the end of the path, for the bare application."""
    refs = f"{url}{API}/repositories/{REPOSITORY}/refs"
    with httpx.Client(auth=key, verify=False) as http:
        stat = (
            http.get(f"{refs}/main/objects/stat", params={"path": _path(0)}).raise_for_status().text
        )
        listed = (
            http.get(f"{refs}/listed/objects/ls", params={"amount": PAGE}).raise_for_status().text
        )
    return {"stat": stat, "ls": listed, "objects": _content(0).hex()}


def serve_bare(file: Path) -> None:
    """Runs the bare application on a free port, in a process of its own."""
    import socket

    import uvicorn
    from fastapi import Body, FastAPI, Response

    canned: dict[str, str] = json.loads(file.read_text())
    content = bytes.fromhex(canned.pop("objects"))
    uploaded = canned.pop("uploaded", "{}")
    app = FastAPI(openapi_url=None)
    root = API + "/repositories/{repository}/refs/{ref}/objects"

    @app.get(root)
    def get() -> Response:
        return Response(content, media_type="application/octet-stream")

    @app.post(API + "/repositories/{repository}/branches/{branch}/objects")
    def upload(data: bytes = Body()) -> Response:
        del data
        return Response(uploaded, 201, media_type="application/json")

    @app.get(root + "/{what}")
    def answer(what: str) -> Response:
        return Response(canned[what], media_type="application/json")

    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, http="h11", access_log=False, log_config=None)
    uvicorn.Server(config).run(sockets=[listening])


def write_files(
    directory: Path, *, requests: int, threads: int, content: bytes | None = None
) -> Figure:
    """Writes as many files as there were uploads, each flushed with its directory. Returns the
    figure."""
    directory.mkdir()
    descriptor = os.open(directory, os.O_RDONLY)

    def write(number: int) -> None:
        with (directory / str(number)).open("xb") as file:
            file.write(_content(number) if content is None else content)
            file.flush()
            os.fsync(file.fileno())
        os.fsync(descriptor)

    client = time.process_time()
    started = time.monotonic()
    _spread(write, requests=requests, threads=threads)
    seconds = time.monotonic() - started
    os.close(descriptor)
    return Figure(requests, seconds, time.process_time() - client)


def fill(store: Store, branch: str, count: int) -> None:
    """Stages `count` objects without files on a new branch."""
    lake = store.repository(REPOSITORY)
    lake.branches.create(branch, "main")
    rng = random.Random(SEED)
    slice_id = descending_id(datetime.now(UTC))
    written = (datetime.now(UTC) - EPOCH) // ONE_MICROSECOND
    with store.metadata.transaction() as tx:
        token = require_branch(tx, lake.info.repository_id, branch).staging_token
        values: Iterator[tuple[Any, ...]] = (
            (
                lake.info.repository_id,
                token,
                _path(number),
                new_object_address(slice_id, number),
                rng.randrange(1 << 30),
                f"{rng.getrandbits(256):064x}",
                written,
                "application/octet-stream",
                "{}",
            )
            for number in range(count)
        )
        insert_staged(tx, values)


def measure_requests(
    running: Running, key: tuple[str, str], directory: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Prints the table of single requests. Returns its rows."""
    rows = []

    def show(what: str, threads: int, seen: Figure, limit: Figure) -> None:
        print(seen.row(what, threads, limit))
        limits = {f"limit_{name}": figure for name, figure in asdict(limit).items()}
        ratio = limit.rate / seen.rate
        rows.append({"request": what, "threads": threads, "rate": seen.rate, "ratio": ratio})
        rows[-1] |= asdict(seen) | limits

    print("| request | threads | per second | x limit | server µs | limit's µs | client µs |")
    print("|---|---|---|---|---|---|---|")
    requests = options.requests
    real = Requests.to(running.url, key)
    real.upload(requests)  # the first one opens what later ones use
    for threads in THREADS:
        seen = running.measure(real.upload, requests=requests, threads=threads)
        files = directory / f"files-{threads}"
        limit = write_files(files, requests=requests, threads=threads)
        show("upload", threads, seen, limit)
    check("the last upload", real.get(requests - 1), _content(requests - 1))
    canned = directory / "answers.json"
    canned.write_text(json.dumps(answers(running.url, key)))
    bare_program = [*measuring.itself("server"), "--bare", str(canned)]
    page = min(PAGE, options.listed)
    with served(bare_program) as bare:
        bare_requests = Requests.to(bare.url, key)
        for what, count, units in (
            ("stat", requests, 1),
            ("get", requests, 1),
            ("page", min(requests, PAGES), page),
        ):
            for threads in THREADS:
                ours, theirs = (
                    side.measure(getattr(asked, what), requests=count, threads=threads, units=units)
                    for side, asked in ((running, real), (bare, bare_requests))
                )
                show("list entry" if what == "page" else what, threads, ours, theirs)
    return rows


def measure_large(
    running: Running, key: tuple[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    """Prints the listing and the commit, each with its aim. Returns their figures."""
    lake = Requests.to(running.url, key).repository

    def listing(_number: int) -> None:
        found = sum(1 for _ in lake.branch("listed").objects(amount=PAGE))
        check("objects listed", found, options.listed)

    def commit(_number: int) -> None:
        lake.branch("committed").commit("many")

    figures: dict[str, Any] = {}
    for what, work, count, aim in (
        ("listed", listing, options.listed, LISTED_SECONDS_MAX),
        ("committed", commit, options.committed, COMMITTED_SECONDS_MAX),
    ):
        seen = running.measure(work, requests=1, threads=1)
        print(
            f"{count:,} staged objects {what} in {seen.seconds:.1f} s (aim {aim:.0f} s); processor:"
            f" server {seen.server_seconds:.1f} s, client {seen.client_seconds:.1f} s"
        )
        figures[what] = {"objects": count, **asdict(seen)}
    head = lake.branch("committed").get_commit()
    found = sum(1 for _ in lake.commit(head.id).objects(amount=PAGE))
    check("objects in the commit", found, options.committed)
    return figures


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, help="where the store and other files go")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--listed", type=int, default=240_000, help="staged objects to list")
    parser.add_argument("--committed", type=int, default=100_000, help="staged objects to commit")
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Makes a store, serves it, measures and prints."""
    options = parsed(arguments)
    if options.bare:
        serve_bare(options.bare)
        return
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-", dir=options.directory) as temporary:
        directory = Path(temporary)
        with Store.init(directory / "store", settings=Settings()) as store:
            pair = store.keys.create(Role.ADMIN)
            store.create_repository(REPOSITORY)
            fill(store, "listed", options.listed)
            fill(store, "committed", options.committed)
        key = (pair.key.access_key_id, pair.secret)
        print(f"load average before: {os.getloadavg()[0]:.2f}")
        program = [*PROGRAM, "serve", "--port", "0"]
        with served(program, EBBTIDE_STORE=str(directory / "store")) as running:
            rows = measure_requests(running, key, directory, options)
            large = measure_large(running, key, options)
    results.save(options, {"rows": rows, "large": large})


if __name__ == "__main__":
    main()
