"""The key that encrypts secrets at rest: a setting, or a file in the store's directory.

It is never in the database, so that a copy of the database reveals no secrets. Not for: the owners
of the secrets (`access_keys`).
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ebbtide.errors import Failed, InvalidInput
from ebbtide.settings import Settings

KEY_FILE: Final = "secret.key"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
FILE_MODE: Final = 0o600


class SecretBox:
    """Encrypts and decrypts with AES-256-GCM. The key is read on first use."""

    def __init__(self, directory: Path | None, settings: Settings) -> None:
        self._directory = directory
        self._setting = settings.secret_key
        self._cipher: AESGCM | None = None

    def seal(self, plain: bytes, *, bound_to: str) -> bytes:
        """Encrypts. The result can be decrypted only with the same `bound_to`. Raises as `open`
        does."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._aead().encrypt(nonce, plain, bound_to.encode())

    def open(self, sealed: bytes, *, bound_to: str) -> bytes:
        """Decrypts. `bound_to` must equal the argument of `seal`.

        Raises Failed `secret_key_missing` or `secret_key_wrong`, InvalidInput `invalid_setting`.
        """
        try:
            return self._aead().decrypt(
                sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound_to.encode()
            )
        except InvalidTag:
            raise Failed(
                "secret_key_wrong",
                "the secrets of the access keys were encrypted with another key: set "
                f"EBBTIDE_SECRET_KEY to that key, or restore its file {KEY_FILE}",
            ) from None

    def _aead(self) -> AESGCM:
        if self._cipher is None:
            self._cipher = AESGCM(self._read())
        return self._cipher

    def _read(self) -> bytes:
        if self._setting is not None:
            return _decoded(self._setting, "EBBTIDE_SECRET_KEY")
        path = None if self._directory is None else self._directory / KEY_FILE
        if path is None or not path.exists():
            where = "there is no directory of the store" if path is None else f"{path} is not there"
            raise Failed(
                "secret_key_missing",
                f"EBBTIDE_SECRET_KEY is not set, and {where}: every process of a store needs the "
                "key that its access keys were made with. To share a database between machines, "
                f"set it to what {KEY_FILE} holds on the machine where 'ebbtide init' ran",
            )
        try:
            return _decoded(path.read_text("ascii"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise Failed("secret_key_missing", f"{path} cannot be read: {error}") from error


def make_key_file(directory: Path | None, settings: Settings) -> None:
    """Makes the file with a new key, unless the setting has a key, or the file exists."""
    if directory is None or settings.secret_key is not None:
        return
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        descriptor = os.open(directory / KEY_FILE, flags, FILE_MODE)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _decoded(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text.strip().encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidInput(
            "invalid_setting",
            f"{where} holds no key: it is {KEY_BYTES} random bytes in base64url, as "
            "'openssl rand -base64 32 | tr +/ -_' prints them",
            setting="secret_key",
        )
    return key
