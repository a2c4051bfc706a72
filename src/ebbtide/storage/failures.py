"""What an exception of obstore says of a request: its status, the storage's code, and the reason.

obstore has one class for most errors, and no attributes. But the second part of an exception's text
is a dump of the fields of the Rust error, and this module reads these fields. It looks for no
English words. Not for: when to repeat a request (`deleting`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

THROTTLED: Final = "throttled: "
"""The beginning of an error's text if the storage asks to slow down."""

LOCKED: Final = "its versions are locked: "
"""The beginning of an error's text if an object is hidden, and an object lock keeps versions of
it."""

_DUMP: Final = "\n\nDebug source:\n"
_TEXT_MAX: Final = 500

# A value of the dump has no line feed: these are escaped. So a key cannot look like a field.
_STATUS: Final = re.compile(r"^\s+status: (\d{3}),$", re.MULTILINE)
_CODE: Final = re.compile(r'^\s+code: "([^"\\]*)",$', re.MULTILINE)
_BODY: Final = re.compile(r'^\s+body: (?:Some\(\s+)?"((?:[^"\\]|\\.)*)",$', re.MULTILINE)
_NETWORK: Final = re.compile(r"^\s+(?:\w+: )?HttpError \{$", re.MULTILINE)
_BODY_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_BODY_REASON: Final = re.compile(r'\\"reason\\":\s*\\"(\w+)\\"')

_THROTTLED_STATUS: Final = frozenset({429, 503})
_THROTTLED_CODES: Final = frozenset(
    {
        # S3, "Error responses"; the last five are of servers with its interface.
        "SlowDown",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "TooManyRequests",
        # Azure, "Common REST API error codes".
        "ServerBusy",
        # Google, "HTTP status and error codes for JSON".
        "rateLimitExceeded",
        "userRateLimitExceeded",
    }
)
_TRANSIENT_STATUS: Final = frozenset({408, 500, 502, 504})
_TRANSIENT_CODES: Final = frozenset(
    {"InternalError", "RequestTimeout", "OperationTimedOut", "internalError", "backendError"}
)

_REASONS: Final[Mapping[str, str]] = {
    "InvalidObjectState": "the object is in a cold storage class: restore it first, then try again",
    "BlobArchived": "the object is in the archive tier: rehydrate it first, then try again",
    "BlobBeingRehydrated": "the object is being rehydrated: try again when that is done",
    "BlobImmutableDueToPolicy": "an immutability policy or a legal hold protects the object",
    "ObjectLocked": "an object lock protects the object",
    "retentionPolicyNotMet": "the retention policy of the bucket protects the object",
    "objectUnderActiveHold": "a hold protects the object",
}
"""The reasons of codes that a user can do something about."""
_DENIED: Final = (
    "the storage denies it: the credentials lack the permission, or an object lock, a retention "
    "policy or a bucket policy protects the object"
)


@dataclass(frozen=True, slots=True)
class StorageFailure:
    """One failed request.

    `status` is the HTTP status, and None if there was no answer. `code` is the storage's own code,
    and "" if the answer has none. `is_network` is true if the answer did not come, or not whole.
    `is_absent` is true if the storage says that there is no object.
    """

    text: str
    status: int | None
    code: str
    is_network: bool
    is_absent: bool

    @classmethod
    def of(cls, error: BaseException) -> StorageFailure:
        """Reads an exception of obstore."""
        text, _, dump = str(error).partition(_DUMP)
        status = _number(_found(_STATUS, dump))
        body = _found(_BODY, dump)
        code = _found(_CODE, dump) or _found(_BODY_CODE, body) or _found(_BODY_REASON, body)
        if code.isdecimal():
            # A part of a batch of Azure has only its status.
            status, code = _number(code), ""
        is_network = status is None and _NETWORK.search(dump) is not None
        absent = isinstance(error, FileNotFoundError)
        return cls(text[:_TEXT_MAX], status, code, is_network, absent)

    @property
    def is_throttled(self) -> bool:
        """Whether the storage asks to slow down."""
        return self.status in _THROTTLED_STATUS or self.code in _THROTTLED_CODES

    @property
    def is_transient(self) -> bool:
        """Whether a retry may avoid the failure. The storage may have done what it was asked."""
        is_known = self.status in _TRANSIENT_STATUS or self.code in _TRANSIENT_CODES
        return not self.is_throttled and (is_known or self.is_network)

    @property
    def is_refused(self) -> bool:
        """Whether the storage surely did nothing. A status above 499 does not say so: a proxy can
        answer in place of a storage that is still at work."""
        is_client = self.status is not None and 400 <= self.status < 500 and self.status != 408
        return is_client or self.code in _THROTTLED_CODES

    @property
    def explained(self) -> str:
        """The text for users. It begins with THROTTLED if the storage asks to slow down, and with
        the reason if the code has a known one."""
        if self.is_throttled:
            return f"{THROTTLED}{self.text}"
        reason = _REASONS.get(self.code)
        if reason is None and self.status == 403 and self.code in ("", "AccessDenied"):
            reason = _DENIED
        return self.text if reason is None else f"{reason} ({self.text})"


def is_throttled(text: str | None) -> bool:
    """Whether an error's text, as `StorageFailure.explained` returns it, asks to slow down."""
    return text is not None and text.startswith(THROTTLED)


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return "" if match is None else match[1]


def _number(text: str) -> int | None:
    return int(text) if text else None
