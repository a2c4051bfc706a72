"""Exceptions as obstore raises them, and a small server with set answers."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from obstore.exceptions import GenericError

from ebbtide.storage import Storage, open_storage

Answer = tuple[int, bytes] | tuple[int, bytes, Mapping[str, str]]
"""Status, body, and headers."""


def failed(status: int, code: str) -> GenericError:
    """The exception for an answer with that status and code: its text is as obstore 0.12 has it."""
    body = f"<Error><Code>{code}</Code></Error>"
    return GenericError(
        f"Generic S3 error: Server returned non-2xx status code: {status}: {body}\n\n"
        'Debug source:\nGeneric {\n    store: "S3",\n    inner: Status {\n'
        f"        status: {status},\n        body: Some(\n"
        f'            "{body}",\n        ),\n    }},\n}}'
    )


def broken() -> GenericError:
    return GenericError(
        "Generic S3 error: HTTP error: error sending request\n\n"
        "Debug source:\nGeneric {\n    inner: Http(\n        HttpError {\n"
        "            kind: Timeout,\n        },\n    ),\n}"
    )


def xml(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>of a test</Message></Error>".encode()


def s3_at(endpoint: str, prefix: str = "") -> Storage:
    options = {"endpoint": endpoint, "allow_http": "true", "region": "us-east-1"}
    options |= {"access_key_id": "key", "secret_access_key": "secret"}
    return open_storage(f"s3://bucket{prefix}", options)


class Handler(BaseHTTPRequestHandler):
    """Answers requests of tests, and prints nothing."""

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """The names of headers have underscores for hyphens."""
        self.send_response(status)
        for name, value in ({"content_length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def http_server(
    handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None
) -> Iterator[int]:
    """The port of a server on the loopback address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(give: Callable[[str, str], Answer]) -> Iterator[str]:
    """An endpoint that answers as `give` says of method and path; status 0 breaks off."""

    class Giving(Handler):
        def go(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, body, *more = give(self.command, self.path)
            self.close_connection = True
            if status:
                headers: dict[str, str] = dict(*more)
                named = {name.replace("-", "_"): value for name, value in headers.items()}
                self.answer(status, body, **named)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = go  # noqa: N815

    with http_server(Giving) as port:
        yield f"http://127.0.0.1:{port}"
