"""Large bodies: in bounded memory, both ways; and clients that break off."""

from __future__ import annotations

import base64
import hashlib
import shutil
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import lakefs
import psutil
import pytest
import sqlalchemy as sa

from ebbtide.settings import Settings
from ebbtide.store.access.keys import Role
from ebbtide.store.database.schema import pending, staged
from ebbtide.store.embedded import Store
from tests.server.s3.conftest import s3_client
from tests.support.server import WAIT_SECONDS, Server, eventually, new_server

MEGABYTE = 1024 * 1024
LARGE = 100 * MEGABYTE
MEMORY_MAX = 64 * MEGABYTE


class RequestOf(Protocol):
    """Makes the head of a request for the object `broken`."""

    def __call__(self, server: Server, method: str, repository: str, head: str = "") -> bytes:
        """`head` are more lines of it."""


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
    place = f"/repositories/{large}/branches/main/objects?path=large"
    before = forget_peak(plain)
    if form:
        boundary = b"edge"
        head = b"--edge\r\nContent-Disposition: form-data; name=content\r\n\r\n"
        body = (part for parts in ([head], pieces(), [b"\r\n--edge--\r\n"]) for part in parts)
        headers = {"Content-Type": "multipart/form-data; boundary=" + boundary.decode()}
        answer = http.post(place, content=body, headers=headers)
    else:
        answer = http.post(place, content=pieces())
    assert answer.status_code == 201, answer.text
    assert answer.json()["size_bytes"] == LARGE
    assert peak(plain) - before < MEMORY_MAX

    before = forget_peak(plain)
    digest = hashlib.sha256()
    with http.stream("GET", f"/repositories/{large}/refs/main/objects?path=large") as got:
        for piece in got.iter_raw():
            digest.update(piece)
    assert digest.hexdigest() == answer.json()["checksum"]
    assert peak(plain) - before < MEMORY_MAX


def broken_upload(server: Server, repository: str, *, chunked: bool) -> socket.socket:
    """A connection that has sent three megabytes of an upload, and no end."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)
    auth = base64.b64encode(":".join(server.keys["writer"].pair).encode()).decode()
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {LARGE}"
    connection.sendall(
        f"POST /api/v1/repositories/{repository}/branches/main/objects?path=broken HTTP/1.1\r\n"
        f"Host: {host}\r\nAuthorization: Basic {auth}\r\n{length}\r\n\r\n".encode()
    )
    for piece in pieces(3 * MEGABYTE):
        head = f"{len(piece):x}\r\n".encode() if chunked else b""
        connection.sendall(head + piece + (b"\r\n" if chunked else b""))
    return connection


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_breaks_off(plain: Server, lake: lakefs.Repository, chunked: bool) -> None:
    """Nothing is staged, nothing stays registered, and no file stays."""
    before = count(plain, pending)  # of tests before
    connection = broken_upload(plain, lake.id, chunked=chunked)
    eventually(lambda: count(plain, pending) > before)
    connection.close()
    eventually(lambda: count(plain, pending) == before)
    assert not lake.branch("main").object("broken").exists()
    root = plain.directory / "storage" / lake.id / "data"
    eventually(lambda: not [each for each in root.rglob("*") if each.is_file()])


def test_a_server_that_is_killed_leaves_what_a_collector_finds(tmp_path: Path) -> None:
    server = new_server(tmp_path / "store", EBBTIDE_WRITE_TTL="1s").start()
    try:
        lake = server.repository("lake")
        lake.branch("main").object("kept").upload("kept")
        with broken_upload(server, lake.id, chunked=False):
            eventually(lambda: count(server, pending) > 0)
            server.stop(signal.SIGKILL)
    finally:
        server.stop(signal.SIGKILL)
    root = server.directory / "storage" / "lake" / "data"
    run = (
        "gc",
        "run",
        "lake",
        "--grace",
        "0s",
        "--unsafe",
        "--yes",
        "--allow-share",
        "--quarantine",
        "none",
    )

    def swept() -> bool:
        # Until its registration ends, what the server was writing is protected.
        done = server.command(*run)
        assert done.returncode == 0, done
        return len([each for each in root.rglob("*") if each.is_file()]) == 1

    eventually(swept)
    assert count(server, staged) == 1
    server.start(init=False)
    try:
        assert (
            lakefs.Repository("lake", client=server.client())
            .branch("main")
            .object("kept")
            .reader()
            .read()
            == b"kept"
        )
    finally:
        server.stop()


def test_an_upload_above_the_limit(tmp_path: Path) -> None:
    server = new_server(tmp_path / "store", EBBTIDE_SERVER_UPLOAD_MAX=str(2 * MEGABYTE)).start()
    try:
        lake = server.repository("lake")
        place = "/repositories/lake/branches/main/objects?path=x"
        with server.http("writer") as client:
            for body in (b"x" * (2 * MEGABYTE + 1), pieces(4 * MEGABYTE)):
                answer = client.post(place, content=body)
                assert (answer.status_code, answer.json()["kind"]) == (413, "too_large")
            assert client.post(place, content=b"x" * 2 * MEGABYTE).status_code == 201
        assert [each.path for each in lake.branch("main").objects()] == ["x"]
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("header", "status", "expected"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=8-", 206, b"89"),
        ("bytes=-3", 206, b"789"),
        ("bytes=5-99", 206, b"56789"),
        ("bytes=-99", 206, b"0123456789"),
        ("bytes=10-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=3-1", 416, b""),
        ("bytes=0-1,4-5", 416, b""),
        ("lines=1-2", 416, b""),
        ("bytes=", 416, b""),
        ("bytes=٣-", 416, b""),
    ],
)
def test_ranges(
    http: httpx.Client, lake: lakefs.Repository, header: str, status: int, expected: bytes | None
) -> None:
    lake.branch("main").object("x").upload("0123456789")
    place = f"/repositories/{lake.id}/refs/main/objects?path=x"
    answer = http.get(place, headers={b"Range": header.encode()})
    assert answer.status_code == status
    if not expected:
        kind = "range_invalid" if expected is None else "range_malformed"
        assert answer.json()["kind"] == kind
        assert answer.headers.get("content-range") == ("bytes */10" if expected is None else None)
        assert http.head(place, headers={b"Range": header.encode()}).status_code == 416
        return
    assert answer.content == expected
    head = http.head(place, headers={b"Range": header.encode()})
    assert (head.status_code, head.content) == (status, b"")
    for name in ("content-length", "content-type", "etag", "last-modified", "accept-ranges"):
        assert head.headers[name] == answer.headers[name]
    again = http.get(place, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def is_idle(server: Server) -> bool:
    """Whether the server does nothing but answer this question."""
    with server.http() as client:
        return "ebbtide_requests_under_way 1.0" in client.get("/metrics").text


def test_a_download_that_breaks_off(plain: Server, large: str) -> None:
    """The server goes on to other things, and reads no more of the object."""
    with plain.http() as client:
        place = f"/repositories/{large}/branches/main/objects?path=large"
        assert client.post(place, content=pieces()).status_code == 201
        with client.stream("GET", f"/repositories/{large}/refs/main/objects?path=large") as got:
            next(got.iter_raw())
    eventually(lambda: is_idle(plain))


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


def break_off(connection: socket.socket, *, reset: bool) -> None:
    """Closes a connection, or resets it as a client does that died with bytes unread."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("request_of", "upload"), [(plain_request, "POST"), (signed_request, "PUT")]
)
def test_nothing_is_logged_of_clients_that_break_off(
    plain: Server, lake: lakefs.Repository, request_of: RequestOf, upload: str, reset: bool
) -> None:
    """In the middle of an upload, and of a download."""
    host, port = plain.url.removeprefix("http://").split(":")
    address = (host, int(port))
    logged, before = len(plain.log), count(plain, pending)
    with socket.create_connection(address, timeout=WAIT_SECONDS) as connection:
        connection.sendall(request_of(plain, upload, lake.id, f"Content-Length: {LARGE}\r\n"))
        for piece in pieces(3 * MEGABYTE):
            connection.sendall(piece)
        eventually(lambda: count(plain, pending) > before)
        break_off(connection, reset=reset)
    eventually(lambda: count(plain, pending) == before)

    # More than the buffers of the connection hold.
    lake.branch("main").object("broken").upload(bytes(16 * MEGABYTE))
    with socket.create_connection(address, timeout=WAIT_SECONDS) as connection:
        connection.sendall(request_of(plain, "GET", lake.id))
        assert connection.recv(1024).startswith(b"HTTP/1.1 200 ")
        assert not is_idle(plain)
        break_off(connection, reset=reset)
    eventually(lambda: is_idle(plain))
    told = plain.log[logged:]
    assert not [word for word in ("Traceback", "Error", "error") if word in told], told


def test_what_was_uploaded_runs_in_no_browser(http: httpx.Client, lake: lakefs.Repository) -> None:
    lake.branch("main").object("x").upload("<script>", content_type="text/html")
    answer = http.get(f"/repositories/{lake.id}/refs/main/objects?path=x")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_client_that_asks_before_it_sends(
    plain: Server, lake: lakefs.Repository, is_known: bool
) -> None:
    """It leaves the body out if it is refused. Its next bytes are no body then."""
    url = httpx.URL(plain.url)
    known = plain.keys[Role.WRITER]
    key, secret = (known.access_key_id, known.secret) if is_known else ("nobody", "x")
    login = base64.b64encode(f"{key}:{secret}".encode()).decode()
    head = (
        f"POST /api/v1/repositories/{lake.id}/branches/main/objects?path=a HTTP/1.1\r\n"
        f"Host: {url.netloc.decode()}\r\nAuthorization: Basic {login}\r\n"
        "Content-Type: application/octet-stream\r\nContent-Length: 4\r\n"
        "Expect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(head.encode())
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
