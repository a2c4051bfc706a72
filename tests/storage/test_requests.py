"""Requests by signed URLs: which are sent again."""

from __future__ import annotations

from email.message import Message
from http.client import IncompleteRead
from io import BytesIO
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest

from ebbtide.storage import requests
from ebbtide.storage.requests import FailedAnswer, headers_at, repeated
from tests.support.answers import answering


def test_a_busy_storage_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is final, and no answer at all too, after some tries."""
    monkeypatch.setattr(requests, "time", SimpleNamespace(sleep=lambda _seconds: None))
    asked: list[str] = []

    def give(_method: str, path: str) -> tuple[int, bytes]:
        """The first request of `/later` is refused as too many, and all of `/never`."""
        asked.append(path)
        if path == "/never":
            return 403, b""
        return (200 if asked.count(path) > 1 else 503), b""

    with answering(give) as place:
        assert headers_at(f"{place}/later")["Content-Length"] == "0"
        with pytest.raises(FailedAnswer):
            headers_at(f"{place}/never")
    assert asked == ["/later", "/later", "/never"]


class CutOff(BytesIO):
    """A connection that breaks."""

    def read(self, _size: int | None = -1) -> bytes:
        raise IncompleteRead(b"<Err")


TOLD = b"<Error><Code>AccessDenied</Code></Error>"


@pytest.mark.parametrize(("told", "body"), [(BytesIO(TOLD), TOLD), (CutOff(), b"")])
def test_a_refusal_keeps_what_it_said(told: BytesIO, body: bytes) -> None:
    """Its text can be read though the connection is closed. If it is cut off, the status counts."""

    def refuse() -> None:
        raise HTTPError("http://here", 403, "Forbidden", Message(), told)

    with pytest.raises(FailedAnswer, match="HTTP Error 403: Forbidden") as caught:
        repeated(refuse)
    assert told.closed and caught.value.closed
    assert (caught.value.code, caught.value.body) == (403, body)
