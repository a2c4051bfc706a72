"""Answers that keep the client waiting: JSON behind white space, and what breaks off."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Event
from typing import Any

import anyio
import pytest

from ebbtide.errors import Failed
from ebbtide.server.patience import PatientJson
from tests.support.loops import without_loop

Sent = list[dict[str, Any]]


def answered(work: Callable[[Event], bytes], sent: Sent, interval_seconds: float) -> None:
    """Collects the messages of an answer in `sent`. The event is set by the first blank."""
    waiting = Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body") == b" ":
            waiting.set()

    async def receive() -> Any:
        raise AssertionError("nobody reads")

    async def run() -> None:
        answer = PatientJson(
            lambda: work(waiting),
            limiter=anyio.CapacityLimiter(1),
            interval_seconds=interval_seconds,
        )
        await answer({"type": "http", "method": "PUT"}, receive, send)

    without_loop(lambda: anyio.run(run))


def test_a_quick_answer() -> None:
    sent: Sent = []
    answered(lambda _: b"{}", sent, 60)
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]
    assert (sent[0]["status"], sent[1]["body"]) == (200, b"{}")
    assert dict(sent[0]["headers"])[b"content-type"] == b"application/json"


def test_a_quick_failure() -> None:
    sent: Sent = []

    def work(_: Event) -> bytes:
        raise Failed("storage_error", "no answer")

    with pytest.raises(Failed):
        answered(work, sent, 60)
    assert sent == []


def test_a_slow_answer() -> None:
    sent: Sent = []

    def work(waiting: Event) -> bytes:
        assert waiting.wait(60)
        return b'{"size_bytes": 1}'

    answered(work, sent, 0.01)
    assert (sent[0]["status"], dict(sent[0]["headers"])) == (
        200,
        {b"content-type": b"application/json"},
    )
    body = b"".join(each["body"] for each in sent[1:])
    assert body.startswith(b" ")
    assert json.loads(body) == {"size_bytes": 1}
    assert [each["more_body"] for each in sent[1:]] == [True] * (len(sent) - 2) + [False]


def test_a_slow_failure_breaks_off() -> None:
    """Status 200 has been sent: no body could tell the client that nothing was stored."""
    sent: Sent = []

    def work(waiting: Event) -> bytes:
        assert waiting.wait(60)
        raise Failed("storage_error", "no answer")

    with pytest.raises(Failed):
        answered(work, sent, 0.01)
    assert sent[0]["status"] == 200
    assert all(each["more_body"] for each in sent[1:])
