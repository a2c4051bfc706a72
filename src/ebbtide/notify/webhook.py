"""Posts the end of a run to an address of the web, signed.

Not for: other events, or an answer that could change a run.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

from ebbtide.notify.ending import RunEnd
from ebbtide.redirects import NoRedirect

SIGNATURE_HEADER: Final = "X-Ebbtide-Signature"
DELIVERY_HEADER: Final = "X-Ebbtide-Delivery"

TRY_SECONDS_MAX: Final = 10
PAUSES_SECONDS: Final = (1.0, 4.0)
"""The pauses between the tries. There is one try more than pauses."""
TOTAL_SECONDS_MAX: Final = 45


def signature_of(body: bytes, secret: str) -> str:
    """Returns the value of SIGNATURE_HEADER: HMAC-SHA-256 of the body (RFC 2104), in hex after
    `sha256=`."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def post(
    url: str,
    secret: str | None,
    end: RunEnd,
    *,
    pauses: Sequence[float] = PAUSES_SECONDS,
    seconds_max: float = TOTAL_SECONDS_MAX,
) -> str | None:
    """Posts the end of a run. Returns a warning if no try succeeded within `seconds_max`, else
    None.

    A try succeeds if the answer's status is 2xx. A failed connection, 429 and 5xx are tried again,
    with the same value of DELIVERY_HEADER; any other answer is final. Redirects are not followed.
    """
    body = json.dumps(end.to_json()).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"ebbtide/{version('ebbtide')}",
        DELIVERY_HEADER: secrets.token_hex(16),
    }
    if secret is not None:
        headers[SIGNATURE_HEADER] = signature_of(body, secret)
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    stopped = threading.Event()
    found: list[str | None] = []
    # A thread, because neither the lookup of a host nor a slow answer has a limit of its own.
    thread = threading.Thread(
        target=lambda: found.append(_tried(request, pauses, stopped.wait)), daemon=True
    )
    thread.start()
    thread.join(seconds_max)
    stopped.set()
    reason = found[0] if found else f"no answer within {seconds_max:g} seconds"
    if reason is None:
        return None
    # The path of a webhook is often its secret.
    return f"the webhook at {urlsplit(url).hostname} was not told of this run: {reason}"


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    is_final: bool


def _tried(
    request: urllib.request.Request, pauses: Sequence[float], wait: Callable[[float], Any]
) -> str | None:
    """Posts until a try succeeds or fails for good. Returns the last reason, or None."""
    failure = _try(request)
    for pause in pauses:
        if failure is None or failure.is_final or wait(pause):
            break
        failure = _try(request)
    return None if failure is None else failure.reason


def _try(request: urllib.request.Request) -> _Failure | None:
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=TRY_SECONDS_MAX):
            return None
    except urllib.error.HTTPError as error:
        with error:
            is_final = error.code != 429 and error.code < 500
            return _Failure(f"it answered with status {error.code}", is_final)
    except urllib.error.URLError as error:
        return _Failure(str(error.reason), is_final=False)
    except OSError as error:
        return _Failure(str(error) or type(error).__name__, is_final=False)
    except HTTPException as error:
        # Its text can have the path of the address.
        return _Failure(type(error).__name__, is_final=False)
