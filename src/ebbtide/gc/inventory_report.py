"""Reads an inventory that another program made, in place of a listing.

An inventory consists of Parquet files. Objects that are newer than its date are not candidates. The
sweep looks each candidate up on the storage before it deletes it. In this way it finds objects that
were deleted or changed since that date.

There are two forms. S3 Inventory has the columns `key`, `size` and `last_modified_date`, and
optionally `bucket`, `is_latest`, `is_delete_marker` and `storage_class`. Its `manifest.json` names
the files of one inventory, and the time when S3 began it
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html). Ebbtide's
own form has `address` (within the storage root), `size_bytes`, `last_modified`, and optionally
`storage_class`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebbtide.arrow import texts
from ebbtide.errors import EbbtideError, InvalidInput, NotFound, Refused
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import checked_kinds_of
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Answers, Count, PartRows
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.store import InventoryWriter, classified
from ebbtide.model import EPOCH
from ebbtide.retention.dates import to_utc
from ebbtide.storage import LISTING_SCHEMA, Storage, normalize_url, open_storage, options_of

MANIFEST: Final = ".json"
ROWS_PER_BATCH: Final = 200_000
_LANDMARK: Final = "landmark"


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """One Parquet file, and its size and MD5 checksum (hexadecimal) if the manifest gives them."""

    name: str
    size_bytes: int | None = None
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class InventoryReport:
    """The files of an inventory within `storage`, and the `date` when it was begun. `bucket` is the
    bucket that a manifest names as their source; None without a manifest."""

    url: str
    date: datetime
    storage: Storage
    files: tuple[InventoryFile, ...]
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class _Root:
    """The bucket of a storage, and the prefix of its keys there. A directory has no bucket."""

    bucket: str | None
    prefix: str

    @classmethod
    def of(cls, storage: Storage) -> _Root:
        scheme, _, place = storage.url.partition("://")
        if scheme == "file":
            return cls(None, "")
        bucket, _, prefix = place.partition("/")
        return cls(bucket, f"{prefix}/" if prefix else "")


def open_inventory(place: str, date: datetime | None) -> InventoryReport:
    """Opens the inventory at a path or URL: a manifest of S3's, a Parquet file, or all Parquet
    files under a directory. `date` is the time when the inventory was begun; a manifest has
    its own.

    Raises InvalidInput `invalid_inventory`, also if the date is missing.
    """
    if date is not None:
        try:
            date = to_utc(date, what="the inventory's date")
        except InvalidInput as error:
            raise _invalid(error.message) from None
    url = normalize_url(place).rstrip("/")
    if url.endswith(MANIFEST):
        return _from_manifest(url, date)
    if date is None:
        raise _invalid(f"the inventory {place} does not say when it was begun: give its date")
    if url.endswith(".parquet"):
        storage, name = _file_at(url)
        if storage.head(name) is None:
            raise _invalid(f"there is no file {place}")
        return InventoryReport(url, date, storage, (InventoryFile(name),))
    storage = open_storage(url)
    names = sorted(
        name
        for batch in storage.list()
        for name in texts(batch.column("address"))
        if name.endswith(".parquet")
    )
    if not names:
        raise _invalid(f"there is no Parquet file under {place}")
    return InventoryReport(url, date, storage, tuple(map(InventoryFile, names)))


def _file_at(url: str) -> tuple[Storage, str]:
    """Returns the storage that holds the file at a URL, and the file's address there. Only `file:`
    URLs are percent-encoded."""
    parent, _, name = url.rpartition("/")
    return open_storage(parent), unquote(name) if url.startswith("file:") else name


def _from_manifest(url: str, date: datetime | None) -> InventoryReport:
    """Opens the inventory of a manifest of S3's. For a manifest on a local disk, the files are
    expected where `aws s3 sync` puts them: in the directory `data` beside the manifest's own."""
    beside, name = _file_at(url)
    try:
        data = beside.get(name)
        manifest = json.loads(data)
        begun = EPOCH + timedelta(milliseconds=int(manifest["creationTimestamp"]))
        bucket = str(manifest["sourceBucket"])
        kind = manifest["fileFormat"]
        files = [
            InventoryFile(
                str(file["key"]),
                None if file.get("size") is None else int(file["size"]),
                str(file.get("MD5checksum") or "") or None,
            )
            for file in manifest["files"]
        ]
    except NotFound:
        raise _invalid(f"there is no file {url}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _invalid(f"{url} is no manifest of an S3 inventory: {error!r}") from error
    _check_manifest(beside, name, data)
    if len({each.name for each in files}) < max(len(files), 1):
        raise _invalid(f"{url} names no files, or one twice: it is no whole inventory")
    if kind != "Parquet":
        raise _invalid(f"the inventory of {url} is in {kind}: configure S3 to write it in Parquet")
    if date is not None and date != begun:
        raise _invalid(f"{url} says that it was begun at {begun.isoformat()}: leave out the date")
    if url.startswith("file:"):
        storage = open_storage(beside.url.rpartition("/")[0])
        files = [replace(each, name=f"data/{each.name.rpartition('/')[2]}") for each in files]
    else:
        scheme, _, rest = url.partition("://")
        bucket = f"{scheme}://{rest.partition('/')[0]}"
        storage = open_storage(bucket, dict(options_of(url)))
    return InventoryReport(url, begun, storage, tuple(files), bucket)


def _check_manifest(beside: Storage, name: str, data: bytes) -> None:
    """Raises InvalidInput if the checksum that S3 writes beside the manifest is not that of the
    manifest. A manifest that was copied alone has none."""
    written = f"{name.removesuffix(MANIFEST)}.checksum"
    try:
        is_whole = beside.get(written).strip().lower() == _md5(data).encode()
    except NotFound:
        return
    if not is_whole:
        raise _invalid(
            f"{beside.url}/{written} is not the MD5 checksum of {name}: the inventory "
            "is incomplete or was changed. Take another one, or copy it again"
        )


def read_inventory(
    engine: Engine, repository: RepositoryFormat, folder: RunFolder, given: InventoryReport
) -> Answers:
    """Returns the inventory as answers in the form of `list_inventory`.

    Raises Refused `inventory_foreign` if the inventory is of another storage, covers only a part of
    this one, or covers it twice. Raises Refused `inventory_corrupt` if a file cannot be read, or
    does not match its checksum.
    """
    storage, layout, landmark = repository.storage, repository.layout, repository.landmark
    root = _Root.of(storage)
    if given.bucket is not None and root.bucket != given.bucket:
        raise _foreign(f"{given.url} lists the bucket {given.bucket}", storage)

    def work(number: int, task: InventoryFile, answer: PartRows) -> None:
        writer = InventoryWriter(f"part-{number:05d}", answer, folder, checked_kinds_of(layout))
        seen = 0
        try:
            for batch in _batches(given.storage, task, root, storage):
                seen += texts(batch.column("address")).count(landmark)
                writer.add(classified(batch, layout))
        except EbbtideError as error:
            answer.failed(error)
        writer.flush()
        answer.counted(Count(seen), of=_LANDMARK)

    answers = engine.run(given.files, work)
    seen = sum(each.count.objects for each in answers.counts if each.of == _LANDMARK)
    if seen != 1:
        found = "more than once" if seen else "nowhere"
        cause = "covers several days" if seen else "does not cover everything"
        raise _foreign(f"{given.url} lists {landmark} {found}, perhaps because it {cause}", storage)
    return Answers(answers.parts, [each for each in answers.counts if each.of != _LANDMARK])


def _batches(
    source: Storage, file: InventoryFile, root: _Root, storage: Storage
) -> Iterator[pa.RecordBatch]:
    """Yields the file's rows within the root (LISTING_SCHEMA) in batches. Raises Refused as
    `read_inventory` does."""
    try:
        data = source.get(file.name)
        if file.size_bytes not in (None, len(data)):
            raise ValueError("its size is not the one in the manifest")
        if file.checksum is not None and _md5(data) != file.checksum.lower():
            raise ValueError("its checksum is not the one in the manifest")
        parquet = pq.ParquetFile(pa.BufferReader(data))
        read = _s3_rows if "key" in parquet.schema_arrow.names else _own_rows
        for batch in parquet.iter_batches(ROWS_PER_BATCH, use_threads=False):
            yield read(batch, root, storage)
    except (NotFound, ValueError, KeyError, OSError, pa.ArrowException) as error:
        reason = f"no column {error}" if isinstance(error, KeyError) else str(error)
        raise Refused(
            "inventory_corrupt",
            f"{file.name} of the inventory can't be read ({reason}): make a new inventory",
        ) from error


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _s3_rows(batch: pa.RecordBatch, root: _Root, storage: Storage) -> pa.RecordBatch:
    """Returns the rows of existing objects, without old versions and delete markers."""
    names = batch.schema.names
    if root.bucket is not None and "bucket" in names:
        for bucket in set(texts(batch.column("bucket"))) - {root.bucket}:
            raise _foreign(f"the inventory lists the bucket {bucket}", storage)
    keys: Any = batch.column("key").cast(pa.string())
    is_there: Any = pc.starts_with(keys, root.prefix)
    for name, wanted in (("is_latest", pa.scalar(True)), ("is_delete_marker", pa.scalar(False))):
        if name in names:
            flags: Any = pc.coalesce(batch.column(name), wanted)
            is_there = pc.and_(is_there, pc.equal(flags, wanted))
    found = batch.filter(is_there)
    addresses = pc.utf8_slice_codeunits(keys.filter(is_there), len(root.prefix))
    dates = found.column("last_modified_date")
    return _listed(addresses, found.column("size"), dates, _classes_in(found))


def _own_rows(batch: pa.RecordBatch, _root: _Root, _storage: Storage) -> pa.RecordBatch:
    sizes, dates = batch.column("size_bytes"), batch.column("last_modified")
    return _listed(batch.column("address"), sizes, dates, _classes_in(batch))


def _classes_in(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Returns the column `storage_class`, or nulls if there is none."""
    if "storage_class" not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.string())
    return batch.column("storage_class").cast(pa.string())


def _listed(addresses: Any, sizes: Any, dates: Any, classes: Any) -> pa.RecordBatch:  # arrays
    """Returns rows of LISTING_SCHEMA. Raises ValueError or ArrowException for other types."""
    if not pa.types.is_timestamp(dates.type):
        raise ValueError(f"the dates are of type {dates.type}, not timestamps")
    if addresses.null_count or dates.null_count or sizes.null_count:
        raise ValueError("an object has no name, size or date")
    columns = {
        "address": addresses.cast(pa.string()),
        "size_bytes": sizes.cast(pa.int64()),
        "last_modified": dates.cast(pa.timestamp("us", "UTC")),
        "regular": pa.repeat(pa.scalar(True), len(addresses)),
        "storage_class": classes,
    }
    return pa.record_batch([columns[name] for name in LISTING_SCHEMA.names], schema=LISTING_SCHEMA)


def _invalid(message: str) -> InvalidInput:
    return InvalidInput("invalid_inventory", message)


def _foreign(what: str, storage: Storage) -> Refused:
    return Refused("inventory_foreign", f"{what}; the repository's storage is {storage.url}")
