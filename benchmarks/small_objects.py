"""Measures the server with small objects: uploads and reads by its API and by its S3 gateway.

    .venv/bin/python -m benchmarks.small_objects [--directory DIR] [--requests 2000] [--ceph]
        [--processes 1] [--databases SQLite PostgreSQL] [--peer-s3 URL --peer-s3-key ID:SECRET]
        [--peer-lakefs URL --peer-lakefs-key ID:SECRET]

Objects have 4 KiB, and eight client threads send requests, each on a connection of its own. The
server runs on SQLite, and on PostgreSQL if it is installed; both wait for the disk. Then many
staged objects are listed in pages of 1,000. Fails if an object reads as other bytes, or if the list
has another number of objects.

The client is a small one that sends bytes to a socket, because clients in use take more processor
time than the server. Other servers get the same requests in the same run. The practical limits are
measured too: a bare FastAPI application, and a loop that writes and flushes files.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import psutil
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from benchmarks import measuring, results
from benchmarks.server import (
    API,
    PROGRAM,
    REPOSITORY,
    Figure,
    Running,
    check,
    fill,
    served,
    write_files,
)
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.support.ceph import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, start_ceph
from tests.support.postgres import find_postgres, start_postgres

DATABASES: Final = ("SQLite", "PostgreSQL")
THREADS: Final = 8
OBJECT_BYTES: Final = 4096
PAGE: Final = 1000
CONTENT: Final = os.urandom(OBJECT_BYTES)
AIMS: Final = {"upload": 1000, "read": 2000}
LISTED_SECONDS_MAX: Final = 2.0
START_SECONDS: Final = 20
"""How long several processes may take until all of them serve, after the URL was printed."""

Send = Callable[[int], object]
"""Sends one request, by its number."""


class Sender:
    """Connections to a server, one for each thread."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).netloc
        self._local = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        """Closes all connections."""
        for each in self._all:
            each.close()

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> bytes:
        """Sends a request and returns the body of the answer, which must be a success."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self.host)
            self._all.append(connection)
        connection.request(method, target, body, dict(headers))
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {target}: {answer.status} {content[:300]!r}")
        return content


@dataclass(frozen=True, slots=True)
class ByApi:
    """Requests of lakeFS's API."""

    sender: Sender
    key: tuple[str, str]
    repository: str = REPOSITORY

    @property
    def _headers(self) -> dict[str, str]:
        pair = base64.b64encode(":".join(self.key).encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    def upload(self, number: int) -> object:
        """Uploads a new object."""
        target = self._target("branches", "objects", path=f"api/{number:08d}")
        headers = self._headers | {"Content-Type": "application/octet-stream"}
        return self.sender.send("POST", target, headers, CONTENT)

    def read(self, number: int) -> object:
        """Reads an uploaded object."""
        target = self._target("refs", "objects", path=f"api/{number:08d}")
        content = self.sender.send("GET", target, self._headers)
        check("an object", content, CONTENT)
        return content

    def list_all(self, expected: int) -> object:
        """Lists the branch `listed` in pages, which has as many objects as `expected`."""
        count, after = 0, ""
        while True:
            target = self._target("refs", "objects/ls", "listed", amount=str(PAGE), after=after)
            page = json.loads(self.sender.send("GET", target, self._headers))
            count += len(page["results"])
            if not page["pagination"]["has_more"]:
                check("objects listed", count, expected)
                return count
            after = page["pagination"]["next_offset"]

    def _target(self, kind: str, what: str, ref: str = "main", **query: str) -> str:
        path = f"{API}/repositories/{self.repository}/{kind}/{ref}/{what}"
        return f"{path}?{urlencode(query)}"


@dataclass(frozen=True, slots=True)
class ByS3:
    """Requests of S3. `prefix` is the bucket, and the branch if there is one."""

    sender: Sender
    key: tuple[str, str]
    prefix: str = f"{REPOSITORY}/main"
    host: str = ""
    """The header `Host`, if it is not that of the URL."""

    def upload(self, number: int) -> object:
        """Uploads a new object."""
        return self._send("PUT", number, CONTENT)

    def read(self, number: int) -> object:
        """Reads an uploaded object."""
        content = self._send("GET", number, None)
        check("an object", content, CONTENT)
        return content

    def _send(self, method: str, number: int, body: bytes | None) -> bytes:
        target = f"/{self.prefix}/s3/{number:08d}"
        request = AWSRequest(method, f"http://{self.host or self.sender.host}{target}", data=body)
        request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(body or b"").hexdigest()
        request.context["payload_signing_enabled"] = True
        S3SigV4Auth(Credentials(*self.key), "s3", "us-east-1").add_auth(request)
        headers = dict(request.headers.items())
        return self.sender.send(
            method, target, {"Host": self.host or self.sender.host} | headers, body
        )


def measure(running: Running, send: Send, *, requests: int) -> Figure:
    """Sends requests in threads. One goes before, because it opens what later ones use."""
    send(requests)
    return running.measure(send, requests=requests, threads=THREADS)


@dataclass(slots=True)
class Table:
    """The rows that are printed and stored, and the limits by the kind of request."""

    requests: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    limits: dict[str, Figure] = field(default_factory=dict)

    def add(self, server: str, what: str, seen: Figure) -> None:
        """Prints and adds a row."""
        limit = self.limits.get(what)
        ratio = None if limit is None else limit.rate / seen.rate
        micros = 1e6 / seen.units
        print(
            f"| {server} | {what} | {seen.rate:,.0f} | {'' if ratio is None else f'{ratio:.1f}'} "
            f"| {seen.server_seconds * micros:,.0f} | {seen.client_seconds * micros:,.0f} |",
            flush=True,
        )
        self.rows.append({"server": server, "request": what, "rate": seen.rate, "ratio": ratio})
        self.rows[-1] |= asdict(seen) | {"server_us": seen.server_seconds * micros}

    def measure(self, name: str, running: Running, client: ByApi | ByS3) -> None:
        """Measures uploads and reads of one server."""
        for what, send in (("upload", client.upload), ("read", client.read)):
            self.add(name, what, measure(running, send, requests=self.requests))


@contextmanager
def ebbtide(
    directory: Path, database_url: str | None, options: argparse.Namespace
) -> Iterator[tuple[Running, tuple[str, str]]]:
    """Runs the server over a new store; yields it and an access key."""
    settings = Settings() if database_url is None else Settings(database_url=database_url)
    with Store.init(directory, settings=settings) as store:
        pair = store.keys.create(Role.ADMIN)
        store.create_repository(REPOSITORY)
        fill(store, "listed", options.listed)
    environment = {"EBBTIDE_STORE": str(directory)}
    if database_url is not None:
        environment["EBBTIDE_DATABASE_URL"] = database_url
    command = [*PROGRAM, "serve", "--port", "0", "--processes", str(options.processes)]
    with served(command, **environment) as running:
        time.sleep(START_SECONDS if options.processes > 1 else 0)
        yield running, (pair.key.access_key_id, pair.secret)


def listening_at(url: str) -> Running:
    """Returns the process of this machine that listens at the URL."""
    port = urlsplit(url).port
    for each in psutil.net_connections("tcp"):
        if (
            each.status == psutil.CONN_LISTEN
            and each.laddr
            and each.laddr.port == port
            and each.pid
        ):
            return Running(url, psutil.Process(each.pid))
    raise SystemExit(f"no process of this machine listens at {url}")


def measure_limits(table: Table, directory: Path) -> None:
    """Measures a bare application and a loop over files."""
    canned = directory / "answers.json"
    canned.write_text(json.dumps({"objects": CONTENT.hex(), "uploaded": '{"path":"a"}'}))
    program = [*measuring.itself("server"), "--bare", str(canned)]
    with served(program) as bare, closing(Sender(bare.url)) as sender:
        client = ByApi(sender, ("", ""))
        for what, send in (("upload", client.upload), ("read", client.read)):
            table.limits[what] = measure(bare, send, requests=table.requests)
            table.add("bare FastAPI", what, table.limits[what])
    content, count = CONTENT, table.requests
    files = write_files(directory / "files", requests=count, threads=THREADS, content=content)
    table.add("bare files", "upload", files)


def measure_peers(table: Table, options: argparse.Namespace) -> None:
    """Measures other servers."""
    if options.peer_s3:
        key = tuple(options.peer_s3_key.split(":", 1))
        client = ByS3(Sender(options.peer_s3), key, options.peer_s3_bucket)
        client.sender.send("PUT", f"/{options.peer_s3_bucket}", {})
        table.measure("peer, S3", listening_at(options.peer_s3), client)
    if options.peer_lakefs:
        key = tuple(options.peer_lakefs_key.split(":", 1))
        running = listening_at(options.peer_lakefs)
        repository = options.peer_lakefs_repository
        table.measure("lakeFS, API", running, ByApi(Sender(options.peer_lakefs), key, repository))
        s3 = ByS3(Sender(options.peer_lakefs), key, f"{repository}/main", options.peer_lakefs_host)
        table.measure("lakeFS, S3", running, s3)
    if options.ceph:
        server = start_ceph()
        try:
            ceph = ByS3(Sender(server.endpoint), (ACCESS_KEY_ID, SECRET_ACCESS_KEY), BUCKET)
            table.measure("Ceph in memory, S3", listening_at(server.endpoint), ceph)
        finally:
            server.stop()


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, help="where the stores and other files go")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--listed", type=int, default=100_000, help="staged objects to list")
    parser.add_argument(
        "--databases", nargs="+", choices=DATABASES, help="else SQLite, and what is installed"
    )
    parser.add_argument("--processes", type=int, default=1, help="as of ebbtide serve")
    parser.add_argument("--ceph", action="store_true", help="measure Ceph's gateway too")
    parser.add_argument("--peer-s3", metavar="URL", help="another S3 server of this machine")
    parser.add_argument("--peer-s3-key", metavar="ID:SECRET", default="test:test")
    parser.add_argument("--peer-s3-bucket", default="benchmark")
    parser.add_argument("--peer-lakefs", metavar="URL", help="a lakeFS server of this machine")
    parser.add_argument("--peer-lakefs-key", metavar="ID:SECRET", default=":")
    parser.add_argument("--peer-lakefs-repository", default="benchmark", help="it must exist")
    parser.add_argument("--peer-lakefs-host", default="s3.local.lakefs.io")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints."""
    options = parsed(arguments)
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    print("| server | request | per second | x bare FastAPI | server µs | client µs |")
    print("|---|---|---|---|---|---|")
    table = Table(options.requests)
    installed = DATABASES if find_postgres() else DATABASES[:1]
    listings: dict[str, Any] = {}
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="ebbtide-bench-", dir=options.directory)
        directory = Path(stack.enter_context(made))
        measure_limits(table, directory)
        for name in options.databases or installed:
            url = None
            if name == "PostgreSQL":
                server = start_postgres(directory, durable=True)
                stack.callback(server.stop)
                url = server.url
            with (
                ebbtide(directory / name, url, options) as (running, key),
                closing(Sender(running.url)) as sender,
                closing(Sender(running.url)) as sender_of_s3,
            ):
                api = ByApi(sender, key)
                table.measure(f"{name}, API", running, api)
                table.measure(f"{name}, S3", running, ByS3(sender_of_s3, key))

                def list_all(_number: int, api: ByApi = api) -> object:
                    return api.list_all(options.listed)

                listings[name] = asdict(running.measure(list_all, requests=1, threads=1))
        measure_peers(table, options)
    for name, seen in listings.items():
        print(
            f"{options.listed:,} objects listed on {name}: {seen['seconds']:.1f} s (aim "
            f"{LISTED_SECONDS_MAX:.0f} s); processor: server {seen['server_seconds']:.1f} s, "
            f"client {seen['client_seconds']:.1f} s"
        )
    print(f"aims: {AIMS['upload']:,} uploads and {AIMS['read']:,} reads a second")
    shape = {"requests": options.requests, "listed": options.listed}
    results.save(options, {**shape, "rows": table.rows, "listings": listings})


if __name__ == "__main__":
    main()
