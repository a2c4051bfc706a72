"""Requests that are answered without FastAPI: the same answers, and only to plain requests.

FastAPI ignores parameters that it does not know. So the parameter `other` takes a request the long
way, and changes nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import lakefs
import pytest
from starlette.types import Message, Receive, Scope, Send

from ebbtide.server.app import create_app, guarded_routes
from ebbtide.server.bodies import SMALL_BYTES_MAX
from ebbtide.server.direct import DirectObjects
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.collected import figure
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
    "unchanged": ("main", "dir/a b", {"If-None-Match": f'"{CHECKSUM}"'}),
    "committed": ("main@", "dir/a b", {}),
    "no object": ("main", "nothing", {}),
    "no path": ("main", "", {}),
    "a ref with a slash": ("no/thing", "dir/a b", {}),
    "a zero byte": ("main", "\0", {}),
    "a body": ("main", "dir/a b", {"Content-Length": "0"}),
}
UPLOADS: Final[Mapping[str, tuple[str, str, Mapping[str, str], bytes]]] = {
    "new": ("main", "up/new", {"Content-Type": "text/plain"}, CONTENT),
    "with metadata": ("main", "up/named", {"X-Lakefs-Meta-Name": "some name"}, CONTENT),
    "only if new": ("main", "dir/a b", {"If-None-Match": "*"}, CONTENT),
    "a wrong condition": ("main", "dir/a b", {"If-None-Match": "x"}, CONTENT),
    "no branch": ("nothing", "up/new", {}, CONTENT),
    "no path": ("main", "", {}, CONTENT),
    "a zero byte": ("main", "\0", {}, CONTENT),
    "not small": ("main", "up/large", {}, bytes(SMALL_BYTES_MAX + 1)),
}


@pytest.fixture
def filled(lake: lakefs.Repository) -> lakefs.Repository:
    lake.branch("main").object("dir/a b").upload(CONTENT, pre_sign=False)
    return lake


def both(
    client: httpx.Client, method: str, url: str, path: str, **more: Any
) -> tuple[httpx.Response, httpx.Response]:
    """Sends a request in the plain form, and once more the long way."""
    direct = client.request(method, url, params={"path": path}, **more)
    return direct, client.request(method, url, params={"path": path, "other": "1"}, **more)


def test_a_read_has_the_same_answer(plain: Server, filled: lakefs.Repository) -> None:
    def kept(answer: httpx.Response) -> tuple[object, ...]:
        same = {name: text for name, text in answer.headers.items() if name not in DIFFERENT}
        return answer.status_code, answer.content, same

    for role in ("reader", "none", None):
        with plain.http(role) as client:
            for name, (ref, path, headers) in READS.items():
                url = OBJECTS.format(repository=filled.id, ref=ref.replace("/", "%2F"))
                for method in ("GET", "HEAD"):
                    direct, forwarded = both(client, method, url, path, headers=headers)
                    assert kept(direct) == kept(forwarded), (name, method, role)
                    is_refused = direct.status_code == (403 if role else 401)
                    assert role == "reader" or is_refused, (name, method, role)


def test_an_upload_has_the_same_answer(plain: Server, filled: lakefs.Repository) -> None:
    changed = {"physical_address", "mtime"}

    def kept(answer: httpx.Response) -> tuple[object, ...]:
        shown = {name: value for name, value in answer.json().items() if name not in changed}
        headers = answer.headers
        return answer.status_code, shown, set(headers), headers["content-type"]

    for role in ("writer", "reader", None):
        with plain.http(role) as client:
            for name, (branch, path, headers, content) in UPLOADS.items():
                url = STAGING.format(repository=filled.id, branch=branch)
                sent = {"headers": headers, "content": content}
                direct, forwarded = both(client, "POST", url, path, **sent)
                assert kept(direct) == kept(forwarded), (name, role)
                assert role == "writer" or direct.status_code == (403 if role else 401), name
    assert filled.branch("main").object("up/new").reader(pre_sign=False).read() == CONTENT


def test_metrics_name_the_route(plain: Server, filled: lakefs.Repository) -> None:
    route = "/api/v1/repositories/{repository}/refs/{ref}/objects"
    sought = re.escape(f'ebbtide_requests_total{{method="GET",route="{route}",status="404"}}')
    with plain.http("reader") as client:
        before = figure(client, sought)
        url = OBJECTS.format(repository=filled.id, ref="main")
        assert client.get(url, params={"path": "nothing"}).status_code == 404
        assert figure(client, sought) == before + 1


LENGTH: Final = {"content-length": "3"}
PLAIN: Final[tuple[tuple[str, bytes, Mapping[str, str]], ...]] = (
    ("GET", b"path=a", {}),
    ("GET", b"presign=false&path=a", {}),
    ("HEAD", b"path=a", {}),
    ("POST", b"path=a", LENGTH),
)
FORWARDED: Final[tuple[tuple[str, bytes, Mapping[str, str]], ...]] = (
    ("GET", b"", {}),
    ("GET", b"path=a&path=b", {}),
    ("GET", b"path=a%00", {}),
    ("GET", b"path=a&presign=true", {}),
    ("GET", b"path=a", LENGTH),
    ("DELETE", b"path=a", {}),
    ("PUT", b"path=a", LENGTH),
    ("POST", b"path=a", {}),
    ("POST", b"path=a&presign=false", LENGTH),
    ("POST", b"path=a", LENGTH | {"expect": "100-continue"}),
    ("POST", b"path=a", {"content-length": str(SMALL_BYTES_MAX + 1)}),
    ("POST", b"path=a", {"transfer-encoding": "chunked"}),
    ("POST", b"path=a", LENGTH | {"content-type": "multipart/form-data"}),
)


def test_which_requests_are_plain(tmp_path: Path) -> None:
    """A plain request without a key is refused here. All others are forwarded."""
    events: list[int] = []
    """The status of each answer, and 0 for each request that is forwarded."""

    async def forward(_scope: Scope, _receive: Receive, _send: Send) -> None:
        events.append(0)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"abc"}

    async def send(message: Message) -> None:
        events.extend([message["status"]] if "status" in message else [])

    async def ask() -> None:
        with Store.init(tmp_path / "store", settings=Settings()) as store:
            app = create_app(store)
            direct = DirectObjects(forward, store=store, routes=guarded_routes(app))
            async with app.router.lifespan_context(app):
                for method, query, headers in (*PLAIN, *FORWARDED):
                    where = "refs" if method in ("GET", "HEAD") else "branches"
                    scope = {
                        "type": "http",
                        "app": app,
                        "method": method,
                        "path": f"/api/v1/repositories/lake/{where}/main/objects",
                        "query_string": query,
                        "headers": [
                            (name.encode(), each.encode()) for name, each in headers.items()
                        ],
                    }
                    await direct(scope, receive, send)

    # Another test may have left an event loop running in this thread, for a browser.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, ask()).result()
    assert events == [401] * len(PLAIN) + [0] * len(FORWARDED)
