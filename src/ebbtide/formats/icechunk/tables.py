"""Converts whole FlatBuffers to Python values and back, by a description of their tables.

Used for `repo`, the only file that is written field by field. All fields that were read are written
again as they were. A field that the description lacks is an error, so that nothing is lost. Not
for: reading many tables fast (`flatbuffer`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import flatbuffers

from ebbtide.formats.icechunk.flatbuffer import DamagedError, UnknownFieldError

Value: TypeAlias = Any
"""A number, bytes (a struct or a vector of bytes), text, a list, or a table (`Row`)."""

Row: TypeAlias = dict[str, Value]
"""A table: its present fields by name. An absent number has its default value."""

_UINT16: Final = struct.Struct("<H")
_UINT32: Final = struct.Struct("<I")
_INT32: Final = struct.Struct("<i")
_UINT64: Final = struct.Struct("<Q")
_UINT8: Final = struct.Struct("<B")


@dataclass(frozen=True, slots=True)
class Number:
    """A number, 0 if absent. `prepend` is the name of the builder's method for it."""

    packed: struct.Struct
    prepend: str


UINT8: Final = Number(_UINT8, "PrependUint8Slot")
UINT16: Final = Number(_UINT16, "PrependUint16Slot")
UINT32: Final = Number(_UINT32, "PrependUint32Slot")
INT32: Final = Number(_INT32, "PrependInt32Slot")
UINT64: Final = Number(_UINT64, "PrependUint64Slot")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A struct of `size` bytes without alignment."""

    size: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A vector of numbers: `bytes` if a number has one byte, a list if it has two."""

    of: Number


@dataclass(frozen=True, slots=True)
class FixedVector:
    """A vector of structs, as a list of bytes."""

    size: int


@dataclass(frozen=True, slots=True)
class TextVector:
    """A vector of strings."""


@dataclass(frozen=True, slots=True)
class TableVector:
    """A vector of tables."""

    of: Table


@dataclass(frozen=True, slots=True)
class Child:
    """A table."""

    of: Table


@dataclass(frozen=True, slots=True)
class Union:
    """One of several tables, as a pair of the table's number and the table. Takes two slots."""

    of: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table's fields, in the order of their slots."""

    fields: tuple[tuple[str, Field], ...]

    def slots(self) -> list[tuple[int, str, Field]]:
        """Returns each field with its slot. A union's number has the slot before it."""
        found, slot = [], 0
        for name, field in self.fields:
            slot += isinstance(field, Union)
            found.append((slot, name, field))
            slot += 1
        return found

    @property
    def slot_count(self) -> int:
        """The number of slots that the fields take."""
        return len(self.fields) + sum(isinstance(field, Union) for _, field in self.fields)


Field: TypeAlias = (
    Number | Fixed | Text | Numbers | FixedVector | TextVector | TableVector | Child | Union
)


def table(**fields: Field) -> Table:
    """Returns a table of fields, in the order of their slots."""
    return Table(tuple(fields.items()))


def decode(data: bytes, kind: Table) -> Row:
    """Returns the root table of a FlatBuffer. Raises DamagedError or UnknownFieldError."""
    try:
        return _Decoder(data).row(_follow(data, 0), kind)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DamagedError(f"it is damaged: {error}") from error


def encode(row: Row, kind: Table) -> bytes:
    """Returns a FlatBuffer with the table as its root. `decode` returns an equal table from it."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(_Encoder(builder).row(row, kind))
    return bytes(builder.Output())


def _follow(data: bytes, position: int) -> int:
    return position + int(_UINT32.unpack_from(data, position)[0])


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def row(self, position: int, kind: Table) -> Row:
        vtable = position - int(_INT32.unpack_from(self._data, position)[0])
        if not 0 <= vtable <= len(self._data) - 4:
            raise DamagedError("a table lies outside the file")
        size = int(_UINT16.unpack_from(self._data, vtable)[0])
        if size < 4 or size % 2 or vtable + size > len(self._data):
            raise DamagedError("a table's layout lies outside the file")
        entries = struct.unpack_from(f"<{size // 2 - 2}H", self._data, vtable + 4)
        if any(entries[kind.slot_count :]):
            raise UnknownFieldError("it has a field that this program does not know")
        found: Row = {}
        for slot, name, field in kind.slots():
            offset = entries[slot] if slot < len(entries) else 0
            if isinstance(field, Number):
                found[name] = (
                    field.packed.unpack_from(self._data, position + offset)[0] if offset else 0
                )
            elif isinstance(field, Union):
                number = entries[slot - 1] if slot - 1 < len(entries) else 0
                which = self._data[position + number] if number else 0
                if offset and which:
                    found[name] = (which, self._member(position + offset, which, field))
            elif offset:
                found[name] = self._value(position + offset, field)
        return found

    def _member(self, position: int, which: int, field: Union) -> Row:
        if which > len(field.of):
            raise UnknownFieldError(
                f"it has an entry of kind {which}, which this program does not know"
            )
        return self.row(_follow(self._data, position), field.of[which - 1])

    def _value(self, position: int, field: Field) -> Value:
        data = self._data
        match field:
            case Fixed(size):
                return self._bytes(position, size)
            case Child(of):
                return self.row(_follow(data, position), of)
            case Text():
                return self._text(_follow(data, position))
            case Numbers(of):
                start, count = self._vector(position, of.packed.size)
                found = self._bytes(start, count * of.packed.size)
                return found if of is UINT8 else [n for (n,) in of.packed.iter_unpack(found)]
            case FixedVector(size):
                start, count = self._vector(position, size)
                return [self._bytes(start + size * i, size) for i in range(count)]
            case TextVector():
                start, count = self._vector(position, 4)
                return [self._text(_follow(data, start + 4 * i)) for i in range(count)]
            case TableVector(of):
                start, count = self._vector(position, 4)
                return [self.row(_follow(data, start + 4 * i), of) for i in range(count)]
            case _:
                raise AssertionError(field)

    def _vector(self, position: int, size: int) -> tuple[int, int]:
        start = _follow(self._data, position)
        count = int(_UINT32.unpack_from(self._data, start)[0])
        if start + 4 + count * size > len(self._data):
            raise DamagedError("a vector is longer than the file")
        return start + 4, count

    def _bytes(self, start: int, size: int) -> bytes:
        if start + size > len(self._data):
            raise DamagedError("a value lies outside the file")
        return self._data[start : start + size]

    def _text(self, start: int) -> str:
        length = int(_UINT32.unpack_from(self._data, start)[0])
        return self._bytes(start + 4, length).decode()


class _Encoder:
    def __init__(self, builder: flatbuffers.Builder) -> None:
        self._builder = builder

    def row(self, row: Row, kind: Table) -> int:
        builder = self._builder
        # The values that a table points at are written before the table.
        offsets = {
            name: self._offset(row[name], field)
            for name, field in kind.fields
            if name in row and not isinstance(field, Number | Fixed)
        }
        builder.StartObject(kind.slot_count)
        for slot, name, field in kind.slots():
            if isinstance(field, Number):
                getattr(builder, field.prepend)(slot, row[name], 0)
            elif name not in row:
                continue
            elif isinstance(field, Fixed):
                self._fixed(row[name])
                builder.Slot(slot)
            else:
                if isinstance(field, Union):
                    builder.PrependUint8Slot(slot - 1, row[name][0], 0)
                builder.PrependUOffsetTRelativeSlot(slot, offsets[name], 0)
        return int(builder.EndObject())

    def _fixed(self, data: bytes) -> None:
        """Writes the bytes of a struct."""
        self._builder.Prep(1, len(data))
        self._place(data)

    def _place(self, data: bytes) -> None:
        """Writes bytes before all that were written: FlatBuffers are built from the end."""
        builder = self._builder
        builder.head -= len(data)
        builder.Bytes[builder.head : builder.head + len(data)] = data

    def _offset(self, value: Value, field: Field) -> int:
        builder = self._builder
        match field:
            case Text():
                return int(builder.CreateString(value))
            case Child(of):
                return self.row(value, of)
            case Union(of):
                return self.row(value[1], of[value[0] - 1])
            case Numbers(of) if of is UINT8:
                return int(builder.CreateByteVector(value))
            case Numbers(of):
                builder.StartVector(of.packed.size, len(value), of.packed.size)
                for number in reversed(value):
                    builder.PrependUint16(number)
                return int(builder.EndVector())
            case FixedVector(size):
                builder.StartVector(size, len(value), 1)
                self._place(b"".join(value))
                return int(builder.EndVector())
            case TextVector():
                return self._references([builder.CreateString(text) for text in value])
            case TableVector(of):
                return self._references([self.row(row, of) for row in value])
            case _:
                raise AssertionError(field)

    def _references(self, offsets: list[int]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return int(self._builder.EndVector())
