"""Large bodies: in bounded memory, both ways; and clients that break off."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import lakefs
import psutil
import pytest
import sqlalchemy as sa
from boto3.s3.transfer import TransferConfig

from ebbtide.settings import Settings
from ebbtide.store.database.schema import pending
from ebbtide.store.embedded import Store
from tests.doors.s3.conftest import s3_client
from tests.support.app import serving
from tests.support.server import WAIT_SECONDS, Key, Server, eventually
from tests.support.servers import Servers

MEGABYTE = 1024 * 1024
LARGE = 100 * MEGABYTE
MEMORY_MAX = 64 * MEGABYTE
LENGTH = f"Content-Length: {LARGE}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"


def pieces(total: int = LARGE) -> Iterator[bytes]:
    for number in range(total // MEGABYTE):
        yield bytes([number % 251]) * MEGABYTE


def peak(server: Server) -> int:
    """The most memory that the server has held since `forget_peak`."""
    assert server.process is not None
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def forget_peak(server: Server) -> int:
    """Begin to measure anew; what the server holds now."""
    assert server.process is not None
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return int(psutil.Process(server.process.pid).memory_info().rss)


def count(server: Server, table: sa.Table) -> int:
    with (
        Store.open(server.directory, settings=Settings()) as store,
        store.metadata.snapshot() as tx,
    ):
        return int(tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


@pytest.fixture
def large(plain: Server, lake: lakefs.Repository) -> Iterator[str]:
    """The name of a repository whose files, which may lie in memory, go with the test."""
    yield lake.id
    shutil.rmtree(plain.directory / "storage" / lake.id)


@pytest.mark.parametrize("form", [False, True])
def test_large_bodies_need_little_memory(
    plain: Server, http: httpx.Client, large: str, form: bool
) -> None:
    place, headers = f"/repositories/{large}/branches/main/objects?path=large", {}
    body: Iterator[bytes] = pieces()
    if form:
        head = b"--edge\r\nContent-Disposition: form-data; name=content\r\n\r\n"
        body = chain([head], pieces(), [b"\r\n--edge--\r\n"])
        headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    before = forget_peak(plain)
    answer = http.post(place, content=body, headers=headers)
    assert answer.status_code == 201, answer.text
    assert answer.json()["size_bytes"] == LARGE
    assert peak(plain) - before < MEMORY_MAX
    if form:
        return
    before = forget_peak(plain)
    digest = hashlib.sha256()
    with http.stream("GET", f"/repositories/{large}/refs/main/objects?path=large") as got:
        for piece in got.iter_raw():
            digest.update(piece)
    assert digest.hexdigest() == answer.json()["checksum"]
    assert peak(plain) - before < MEMORY_MAX


IN_PARTS = 96 * MEGABYTE
PART = 24 * MEGABYTE
AT_ONCE = 4
GROWTH_MAX = {"local": 40 * MEGABYTE, "shared": 90 * MEGABYTE}
"""On S3 all uploads share 16 MiB for parts. The rest are pieces, and what the allocator keeps."""


@pytest.mark.twins
def test_an_upload_in_parts_needs_little_memory(
    servers: Servers, server_kind: str, tmp_path: Path
) -> None:
    """Much less than the object: the parts pass through. No other test uses the server."""
    alone = servers(server_kind, EBBTIDE_LOG_LEVEL="warning")
    file = tmp_path / "sparse"
    file.touch()
    os.truncate(file, IN_PARTS)
    alone.repository("lake")
    config = TransferConfig(
        multipart_threshold=MEGABYTE, multipart_chunksize=PART, max_concurrency=AT_ONCE
    )
    before = forget_peak(alone)
    with closing(s3_client(alone)) as client:
        client.upload_file(str(file), "lake", "main/large", Config=config)
        head = client.head_object(Bucket="lake", Key="main/large")
    assert head["ContentLength"] == IN_PARTS
    assert peak(alone) - before < GROWTH_MAX[server_kind]


def test_an_upload_above_the_limit(tmp_path: Path) -> None:
    settings = Settings(reclaim=False, server_upload_max=2 * MEGABYTE)
    with Store.init(tmp_path / "store", settings=settings) as store:
        lake = store.create_repository("lake")
        place = "/repositories/lake/branches/main/objects?path=x"
        with serving(store) as client:
            for body in (b"x" * (2 * MEGABYTE + 1), pieces(4 * MEGABYTE)):
                answer = client.post(place, content=body)
                assert (answer.status_code, answer.json()["kind"]) == (413, "too_large")
            assert client.post(place, content=b"x" * 2 * MEGABYTE).status_code == 201
        assert [each.path for each in lake.objects.walk("main")] == ["x"]


def test_ranges(http: httpx.Client, lake: lakefs.Repository) -> None:
    lake.branch("main").object("x").upload("0123456789", content_type="text/html")
    place = f"/repositories/{lake.id}/refs/main/objects?path=x"
    for header, expected in (
        ("bytes=8-", b"89"),
        ("bytes=5-99", b"56789"),
        ("bytes=-99", b"0123456789"),
    ):
        answer = http.get(place, headers={"Range": header})
        assert (answer.status_code, answer.content) == (206, expected), header
        head = http.head(place, headers={"Range": header})
        assert (head.status_code, head.content) == (206, b""), header
        for name in ("content-length", "content-type", "etag", "last-modified", "accept-ranges"):
            assert head.headers[name] == answer.headers[name]
    # What was uploaded runs in no browser.
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    malformed = ("bytes=3-1", "bytes=0-1,4-5", "lines=1-2", "bytes=", "bytes=٣-")
    for header, kind in (
        ("bytes=10-", "range_invalid"),
        ("bytes=-0", "range_invalid"),
        *((each, "range_malformed") for each in malformed),
    ):
        named = {b"Range": header.encode()}
        answer = http.get(place, headers=named)
        assert (answer.status_code, answer.json()["kind"]) == (416, kind), header
        length = "bytes */10" if kind == "range_invalid" else None
        assert answer.headers.get("content-range") == length, header


def is_idle(server: Server) -> bool:
    """Whether the server does nothing but answer this question."""
    with server.http() as client:
        return "ebbtide_requests_under_way 1.0" in client.get("/metrics").text


def signed_request(server: Server, method: str, repository: str, head: str = "") -> bytes:
    """The head of a request of S3 for the object `broken`, signed in its URL."""
    operation = {"PUT": "put_object", "GET": "get_object"}[method]
    with closing(s3_client(server, "writer", signature_version="s3v4")) as client:
        where = {"Bucket": repository, "Key": "main/broken"}
        signed = urlsplit(client.generate_presigned_url(operation, where, ExpiresIn=600))
    target = f"{signed.path}?{signed.query}"
    return f"{method} {target} HTTP/1.1\r\nHost: {signed.netloc}\r\n{head}\r\n".encode()


def plain_request(server: Server, method: str, repository: str, head: str = "") -> bytes:
    """The same of lakeFS's protocol."""
    place = {"POST": "branches/main", "GET": "refs/main"}[method]
    auth = base64.b64encode(":".join(server.keys["writer"].pair).encode()).decode()
    return (
        f"{method} /api/v1/repositories/{repository}/{place}/objects?path=broken HTTP/1.1\r\n"
        f"Host: here\r\nAuthorization: Basic {auth}\r\n{head}\r\n"
    ).encode()


@contextmanager
def uploading(server: Server, head: bytes, *, chunked: bool = False) -> Iterator[socket.socket]:
    """A connection that has sent three megabytes of an upload, and no end."""
    with connected(server) as connection:
        connection.sendall(head)
        for piece in pieces(3 * MEGABYTE):
            size = f"{len(piece):x}\r\n".encode() if chunked else b""
            connection.sendall(size + piece + (b"\r\n" if chunked else b""))
        yield connection


def connected(server: Server) -> socket.socket:
    url = httpx.URL(server.url)
    return socket.create_connection((url.host, url.port), timeout=WAIT_SECONDS)


def break_off(connection: socket.socket, *, reset: bool) -> None:
    """Closes a connection, or resets it as a client does that died with bytes unread."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize(
    ("request_of", "upload", "length", "reset"),
    [
        (plain_request, "POST", LENGTH, True),
        (plain_request, "POST", CHUNKED, False),
        (signed_request, "PUT", LENGTH, False),
    ],
)
def test_a_client_that_breaks_off(
    plain: Server,
    lake: lakefs.Repository,
    request_of: Callable[..., bytes],
    upload: str,
    length: str,
    reset: bool,
) -> None:
    """In the middle of an upload, and of a download, by an end or a reset of its connection.
    Nothing is staged, nothing stays registered, no file stays, and nothing is logged."""
    logged, before = len(plain.log), count(plain, pending)
    head = request_of(plain, upload, lake.id, length)
    with uploading(plain, head, chunked=length == CHUNKED) as connection:
        eventually(lambda: count(plain, pending) > before)
        break_off(connection, reset=reset)
    eventually(lambda: count(plain, pending) == before)
    assert not lake.branch("main").object("broken").exists()
    root = plain.directory / "storage" / lake.id / "data"
    eventually(lambda: not [each for each in root.rglob("*") if each.is_file()])

    # More than the buffers of the connection hold.
    lake.branch("main").object("broken").upload(bytes(16 * MEGABYTE))
    with connected(plain) as connection:
        connection.sendall(request_of(plain, "GET", lake.id))
        assert connection.recv(1024).startswith(b"HTTP/1.1 200 ")
        assert not is_idle(plain)
        break_off(connection, reset=reset)
    eventually(lambda: is_idle(plain))
    told = plain.log[logged:]
    assert not [word for word in ("Traceback", "Error", "error") if word in told], told


@pytest.mark.parametrize("is_known", [True, False])
def test_a_client_that_asks_before_it_sends(
    plain: Server, lake: lakefs.Repository, is_known: bool
) -> None:
    """It leaves the body out if it is refused. Its next bytes are no body then."""
    server = plain if is_known else replace(plain, keys={"writer": Key("nobody", "x")})
    expecting = "Content-Length: 4\r\nExpect: 100-continue\r\n"
    with connected(plain) as connection:
        connection.sendall(plain_request(server, "POST", lake.id, expecting))
        answer = connection.recv(65536)
        if is_known:
            assert answer.startswith(b"HTTP/1.1 100 ")
            connection.sendall(b"data")
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 201 ")
            assert b"connection: close" not in answer.lower()
        else:
            while piece := connection.recv(65536):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert b"connection: close" in answer.lower()
