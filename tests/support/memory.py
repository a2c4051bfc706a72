"""A storage in this process's memory, dated by a test's clock.

Fast, and truthful about ages, where a directory has the dates of the day on which a test runs. It
calls itself shared between processes, so that the collector takes it: right for tasks that run in
the test's own process, and for no others. A test may watch what happens to it.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa
import pytest

from ebbtide.errors import Conflict, EbbtideError, Failed, NotFound
from ebbtide.storage import (
    LISTING_SCHEMA,
    Content,
    DeleteOutcome,
    ObjectInfo,
    RemoteStorage,
    Retained,
    external,
)
from ebbtide.storage import base as storage_base
from ebbtide.storage.base import chunks, in_share, split_address, split_prefix
from ebbtide.storage.external import ExternalObject

SCHEME: Final = "s3://"
Moment = Literal["before", "within", "after"]
"""Of a put: before its first byte, between two of its pieces, and when it is done."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object. `modified` is the date that the storage shows, `written_at` the true one."""

    data: bytes
    modified: datetime
    written_at: datetime


class Watcher:
    """What a test does when something happens in a bucket. Addresses are keys of the bucket."""

    def putting(self, key: str, moment: Moment) -> None:
        """A put has come to a moment."""

    def listing(self, prefix: str) -> None:
        """Something is about to be listed."""

    def deleted(self, key: str, stored: Stored) -> None:
        """This was there and is not any more."""


@dataclass(slots=True)
class Bucket:
    """The objects of all storages at `s3://<name>/…`, by key. `dates_to_seconds` as S3 dates."""

    name: str
    now: Callable[[], datetime]
    dates_to_seconds: bool = False
    watcher: Watcher = field(default_factory=Watcher)
    objects: dict[str, Stored] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def url(self) -> str:
        return f"{SCHEME}{self.name}"

    def store(self, key: str, data: bytes) -> None:
        now = self.now()
        shown = now.replace(microsecond=0) if self.dates_to_seconds else now
        self.objects[key] = Stored(data, shown, now)

    def storage(self, url: str) -> MemoryStorage:
        place = url.removeprefix(self.url).strip("/")
        return MemoryStorage(url, self, f"{place}/" if place else "")


@dataclass(frozen=True, slots=True)
class MemoryStorage:
    url: str
    bucket: Bucket = field(compare=False, repr=False)
    prefix: str

    shared_between_processes: ClassVar[bool] = True
    deletes_versions: ClassVar[bool] = True

    def get(self, address: str) -> bytes:
        return self._found(address).data

    def get_versioned(self, address: str) -> tuple[bytes, str]:
        data = self.get(address)
        return data, hashlib.sha256(data).hexdigest()

    def stream(
        self, address: str, *, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Iterator[bytes]:
        """See `Storage.stream`. In two pieces, so that something can happen between them."""
        if etag is not None and self.get_versioned(address)[1] != etag:
            raise storage_base.changed(address)
        data = self.get(address)[start : None if end is None else max(start, end)]
        return iter([piece for piece in (data[:1], data[1:]) if piece])

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        """See `Storage.put`. What comes in pieces has a temporary file, as in a directory."""
        del durable
        split_address(address)
        key = self.prefix + address
        watcher = self.bucket.watcher
        watcher.putting(key, "before")
        whole = data if isinstance(data, bytes) else self._gathered(key, data)
        if create_only and key in self.bucket.objects:
            raise Conflict("object_exists", f"there is an object at {address} already")
        self.bucket.store(key, whole)
        watcher.putting(key, "after")

    def _gathered(self, key: str, data: Content) -> bytes:
        temporary = f"{key}#{next(self.bucket.numbers)}"
        pieces: list[bytes] = []
        try:
            for piece in chunks(data):
                pieces.append(piece)
                self.bucket.store(temporary, b"".join(pieces))
                if len(pieces) == 1:
                    self.bucket.watcher.putting(key, "within")
            if pieces and temporary not in self.bucket.objects:
                raise Failed("storage_error", f"{temporary} is not there any more")
        finally:
            self.bucket.objects.pop(temporary, None)
        return b"".join(pieces)

    def replace(self, address: str, data: bytes, *, version: str) -> str:
        try:
            found = self.get_versioned(address)[1]
        except NotFound:
            found = ""
        if found != version:
            raise storage_base.changed(address)
        self.bucket.store(self.prefix + address, data)
        return self.get_versioned(address)[1]

    def head(self, address: str) -> ObjectInfo | None:
        split_address(address)
        found = self.bucket.objects.get(self.prefix + address)
        if found is None:
            return None
        etag = hashlib.sha256(found.data).hexdigest()
        return ObjectInfo(address, len(found.data), found.modified, etag)

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        share: tuple[int, int] = (0, 1),
        sized: bool = True,
        streamed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        del streamed
        split_prefix(prefix)
        self.bucket.watcher.listing(self.prefix + prefix)
        rows = [
            (address, stored)
            for address, stored in self._below(prefix)
            if (recursive or "/" not in address[len(prefix) :])
            and in_share(address.rpartition("/")[2], share)
        ]
        if rows:
            columns: list[pa.Array[Any]] = [
                pa.array([address for address, _ in rows], pa.string()),
                pa.array([len(each.data) if sized else None for _, each in rows], pa.int64()),
                pa.array(
                    [each.modified if sized else None for _, each in rows],
                    pa.timestamp("us", "UTC"),
                ),
                pa.array([True] * len(rows), pa.bool_()),
                pa.nulls(len(rows), pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        return storage_base.sizes_of(addresses, map(self.head, addresses))

    def list_prefixes(self, prefix: str = "") -> builtins.list[str]:
        split_prefix(prefix)
        rests = (address[len(prefix) :] for address, _ in self._below(prefix))
        return sorted({f"{prefix}{rest.split('/')[0]}/" for rest in rests if "/" in rest})

    def sign_put(self, address: str, *, lasts: timedelta) -> str | None:
        split_address(address)
        del lasts
        return None

    def sign_get(
        self, address: str, *, lasts: timedelta, method: Literal["GET", "HEAD"] = "GET"
    ) -> str | None:
        split_address(address)
        del lasts, method
        return None

    def delete(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        return [self._delete(address) for address in addresses]

    def move(self, moves: Sequence[tuple[str, str]]) -> builtins.list[DeleteOutcome]:
        return [self._move(*move) for move in moves]

    def retained(self) -> Retained:
        return Retained("no", "memory keeps no deleted objects")

    def delete_versions(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        return [DeleteOutcome(address, "missing") for address in addresses]

    def hidden(self, prefix: str) -> Iterator[builtins.list[str]]:
        split_prefix(prefix)
        return iter(())

    def _move(self, source: str, target: str) -> DeleteOutcome:
        try:
            split_address(source)
            split_address(target)
        except EbbtideError as error:
            return DeleteOutcome(source, "failed", error.message)
        stored = self.bucket.objects.pop(self.prefix + source, None)
        if stored is not None:
            self.bucket.objects[self.prefix + target] = stored
        is_there = self.prefix + target in self.bucket.objects
        return DeleteOutcome(source, "moved" if is_there else "missing")

    def _delete(self, address: str) -> DeleteOutcome:
        try:
            split_address(address)
        except EbbtideError as error:
            return DeleteOutcome(address, "failed", error.message)
        stored = self.bucket.objects.pop(self.prefix + address, None)
        if stored is None:
            return DeleteOutcome(address, "missing")
        self.bucket.watcher.deleted(self.prefix + address, stored)
        return DeleteOutcome(address, "deleted")

    def _found(self, address: str) -> Stored:
        split_address(address)
        try:
            return self.bucket.objects[self.prefix + address]
        except KeyError:
            raise NotFound(
                "object_not_found", f"there is no object at {address}", address=address
            ) from None

    def _below(self, prefix: str) -> Iterator[tuple[str, Stored]]:
        """What is under a prefix, with addresses in the storage."""
        whole = self.prefix + prefix
        for key, stored in self.bucket.objects.items():
            if key.startswith(whole):
                yield key[len(self.prefix) :], stored


@contextmanager
def opened_in_memory(buckets: Mapping[str, Bucket]) -> Iterator[None]:
    """In the block, URLs of these buckets, by name, open storages in memory."""
    original, original_head = RemoteStorage.of, external._head

    def of(url: str, options: Mapping[str, str] | None = None) -> MemoryStorage | RemoteStorage:
        bucket = buckets.get(url.removeprefix(SCHEME).partition("/")[0])
        return original(url, options) if bucket is None else bucket.storage(url)

    def head(place: str, key: str, name: str) -> ExternalObject | None:
        bucket = buckets.get(place.removeprefix(SCHEME))
        if bucket is None:
            return original_head(place, key, name)
        found = bucket.storage(place).head(key)
        if found is None:
            return None
        return ExternalObject(f"{place}/{key}", name, found.size_bytes, found.last_modified, "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteStorage, "of", of)
        patch.setattr(external, "_head", head)
        yield
