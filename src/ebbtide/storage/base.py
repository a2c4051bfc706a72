"""What every object storage can do, and the values that it answers with.

Not for: deciding what may be deleted, or knowing what an object means.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, BinaryIO, Final, Literal, Protocol, TypeAlias, runtime_checkable
from zlib import crc32

import pyarrow as pa

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.escaping import shown

_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("address", pa.string(), nullable=False),
    pa.field("size_bytes", pa.int64()),
    pa.field("last_modified", pa.timestamp("us", "UTC")),
    pa.field("regular", pa.bool_(), nullable=False),
)

LISTING_SCHEMA: Final = pa.schema(_FIELDS)
"""Columns of a listing. Size and date are null where nobody asked for them. `regular` is false for
what is not a plain file (a symbolic link, a socket) or has a name that is no address: it is there
to be reported, never to be deleted."""

LISTING_ROWS_MAX: Final = 50_000
"""Rows in one batch of a listing."""

ADDRESS_SHOWN_MAX: Final = 1024
"""How many characters of an address a message repeats: as many as S3 allows bytes."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes that one step of a stream holds in memory."""

Content: TypeAlias = bytes | BinaryIO | Iterable[bytes]
Outcome = Literal["deleted", "moved", "missing", "failed"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object. `last_modified` is UTC, to the microsecond or the storage's own precision."""

    address: str
    size_bytes: int
    last_modified: datetime


@dataclass(frozen=True, slots=True)
class DeleteOutcome:
    """What became of one address that was to be deleted, or moved away.

    `deleted`: the storage acknowledged the delete. `moved`: the object is at its new address, and
    not at this one any more. `missing`: the storage said that nothing is
    there (S3 doesn't say so: it acknowledges). `failed`: neither, and `error` says why; an error
    that begins with `throttled` asks the caller to slow down and try again.
    """

    address: str
    outcome: Outcome
    error: str | None = None


@runtime_checkable
class Storage(Protocol):
    """One storage root. A picklable value, equal to another of the same URL and options.

    Addresses are relative to the root, with `/` between their segments. Every method raises
    InvalidInput (`invalid_address`) on one that could leave the root, and Failed
    (`storage_error`) when the storage does.
    """

    @property
    def url(self) -> str:
        """Where it is, normalized as `normalize_url` does."""

    @property
    def shared_between_processes(self) -> bool:
        """Whether an equal value in another process speaks to the same objects."""

    def __hash__(self) -> int:
        """Equal for equal storages."""

    def get(self, address: str) -> bytes:
        """The whole object. Raises NotFound (`object_not_found`)."""

    def get_versioned(self, address: str) -> tuple[bytes, str]:
        """The whole object, and which version of it that is: an opaque text for `replace`.

        Two objects at an address that differ in their bytes differ in their versions, too. Raises
        NotFound (`object_not_found`), and Failed (`storage_error`) if the storage has no versions.
        """

    def stream(self, address: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` up to and without `end`, in pieces of bounded size.

        A range that reaches past the end of the object stops there. Raises NotFound
        (`object_not_found`) at the call, not at the first piece.
        """

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        """Write an object; readers see all of it or nothing. On return it is durable, unless that
        was not asked for: then a power cut may leave anything of it, or nothing.

        Memory is bounded for anything but `bytes`. Raises Conflict (`object_exists`) when
        `create_only` and something is there.
        """

    def replace(self, address: str, data: bytes, *, version: str) -> str:
        """Write an object if it still is the one that `get_versioned` read, and in one step with
        that; returns the new version. As durable as `put`. Memory holds all of it.

        Raises Failed (`storage_unconditional`) where the storage knows no such condition, and
        Conflict (`object_changed`) when it is another version, or gone. That may be an own
        write whose answer was lost on the way, and which the client sent again: who must know
        reads the object.
        """

    def head(self, address: str) -> ObjectInfo | None:
        """The object's size and date, or None where there is none."""

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        share: tuple[int, int] = (0, 1),
        sized: bool = True,
        streamed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of LISTING_SCHEMA of what is under `prefix` ("" or ending in `/`), in no order.

        Without `recursive`, only what is directly under it, and all that lies in directories there
        which `list_prefixes` can't name. With a `share` of (k, n), the k-th of n
        parts, counted from 0, into which the addresses are divided; n listings have each address
        once. That saves time where finding a name costs less than its size and date. So does a
        listing that is not `sized`: a storage that would have to ask for them leaves both null, and
        `sizes` tells them later of those that matter.

        A `streamed` listing is for a prefix directly under which more may lie than memory holds;
        of others an object store may hold the names of each directory. For that price it tells the
        object of a key that ends in a slash, which is not `regular`, from the one without.

        Objects that come or go meanwhile may be in it or not; one that is there all the time is in
        it exactly once.
        """

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        """Size and date of each address, in that order, as columns of LISTING_SCHEMA; both null
        where there is no object. Raises Failed (`storage_error`)."""

    def list_prefixes(self, prefix: str = "") -> builtins.list[str]:
        """The immediate parts below `prefix` that hold objects, sorted, each ending in `/`; but for
        those that are no part of an address.

        A local storage may name a directory that holds none.
        """

    def sign_put(self, address: str, *, lasts: timedelta) -> str | None:
        """A URL that takes the object's bytes in a PUT, without credentials, for so long; None
        where the storage has no such thing."""

    def sign_get(self, address: str, *, lasts: timedelta) -> str | None:
        """A URL that gives the object's bytes to a GET, without credentials, for so long; None
        where the storage has no such thing, or none that lasts that long."""

    def delete(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """Delete any number of objects: one outcome for each address, in the same order.

        Never raises for an address: one that is not allowed is `failed` too.
        """

    def move(self, moves: Sequence[tuple[str, str]]) -> builtins.list[DeleteOutcome]:
        """Move any number of objects, each from its address to another one that nobody else uses:
        one outcome for each, in the same order, which names the first address.

        At each moment an object is at one of the two addresses, or at both. `moved` also where it
        had been moved before; `missing` where it is at neither. Never raises for an address.
        """


def split_address(address: str) -> list[str]:
    """The segments of an address. Raises InvalidInput (`invalid_address`) where there are none.

    No segment is empty, `.` or `..`, so that an address can't leave the root, and two addresses
    are equal only if their objects are.
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
    """The segments of a listing's prefix: none for "", else it must end in `/`."""
    if not prefix:
        return []
    if not prefix.endswith("/"):
        raise _refused(prefix, "a prefix ends in a slash")
    return split_address(prefix[:-1])


def is_prefix(text: str) -> bool:
    """Whether a listing can be asked for what is under it."""
    try:
        split_prefix(text)
    except InvalidInput:
        return False
    return True


def in_share(name: str, share: tuple[int, int]) -> bool:
    """Whether an object, by the last part of its address, belongs to a share (k, n)."""
    place, count = share
    return crc32(name.encode("utf-8", "surrogateescape")) % count == place


def sizes_of(addresses: Sequence[str], found: Iterable[ObjectInfo | None]) -> pa.RecordBatch:
    """What `Storage.sizes` answers with, from what is at each address."""
    objects = list(found)
    columns: list[pa.Array[Any]] = [
        pa.array(addresses, pa.string()),
        pa.array([each and each.size_bytes for each in objects], pa.int64()),
        pa.array([each and each.last_modified for each in objects], pa.timestamp("us", "UTC")),
        pa.array([each is not None for each in objects], pa.bool_()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)


def chunks(data: Content) -> Iterator[bytes]:
    """The pieces of `data`, each of bounded size as far as its maker bounds them."""
    if isinstance(data, bytes):
        yield data
    elif hasattr(data, "read"):
        while piece := data.read(CHUNK_BYTES):
            yield piece
    else:
        yield from data


def not_found(address: str) -> NotFound:
    """The error for an address where nothing is."""
    where = shown(address, ADDRESS_SHOWN_MAX)
    return NotFound("object_not_found", f"there is no object at {where}", address=address)


def changed(address: str) -> Conflict:
    """The error for an object that is not the version that was read."""
    return Conflict(
        "object_changed",
        f"the object at {address} was changed or deleted since it was read: read it again",
        address=address,
    )


def _refused(address: str, why: str) -> InvalidInput:
    return InvalidInput("invalid_address", f"{shown(address)} is not an address: {why}")
