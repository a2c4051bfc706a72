"""The server's certificate for TLS: read once before the server listens, and again when its files
change. Not for: which settings name the files (`settings`).
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.escaping import shown

if TYPE_CHECKING:
    from ebbtide.settings import Settings

logger: Final = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time of change (nanoseconds) of each file."""


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
