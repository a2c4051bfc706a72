"""The log: lines for people, or JSON, each with the ids of the request and of the run.

Ids are kept in context variables, which threads of the server's pool inherit. Secrets are taken out
of every line, wherever they come from. Not for: the answers and the progress of commands.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal, cast

from ebbtide import telemetry

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

HIDDEN: Final = "…"
SECRET_CHARACTERS_MIN: Final = 6
"""A shorter secret is not searched for: it would hide parts of other words."""

_NAMES: Final = (
    r"x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|x-goog-credential|"
    r"signature|awsaccesskeyid|sig|token|access_token|password|secret|secret_access_key|"
    r"internal_auth_session|ebbtide_session"
)
_PATTERNS: Final = (
    # A parameter of a query or form, a cookie, or a field of JSON.
    re.compile(rf"""(?i)(?<![\w-])((?:{_NAMES})["']?\s*[=:]\s*["']?)[^\s&;,"'<>]+"""),
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]+"),
    re.compile(r"(?i)(\bcredential=)[^\s,&]+"),
    # The user and the password in a URL.
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^\s/@]+(?=@)"),
    # A locator is a secret by itself.
    re.compile(r"(/locators/)[^\s/?\"']+"),
)

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_run_id: ContextVar[str | None] = ContextVar("run_id", default=None)


@contextmanager
def unbound() -> Iterator[None]:
    """After the block, the ids are as before, also if the block set others."""
    before = _request_id.get(), _run_id.get()
    try:
        yield
    finally:
        _request_id.set(before[0])
        _run_id.set(before[1])


def bind_request(request_id: str | None) -> None:
    """From now on, lines of this context have the id of this request."""
    _request_id.set(request_id)


def bind_run(run_id: str) -> None:
    """From now on, lines of this context have the id of this run."""
    _run_id.set(run_id)


def request_id() -> str | None:
    """Returns the id of the present request; None outside of requests."""
    return _request_id.get()


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns a text in which HIDDEN stands for `secrets`, and for what looks like one: signatures,
    tokens, passwords and credentials in queries, headers and URLs, and locators."""
    for secret in secrets:
        if len(secret) >= SECRET_CHARACTERS_MIN:
            text = text.replace(secret, HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


class _Formatter(logging.Formatter):
    """Makes one record a line of text, or of JSON."""

    def __init__(self, log_format: LogFormat, secrets: Iterable[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._is_json = log_format == "json"
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line. A trace is more lines of text, or a field of JSON."""
        return self._json(record) if self._is_json else self._text(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the library
        """Returns the first line, with the ids at its end."""
        ids = (("request", _request_id.get()), ("run", _run_id.get()))
        told = " ".join(f"{name}={value}" for name, value in ids if value is not None)
        line = super().formatMessage(record)
        return f"{line} [{told}]" if told else line

    def _text(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record), self._secrets)

    def _json(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info else None
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage(), self._secrets),
            "request_id": _request_id.get(),
            "run_id": _run_id.get(),
            "trace": None if trace is None else without_secrets(trace, self._secrets),
            **telemetry.trace_ids(),
        }
        return json.dumps(document)


class _Stderr(logging.Handler):
    """Writes to the present stderr, which can be replaced at any time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - a line that cannot be written stops no work
            self.handleError(record)


def set_up(log_format: LogFormat, level: LogLevel, *, secrets: Iterable[str] = ()) -> None:
    """Sends the log of this process to stderr. Replaces an earlier set-up. `secrets` are values
    that no line may have."""
    take_down()
    handler = _Stderr()
    handler.setFormatter(_Formatter(log_format, secrets))
    logging.root.addHandler(handler)
    logging.root.setLevel(level.upper())


def level() -> LogLevel:
    """Returns the level of the log of this process."""
    return cast("LogLevel", logging.getLevelName(logging.root.level).lower())


def take_down() -> None:
    """Removes what `set_up` added."""
    for handler in logging.root.handlers[:]:
        if isinstance(handler, _Stderr):
            logging.root.removeHandler(handler)
            logging.root.setLevel(logging.WARNING)
