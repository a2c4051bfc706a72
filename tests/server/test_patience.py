"""Answers that keep the client waiting: JSON behind white space, and what breaks off."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Event
from typing import Any

import anyio
import pytest

from ebbtide.errors import Failed
from ebbtide.server.patience import Patient, PatientJson
from tests.support.loops import without_loop

Sent = list[dict[str, Any]]


def answered(
    sent: Sent,
    result: Any,
    *,
    waits: bool,
    form: Callable[..., Patient[Any]] = PatientJson,
    error: Exception | None = None,
) -> None:
    """Collects the messages of an answer in `sent`. Its work may wait for two blanks."""
    waiting = Event()

    def work() -> Any:
        assert not waits or waiting.wait(60)
        if error is not None:
            raise error
        return result

    async def send(message: Any) -> None:
        sent.append(message)
        if [each.get("body") for each in sent].count(b" ") == 2:
            waiting.set()

    async def receive() -> Any:
        raise AssertionError("nobody reads")

    async def run() -> None:
        limiter, interval = anyio.CapacityLimiter(1), 0.01 if waits else 60
        answer = form(work, limiter=limiter, interval_seconds=interval)
        await answer({"type": "http", "method": "POST"}, receive, send)

    without_loop(lambda: anyio.run(run))


@pytest.mark.parametrize("waits", [False, True])
def test_an_answer_and_a_failure(waits: bool) -> None:
    """Once status 200 has been sent, the answer breaks off: no body could tell the client that
    nothing was stored."""
    sent: Sent = []
    answered(sent, b'{"size_bytes": 1}', waits=waits)
    headers = dict(sent[0]["headers"])
    assert (sent[0]["status"], headers[b"content-type"]) == (200, b"application/json")
    assert not waits or b"content-length" not in headers
    body = b"".join(each["body"] for each in sent[1:])
    assert body.startswith(b" ") == waits
    assert json.loads(body) == {"size_bytes": 1}
    more = [each.get("more_body", False) for each in sent[1:]]
    assert more == [True] * (len(sent) - 2) + [False]
    assert waits or len(sent) == 2
    sent.clear()
    with pytest.raises(Failed):
        answered(sent, b"", waits=waits, error=Failed("storage_error", "no answer"))
    assert bool(sent) == waits
    assert all(each["more_body"] for each in sent[1:])
