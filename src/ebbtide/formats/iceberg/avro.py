"""Reads manifest lists and manifests, by fastavro, and only the fields that the collector needs.

Fields are found by their ids, which are the same in all versions: names can differ. A manifest must
agree with the list that names it. Files are unpacked within bounds first: a small file may not fill
the memory, nor keep a reader busy for ever.

Source: Iceberg table specification, "Manifests" and "Manifest Lists"; Apache Avro specification
1.12, "Object Container Files".
"""

from __future__ import annotations

import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.io.binary_decoder import BinaryDecoder
from fastavro.io.binary_encoder import BinaryEncoder

from ebbtide.formats.iceberg.metadata import DamagedMetadataError, unpacked_max

_Decoder: Final[Any] = BinaryDecoder  # fastavro gives no types
_Encoder: Final[Any] = BinaryEncoder
_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_LISTED: Final = (500, 501, 502, 517, 503, 504, 505, 506, 515, 516, 519)
"""The fields of `ListedManifest` in their order, and the key of an encrypted manifest."""
_ENTRY, _DATA_FILE, _FILE_PATH = (0, 1, 3, 2), 2, 100
"""The status of an entry, its snapshot, its sequence number, and its file, of which only the path
is read."""
EXISTING, ADDED, DELETED = _STATUSES = 0, 1, 2
"""The status of an entry."""
_CONTENTS: Final[Mapping[int | None, str]] = {0: "data", 1: "deletes"}
_COUNT_MAX: Final = 1 << 40

Entry = tuple[int, int | None, str]
"""A manifest's entry: its status, the snapshot of that status if the entry says so, and the
location of the file."""


@dataclass(frozen=True, slots=True)
class ListedManifest:
    """A manifest as a list names it. A list may leave out what is not in version 1; a metadata
    file of version 1 that names manifests itself says no more than the location.

    `spec_id` is the number of its partition spec. `content` is 0 for data and 1 for deletes.
    `added_by` is the snapshot that added the manifest, and `sequence` the number of that snapshot.
    `added`, `existing` and `deleted` count its entries by their status. `oldest` is the smallest
    sequence number of its live entries.
    """

    location: str
    length: int | None = None
    spec_id: int | None = None
    content: int | None = None
    added_by: int | None = None
    added: int | None = None
    existing: int | None = None
    deleted: int | None = None
    sequence: int | None = None
    oldest: int | None = None

    @property
    def live(self) -> int | None:
        """The number of entries that are not deleted; None if the list does not count them."""
        return None if self.added is None or self.existing is None else self.added + self.existing

    @property
    def claims(self) -> str:
        """What the list says of the manifest, as a text for `of_claims`."""
        return json.dumps(astuple(self)[1:], separators=(",", ":"))

    @classmethod
    def of_claims(cls, location: str, claims: str) -> ListedManifest:
        """Returns a manifest by its `claims`."""
        return cls(location, *json.loads(claims))

    def check(
        self,
        length: int,
        header: Mapping[str, str],
        entries: Sequence[Entry],
        numbers: Sequence[int | None],
    ) -> None:
        """Raises DamagedMetadataError if the manifest contradicts its list: then it is damaged, or
        another file is in its place, of the same table or of another one. `numbers` are the
        sequence numbers of the entries.

        Entries that are taken over from older manifests have the snapshots of these.
        """
        counts = Counter(status for status, _, _ in entries)
        adding = (by for status, by, _ in entries if status == ADDED and by is not None)
        told = (
            ("bytes", length, self.length),
            (
                "partition-spec-id",
                header.get("partition-spec-id"),
                None if self.spec_id is None else str(self.spec_id),
            ),
            ("content", header.get("content"), _CONTENTS.get(self.content)),
            ("added files", counts[ADDED], self.added),
            ("existing files", counts[EXISTING], self.existing),
            *(("snapshot", by, self.added_by) for by in set(adding)),
        )
        for what, own, listed in told:
            if own != listed and None not in (own, listed):
                raise DamagedMetadataError(f"{what}: it has {own}, and its list says {listed}")
        self._check_numbers([status for status, _, _ in entries], numbers)

    def _check_numbers(self, statuses: Sequence[int], numbers: Sequence[int | None]) -> None:
        """Raises DamagedMetadataError if the sequence numbers are not those that the list gives.

        An entry without a number has that of its manifest. Old writers count deleted entries for
        the smallest number, and some leave out the number 0 of files from version 1.
        """
        if self.sequence is None or self.oldest is None:
            return
        every = [self.sequence if each is None else each for each in numbers]
        pairs = zip(statuses, every, strict=True)
        live = [number for status, number in pairs if status != DELETED]
        if not live or min(live) == 0:
            return
        if not min(every) <= self.oldest <= min(live) <= max(live) <= self.sequence:
            raise DamagedMetadataError(
                f"sequence numbers: it has {min(live)} to {max(live)}, and its list says "
                f"{self.oldest} to {self.sequence}"
            )


def read_list(data: bytes, snapshot_id: str | None = None) -> list[ListedManifest]:
    """Returns the manifests in a manifest list.

    Raises DamagedMetadataError, also if the list says that it is of another snapshot: nothing else
    tells a list that was replaced.
    """
    with _refusing():
        plain, header = _unpacked(data)
    own = header.get("snapshot-id")
    if snapshot_id is not None and own not in (None, snapshot_id):
        raise DamagedMetadataError(f"it is the list of snapshot {own}")
    found = []
    for location, length, *more, key in _rows(plain, _LISTED):
        if key is not None:
            raise DamagedMetadataError("a manifest is encrypted")
        if not isinstance(location, str) or not location or not isinstance(length, int):
            raise DamagedMetadataError(f"it names the manifest {location!r} of {length!r} bytes")
        numbers = (each if isinstance(each, int) else None for each in more)
        manifest = ListedManifest(location, length, *numbers)
        if not 0 <= (manifest.live or 0) <= _COUNT_MAX:
            raise DamagedMetadataError(f"it counts {manifest.live} files in {location!r}")
        found.append(manifest)
    return found


def read_manifest(data: bytes, listed: ListedManifest) -> list[Entry]:
    """Returns the entries of a manifest, deleted ones too. Raises DamagedMetadataError, also if it
    contradicts its list."""
    with _refusing():
        plain, header = _unpacked(data)
    found, numbers = list[Entry](), list[int | None]()
    for status, by, number, file in _rows(plain, _ENTRY):
        if status not in _STATUSES or not isinstance(file, dict):
            raise DamagedMetadataError(f"an entry has the status {status!r}")
        path = next(iter(file.values()), None)
        if not isinstance(path, str) or not path:
            raise DamagedMetadataError(f"an entry names the file {path!r}")
        found.append((status, by if isinstance(by, int) else None, path))
        numbers.append(number if isinstance(number, int) else None)
    listed.check(len(data), header, found, numbers)
    return found


@contextmanager
def _refusing() -> Iterator[None]:
    """Raises what fastavro raises for a damaged file as DamagedMetadataError: it is of many
    kinds."""
    try:
        yield
    except Exception as error:
        raise DamagedMetadataError(f"it cannot be read: {type(error).__name__}: {error}") from error


def _rows(plain: bytes, wanted: Sequence[int]) -> Iterator[list[Any]]:
    """Yields the wanted fields of each row of an Avro file, with None for those that it lacks."""
    with _refusing(), io.BytesIO(plain) as file:
        own = _projected(fastavro.reader(file).writer_schema, wanted)
        of_id = {field["field-id"]: field["name"] for field in own["fields"]}
        names = [of_id.get(number) for number in wanted]
        file.seek(0)
        for row in fastavro.reader(file, reader_schema=own):
            yield [row.get(name) for name in names]  # type: ignore[union-attr]


def _projected(written: Any, wanted: Sequence[int]) -> dict[str, Any]:
    """Returns the schema of records (as fastavro parsed it) with the wanted fields alone."""
    fields = [field for field in written["fields"] if field.get("field-id") in wanted]
    for place, field in enumerate(fields):
        if field["field-id"] == _DATA_FILE:
            fields[place] = {**field, "type": _projected(field["type"], (_FILE_PATH,))}
    return {**written, "fields": fields}


def _unpacked(data: bytes) -> tuple[bytes, Mapping[str, str]]:
    """Returns an Avro file without compression, of at most `unpacked_max` bytes, and its metadata.
    Raises DamagedMetadataError, and what fastavro raises for a damaged file."""
    file = io.BytesIO(data)
    header = fastavro.reader(file)
    _check(header.writer_schema, ())
    if header.codec in (None, "null"):
        return data, header.metadata
    unpack = _UNPACK.get(header.codec)
    if unpack is None:
        raise DamagedMetadataError(
            f"it is packed by {header.codec!r}, which this program cannot unpack"
        )
    limit, unpacked = unpacked_max(len(data)), io.BytesIO()
    decoder, encoder = _Decoder(file), _Encoder(unpacked)
    unpacked.write(_MAGIC)
    encoder.write_long(1)
    encoder.write_utf8("avro.schema")
    encoder.write_utf8(header.metadata["avro.schema"])
    encoder.write_long(0)
    unpacked.write(header._header["sync"])
    while file.tell() < len(data):
        count, packed = decoder.read_long(), decoder.read_bytes()
        block = unpack(packed, limit + 1)
        if unpacked.tell() + len(block) > limit:
            raise DamagedMetadataError(f"it unpacks to more than {limit:,} bytes")
        encoder.write_long(count)
        encoder.write_bytes(block)
        unpacked.write(file.read(_SYNC_BYTES))
    return unpacked.getvalue(), header.metadata


def _inflated(packed: bytes, most: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most)


def _of_zstandard(packed: bytes, most: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        return bytes(stream.read(most))


_UNPACK: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "deflate": _inflated,
    "zstandard": _of_zstandard,
}


def _check(
    schema: Any,  # a parsed schema of Avro
    within: tuple[str, ...],
) -> bool:
    """Returns whether each value of a schema takes a byte or more. Raises DamagedMetadataError for
    lists whose values take none, of which a byte can claim any number, and for records within
    themselves, which can be nested more deeply than the stack is high."""
    if isinstance(schema, str):
        if schema in within:
            raise DamagedMetadataError(f"its record {schema} is a part of itself")
        return schema != "null"
    if isinstance(schema, list):
        for each in schema:
            _check(each, within)
        return True  # the number of the type
    kind = schema["type"]
    if kind == "record":
        inner = (*within, schema["name"])
        found = [_check(each["type"], inner) for each in schema["fields"]]
        return any(found)
    if kind == "array" and not _check(schema["items"], within):
        raise DamagedMetadataError("the values of one of its lists have no bytes")
    if kind == "map":
        _check(schema["values"], within)
    if kind == "fixed":
        return bool(schema["size"])
    return kind in ("array", "map") or _check(kind, within)
