"""The webhook at the end of runs, against a receiver on the loopback address."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.notify import DELIVERY_HEADER, SIGNATURE_HEADER, post
from ebbtide.settings import Settings
from tests.notify.ends import run_end
from tests.notify.loopback import receiver

SOON = (0.0, 0.0)


def test_the_report_arrives_signed() -> None:
    with receiver() as found:
        assert post(f"{found.url}/hooks/1", "secret", run_end()) is None
        assert post(found.url, None, run_end()) is None
    request, unsigned = found.received
    assert SIGNATURE_HEADER not in unsigned.headers, "there is no secret"
    assert request.path == "/hooks/1"
    assert request.headers["Content-Type"] == "application/json"
    digest = hmac.new(b"secret", request.body, hashlib.sha256).hexdigest()
    assert request.headers[SIGNATURE_HEADER] == f"sha256={digest}"
    document = json.loads(request.body)
    assert document == run_end().to_json()
    assert (document["outcome"], document["report"]["run_id"]) == ("swept", "run")


@pytest.mark.parametrize(
    ("answers", "tries", "reason"),
    [
        ((500, 429), 3, None),
        ((503, 500, 502), 3, "status 502"),
        ((400,), 1, "status 400"),
        ((302,), 1, "status 302"),
    ],
)
def test_answers_that_are_no_success(
    answers: tuple[int, ...], tries: int, reason: str | None
) -> None:
    """Busy servers are asked again, for the same delivery. Redirects are not followed."""
    with receiver(answers) as found:
        told = post(f"{found.url}/hidden", "secret", run_end(), pauses=SOON)
    assert [each.path for each in found.received] == ["/hidden"] * tries
    assert len({each.headers[DELIVERY_HEADER] for each in found.received}) == 1
    if reason is None:
        assert told is None
    else:
        assert told is not None and reason in told
        assert "hidden" not in told and "secret" not in told


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        told = post(url, None, run_end(), pauses=SOON)
    assert told is not None and "refused" in told


def test_a_receiver_that_never_answers_is_given_up() -> None:
    with receiver(is_silent=True) as found:
        told = post(found.url, None, run_end(), seconds_max=0.2)
        assert told is not None and "no answer within 0.2 seconds" in told
        assert found.arrived.is_set() or not found.received


WRONG = (
    *("ftp://example.org", "http://", "https://me:hidden@example.org"),
    *("http://[", "http://a/ hidden", "http://a:99999/"),
)


@pytest.mark.parametrize("url", WRONG)
def test_addresses_that_are_refused(url: str) -> None:
    """At the start, and without showing the address. Settings never show it."""
    with pytest.raises(InvalidInput) as caught:
        Settings(run_webhook=url)
    assert caught.value.message.startswith("EBBTIDE_RUN_WEBHOOK: ")
    assert "hidden" not in caught.value.message
    settings = Settings(run_webhook="https://example.org/hidden", run_webhook_secret="hidden")
    assert "hidden" not in repr(settings)
