"""The clients of remote storages, and what their errors say.

obstore has one class for most errors, and no attributes. But the second part of an exception's text
is a dump of the fields of the Rust error: the status of the answer and the storage's code are read
from these fields. No English words are looked for. Not for: when to repeat a request (`deletes`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, MemoryStore, S3Store

from ebbtide.errors import Conflict, Failed, InvalidInput
from ebbtide.storage import base, profiles

if TYPE_CHECKING:
    from obstore.store import S3Config

Client: TypeAlias = S3Store | AzureStore | MemoryStore

ERRORS: Final = (BaseError, OSError, ValueError)
"""The exceptions that obstore raises."""

CHANGED: Final = (PreconditionError, FileNotFoundError, AlreadyExistsError)
"""The exceptions of a conditional write if the object does not have the version to replace. The
last one is S3's 409: other conditional writes of the object were under way during all retries."""

BUCKET_SCHEMES: Final = ("s3", "gs", "az")
"""The schemes of URLs that name a bucket. `gs` is known and refused."""

_CLIENTS: Final[Mapping[str, Callable[..., Client]]] = {"s3": S3Store, "az": AzureStore}

_PATIENCE: Final[Mapping[str, str]] = {"connect_timeout": "10s", "timeout": "150s"}
"""Timeouts. A bulk delete can take more than a minute, and obstore's own limit is 30 s."""

_SINGLE_DELETES: Final[Mapping[str, str]] = {"disable_bulk_delete": "true"}
"""Of S3: obstore's own bulk deletes are not used (`deletes`)."""

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


@functools.lru_cache(maxsize=64)
def connect(
    url: str,
    options: tuple[tuple[str, str], ...],
    *,
    tries_again: bool = True,
) -> Client:
    """Returns the client of a storage at a normalized URL: one for each process and set of options.

    Without `tries_again` the client does not retry. Raises InvalidInput: `invalid_setting` for
    options that the kind of storage does not know, and `invalid_argument` for `gs://`.
    """
    if url.startswith("memory:"):
        return _memory(url)
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme == "gs":
        raise InvalidInput(
            "invalid_argument",
            f"{url} cannot be opened: Google's own interface is not supported: no test runs "
            "against it. Use a bucket with S3's or Azure's interface",
        )
    named = dict(options)
    provided = _provided(named) if scheme == "s3" else {}
    changed = _SINGLE_DELETES if scheme == "s3" else {}
    try:
        return _CLIENTS[scheme](
            bucket,
            prefix=prefix or None,
            # Not as `client_options`: these would replace the settings of the environment.
            config={**_PATIENCE, **named, **changed},
            **provided,
            retry_config=None if tries_again else {"max_retries": 0},
        )
    except ERRORS as error:
        text = explained(error)
        raise InvalidInput(
            "invalid_setting", f"the storage {url} can't be opened with its options: {text}"
        ) from error


def s3_store(bucket: str, options: Mapping[str, str]) -> S3Store:
    """Returns a new client of a bucket, with the credentials that `connect` would use."""
    named = dict(options)
    provided = _provided(named)
    return S3Store(bucket, config=cast("S3Config", named), **provided)


def _provided(named: dict[str, str]) -> dict[str, Any]:
    """Moves the credentials out of the options, into the argument for their provider."""
    provider = profiles.provider_of(named)
    return {} if provider is None else {"credential_provider": provider}


@functools.cache
def _memory(url: str) -> MemoryStore:
    """Returns the in-memory storage of a URL, which lasts as long as the process. `url` is only the
    key of the cache."""
    del url
    return MemoryStore()


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Raises the exceptions of obstore as errors of Ebbtide."""
    try:
        yield
    except AlreadyExistsError:
        raise Conflict(
            "object_exists", f"there is an object at {address} already", address=address
        ) from None
    except FileNotFoundError:
        raise base.not_found(address) from None
    except ERRORS as error:
        text = explained(error)
        raise Failed(
            "storage_error",
            f"the storage answered with an error on {address}: {text}",
            address=address,
        ) from error


def explained(error: BaseException) -> str:
    """Returns the text of an exception for users (`StorageFailure.explained`)."""
    return StorageFailure.of(error).explained


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
