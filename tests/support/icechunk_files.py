"""Icechunk's metadata files taken apart and put together by hand: a second opinion of the format.

Everything goes through the accessors and the builder of the `flatbuffers` package, straight from
the schema, one field of one table at a time. Not for: anything that has to be fast.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import flatbuffers
import zstandard
from flatbuffers import number_types
from flatbuffers.table import Table

ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
HEADER_BYTES: Final = 39
ID_BYTES: Final = 12
NODE_ID_BYTES: Final = 8
BLOCK_BYTES: Final = 1 << 17
"""The most that a block of zstd holds."""

RefKind = Literal["inline", "native", "virtual", "packed"]


def spell(data: bytes) -> str:
    """An id's text: its bits and four zeros, five at a time."""
    bits = bin(int.from_bytes(data, "big"))[2:].zfill(8 * len(data)) + "0000"
    return "".join(ALPHABET[int(bits[i : i + 5], 2)] for i in range(0, len(bits), 5))


def unpacked(data: bytes) -> bytes:
    assert data[HEADER_BYTES - 1] == 1
    return zstandard.ZstdDecompressor().decompressobj().decompress(data[HEADER_BYTES:])


def plain(data: bytes, payload: bytes) -> bytes:
    """A metadata file with the header of another, which holds `payload` as it is."""
    return data[: HEADER_BYTES - 1] + b"\0" + payload


def new_file(payload: bytes, file_type: int, spec_version: int, *, compressed: bool) -> bytes:
    header = "ICE🧊CHUNK".encode() + b"by hand".ljust(24) + bytes([spec_version, file_type])
    if not compressed:
        return header + b"\0" + payload
    return header + b"\1" + zstandard.ZstdCompressor().compress(payload)


def file_of_blocks(blocks: Sequence[bytes], size_bytes: int, kind: int, file_type: int) -> bytes:
    """A metadata file with these blocks of zstd, each of which unpacks to as many bytes.

    Source: RFC 8878, 3.1.1: a frame without sums, with a window of 2 MiB. A block's `kind` is 0 if
    it holds the bytes themselves, 1 if it holds one that is repeated.
    """
    last = len(blocks) - 1
    heads = [
        (size_bytes << 3 | kind << 1 | (place == last)).to_bytes(3, "little")
        for place in range(len(blocks))
    ]
    header = "ICE🧊CHUNK".encode() + b"by hand".ljust(24) + bytes([2, file_type, 1])
    body = b"".join(head + block for head, block in zip(heads, blocks, strict=True))
    return header + b"\x28\xb5\x2f\xfd\x00\x58" + body


def bomb(file_type: int, size_bytes: int) -> bytes:
    """A metadata file of four bytes for each 128 KiB of zeros that are in it."""
    return file_of_blocks([b"\0"] * -(-size_bytes // BLOCK_BYTES), BLOCK_BYTES, 1, file_type)


class Fields:
    """One table. Slots are counted from zero, as in the schema."""

    def __init__(self, data: bytes, position: int | None = None) -> None:
        start = Table(data, 0).Get(number_types.UOffsetTFlags, 0) if position is None else position
        self.table: Any = Table(data, start)

    def at(self, slot: int) -> int:
        """Where the field is, seen from the table's start; 0 where there is none."""
        return int(self.table.Offset(4 + 2 * slot))

    def number(self, slot: int, flags: Any) -> int:
        return int(self.table.GetSlot(4 + 2 * slot, 0, flags))

    def struct(self, slot: int) -> bytes | None:
        place = self.at(slot)
        start = self.table.Pos + place
        return bytes(self.table.Bytes[start : start + ID_BYTES]) if place else None

    def starts(self, slot: int, size: int) -> list[int]:
        place = self.at(slot)
        if not place:
            return []
        first = self.table.Vector(place)
        return [first + size * i for i in range(self.table.VectorLen(place))]

    def tables(self, slot: int) -> Iterator[Fields]:
        for start in self.starts(slot, 4):
            yield Fields(self.table.Bytes, self.table.Indirect(start))

    def table_at(self, slot: int) -> Fields:
        return Fields(self.table.Bytes, self.table.Indirect(self.table.Pos + self.at(slot)))


def slow_manifest(payload: bytes) -> tuple[str, int, list[str]]:
    """A manifest's id, how many references it has, and the addresses of its native chunks."""
    root = Fields(payload)
    count, found = 0, []
    for array in root.tables(1):
        for ref in array.tables(1):
            count += 1
            chunk = ref.struct(4)
            if chunk is not None:
                found.append(f"chunks/{spell(chunk)}")
    return spell(root.struct(0) or b""), count, found


@dataclass(frozen=True)
class SlowSnapshot:
    snapshot_id: str
    parent_id: str | None
    flushed_at_micros: int
    manifests: dict[str, tuple[int, int]]
    named: set[str]


def slow_snapshot(payload: bytes) -> SlowSnapshot:
    """`manifests` has size and number of references by id; arrays refer to those `named`."""
    root = Fields(payload)
    data = root.table.Bytes
    manifests = {}
    for start in root.starts(6, 32):
        size = int.from_bytes(data[start + 16 : start + 24], "little")
        count = int.from_bytes(data[start + 24 : start + 28], "little")
        manifests[spell(data[start : start + ID_BYTES])] = (size, count)
    for info in root.tables(7):
        size = info.number(1, number_types.Uint64Flags)
        count = info.number(2, number_types.Uint32Flags)
        manifests[spell(info.struct(0) or b"")] = (size, count)
    named = set()
    for node in root.tables(2):
        if node.number(3, number_types.Uint8Flags) == 1:
            for ref in node.table_at(4).tables(2):
                named.add(spell(ref.struct(0) or b""))
    parent = root.struct(1)
    return SlowSnapshot(
        spell(root.struct(0) or b""),
        None if parent is None else spell(parent),
        root.number(3, number_types.Uint64Flags),
        manifests,
        named,
    )


@dataclass(frozen=True)
class MadeRef:
    """A chunk reference; what is None is absent, but for `index`, which then is its place. `full`
    writes numbers that are at their default, so that the table has another layout."""

    kinds: tuple[RefKind, ...]
    index: tuple[int, ...] | None = None
    data: bytes = b""
    offset: int = 0
    length: int = 0
    chunk_id: bytes = bytes(ID_BYTES)
    etag: str | None = None
    last_modified: int = 0
    extra: bytes | None = None
    full: bool = False
    unknown: int | None = None


@dataclass(frozen=True)
class MadeManifest:
    manifest_id: bytes
    arrays: list[list[MadeRef]] = field(default_factory=list)
    dictionary: bytes | None = None
    extra: bytes | None = None
    unknown: int | None = None

    @property
    def count(self) -> int:
        return sum(map(len, self.arrays))

    @property
    def chunks(self) -> list[str]:
        refs = [ref for array in self.arrays for ref in array]
        return [f"chunks/{spell(ref.chunk_id)}" for ref in refs if ref.kinds == ("native",)]

    def payload(self) -> bytes:
        builder = flatbuffers.Builder(64)
        arrays = offsets(builder, [_array(builder, refs) for refs in self.arrays])
        dictionary = None if self.dictionary is None else builder.CreateByteVector(self.dictionary)
        extra = None if self.extra is None else builder.CreateByteVector(self.extra)
        builder.StartObject(6)
        struct_slot(builder, 0, self.manifest_id)
        builder.PrependUOffsetTRelativeSlot(1, arrays, 0)
        if dictionary is not None:
            builder.PrependUOffsetTRelativeSlot(2, dictionary, 0)
        builder.PrependUint8Slot(3, 0, 1)
        if extra is not None:
            builder.PrependUOffsetTRelativeSlot(4, extra, 0)
        if self.unknown is not None:
            builder.PrependUint8Slot(5, self.unknown, 0)
        builder.Finish(builder.EndObject())
        return bytes(builder.Output())


def _array(builder: Any, refs: Sequence[MadeRef]) -> int:
    places = [_ref(builder, ref, place) for place, ref in enumerate(refs)]
    vector = offsets(builder, places)
    builder.StartObject(3)
    struct_slot(builder, 0, bytes(range(NODE_ID_BYTES)))
    builder.PrependUOffsetTRelativeSlot(1, vector, 0)
    return int(builder.EndObject())


def _ref(builder: Any, ref: MadeRef, place: int) -> int:
    places: dict[int, int] = {}
    index = (place,) if ref.index is None else ref.index
    builder.StartVector(4, len(index), 4)
    for coordinate in reversed(index):
        builder.PrependUint32(coordinate)
    places[0] = builder.EndVector()
    if "inline" in ref.kinds:
        places[1] = builder.CreateByteVector(ref.data)
    if "virtual" in ref.kinds:
        places[5] = builder.CreateString("file:///somewhere/" + ref.data.hex())
    if "packed" in ref.kinds:
        places[8] = builder.CreateByteVector(ref.data)
    if ref.etag is not None:
        places[6] = builder.CreateString(ref.etag)
    if ref.extra is not None:
        places[9] = builder.CreateByteVector(ref.extra)
    builder.StartObject(11)
    builder.ForceDefaults(ref.full)
    builder.PrependUint64Slot(2, ref.offset, 0)
    builder.PrependUint64Slot(3, ref.length, 0)
    builder.PrependUint32Slot(7, ref.last_modified, 0)
    if ref.unknown is not None:
        builder.PrependUint8Slot(10, ref.unknown, 0)
    for slot, place in places.items():
        builder.PrependUOffsetTRelativeSlot(slot, place, 0)
    if "native" in ref.kinds:
        struct_slot(builder, 4, ref.chunk_id)
    builder.ForceDefaults(False)
    return int(builder.EndObject())


@dataclass(frozen=True)
class MadeSnapshot:
    """A snapshot. `listed` and `listed_v2` have id, size and number of references of manifests;
    None is an absent vector. `nodes` has the manifests of each array; None is a group."""

    snapshot_id: bytes
    parent_id: bytes | None = None
    flushed_at_micros: int = 0
    listed: list[tuple[bytes, int, int]] = field(default_factory=list)
    listed_v2: list[tuple[bytes, int, int]] | None = None
    nodes: list[list[bytes] | None] = field(default_factory=list)
    unknown: int | None = None

    def payload(self) -> bytes:
        builder = flatbuffers.Builder(64)
        message = builder.CreateString("by hand")
        nodes = offsets(builder, [_node(builder, node) for node in self.nodes])
        builder.StartVector(32, len(self.listed), 8)
        for manifest_id, size, count in reversed(self.listed):
            builder.Prep(8, 32)
            builder.Pad(4)
            builder.PrependUint32(count)
            builder.PrependUint64(size)
            builder.Pad(4)
            _place(builder, manifest_id)
        listed = builder.EndVector()
        listed_v2 = None
        if self.listed_v2 is not None:
            infos = [_file_info(builder, info) for info in self.listed_v2]
            listed_v2 = offsets(builder, infos)
        metadata = offsets(builder, [])
        builder.StartObject(10)
        builder.PrependUint64Slot(3, self.flushed_at_micros, 0)
        struct_slot(builder, 0, self.snapshot_id)
        if self.parent_id is not None:
            struct_slot(builder, 1, self.parent_id)
        for slot, place in ((2, nodes), (4, message), (5, metadata), (6, listed)):
            builder.PrependUOffsetTRelativeSlot(slot, place, 0)
        if listed_v2 is not None:
            builder.PrependUOffsetTRelativeSlot(7, listed_v2, 0)
        if self.unknown is not None:
            builder.PrependUint8Slot(9, self.unknown, 0)
        builder.Finish(builder.EndObject())
        return bytes(builder.Output())


def _node(builder: Any, manifests: list[bytes] | None) -> int:
    path = builder.CreateString("/a")
    user_data = builder.CreateByteVector(b"{}")
    if manifests is None:
        builder.StartObject(0)
    else:
        refs = offsets(builder, [_manifest_ref(builder, each) for each in manifests])
        shape = offsets(builder, [])
        builder.StartObject(4)
        builder.PrependUOffsetTRelativeSlot(0, shape, 0)
        builder.PrependUOffsetTRelativeSlot(2, refs, 0)
    data = builder.EndObject()
    builder.StartObject(6)
    struct_slot(builder, 0, bytes(NODE_ID_BYTES))
    for slot, place in ((1, path), (2, user_data), (4, data)):
        builder.PrependUOffsetTRelativeSlot(slot, place, 0)
    builder.PrependUint8Slot(3, 2 if manifests is None else 1, 0)
    return int(builder.EndObject())


def _manifest_ref(builder: Any, manifest_id: bytes) -> int:
    builder.StartVector(8, 1, 4)
    builder.PrependUint32(9)
    builder.PrependUint32(0)
    extents = builder.EndVector()
    builder.StartObject(2)
    struct_slot(builder, 0, manifest_id)
    builder.PrependUOffsetTRelativeSlot(1, extents, 0)
    return int(builder.EndObject())


def _file_info(builder: Any, info: tuple[bytes, int, int]) -> int:
    manifest_id, size, count = info
    builder.StartObject(4)
    struct_slot(builder, 0, manifest_id)
    builder.PrependUint64Slot(1, size, 0)
    builder.PrependUint32Slot(2, count, 0)
    return int(builder.EndObject())


def offsets(builder: Any, places: Sequence[int]) -> int:
    builder.StartVector(4, len(places), 4)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return int(builder.EndVector())


def struct_slot(builder: Any, slot: int, data: bytes) -> None:
    builder.Prep(1, len(data))
    _place(builder, data)
    builder.Slot(slot)


def _place(builder: Any, data: bytes) -> None:
    for byte in reversed(data):
        builder.Place(byte, number_types.Uint8Flags)


def random_ref(choices: random.Random, index: tuple[int, ...] | None = None) -> MadeRef:
    kinds: tuple[RefKind, ...] = ("inline", "native", "native", "virtual", "packed")
    return MadeRef(
        kinds=(choices.choice(kinds),),
        index=index,
        data=choices.randbytes(choices.choice((0, 1, 2, 7, 30, 3000))),
        offset=choices.choice((0, 0, 1, 1 << 40)),
        length=choices.choice((0, 8, 1 << 63)),
        chunk_id=choices.choice((choices.randbytes(ID_BYTES), bytes(ID_BYTES), b"\xff" * ID_BYTES)),
        etag=choices.choice((None, None, "", "etag")),
        last_modified=choices.choice((0, 0, 1_700_000_000)),
        extra=choices.choice((None, None, None, b"", b"extra")),
        full=choices.random() < 0.3,
    )


def random_manifest(choices: random.Random) -> MadeManifest:
    """Any number of arrays, empty ones too."""
    return MadeManifest(
        manifest_id=choices.randbytes(ID_BYTES),
        arrays=[_random_array(choices) for _ in range(choices.choice((0, 1, 1, 2, 5)))],
        dictionary=choices.choice((None, None, b"", b"dictionary")),
        extra=choices.choice((None, None, b"", b"extra")),
    )


def _random_array(choices: random.Random) -> list[MadeRef]:
    """References in the order of their places, each of which is there once."""
    dimensions = choices.randint(0, 4)
    places = {
        tuple(choices.choice((0, 1, choices.randrange(1 << 32))) for _ in range(dimensions))
        for _ in range(choices.randint(0, 9))
    }
    return [random_ref(choices, place) for place in sorted(places)]


def random_snapshot(choices: random.Random) -> MadeSnapshot:
    """One of either version, or of both at once; arrays name only what is listed."""

    def infos(most: int) -> list[tuple[bytes, int, int]]:
        return [
            (
                choices.randbytes(ID_BYTES),
                choices.choice((0, 1, choices.randrange(1 << 64))),
                choices.choice((0, 1, choices.randrange(1 << 32))),
            )
            for _ in range(choices.randint(0, most))
        ]

    made = MadeSnapshot(
        snapshot_id=choices.randbytes(ID_BYTES),
        parent_id=choices.choice((None, choices.randbytes(ID_BYTES), bytes(ID_BYTES))),
        flushed_at_micros=choices.choice((0, 1, choices.randrange(1 << 54))),
        listed=infos(4) if choices.random() < 0.5 else [],
        listed_v2=infos(6) if choices.random() < 0.7 else None,
    )
    ids = [info[0] for info in (*made.listed, *(made.listed_v2 or ()))]
    nodes: list[list[bytes] | None] = [
        None if choices.random() < 0.3 else choices.choices(ids, k=choices.randint(0, 3))
        for _ in range(choices.randint(0, 5) if ids else 0)
    ]
    return replace(made, nodes=nodes)


def files_of(path: Path, kind: str) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted((path / kind).glob("*"))}
