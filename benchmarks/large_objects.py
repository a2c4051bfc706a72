"""Measures the server's memory while large objects pass through it, by its API and its S3 gateway.

    .venv/bin/python -m benchmarks.large_objects [--directory DIR] [--mib 512] [--storage disk]
        [--only WORDS] [--set NAME=VALUE]

The server is a process of its own, on SQLite. Its objects lie in a directory, or in an S3 server:
Ceph's gateway, over a file on the disk. Each case starts a new server, which has done a small
upload and a small read before. The figures are its resident memory then, its peak in the case
(VmHWM), and its processor seconds. The client and the S3 server are other processes.

The S3 server has room for 40 GiB, and frees deleted objects after some seconds. Fails if an object
has another size than it must have.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import boto3
import httpx
import psutil
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from benchmarks import results
from benchmarks.measuring import mib
from benchmarks.server import API, PROGRAM, REPOSITORY, check, served
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.support.ceph import BUCKET, ON_DISK, start_ceph

MIB: Final = 1024 * 1024
BLOCK: Final = os.urandom(MIB)
SECONDS_MAX: Final = 3600.0


class Stream(io.RawIOBase):
    """A file of `size` bytes that takes no memory: one block again and again."""

    def __init__(self, size: int) -> None:
        self._left = size

    def readable(self) -> bool:
        """Returns true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer with bytes of the block."""
        view = memoryview(buffer)
        count = min(len(view), self._left, MIB)
        view[:count] = BLOCK[:count]
        self._left -= count
        return count


class Sink(io.RawIOBase):
    """A file that forgets what is written to it, and counts the bytes."""

    count = 0

    def writable(self) -> bool:
        """Returns true."""
        return True

    def seekable(self) -> bool:
        """Returns true: the transfer manager then writes each part when it has it."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Returns the offset."""
        del whence
        return offset

    def write(self, data: Any) -> int:
        """Returns the number of bytes."""
        self.count += len(data)
        return len(data)


@dataclass(frozen=True, slots=True)
class Client:
    """A client of one server. `size` is that of each object, in bytes."""

    url: str
    key: tuple[str, str]
    size: int

    def s3(self) -> Any:
        """Returns a client of S3."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.key[0],
            aws_secret_access_key=self.key[1],
            region_name="us-east-1",
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"},
                max_pool_connections=20,
                read_timeout=SECONDS_MAX,
                retries={"max_attempts": 0},
            ),
        )

    def http(self) -> httpx.Client:
        """Returns a client of the API."""
        return httpx.Client(base_url=self.url + API, auth=self.key, timeout=SECONDS_MAX)

    def upload(self, name: str, *, part: int, threads: int) -> None:
        """Uploads in parts, as boto3's transfer manager does."""
        with ThreadPoolExecutor(threads) as pool:
            s3 = self.s3()
            where = {"Bucket": REPOSITORY, "Key": f"main/{name}"}
            upload = s3.create_multipart_upload(**where)["UploadId"]

            def send(number: int) -> dict[str, Any]:
                size = min(part, self.size - (number - 1) * part)
                body = (BLOCK * -(-size // MIB))[:size]
                sent = s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
                return {"PartNumber": number, "ETag": sent["ETag"]}

            parts = list(pool.map(send, range(1, -(-self.size // part) + 1)))
            s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
        check("bytes uploaded", s3.head_object(**where)["ContentLength"], self.size)

    def put(self, name: str, *, has_length: bool = True) -> None:
        """Uploads in one request of the API."""
        head = {"Content-Length": str(self.size)} if has_length else {}
        pieces = iter(io.BufferedReader(Stream(self.size), MIB).read1, b"")
        with self.http() as http:
            answer = http.post(
                f"/repositories/{REPOSITORY}/branches/main/objects",
                params={"path": name},
                content=pieces,
                headers=head | {"Content-Type": "application/octet-stream"},
            )
        check("the answer", answer.status_code, 201)
        check("bytes uploaded", answer.json()["size_bytes"], self.size)

    def get(self, name: str) -> None:
        """Reads an object in one request of the API."""
        count = 0
        with (
            self.http() as http,
            http.stream(
                "GET", f"/repositories/{REPOSITORY}/refs/main/objects", params={"path": name}
            ) as answer,
        ):
            for piece in answer.iter_raw():
                count += len(piece)
        check("bytes read", count, self.size)

    def download(self, name: str) -> None:
        """Reads an object in ranges, as boto3's transfer manager does."""
        sink = Sink()
        self.s3().download_fileobj(REPOSITORY, f"main/{name}", sink, Config=TransferConfig())
        check("bytes read", sink.count, self.size)


Case = Callable[[Client], None]


def together(count: int, work: Callable[[int], None]) -> None:
    """Calls `work` with each number at the same time."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


UPLOADS: Final[Mapping[str, Case]] = {
    "S3, parts of 8 MiB, 10 at once": lambda c: c.upload("a", part=8 * MIB, threads=10),
    "S3, parts of 32 MiB, 4 at once": lambda c: c.upload("a", part=32 * MIB, threads=4),
    "API, one request": lambda c: c.put("a"),
    "API, one request without length": lambda c: c.put("a", has_length=False),
    "four S3 uploads, parts of 8 MiB, each 10 at once": lambda c: together(
        4, lambda n: c.upload(f"a{n}", part=8 * MIB, threads=10)
    ),
    "four API requests": lambda c: together(4, lambda n: c.put(f"a{n}")),
}
READS: Final[Mapping[str, Case]] = {
    "read by API, one request": lambda c: c.get("a"),
    "read by S3, ranges of 8 MiB, 10 at once": lambda c: c.download("a"),
    "four reads by API": lambda c: together(4, lambda _: c.get("a")),
}


@contextmanager
def storage_of(kind: str, directory: Path) -> Iterator[dict[str, str]]:
    """Yields the environment of servers whose objects lie on a disk or in an S3 server."""
    if kind == "disk":
        yield {}
        return
    server = start_ceph(directory, objects=ON_DISK)
    try:
        yield server.environment() | {"EBBTIDE_STORAGE_URL": f"s3://{BUCKET}"}
    finally:
        server.stop()


def measure(
    directory: Path, environment: Mapping[str, str], size: int, prepare: Case | None, case: Case
) -> dict[str, float]:
    """Runs one case on a new server. Returns its figures."""
    place = directory / "store"
    environment = {**environment, "EBBTIDE_STORE": str(place)}
    settings = Settings()
    if url := environment.get("EBBTIDE_STORAGE_URL"):
        environment["EBBTIDE_STORAGE_URL"] = url = f"{url}/{directory.name}"
        settings = Settings(storage_url=url)
    with patch.dict(os.environ, environment), Store.init(place, settings=settings) as store:
        pair = store.keys.create(Role.ADMIN)
        store.create_repository(REPOSITORY)
    key = pair.key.access_key_id, pair.secret
    command = [*PROGRAM, "serve", "--port", "0"]
    if prepare is not None:
        with served(command, **environment) as running:
            prepare(Client(running.url, key, size))
    with served(command, **environment) as running:
        small = Client(running.url, key, MIB)
        small.put("small")
        small.get("small")
        pid = running.process.pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        before, busy = running.process.memory_info().rss, seconds_of(running.process)
        case(Client(running.url, key, size))
        peak, after = peak_of(pid), running.process.memory_info().rss
        spent = seconds_of(running.process) - busy
    sizes = {"before_mib": mib(before), "peak_mib": mib(peak), "after_mib": mib(after)}
    return sizes | {"server_seconds": spent}


def seconds_of(process: psutil.Process) -> float:
    """Returns the processor seconds of a process, user and system."""
    times = process.cpu_times()
    return float(times.user + times.system)


def peak_of(pid: int) -> int:
    """Returns the most bytes of memory that a process has held since its peak was cleared."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("the system does not tell a process's peak memory")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, help="where the objects and stores go")
    parser.add_argument("--mib", type=int, default=512, help="the size of each object")
    parser.add_argument("--storage", choices=("disk", "s3", "both"), default="both")
    parser.add_argument("--only", default="", help="only cases that have these words")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Prints a table."""
    options = parsed(arguments)
    asked = dict(each.split("=", 1) for each in options.set)
    rows = []
    size = options.mib * MIB
    kinds = ("disk", "s3") if options.storage == "both" else (options.storage,)
    print("| storage | case | MiB before | peak MiB | MiB after | processor seconds |")
    print("|---|---|---|---|---|---|")
    for kind in kinds:
        with ExitStack() as stack:
            place = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
            environment = asked | stack.enter_context(storage_of(kind, Path(place)))
            cases: list[tuple[str, Case | None, Case]]
            cases = [(name, None, case) for name, case in UPLOADS.items()]
            cases += [(name, UPLOADS["API, one request"], case) for name, case in READS.items()]
            for name, prepare, case in cases:
                if options.only not in name:
                    continue
                with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                    found = measure(Path(directory), environment, size, prepare, case)
                cells = " | ".join(f"{figure:,.1f}" for figure in found.values())
                print(f"| {kind} | {name} | {cells} |", flush=True)
                rows.append({"storage": kind, "case": name, **found})
    results.save(options, {"mib": options.mib, "rows": rows})


if __name__ == "__main__":
    main()
