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


def test_a_refusal_keeps_what_it_said() -> None:
    """Its connection is closed, and its text can be read all the same."""
    told = BytesIO(b"<Error><Code>AccessDenied</Code></Error>")

    def refuse() -> None:
        raise HTTPError("http://here", 403, "Forbidden", Message(), told)

    with pytest.raises(FailedAnswer, match="HTTP Error 403: Forbidden") as caught:
        repeated(refuse)
    assert told.closed and caught.value.closed
    assert (caught.value.code, caught.value.body) == (
        403,
        b"<Error><Code>AccessDenied</Code></Error>",
    )


def test_a_refusal_whose_text_is_cut_off() -> None:
    """What counts is the status."""

    class CutOff(BytesIO):
        """A connection that breaks."""

        def read(self, _size: int | None = -1) -> bytes:
            """Fails."""
            raise IncompleteRead(b"<Err")

    def refuse() -> None:
        raise HTTPError("http://here", 403, "Forbidden", Message(), CutOff())

    with pytest.raises(FailedAnswer) as caught:
        repeated(refuse)
    assert (caught.value.code, caught.value.body) == (403, b"")
