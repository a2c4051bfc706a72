"""A server on the loopback address that plays parts of a cloud: a bucket in which each object is
the key and token that asked for it, services that give out keys, and a proxy. Not for S3 itself.
"""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final

from tests.support.answers import Handler, http_server
from tests.support.certificates import Issuer

EXPIRES: Final = "2099-01-01T00:00:00Z"
STS: Final = (
    "<AssumeRoleWithWebIdentityResponse"
    ' xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>'
    "<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>x</SecretAccessKey>"
    f"<SessionToken>{{key}}-token</SessionToken><Expiration>{EXPIRES}</Expiration>"
    "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
)


@dataclass
class Cloud:
    endpoint: str
    seen: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def running_cloud(certificate: Path | None = None) -> Iterator[Cloud]:
    class Serving(_Handler):
        pass

    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    scheme = "http" if context is None else "https"
    with http_server(Serving, context) as port:
        Serving.cloud = Cloud(f"{scheme}://localhost:{port}")
        yield Serving.cloud


class _Handler(Handler, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cloud: Cloud

    def do_GET(self) -> None:
        self.cloud.seen.append((self.command, self.path))
        if self.path == "/container":
            return self._answer(keys("CONTAINER"))
        if self.path.endswith("/iam/security-credentials/"):
            return self._answer("role")
        if self.path.endswith("/iam/security-credentials/role"):
            return self._answer(keys("MACHINE"))
        found = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        token = self.headers.get("x-amz-security-token", "")
        return self._answer(f"{found[1] if found else ''} {token}")

    def do_PUT(self) -> None:
        self.cloud.seen.append((self.command, self.path))
        self._answer("metadata-token")

    def do_POST(self) -> None:
        self.cloud.seen.append((self.command, self.path.partition("?")[0]))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(STS.format(key="WEB"))

    def do_CONNECT(self) -> None:
        """A tunnel, to this machine whatever the name."""
        self.cloud.seen.append((self.command, self.path))
        port = int(self.path.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as there:
            self.send_response(200)
            self.end_headers()
            both: list[socket.socket] = [self.connection, there]
            while True:
                for source in select.select(both, [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        self.close_connection = True
                        return
                    both[source is self.connection].sendall(data)

    def _answer(self, text: str) -> None:
        modified = "Tue, 01 Jan 2030 00:00:00 GMT"
        self.answer(200, text.encode(), Last_Modified=modified, ETag='"x"')


def keys(name: str) -> str:
    return json.dumps(
        {
            "Code": "Success",
            "AccessKeyId": name,
            "SecretAccessKey": "x",
            "Token": f"{name}-token",
            "Expiration": EXPIRES,
            "LastUpdated": "2030-01-01T00:00:00Z",
            "Type": "AWS-HMAC",
        }
    )


def make_certificates(directory: Path) -> tuple[Path, Path]:
    """The file of a new authority, and that of a certificate with its key for the loopback."""
    authority, path = Issuer(directory), directory / "localhost.pem"
    issued = authority.issue()
    path.write_bytes(issued.certificate + issued.key)
    return authority.trusted, path
