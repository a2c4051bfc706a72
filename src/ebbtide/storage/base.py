"""The protocol of every object storage, and the values that it returns.

Not for: which objects may be deleted, or the meaning of an object.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final, Literal, Protocol, TypeAlias, runtime_checkable
from zlib import crc32

import pyarrow as pa

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.text import shown

_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("address", pa.string(), nullable=False),
    pa.field("size_bytes", pa.int64()),
    pa.field("last_modified", pa.timestamp("us", "UTC")),
    pa.field("regular", pa.bool_(), nullable=False),
    pa.field("storage_class", pa.string()),
)

LISTING_SCHEMA: Final = pa.schema(_FIELDS)
"""Columns of a listing. Size and date are null if the listing is not `sized`. `regular` is false
for an entry that is not a plain file (a symbolic link, a socket) or whose name is not an address.
Such entries are reported and never deleted. `storage_class` is the name that the storage uses, or
null if the listing does not give it."""

LISTING_ROWS_MAX: Final = 50_000
"""The most rows in one batch of a listing."""

UNDATED: Final = datetime(9000, 1, 1, microsecond=1, tzinfo=UTC)
"""The date of a file whose own date cannot be that of a write: it counts as young, and stays. Later
than any date. Any grace can be added to it."""
BELIEVED: Final = (datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC))
"""Dates of files before the first or from the second on are not those of a write."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes that one step of a stream holds in memory."""


@dataclass(frozen=True, slots=True)
class SizedPieces:
    """The pieces of an object of `size_bytes`. The size only helps to choose the size of parts: it
    is not compared with the pieces. `is_stored` says that the pieces come from a storage, which
    reads CHUNK_BYTES at a time."""

    pieces: Iterator[bytes]
    size_bytes: int
    is_stored: bool = False

    def __iter__(self) -> Iterator[bytes]:
        """Returns the pieces."""
        return self.pieces


Content: TypeAlias = bytes | BinaryIO | Iterable[bytes]
Outcome = Literal["deleted", "moved", "missing", "failed"]
Keeps = Literal["no", "versions", "soft_delete", "unknown"]
LockState = Literal["no", "on", "unknown"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object. `last_modified` is UTC, in microseconds or with the storage's own precision.
    `etag` is the ETag as the storage writes it, or None if it has none."""

    address: str
    size_bytes: int
    last_modified: datetime
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteOutcome:
    """The outcome of the delete or the move of one address.

    `deleted`: the storage confirmed the delete. `moved`: the object is at its new address, and no
    longer at this one. `missing`: the storage reported that no object is there. S3 never reports
    this: it confirms the delete. `failed`: none of these; `error` has the reason. An error that
    begins with `throttled` asks the caller to slow down and try again.
    """

    address: str
    outcome: Outcome
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BucketLock:
    """Whether a bucket of S3 has object lock, and how it locks new versions.

    `mode` (COMPLIANCE or GOVERNANCE) and `days` are the bucket's default. Both are None if it has
    none: programs then lock single versions. `reason` is a clause for users.
    """

    state: LockState
    reason: str
    mode: str | None = None
    days: int | None = None


@dataclass(frozen=True, slots=True)
class Retained:
    """What a storage keeps of deleted objects.

    `no`: a delete frees the bytes. `versions`: they stay as noncurrent versions. `soft_delete`:
    they stay for a time. `unknown`: the storage did not say. `reason` is a clause for users. `lock`
    is None if the storage cannot have object lock, as a bucket without versions.
    """

    state: Keeps
    reason: str
    lock: BucketLock | None = None


@runtime_checkable
class Storage(Protocol):
    """One storage root. A picklable value; storages with the same URL and options are equal.

    Addresses are relative to the root, with `/` between their segments. Methods raise InvalidInput
    (`invalid_address`) for an address that could leave the root, and Failed (`storage_error`) if
    the storage fails.
    """

    @property
    def url(self) -> str:
        """The URL of the root, normalized by `normalize_url`."""

    @property
    def shared_between_processes(self) -> bool:
        """Whether an equal value in another process reaches the same objects."""

    def __hash__(self) -> int:
        """Returns the same number for equal storages."""

    def get(self, address: str) -> bytes:
        """Returns the whole object. Raises NotFound (`object_not_found`)."""

    def get_versioned(self, address: str) -> tuple[bytes, str]:
        """Returns the whole object and its version, an opaque text for `replace`.

        If two objects at an address differ in their bytes, their versions differ too. Raises
        NotFound (`object_not_found`), and Failed (`storage_error`) if the storage has no versions.
        """

    def stream(
        self, address: str, *, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Iterator[bytes]:
        """Returns the bytes from `start` to before `end`, in pieces of bounded size.

        A range that reaches past the end of the object stops there. The call itself raises
        NotFound (`object_not_found`), not the first piece. With an `etag`, as `head` returns it,
        all pieces are of one object: Conflict (`object_changed`) if the object has another ETag.
        Later pieces raise it too.
        """

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        """Writes an object. Readers see the whole object, or none.

        When the call returns, the object is durable. Without `durable`, a power cut may leave the
        whole object, a part of it, or nothing. Memory is bounded, except for `bytes`. Raises
        Conflict (`object_exists`) if `create_only` is set and an object is there.
        """

    def replace(self, address: str, data: bytes, *, version: str) -> str:
        """Writes an object if it still has the `version` that `get_versioned` returned.

        The check and the write are one step. Returns the new version. The object is as durable as
        after `put`. Memory holds all of it.

        Raises Failed (`storage_unconditional`) if the storage has no conditional writes, and
        Conflict (`object_changed`) if the object has another version or is gone. The other version
        may be this call's own write, which the client repeated because its answer was lost. A
        caller that must know reads the object.
        """

    def head(self, address: str) -> ObjectInfo | None:
        """Returns the object's size, date and ETag, or None if there is no object."""

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        share: tuple[int, int] = (0, 1),
        sized: bool = True,
        streamed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the files under `prefix` ("" or ending in `/`) in batches of LISTING_SCHEMA.

        The files have no order. If `recursive` is false, the listing has only files directly under
        the prefix, and all files in directories there that `list_prefixes` cannot name.

        A `share` of (k, n) lists the k-th of n parts of the addresses, counted from 0; the n
        listings together have each address once. Shares save time if a name is cheaper to read than
        its size and date. If `sized` is false, a storage that would need extra requests for size
        and date leaves both null. `sizes` returns them later for the addresses that matter.

        `streamed` is for a prefix with more entries directly under it than memory holds. Without
        it, an object store may hold the names of each directory in memory. In return it
        distinguishes a key that ends in a slash, which is not `regular`, from the key without it.

        An object that is written or deleted during the listing may be in it or not. An object that
        exists all the time is in it exactly once.
        """

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        """Returns the size and date of each address, in the same order (LISTING_SCHEMA). Both are
        null if there is no object. Raises Failed (`storage_error`)."""

    def list_prefixes(self, prefix: str = "") -> builtins.list[str]:
        """Returns the immediate parts below `prefix` that hold objects, sorted, each ending in `/`.

        Parts that cannot be in an address are left out. A local storage may also return a
        directory that holds no objects.
        """

    def sign_put(self, address: str, *, lasts: timedelta) -> str | None:
        """Returns a URL that accepts the object's bytes in a PUT without credentials, for the time
        `lasts`. None if the storage has no such URLs."""

    def sign_get(
        self, address: str, *, lasts: timedelta, method: Literal["GET", "HEAD"] = "GET"
    ) -> str | None:
        """Returns a URL that serves the object's bytes to a GET without credentials, for the time
        `lasts`; or its headers to a HEAD. None if the storage has no such URLs, or none that lasts
        that long."""

    def delete(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """Deletes any number of objects. Returns one outcome for each address, in the same order.

        Never raises for an address: an address that is not allowed is `failed` too.
        """

    def move(self, moves: Sequence[tuple[str, str]]) -> builtins.list[DeleteOutcome]:
        """Moves any number of objects, each to an address that nobody else uses.

        Returns one outcome for each move, in the same order, with the address that it moves from.
        At each moment an object is at one of its two addresses, or at both. The outcome is `moved`
        also if an earlier call moved the object, and `missing` if it is at neither address. Never
        raises for an address.
        """

    def retained(self) -> Retained:
        """Returns what the storage keeps of deleted objects. Never raises for a storage that does
        not answer: the state is `unknown` then."""

    @property
    def deletes_versions(self) -> bool:
        """Whether `delete_versions` deletes everything that the storage keeps of an object."""

    def delete_versions(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """Deletes all noncurrent versions and delete markers of objects that do not exist.

        Returns one outcome for each address, in the same order. `deleted`: none is left. `missing`:
        there was none, or an object exists at the address. Its versions stay then, and `error` says
        so. Versions of other addresses that begin with an address stay. A version that is written
        meanwhile stays. Never raises for an address.
        """

    def hidden(self, prefix: str) -> Iterator[builtins.list[str]]:
        """Yields the addresses under `prefix` whose objects do not exist, and of which the storage
        keeps versions or delete markers. Raises Failed (`storage_error`)."""


_MICROS_END: Final = (BELIEVED[1] - BELIEVED[0]) // timedelta(microseconds=1)
_MICROS_UNDATED: Final = (UNDATED - BELIEVED[0]) // timedelta(microseconds=1)


def split_address(address: str) -> list[str]:
    """Returns the segments of an address. Raises InvalidInput (`invalid_address`).

    No segment is empty, `.` or `..`. Therefore an address cannot leave the root, and different
    addresses name different objects.
    """
    segments = address.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        raise _refused(address, "each part between slashes must be a name, not empty, . or ..")
    if "\0" in address:
        raise _refused(address, "it holds a zero byte")
    if not address.isascii():
        try:
            address.encode()
        except UnicodeEncodeError:
            raise _refused(address, "it is not valid Unicode") from None
    return segments


def split_prefix(prefix: str) -> list[str]:
    """Returns the segments of a listing's prefix, which is "" or ends in `/`. Raises InvalidInput
    (`invalid_address`)."""
    if not prefix:
        return []
    if not prefix.endswith("/"):
        raise _refused(prefix, "a prefix ends in a slash")
    return split_address(prefix[:-1])


def is_prefix(text: str) -> bool:
    """Whether a text is a prefix that a listing accepts."""
    try:
        split_prefix(text)
    except InvalidInput:
        return False
    return True


def in_share(name: str, share: tuple[int, int]) -> bool:
    """Whether an object belongs to a share (k, n), by the last part of its address."""
    place, count = share
    return crc32(name.encode("utf-8", "surrogateescape")) % count == place


def sizes_of(addresses: Sequence[str], found: Iterable[ObjectInfo | None]) -> pa.RecordBatch:
    """Returns the batch of `Storage.sizes` from the object at each address, or None."""
    objects = list(found)
    columns: list[pa.Array[Any]] = [
        pa.array(addresses, pa.string()),
        pa.array([each and each.size_bytes for each in objects], pa.int64()),
        pa.array([each and each.last_modified for each in objects], pa.timestamp("us", "UTC")),
        pa.array([each is not None for each in objects], pa.bool_()),
        pa.nulls(len(objects), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)


def micros_of_write(nanoseconds: int) -> int:
    """Returns the date of a file of the local machine, in microseconds since 1970. File systems can
    have dates that no file was written at, such as 1901 or 2446: then it is that of UNDATED."""
    microseconds = nanoseconds // 1000
    return microseconds if 0 <= microseconds < _MICROS_END else _MICROS_UNDATED


def chunks(data: Content) -> Iterator[bytes]:
    """Yields the pieces of `data`: `bytes` as one piece, a file in pieces of CHUNK_BYTES, and an
    iterable's own pieces."""
    if isinstance(data, bytes):
        yield data
    elif hasattr(data, "read"):
        while piece := data.read(CHUNK_BYTES):
            yield piece
    else:
        yield from data


def not_found(address: str) -> NotFound:
    """Returns the error for an address without an object."""
    return NotFound("object_not_found", f"there is no object at {address}", address=address)


def changed(address: str) -> Conflict:
    """Returns the error for an object that no longer has the version that was read."""
    return Conflict(
        "object_changed",
        f"the object at {address} was changed or deleted since it was read: read it again",
        address=address,
    )


def _refused(address: str, why: str) -> InvalidInput:
    return InvalidInput("invalid_address", f"{shown(address)} is not an address: {why}")
