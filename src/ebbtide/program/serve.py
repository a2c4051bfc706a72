"""The command `serve`: the store over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ebbtide.cli.command import Cli, command
from ebbtide.errors import Failed
from ebbtide.imports import require_extra
from ebbtide.program.certificates import Certificates, open_certificates

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ebbtide.settings import Settings

BACKLOG: Final = 2048
PACKAGES: Final = (
    "awscrt",
    "defusedxml",
    "fastapi",
    "jinja2",
    "markupsafe",
    "prometheus_client",
    "python_multipart",
    "uvicorn",
)
"""The packages of the extra `server`, by their import names."""
IN_THE_CLEAR: Final = (
    "access keys travel in the clear: give a certificate by --tls-certificate, or put a proxy with "
    "TLS in front"
)
GRACEFUL_SECONDS: Final = 10
KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection stays open. A request that a client sends while the server closes the
connection fails, and clients of S3 keep connections for longer than the five seconds of uvicorn."""

ArvadosOption = Annotated[
    str | None,
    typer.Option(
        metavar="REPO",
        help="Repository to show to clients of Arvados. Default: EBBTIDE_ARVADOS_REPOSITORY.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "serve")(serve)


def serve(
    cli: Cli,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen at.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 takes any free port.")
    ] = 8000,
    arvados: ArvadosOption = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Certificate of the server with its chain, PEM. Default: EBBTIDE_TLS_CERTIFICATE.",
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Private key of the certificate, PEM. Default: EBBTIDE_TLS_KEY.",
            show_default=False,
        ),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a line for each request to stderr.")
    ] = False,
) -> None:
    """Serve the store over HTTP, to clients of lakeFS's protocol, until interrupted.

    Every request needs an access key: 'ebbtide key create' makes one. With a certificate, the
    server speaks HTTPS, otherwise plain HTTP. Without a certificate, open it to other machines only
    behind a proxy with TLS.
    """
    require_extra("the server", "server", *PACKAGES)
    # Opened first, so that errors of the store are reported before a client can connect.
    store = cli.store
    settings = _with_files(store.settings, tls_certificate, tls_key)
    certificates = open_certificates(settings)
    scheme = "http" if certificates is None else "https"
    with _listen(host, port) as listening:
        from ebbtide.server.app import create_app

        app = create_app(store, arvados_repository=arvados)
        bound = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        document = {"url": f"{scheme}://{shown}:{bound}", "host": host, "port": bound}
        # An interrupt is the normal end of a server.
        with suppress(KeyboardInterrupt):
            cli.output.answer(document, lambda: cli.output.line(f"serving at {document['url']}"))
            sys.stdout.flush()
            if certificates is None and not _is_loopback(host):
                cli.output.warn(IN_THE_CLEAR)
            cli.set_up_log(settings)
            _run(app, settings, listening, certificates, access_log=access_log)


def _with_files(settings: Settings, certificate: Path | None, key: Path | None) -> Settings:
    """Returns the settings with the files that the command line names instead of theirs."""
    given = {"tls_certificate": certificate, "tls_key": key}
    return settings.model_copy(
        update={name: path for name, path in given.items() if path is not None}
    )


def _run(
    app: FastAPI,
    settings: Settings,
    listening: socket.socket,
    certificates: Certificates | None,
    *,
    access_log: bool,
) -> None:
    import uvicorn

    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        # This parser has a limit for headers.
        http="h11",
        h11_max_incomplete_event_size=settings.server_header_max,
        ws="none",
        lifespan="on",
        access_log=access_log,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
        ssl_context_factory=None if certificates is None else lambda *_: certificates.context,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol must be named: otherwise asyncio does not know that the socket is TCP, and
        # does not turn off Nagle's delays.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise Failed(
            "storage_error", f"cannot listen at {host}, port {port}: {error.strerror or error}"
        ) from error
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
