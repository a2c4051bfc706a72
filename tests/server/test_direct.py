"""Requests that are answered without FastAPI: the same answers, and only to plain requests.

FastAPI ignores parameters that it does not know. So the parameter `other` takes a request the long
way, and changes nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import lakefs
import pytest
from starlette.types import Message, Receive, Scope, Send

from ebbtide.server.app import create_app, guarded_routes
from ebbtide.server.direct import DirectObjects
from ebbtide.server.streaming import SMALL_BYTES_MAX
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.server import Server

OBJECTS: Final = "/repositories/{repository}/refs/{ref}/objects"
STAGING: Final = "/repositories/{repository}/branches/{branch}/objects"
CONTENT: Final = b"0123456789"
CHECKSUM: Final = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
DIFFERENT: Final = {"x-request-id", "date", "last-modified"}

READS: Final[Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    "whole": ("main", "dir/a b", {}),
    "a range": ("main", "dir/a b", {"Range": "bytes=2-4"}),
    "a range behind the end": ("main", "dir/a b", {"Range": "bytes=99-"}),
    "no range": ("main", "dir/a b", {"Range": "bytes=x"}),
    "unchanged": ("main", "dir/a b", {"If-None-Match": f'"{CHECKSUM}"'}),
    "unchanged since": ("main", "dir/a b", {"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}),
    "committed": ("main@", "dir/a b", {}),
    "no object": ("main", "nothing", {}),
    "no path": ("main", "", {}),
    "no ref": ("nothing", "dir/a b", {}),
    "a ref with a slash": ("no/thing", "dir/a b", {}),
    "no revision": ("!", "dir/a b", {}),
    "a zero byte": ("main", "\0", {}),
    "a body": ("main", "dir/a b", {"Content-Length": "0"}),
}
UPLOADS: Final[Mapping[str, tuple[str, str, Mapping[str, str], bytes]]] = {
    "new": ("main", "up/new", {"Content-Type": "text/plain"}, CONTENT),
    "without bytes": ("main", "up/empty", {}, b""),
    "with metadata": ("main", "up/named", {"X-Lakefs-Meta-Name": "some name"}, CONTENT),
    "only if new": ("main", "dir/a b", {"If-None-Match": "*"}, CONTENT),
    "only if it has a checksum": ("main", "dir/a b", {"If-Match": f'"{CHECKSUM}"'}, CONTENT),
    "a wrong condition": ("main", "dir/a b", {"If-None-Match": "x"}, CONTENT),
    "a storage class": ("main", "up/cold", {"storageClass": "COLD"}, CONTENT),
    "no branch": ("nothing", "up/new", {}, CONTENT),
    "no path": ("main", "", {}, CONTENT),
    "a zero byte": ("main", "\0", {}, CONTENT),
    "not small": ("main", "up/large", {}, bytes(SMALL_BYTES_MAX + 1)),
}


@pytest.fixture
def filled(lake: lakefs.Repository) -> lakefs.Repository:
    """A repository with one object, which is staged."""
    lake.branch("main").object("dir/a b").upload(CONTENT, pre_sign=False)
    return lake


def both(
    client: httpx.Client, method: str, url: str, path: str, **more: Any
) -> tuple[httpx.Response, httpx.Response]:
    """Sends a request in the plain form, and once more the long way."""
    direct = client.request(method, url, params={"path": path}, **more)
    return direct, client.request(method, url, params={"path": path, "other": "1"}, **more)


def kept(answer: httpx.Response) -> dict[str, str]:
    """Returns the headers that do not differ from one request to the next."""
    return {name: text for name, text in answer.headers.items() if name not in DIFFERENT}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", READS)
def test_a_read_has_the_same_answer(
    plain: Server, filled: lakefs.Repository, method: str, name: str
) -> None:
    ref, path, headers = READS[name]
    url = OBJECTS.format(repository=filled.id, ref=ref.replace("/", "%2F"))
    for role in ("reader", "none", None):
        with plain.http(role) as client:
            direct, forwarded = both(client, method, url, path, headers=headers)
        assert (direct.status_code, direct.content) == (forwarded.status_code, forwarded.content)
        assert kept(direct) == kept(forwarded)
        assert role == "reader" or direct.status_code == (403 if role else 401)


@pytest.mark.parametrize("name", UPLOADS)
def test_an_upload_has_the_same_answer(plain: Server, filled: lakefs.Repository, name: str) -> None:
    branch, path, headers, content = UPLOADS[name]
    url = STAGING.format(repository=filled.id, branch=branch)
    for role in ("writer", "reader", None):
        with plain.http(role) as client:
            direct, forwarded = both(client, "POST", url, path, headers=headers, content=content)
        assert direct.status_code == forwarded.status_code
        assert role == "writer" or direct.status_code == (403 if role else 401)
        shown, expected = direct.json(), forwarded.json()
        for each in (shown, expected):
            each.pop("physical_address", None)
            each.pop("mtime", None)
        assert shown == expected
        sent = kept(direct), kept(forwarded)
        assert sent[0].keys() == sent[1].keys()
        assert direct.headers["content-type"] == forwarded.headers["content-type"]


def test_a_plain_upload_is_stored(plain: Server, filled: lakefs.Repository) -> None:
    url = STAGING.format(repository=filled.id, branch="main")
    with plain.http("writer") as client:
        made = client.post(url, params={"path": "x"}, content=CONTENT)
    assert (made.status_code, made.json()["checksum"]) == (201, CHECKSUM)
    assert filled.branch("main").object("x").reader(pre_sign=False).read() == CONTENT


def test_metrics_name_the_route(plain: Server, filled: lakefs.Repository) -> None:
    route = "/api/v1/repositories/{repository}/refs/{ref}/objects"
    sought = f'ebbtide_requests_total{{method="GET",route="{route}",status="404"}}'

    def count(client: httpx.Client) -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sought))

    with plain.http("reader") as client:
        before = count(client)
        url = OBJECTS.format(repository=filled.id, ref="main")
        assert client.get(url, params={"path": "nothing"}).status_code == 404
        assert count(client) == before + 1


@pytest.mark.parametrize(
    ("method", "query", "headers", "is_direct"),
    [
        ("GET", b"path=a", {}, True),
        ("GET", b"presign=false&path=a", {}, True),
        ("HEAD", b"path=a", {}, True),
        ("POST", b"path=a", {"content-length": "3"}, True),
        ("GET", b"", {}, False),
        ("GET", b"path=a&path=b", {}, False),
        ("GET", b"path=a%00", {}, False),
        ("GET", b"path=a&presign=true", {}, False),
        ("GET", b"path=a", {"content-length": "3"}, False),
        ("DELETE", b"path=a", {}, False),
        ("PUT", b"path=a", {"content-length": "3"}, False),
        ("POST", b"path=a", {}, False),
        ("POST", b"path=a&presign=false", {"content-length": "3"}, False),
        ("POST", b"path=a", {"content-length": "3", "expect": "100-continue"}, False),
        ("POST", b"path=a", {"content-length": str(SMALL_BYTES_MAX + 1)}, False),
        ("POST", b"path=a", {"transfer-encoding": "chunked"}, False),
        ("POST", b"path=a", {"content-length": "3", "content-type": "multipart/form-data"}, False),
    ],
)
def test_which_requests_are_plain(
    tmp_path: Path, method: str, query: bytes, headers: Mapping[str, str], is_direct: bool
) -> None:
    """A plain request without a key is refused here. All others are forwarded."""
    forwarded: list[Scope] = []
    sent: list[Message] = []

    async def forward(scope: Scope, _receive: Receive, _send: Send) -> None:
        forwarded.append(scope)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"abc"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        with Store.init(tmp_path / "store", settings=Settings()) as store:
            app = create_app(store)
            async with app.router.lifespan_context(app):
                where = "refs" if method in ("GET", "HEAD") else "branches"
                scope = {
                    "type": "http",
                    "app": app,
                    "method": method,
                    "path": f"/api/v1/repositories/lake/{where}/main/objects",
                    "query_string": query,
                    "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
                }
                direct = DirectObjects(forward, store=store, routes=guarded_routes(app))
                await direct(scope, receive, send)

    # Another test may have left an event loop running in this thread, for a browser.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, ask()).result()
    assert len(forwarded) == (0 if is_direct else 1)
    assert [each["status"] for each in sent if "status" in each] == ([401] if is_direct else [])
