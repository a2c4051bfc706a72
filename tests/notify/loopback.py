"""A receiver of webhooks on the loopback address."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """What was received so far. `answers` are the statuses of the next answers; afterwards 204."""

    url: str
    answers: list[int]
    received: list[Received] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    silent: threading.Event = field(default_factory=threading.Event)


@contextmanager
def receiver(answers: Sequence[int] = (), *, is_silent: bool = False) -> Iterator[Receiver]:
    """Yields a receiver; a silent one answers nothing before the end of the block."""
    found = Receiver("", list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.received.append(Received(self.path, dict(self.headers), body))
            found.arrived.set()
            if is_silent:
                found.silent.wait()
            status = found.answers.pop(0) if found.answers else 204
            self.send_response(status)
            if status in (301, 302, 307, 308):
                self.send_header("Location", f"{found.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.silent.set()
        server.shutdown()
        thread.join()
        server.server_close()
