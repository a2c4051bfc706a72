"""Converts whole FlatBuffers to Python values and back, by a description of their tables.

Used for `repo`, the only file that is written field by field. All fields that were read are written
again as they were. A field that the description lacks is an error, so that nothing is lost. Not
for: reading many tables fast (`files`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import flatbuffers

from ebbtide.formats.icechunk.files import DamagedError, UnknownFieldError

Value: TypeAlias = Any
"""A number, bytes (a struct or a vector of bytes), text, a list, or a table (`Row`)."""

Row: TypeAlias = dict[str, Value]
"""A table: its present fields by name. An absent number has its default value."""

_OFFSET_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Number:
    """A number, 0 if absent. `name` is the one that the builder's methods have for it."""

    packed: struct.Struct
    name: str


UINT8: Final = Number(struct.Struct("<B"), "Uint8")
UINT16: Final = Number(struct.Struct("<H"), "Uint16")
UINT32: Final = Number(struct.Struct("<I"), "Uint32")
INT32: Final = Number(struct.Struct("<i"), "Int32")
UINT64: Final = Number(struct.Struct("<Q"), "Uint64")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A struct of `size` bytes without alignment."""

    size: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector: `bytes` if it is one of UINT8, otherwise a list."""

    of: Number | Fixed | Text | Table


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


Field: TypeAlias = Number | Fixed | Text | Vector | Table | Union


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
    return position + int(UINT32.packed.unpack_from(data, position)[0])


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def row(self, position: int, kind: Table) -> Row:
        vtable = position - int(INT32.packed.unpack_from(self._data, position)[0])
        if not 0 <= vtable <= len(self._data) - 4:
            raise DamagedError("a table lies outside the file")
        size = int(UINT16.packed.unpack_from(self._data, vtable)[0])
        if size < 4 or size % 2 or vtable + size > len(self._data):
            raise DamagedError("a table's layout lies outside the file")
        entries = struct.unpack_from(f"<{size // 2 - 2}H", self._data, vtable + 4)
        if any(entries[kind.slot_count :]):
            raise UnknownFieldError("it has a field that this program does not know")
        found: Row = {}
        for slot, name, field in kind.slots():
            offset = entries[slot] if slot < len(entries) else 0
            if isinstance(field, Union):
                number = entries[slot - 1] if slot - 1 < len(entries) else 0
                which = self._data[position + number] if number else 0
                if offset and which:
                    found[name] = (which, self._member(position + offset, which, field))
            elif offset:
                found[name] = self._value(position + offset, field)
            elif isinstance(field, Number):
                found[name] = 0
        return found

    def _member(self, position: int, which: int, field: Union) -> Row:
        if which > len(field.of):
            raise UnknownFieldError(
                f"it has an entry of kind {which}, which this program does not know"
            )
        return self.row(_follow(self._data, position), field.of[which - 1])

    def _value(self, position: int, field: Field) -> Value:
        match field:
            case Number(packed):
                return packed.unpack_from(self._data, position)[0]
            case Fixed(size):
                return self._bytes(position, size)
            case Text():
                return self._elements(_follow(self._data, position), UINT8).decode()
            case Vector(of):
                return self._elements(_follow(self._data, position), of)
            case Table():
                return self.row(_follow(self._data, position), field)
            case _:
                raise AssertionError(field)

    def _elements(self, position: int, of: Field) -> Value:
        """Returns the elements of the vector at a position."""
        count = int(UINT32.packed.unpack_from(self._data, position)[0])
        start, size = position + 4, _size_of(of)
        if start + count * size > len(self._data):
            raise DamagedError("a vector is longer than the file")
        if of is UINT8:
            return self._bytes(start, count)
        return [self._value(start + size * place, of) for place in range(count)]

    def _bytes(self, start: int, size: int) -> bytes:
        if start + size > len(self._data):
            raise DamagedError("a value lies outside the file")
        return self._data[start : start + size]


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
                getattr(builder, f"Prepend{field.name}Slot")(slot, row[name], 0)
            elif name not in row:
                continue
            elif isinstance(field, Fixed):
                self._put(row[name], field)
                builder.Slot(slot)
            else:
                if isinstance(field, Union):
                    builder.PrependUint8Slot(slot - 1, row[name][0], 0)
                builder.PrependUOffsetTRelativeSlot(slot, offsets[name], 0)
        return int(builder.EndObject())

    def _offset(self, value: Value, field: Field) -> int:
        """Writes a value that is pointed at. Returns its place."""
        match field:
            case Text():
                return int(self._builder.CreateString(value))
            case Table():
                return self.row(value, field)
            case Union(of):
                return self.row(value[1], of[value[0] - 1])
            case Vector(of) if of is UINT8:
                return int(self._builder.CreateByteVector(value))
            case Vector(of):
                is_inline = isinstance(of, Number | Fixed)
                elements = value if is_inline else [self._offset(each, of) for each in value]
                size = _size_of(of)
                self._builder.StartVector(size, len(value), 1 if isinstance(of, Fixed) else size)
                for each in reversed(elements):
                    self._put(each, of)
                return int(self._builder.EndVector())
            case _:
                raise AssertionError(field)

    def _put(self, value: Value, of: Field) -> None:
        """Writes a number, the bytes of a struct, or the offset of what was written, before all
        that was written: FlatBuffers are built from the end."""
        builder = self._builder
        if isinstance(of, Number):
            getattr(builder, f"Prepend{of.name}")(value)
        elif isinstance(of, Fixed):
            builder.Prep(1, of.size)
            builder.head -= of.size
            builder.Bytes[builder.head : builder.head + of.size] = value
        else:
            builder.PrependUOffsetTRelative(value)


def _size_of(field: Field) -> int:
    """Returns the bytes of a field in its table, or of an element in its vector."""
    match field:
        case Number(packed):
            return packed.size
        case Fixed(size):
            return size
        case _:
            return _OFFSET_BYTES
