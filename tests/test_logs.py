"""The log: its two forms, the ids of requests and runs, and that it has no secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from ebbtide import logs
from ebbtide.logs import HIDDEN, without_secrets

logger = logging.getLogger("ebbtide.tests.logs")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with logs.unbound():
        yield
    logs.take_down()


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """A second set-up replaces the first, and ids end with their block."""
    logs.set_up("text", "error")
    logs.set_up("text", "info")
    logger.info("said %s", "this")
    with logs.unbound():
        logs.bind_request("r-1")
        logs.bind_run("run-1")
        logger.warning("and that")
        logger.debug("not this")
    logger.error("later")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.endswith(" INFO ebbtide.tests.logs: said this")
    assert second.endswith(" WARNING ebbtide.tests.logs: and that [request=r-1 run=run-1]")
    assert third.endswith(" ERROR ebbtide.tests.logs: later")


def test_lines_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of JSON each, also with a trace and with line breaks in the message."""
    logs.set_up("json", "info")
    logs.bind_run("run-1")
    try:
        raise ValueError("password=hunter22")
    except ValueError:
        logger.exception("two\nlines")
    logger.info("plain")
    failed, plain = map(json.loads, capsys.readouterr().err.splitlines())
    found = [failed[name] for name in ("level", "message", "run_id")]
    assert found == ["error", "two\nlines", "run-1"]
    assert "ValueError" in failed["trace"] and "hunter22" not in failed["trace"]
    assert (plain["logger"], plain["request_id"], plain["trace"]) == (logger.name, None, None)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("GET /a?X-Amz-Signature=SECRET&x=1 HTTP/1.1", "&x=1 HTTP/1.1"),
        ("GET /a?X-Amz-Credential=SECRET%2F2030&X-Amz-Date=1", "X-Amz-Date=1"),
        ("GET /a?x-amz-security-token=SECRET", "GET /a"),
        ("AWSAccessKeyId=SECRET&Signature=SECRET&Expires=1", "Expires=1"),
        ("https://account.blob/c?sv=1&sig=SECRET", "sv=1"),
        ("Authorization: Bearer SECRET.SECRET-_", "Authorization"),
        ("authorization: Basic U0VDUkVUSECRET==", "authorization"),
        ("AWS4-HMAC-SHA256 Credential=SECRET/x, SignedHeaders=host, Signature=SECRET", "host"),
        ("postgresql://ebbtide:SECRET@db/ebbtide", "@db/ebbtide"),
        ("https://SECRET@example.org/x", "example.org/x"),
        ('{"token": "SECRET", "name": "a"}', '"name": "a"'),
        ("{'secret_access_key': 'SECRET'}", "secret_access_key"),
        ("Cookie: internal_auth_session=SECRET; a=b", "; a=b"),
        ("GET /api/v1/locators/SECRET HTTP/1.1", " HTTP/1.1"),
        ("the value is SECRET, alone", "alone"),
    ],
)
def test_secrets_are_hidden(text: str, kept: str) -> None:
    told = without_secrets(text, ["SECRET"] if text.endswith("alone") else [])
    assert "SECRET" not in told
    assert HIDDEN in told and kept in told


@pytest.mark.parametrize(
    "text",
    [
        "deleting files of kind object: 12 of 40 files",
        "GET /api/v1/repositories/lake/refs/main/objects?path=a%2Fb HTTP/1.1",
        "the branch assign=1 and design: fine",
        "s3://bucket/path/a@b",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert without_secrets(text, ["a", ""]) == text
