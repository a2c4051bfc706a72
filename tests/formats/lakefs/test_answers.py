"""What becomes of a server's answers that are no answers: errors, silence, and nonsense."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ebbtide.errors import EbbtideError, Failed, NotFound
from ebbtide.formats.lakefs import server as answers
from ebbtide.formats.lakefs.server import Account, LakefsServer

REPOSITORY = {
    "id": "lake",
    "creation_date": 1,
    "default_branch": "main",
    "storage_namespace": "s3://lake/x",
}
Ask = Callable[[LakefsServer], Any]
ASKED: dict[str, Ask] = {
    "repository": lambda server: server.repository(),
    "rules": lambda server: server.rules(),
    "dump": lambda server: server.dump(),
    "branches": lambda server: server.branches(),
    "tags": lambda server: server.tags(),
    "commit": lambda server: server.commit("main"),
    "uncommitted": lambda server: server.uncommitted(),
    "address": lambda server: server.address_at("main", "a"),
    "view": lambda server: list(server.view("main")),
}
each = pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)


class Answering:
    """A server that gives every request the same answer, or none until it is told to."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.silent = False
        self.woken = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                if outer.silent:
                    outer.woken.wait(30)
                self.send_response(outer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            do_GET = do_POST = do_HEAD = _answer  # noqa: N815 - the names of the parent

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def lake(self) -> LakefsServer:
        account = Account(f"http://127.0.0.1:{self.http.server_port}", "key", "secret")
        return LakefsServer(account, "lake")


@pytest.fixture
def answering() -> Iterator[Answering]:
    opened = Answering()
    thread = threading.Thread(target=opened.http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield opened
    opened.woken.set()
    opened.http.shutdown()
    opened.http.server_close()


@each
@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_an_error_is_told_with_its_status(answering: Answering, ask: Ask, status: int) -> None:
    answering.status, answering.body = status, b'{"message": "not now"}'
    with pytest.raises(Failed) as failed:
        ask(answering.lake())
    assert failed.value.kind == "lakefs_error"
    assert str(status) in failed.value.message
    assert "not now" in failed.value.message
    assert ("check its keys" in failed.value.message) == (status in (401, 403))


@each
def test_who_says_nothing_is_not_waited_for(
    answering: Answering, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(answers.WAITS, "_request_timeout", (1.0, 0.2))
    answering.silent = True
    with pytest.raises(Failed, match="does not answer"):
        ask(answering.lake())


@each
@pytest.mark.parametrize(
    "body",
    [b"[]", b'{"results": 1}', b'{"run_id": "", "gc_uncommitted_location": ""}', b"<html>", b""],
)
@pytest.mark.parametrize("status", [200, 201, 202])
def test_nonsense_is_no_empty_answer(
    answering: Answering, ask: Ask, body: bytes, status: int
) -> None:
    answering.status, answering.body = status, body
    with pytest.raises(EbbtideError) as failed:
        ask(answering.lake())
    assert failed.value.kind == "lakefs_error"


def test_what_may_be_missing_and_what_may_not(answering: Answering) -> None:
    answering.status, answering.body = 404, b'{"message": "gone"}'
    lake = answering.lake()
    for ask, kind in (
        (lake.repository, "repository_not_found"),
        (lambda: lake.commit("x"), "commit_not_found"),
        (lambda: lake.address_at("main", "a"), "object_not_found"),
    ):
        with pytest.raises(NotFound) as missing:
            ask()
        assert missing.value.kind == kind
    assert lake.rules() is None
    for fail in (lake.branches, lake.tags, lake.uncommitted, lake.dump):
        with pytest.raises(Failed, match="404"):
            fail()


def test_a_whole_answer(answering: Answering) -> None:
    answering.body = json.dumps(REPOSITORY).encode()
    assert answering.lake().repository().namespace == "s3://lake/x/"
