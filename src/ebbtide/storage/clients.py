"""The clients of remote storages, and the translation of their errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from ebbtide.errors import Conflict, Failed, InvalidInput
from ebbtide.storage import base, profiles

if TYPE_CHECKING:
    from obstore.store import S3Config

Client: TypeAlias = S3Store | GCSStore | AzureStore | MemoryStore

ERRORS: Final = (BaseError, OSError, ValueError)
"""The exceptions that obstore raises."""

CHANGED: Final = (PreconditionError, FileNotFoundError, AlreadyExistsError)
"""The exceptions of a conditional write if the object does not have the version to replace. The
last one is S3's 409: other conditional writes of the object were under way during all retries."""

BUCKET_SCHEMES: Final[Mapping[str, Callable[..., Client]]] = {
    "s3": S3Store,
    "gs": GCSStore,
    "az": AzureStore,
}

_THROTTLED: Final = (
    "SlowDown",
    "Throttl",
    "RequestLimit",
    "TooManyRequests",
    "status code: 429",
    "status code: 503",
)


_TRANSIENT: Final = (
    "error sending request",
    "timed out",
    "connection",
    "InternalError",
    "status code: 500",
    "status code: 502",
    "status code: 504",
)

_PATIENCE: Final[Mapping[str, str]] = {"connect_timeout": "10s", "timeout": "150s"}
"""Timeouts. A bulk delete can take more than a minute, and obstore's own limit is 30 s."""

_SINGLE_DELETES: Final[Mapping[str, str]] = {"disable_bulk_delete": "true"}


@functools.lru_cache(maxsize=64)
def connect(
    url: str,
    options: tuple[tuple[str, str], ...],
    *,
    tries_again: bool = True,
    in_bulk: bool = True,
) -> Client:
    """Returns the client of a storage at a normalized URL: one for each process and set of options.

    Without `tries_again` the client does not retry. Without `in_bulk` it sends S3 one request for
    each delete. Raises InvalidInput (`invalid_setting`) for options that the kind of storage does
    not know.
    """
    if url.startswith("memory:"):
        return _memory(url)
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    named = dict(options)
    provided = _provided(named) if scheme == "s3" else {}
    try:
        return BUCKET_SCHEMES[scheme](
            bucket,
            prefix=prefix or None,
            # Not as `client_options`: these would replace the settings of the environment.
            config={**_PATIENCE, **named, **({} if in_bulk else _SINGLE_DELETES)},
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


THROTTLED: Final = "throttled: "
"""The beginning of an error's text if the storage asks to slow down."""


def is_throttled(text: str | None) -> bool:
    """Whether an error's text, as `explained` returns it, asks to slow down."""
    return text is not None and text.startswith(THROTTLED)


def is_transient(text: str) -> bool:
    """Whether an error's text describes a failure that a retry may avoid."""
    return any(word in text for word in _TRANSIENT)


def explained(error: BaseException) -> str:
    """Returns an error's text without obstore's debugging part. It begins with THROTTLED if the
    storage asks to slow down."""
    text = str(error).partition("\n\nDebug source")[0][:500]
    return f"{THROTTLED}{text}" if any(word in text for word in _THROTTLED) else text
