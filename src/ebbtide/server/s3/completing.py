"""The list of parts that completes an upload, and the checksums that its object gets.

Not for: the requests (`multiparts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from xml.etree.ElementTree import Element

from ebbtide.escaping import shown
from ebbtide.server.s3 import checksums
from ebbtide.server.s3.call import S3Call
from ebbtide.server.s3.described import metadata_of_sums
from ebbtide.server.s3.errors import S3Error
from ebbtide.server.s3.markup import Markup, element
from ebbtide.store.content.reserved import CHECKSUM
from ebbtide.store.staging.multipart import PART_NUMBER_MAX, PartReader, WantedPart
from ebbtide.store.staging.multipart_queries import MultipartUpload

_ALGORITHM: Final = CHECKSUM + "algorithm"
_TYPE: Final = CHECKSUM + "type"


@dataclass(frozen=True, slots=True)
class ListedPart:
    """A part in the body of a request, with the checksums that its bytes must have."""

    part: WantedPart
    sums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WantedSums:
    """The checksums that an object gets, by algorithm: of all its bytes, and of its parts'
    checksums. The value is what the client sent, or None."""

    whole: Mapping[str, str | None]
    composite: Mapping[str, str | None]

    @classmethod
    def of(cls, call: S3Call, upload: MultipartUpload) -> WantedSums:
        """Returns the checksums that the upload was begun with, and those of the request."""
        chosen = upload.metadata.get(_ALGORITHM)
        whole: dict[str, str | None] = {}
        composite: dict[str, str | None] = {}
        for name in checksums.ALGORITHMS:
            value = call.headers.get(checksums.PREFIX + name)
            if name == chosen:
                kind = upload.metadata.get(_TYPE)
            elif value is None:
                continue
            elif checksums.is_composite(value):
                kind = "COMPOSITE"
            else:
                kind = call.headers.get("x-amz-checksum-type")
            (composite if kind == "COMPOSITE" else whole)[name] = value
        return cls(whole, composite)


class CheckedParts(PartReader):
    """Reads parts, and compares checksums of each part and of all, and the size of all."""

    def __init__(
        self, parts: list[Mapping[str, str]], wanted: WantedSums, size_bytes: int | None
    ) -> None:
        self._parts = parts
        self._wanted = wanted
        self._size_bytes = size_bytes
        self._found: dict[str, str] = {}

    def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
        """Yields the bytes of all parts. Raises S3Error `BadDigest`, `InvalidPart` or
        `InvalidRequest`."""
        whole = {name: checksums.ALGORITHMS[name]() for name in self._wanted.whole}
        of_parts: dict[str, list[checksums.Summing]] = {name: [] for name in self._wanted.composite}
        size = 0
        for number, (pieces, expected) in enumerate(zip(parts, self._parts, strict=True)):
            sums = {name: checksums.ALGORITHMS[name]() for name in {*expected, *of_parts}}
            for piece in pieces:
                size += len(piece)
                for each in (*sums.values(), *whole.values()):
                    each.update(piece)
                yield piece
            if any(checksums.encoded(sums[name]) != expected[name] for name in expected):
                raise S3Error("InvalidPart", f"the part at place {number + 1} has another checksum")
            for name, each_sum in of_parts.items():
                each_sum.append(sums[name])
        if self._size_bytes not in (None, size):
            raise S3Error("InvalidRequest", f"the parts have {size} bytes together")
        self._found = {name: checksums.encoded(each) for name, each in whole.items()} | {
            name: checksums.composite(each, name) for name, each in of_parts.items()
        }
        for name, given in (*self._wanted.whole.items(), *self._wanted.composite.items()):
            # The number of parts may be left out.
            if given not in (None, self._found[name], self._found[name].partition("-")[0]):
                raise S3Error("BadDigest", "the object's checksum is not the one of the request")

    def metadata(self) -> Mapping[str, str]:
        """Returns the checksums of the object, as metadata."""
        return metadata_of_sums(self._found)


def chosen_checksum(call: S3Call) -> dict[str, str]:
    """Returns, as metadata of the upload, the checksum that the object is to get. Raises S3Error
    `InvalidRequest`."""
    name = call.headers.get("x-amz-checksum-algorithm", "").lower()
    default = "FULL_OBJECT" if name == "crc64nvme" else "COMPOSITE"
    kind = call.headers.get("x-amz-checksum-type", default).upper()
    if not name:
        return {}
    if name not in checksums.ALGORITHMS:
        raise S3Error("InvalidRequest", f"this server has no checksum {shown(name)}")
    if kind not in ("FULL_OBJECT", "COMPOSITE") or (name, kind) == ("crc64nvme", "COMPOSITE"):
        raise S3Error("InvalidRequest", f"{name} has no checksum of the type {shown(kind)}")
    return {_ALGORITHM: name, _TYPE: kind}


def wanted_of(body: Element) -> list[ListedPart]:
    """Returns the parts that a body lists. Raises S3Error `MalformedXML` or `InvalidPartOrder`."""
    found: list[ListedPart] = []
    for item in body.findall("Part"):
        number = (item.findtext("PartNumber") or "").strip()
        etag = (item.findtext("ETag") or "").strip().strip('"')
        if not (number.isascii() and number.isdigit() and len(number) <= 5 and etag):
            raise S3Error("MalformedXML", "a part needs a PartNumber and an ETag")
        given = {
            child.tag.removeprefix("Checksum").lower(): child.text.strip()
            for child in item
            if child.tag.startswith("Checksum") and child.text
        }
        unknown = sorted(given.keys() - checksums.ALGORITHMS.keys())
        if unknown:
            raise S3Error("InvalidRequest", f"this server has no checksum {shown(unknown[0])}")
        found.append(ListedPart(WantedPart(int(number), etag), given))
    if not 1 <= len(found) <= PART_NUMBER_MAX:
        raise S3Error("MalformedXML", f"list between 1 and {PART_NUMBER_MAX} parts")
    numbers = [each.part.part_number for each in found]
    if any(first >= second for first, second in pairwise(numbers)):
        raise S3Error("InvalidPartOrder", "list the parts by their numbers, each once")
    return found


def chosen_elements(upload: MultipartUpload) -> list[Markup]:
    """Returns the checksum that an upload was begun with."""
    names = {"ChecksumAlgorithm": _ALGORITHM, "ChecksumType": _TYPE}
    return [
        element(name, upload.metadata[key].upper())
        for name, key in names.items()
        if key in upload.metadata
    ]
