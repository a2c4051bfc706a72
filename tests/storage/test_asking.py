"""Requests by signed URLs: which are sent again."""

from __future__ import annotations

from email.message import Message
from http.client import IncompleteRead
from io import BytesIO
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest

from ebbtide.storage import asking
from ebbtide.storage.asking import FailedAnswer, headers_of_each, repeated
from tests.support.answers import answering


def test_a_busy_storage_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is final, and no answer at all too, after some tries."""
    monkeypatch.setattr(asking, "time", SimpleNamespace(sleep=lambda _seconds: None))
    asked: list[str] = []

    def give(_method: str, path: str) -> tuple[int, bytes]:
        """The first request of `/later` is refused as too many, and all of `/never`."""
        asked.append(path)
        if path == "/never":
            return 403, b""
        return (200 if asked.count(path) > 1 else 503), b""

    with answering(give) as place:
        found = headers_of_each(lambda name: f"{place}/{name}", ["later", "never"])
    assert found[0] is not None
    assert found[0]["Content-Length"] == "0"
    assert found[1] is None
    assert sorted(asked) == ["/later", "/later", "/never"]
    assert headers_of_each(lambda name: f"{place}/{name}", ["later"]) == [None]
    assert headers_of_each(lambda _name: None, ["later"]) == [None]


class CutOff(BytesIO):
    """A connection that breaks."""

    def read(self, _size: int | None = -1) -> bytes:
        raise IncompleteRead(b"<Err")


TOLD = b"<Error><Code>AccessDenied</Code></Error>"


@pytest.mark.parametrize(("told", "body"), [(BytesIO(TOLD), TOLD), (CutOff(), b"")])
def test_a_refusal_keeps_what_it_said(told: BytesIO, body: bytes) -> None:
    """Its connection is closed, and its text can be read all the same. If that is cut off, what
    counts is the status."""

    def refuse() -> None:
        raise HTTPError("http://here", 403, "Forbidden", Message(), told)

    with pytest.raises(FailedAnswer, match="HTTP Error 403: Forbidden") as caught:
        repeated(refuse)
    assert told.closed and caught.value.closed
    assert (caught.value.code, caught.value.body) == (403, body)
