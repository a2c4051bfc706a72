"""Requests by signed URLs: which are sent again."""

from __future__ import annotations

from email.message import Message
from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from threading import Thread
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest

from ebbtide.storage import asking
from ebbtide.storage.asking import FailedAnswer, headers_of_each, repeated


def test_a_busy_storage_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is final, and no answer at all too, after some tries."""
    monkeypatch.setattr(asking, "time", SimpleNamespace(sleep=lambda _seconds: None))
    asked: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        """The first request of `/later` is refused as too many, and all of `/never`."""

        def do_HEAD(self) -> None:
            """Answers."""
            asked.append(self.path)
            is_ready = self.path == "/later" and asked.count("/later") > 1
            self.send_response(200 if is_ready else 503 if self.path == "/later" else 403)
            self.send_header("x-ebbtide", "here")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Is silent."""

    server = HTTPServer(("127.0.0.1", 0), Busy)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        place = f"http://127.0.0.1:{server.server_port}"
        found = headers_of_each(lambda name: f"{place}/{name}", ["later", "never"])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert found[0] is not None
    assert found[0]["X-Ebbtide"] == "here"
    assert found[1] is None
    assert sorted(asked) == ["/later", "/later", "/never"]
    assert headers_of_each(lambda name: f"{place}/{name}", ["later"]) == [None]
    assert headers_of_each(lambda _name: None, ["later"]) == [None]


def test_a_refusal_keeps_what_it_said() -> None:
    """Its connection is closed, and its text can be read all the same."""
    told = BytesIO(b"<Error><Code>AccessDenied</Code></Error>")

    def refuse() -> None:
        raise HTTPError("http://here", 403, "Forbidden", Message(), told)

    with pytest.raises(FailedAnswer, match="HTTP Error 403: Forbidden") as caught:
        repeated(refuse)
    assert told.closed and caught.value.closed
    assert (caught.value.code, caught.value.body) == (
        403,
        b"<Error><Code>AccessDenied</Code></Error>",
    )


def test_a_refusal_whose_text_is_cut_off() -> None:
    """What counts is the status."""

    class CutOff(BytesIO):
        """A connection that breaks."""

        def read(self, _size: int | None = -1) -> bytes:
            """Fails."""
            raise IncompleteRead(b"<Err")

    def refuse() -> None:
        raise HTTPError("http://here", 403, "Forbidden", Message(), CutOff())

    with pytest.raises(FailedAnswer) as caught:
        repeated(refuse)
    assert (caught.value.code, caught.value.body) == (403, b"")
