"""The clients of remote storages, and the translation of their errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, MemoryStore, S3Store

from ebbtide.errors import Conflict, Failed, InvalidInput
from ebbtide.storage import base, profiles
from ebbtide.storage.failures import StorageFailure

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
    each delete. Raises InvalidInput: `invalid_setting` for options that the kind of storage does
    not know, and `invalid_argument` for `gs://`.
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
    changed = {} if in_bulk or scheme != "s3" else _SINGLE_DELETES
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
