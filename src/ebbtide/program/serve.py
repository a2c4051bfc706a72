"""The command `serve`: the store over HTTP, or over HTTPS with a certificate.

The certificate is read once before the server listens, and again when its files change. Not for:
which settings name the files (`settings`).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ebbtide import interrupts, logs
from ebbtide.cli.command import Cli, command
from ebbtide.errors import EbbtideError, Failed, InvalidInput
from ebbtide.imports import require_extra
from ebbtide.resources import limit_arenas
from ebbtide.text import shown

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from ebbtide.server.workers import Worker
    from ebbtide.settings import Settings
    from ebbtide.store.embedded import Store


logger: Final = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time of change (nanoseconds) of each file."""

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
SILENT_SECONDS_MAX: Final = 30
"""How long a process of several may give no sign of life before it is killed and replaced. A busy
machine can need more than the five seconds of uvicorn."""
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
CertificateOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Certificate of the server with its chain, PEM. Default: EBBTIDE_TLS_CERTIFICATE.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Private key of the certificate, PEM. Default: EBBTIDE_TLS_KEY.",
        show_default=False,
    ),
]


class Certificates:
    """A certificate and its key, in two files of PEM.

    Each handshake looks whether a file changed. If so, the pair is read again, and this handshake
    and all later ones use it. If the new pair cannot be used, the log has an error, and the
    previous pair stays in use. So a renewal may replace the two files one after the other.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Reads both files. Raises InvalidInput `invalid_setting` if they cannot be used."""
        self._certificate = certificate
        self._key = key
        self._stamp = self._stamp_now()
        self._current = self._read()
        # The callback is called for each handshake, also of a client that names no server.
        self.context = self._read()
        self.context.sni_callback = self._choose
        """The context that a server listens with."""

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _own: ssl.SSLContext) -> None:
        try:
            if (stamp := self._stamp_now()) != self._stamp:
                # Set first: a pair that cannot be used is reported once.
                self._stamp = stamp
                self._current = self._read()
                logger.info("the certificate %s was read again", self._certificate)
        except EbbtideError as error:
            logger.error("the previous certificate stays in use: %s", error.message)
        connection.context = self._current

    def _stamp_now(self) -> Stamp:
        def of(setting: str, path: Path) -> tuple[int, int, int]:
            try:
                found = path.stat()
            except OSError as error:
                raise _refused(setting, path, error.strerror or str(error)) from None
            return found.st_ino, found.st_size, found.st_mtime_ns

        return of("tls_certificate", self._certificate), of("tls_key", self._key)

    def _read(self) -> ssl.SSLContext:
        for setting, path in (("tls_certificate", self._certificate), ("tls_key", self._key)):
            try:
                path.read_bytes()
            except OSError as error:
                raise _refused(setting, path, error.strerror or str(error)) from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The server speaks HTTP/1.1 alone.
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except _Encrypted:
            raise _refused(
                "tls_key", self._key, "the key is encrypted: give a file without a password"
            ) from None
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                reason = f"the key does not belong to the certificate {self._certificate}"
                raise _refused("tls_key", self._key, reason) from None
            if not _has_certificate(self._certificate):
                reason = "the file has no certificate in PEM"
                raise _refused("tls_certificate", self._certificate, reason) from None
            raise _refused("tls_key", self._key, "the file has no private key in PEM") from None
        return context


@dataclass(frozen=True, slots=True)
class ContextOf:
    """Opens the certificate of the settings in each process of the server. It is sent there by
    pickle, and called by uvicorn."""

    settings: Settings

    def __call__(self, *_: object) -> ssl.SSLContext:
        """Returns the context to listen with. Raises as `open_certificates` does."""
        certificates = open_certificates(self.settings)
        assert certificates is not None, "the settings name a certificate"
        return certificates.context


class _Encrypted(Exception):
    """The key needs a password."""


def open_certificates(settings: Settings) -> Certificates | None:
    """Returns the certificate that the settings name; None if they name none.

    Raises InvalidInput `invalid_setting` if only one file is named, or a file cannot be used.
    """
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        lacking = "certificate" if certificate is None else "key"
        raise InvalidInput(
            "invalid_setting",
            f"TLS needs a certificate and its key: give the {lacking}, too, by --tls-{lacking} or "
            f"EBBTIDE_TLS_{lacking.upper()}",
            setting=f"tls_{lacking}",
        )
    return Certificates(certificate, key)


def _no_password() -> str:
    # Without it, OpenSSL would ask at the terminal.
    raise _Encrypted


def _has_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True


def _refused(setting: str, path: Path, reason: str) -> InvalidInput:
    return InvalidInput(
        "invalid_setting",
        f"EBBTIDE_{setting.upper()}: {shown(os.fspath(path))}: {reason}",
        setting=setting,
    )


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
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
    processes: Annotated[
        int, typer.Option(metavar="N", min=1, help="Processes that answer requests.")
    ] = 1,
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
    limit_arenas()
    from ebbtide.server.pages.browser import ROOT as PAGES_ROOT

    # Opened first, so that errors of the store are reported before a client can connect.
    store = cli.store
    settings = _with_options(
        store.settings,
        arvados_repository=arvados,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
    )
    certificates = open_certificates(settings)
    scheme = "http" if certificates is None else "https"
    with _listen(host, port) as listening:
        serving = _prepared(store, settings, listening, processes, access_log=access_log)
        bound = listening.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        url = f"{scheme}://{name}:{bound}"
        pages = f"{url}{PAGES_ROOT}"
        document = {"url": url, "pages_url": pages, "host": host, "port": bound}
        # An interrupt is the normal end of a server.
        with suppress(KeyboardInterrupt):
            told = f"serving at {url}\npages at {pages}"
            cli.output.answer(document, lambda: cli.output.line(told))
            sys.stdout.flush()
            if certificates is None and not _is_loopback(host):
                cli.output.warn(IN_THE_CLEAR)
            cli.set_up_log(settings)
            serving()


def _with_options(settings: Settings, **options: str | Path | None) -> Settings:
    """Returns the settings, with those that the command line names instead of theirs."""
    return settings.model_copy(
        update={name: value for name, value in options.items() if value is not None}
    )


def _prepared(
    store: Store, settings: Settings, listening: socket.socket, processes: int, *, access_log: bool
) -> Callable[[], None]:
    """Returns the function that serves until this process is told to end."""
    import uvicorn

    from ebbtide.server.oidc.options import oidc_options

    if processes > 1:
        oidc_options(settings)  # its errors are told here, not by each process
        store.close()  # each process has connections of its own
        return partial(
            _run_several, store.directory, settings, listening, processes, access_log=access_log
        )

    from ebbtide.server.app import create_app
    from ebbtide.server.workers import show_requests

    show_requests(shown=access_log)
    app = create_app(store, settings=settings)
    config = _config(app, settings, access_log=access_log)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            # A signal that came before uvicorn heard signals itself.
            self.should_exit = self.should_exit or interrupts.is_ending()

    server = Server(config)

    def serving() -> None:
        with interrupts.held():  # an exception amid the making of the event loop would be told
            server.run(sockets=[listening])

    return serving


def _run_several(
    directory: Path | None,
    settings: Settings,
    listening: socket.socket,
    processes: int,
    *,
    access_log: bool,
) -> None:
    """Serves in several processes, until this one is told to end. A process that dies is started
    again. Raises Failed `worker_died` if one cannot start."""
    from uvicorn.supervisors import Multiprocess

    from ebbtide.server.workers import STARTUP_FAILURE, Worker, shared_directory

    with shared_directory() as shared:
        worker = Worker(directory, settings, shared, logs.level(), access_log)
        config = _config(worker, settings, access_log=access_log, workers=processes)
        supervisor = Multiprocess(config, sockets=[listening])
        supervisor.run()
    if any(each.exitcode == STARTUP_FAILURE for each in supervisor.processes):
        raise Failed("worker_died", "a process of the server could not start: the log says why")


def _config(
    app: FastAPI | Worker, settings: Settings, *, access_log: bool, workers: int = 1
) -> uvicorn.Config:
    import uvicorn

    from ebbtide.server.layers import Parser

    return uvicorn.Config(
        app,
        factory=workers > 1,
        workers=workers,
        http=Parser,
        h11_max_incomplete_event_size=settings.server_header_max,
        ws="none",
        lifespan="on",
        access_log=access_log,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
        ssl_context_factory=None if settings.tls_certificate is None else ContextOf(settings),
        timeout_worker_healthcheck=SILENT_SECONDS_MAX,
    )


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
