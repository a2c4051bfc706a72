"""Requests by signed URLs: which are sent again."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from ebbtide.storage import asking
from ebbtide.storage.asking import headers_of_each


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
