"""Errors as answers: one shape, the right status, and never a defect for bad input."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from contextlib import nullcontext
from http.client import HTTPResponse
from typing import Final
from urllib.parse import urlsplit

import httpx
import lakefs
import pytest
from starlette.types import Receive, Scope, Send

from ebbtide.errors import KINDS, Failed, Gone
from ebbtide.server.errors import STATUS, STATUSES, WORDS, BreakingOff, answer_of
from tests.support.collected import refused
from tests.support.loops import without_loop
from tests.support.server import Server


def test_every_kind_has_one_status() -> None:
    counted = Counter(kind for kinds in STATUSES.values() for kind in kinds)
    assert set(counted) == set(KINDS)
    assert set(counted.values()) == {1}
    assert STATUS["commit_expired"] == 410
    assert set(WORDS) <= set(KINDS)
    gone = Gone("commit_expired", "text", run_id="r", missing_count=2, missing=["a", "b"])
    assert b'"missing_count":2,"missing":["a","b"]' in bytes(answer_of(gone).body)


NEW: Final = "POST /repositories"
LOCAL: Final = '"storage_namespace": "local://abc"'
BAD: Final[dict[tuple[int, str], tuple[str, ...]]] = {
    (404, "route_not_found"): ("GET /nothing",),
    (405, "route_not_found"): ("PATCH /repositories",),
    (404, "repository_not_found"): ("GET /repositories/no",),
    (404, "object_not_found"): ("GET {r}/explain?address=x",),
    (404, "task_not_found"): ("GET {r}/gc/prepare_commits/status?id=../x",),
    (400, "invalid_argument"): (
        "GET /repositories?amount=-2",
        "GET /repositories?prefix=%00",
        "GET /repositories/a%00b",
        f"{NEW} {{",
        f'{NEW}?bare=true {{"name": "abc", {LOCAL}}}',
        f'{NEW} {{"name": "abc", {LOCAL}, "read_only": true}}',
        f'{NEW} {{"name": "abc", {LOCAL}, "storage_id": "other"}}',
        "GET {r}/commits/ma%20in",
        "GET {r}/refs/main/objects",
        "GET {r}/branches?state=gone",
        "GET {r}/refs/main/commits?since=yesterday",
        'PUT {r}/branches/main {"type": "object"}',
        'POST {r}/branches/main/revert {"ref": "main"}',
        "POST {r}/branches/main/objects?path=a&storageClass=GLACIER x",
        "GET {r}/explain",
        "GET {r}/explain?address=x&path=a",
    ),
    (400, "invalid_date"): (
        "GET {r}/refs/main/commits?since=9999-12-31T23:59:59-12:00",
        "GET {r}/branches?expires_before=9999-12-31T23:59:59-12:00",
        'POST {r}/branches/main/commits {"message": "m", "date": 99999999999, "allow_empty": true}',
    ),
    (400, "invalid_address"): (
        "PUT {r}/branches/main/staging/backing?path=a"
        ' {"staging": {"physical_address": "s3://x/y"}, "checksum": "", "size_bytes": 1}',
        "GET {r}/explain?address=../x",
    ),
    (400, "invalid_policy"): (
        'PUT {r}/settings/gc_rules {"default_retention_days": 0, "branches": []}',
        'PUT {r}/settings/retention {"policy": {}}',
    ),
    (400, ""): (
        f'{NEW} {{"name": "ab", "storage_namespace": "local://ab"}}',
        *(
            f'{NEW} {{"name": "abc", "storage_namespace": "{at}"}}'
            for at in ("nfs://x", "local:///a", "local://a/../b", "local://a/.b")
        ),
        'POST {r}/branches {"name": "\\ud800", "source": "main"}',
        'POST {r}/branches/main/commits {"message": "m", "date": 1e300}',
        'POST /statistics {"events": [{"class": "a", "name": "x", "count": -1}]}',
        'POST {r}/gc/prepare_uncommited {"continuation_token": "x"}',
    ),
}
"""Requests by status and kind, which is empty for any. `{r}` is an empty repository."""


def test_bad_requests(server: Server, repo: lakefs.Repository) -> None:
    json_body = {"Content-Type": "application/json"}
    with server.http() as http:
        for (status, kind), requests in BAD.items():
            for each in requests:
                method, place, *body = each.replace("{r}", f"/repositories/{repo.id}").split(" ", 2)
                content = body[0] if body else None
                answer = http.request(
                    method, place, content=content, headers=json_body if body else {}
                )
                found = (answer.status_code, answer.json()["kind"] if kind else "")
                assert found == (status, kind), (each, answer.text)
                assert answer.json()["message"], each
        for text in ("[" * 100_000, '{"name": ' + "9" * 10_000 + "}", "\ufeff{}", "\x00"):
            place = f"/repositories/{repo.id}/branches"
            answer = http.post(place, content=text.encode(), headers=json_body)
            assert answer.status_code == 400, (text[:20], answer.text)
        # An unknown path is no reason for a new figure.
        figures = http.get("/metrics").text
    assert 'route="none"' in figures
    assert "/nothing" not in figures


def test_what_has_a_limit(http: httpx.Client, lake: lakefs.Repository) -> None:
    """Bodies, whether their length is told beforehand or not; and headers."""
    place = f"/repositories/{lake.id}/branches"
    large = b'{"name": "' + b"x" * (17 * 2**20) + b'"}'
    pieces = (large[start : start + 2**20] for start in range(0, len(large), 2**20))
    for content in (large, pieces):
        headers = {"Content-Type": "application/json"}
        refused(http.post(place, content=content, headers=headers), 413, "too_large")
    long = {"X-Long": "x" * 100_000}
    refused(http.get("/repositories", headers=long), 431, "headers_too_large")


@pytest.mark.parametrize(
    ("head", "status", "kind"),
    [
        # The parser refuses it: it waits for the rest of a head that is too long already.
        (b"GET /repositories HTTP/1.1\r\nX-Long: " + b"x" * 100_000, 431, "headers_too_large"),
        (b"one two three four\r\n\r\n", 400, "invalid_argument"),
    ],
)
def test_what_the_parser_refuses(head: bytes, status: int, kind: str, http: httpx.Client) -> None:
    with socket.create_connection((http.base_url.host, http.base_url.port or 80)) as client:
        client.sendall(head)
        answer = HTTPResponse(client)
        answer.begin()
        document = json.loads(answer.read())
        assert (answer.status, document["kind"]) == (status, kind)
        assert document["message"]
        assert answer.getheader("connection") == "close"


@pytest.mark.parametrize("cause", [Failed("storage_error", "half way"), KeyError()])
def test_an_answer_that_breaks_off_is_a_defect_only_without_an_error_of_this_program(
    cause: Exception,
) -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError from cause

    async def nothing(*_given: object) -> None:
        """Nobody waits for more."""

    async def ask() -> None:
        await BreakingOff(app)({"type": "http"}, nothing, nothing)  # type: ignore[arg-type]

    with nullcontext() if isinstance(cause, Failed) else pytest.raises(RuntimeError):
        without_loop(lambda: asyncio.run(ask()))


@pytest.mark.parametrize("place", ["/ui/login", "/api/v1/auth/login", "/arvados/v1/groups"])
def test_a_client_that_leaves_while_it_sends_a_form(plain: Server, place: str) -> None:
    """It is no defect, and nobody is answered."""
    address = urlsplit(plain.url)
    head = (
        f"POST {place} HTTP/1.1\r\nHost: {address.netloc}\r\nOrigin: {plain.url}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\na="
    )
    before = len(plain.log)
    assert address.hostname is not None and address.port is not None
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(head.encode())
        time.sleep(0.2)
    time.sleep(0.2)
    assert httpx.get(f"{plain.url}/ui/login").status_code == 200
    assert "Traceback" not in plain.log[before:]
