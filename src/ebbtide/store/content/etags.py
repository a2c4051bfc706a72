"""ETags, by which clients of S3 recognize an object.

Some clients take an ETag for the MD5 of the bytes. AWS's SDK for Java 2, up to 2.29, does so for
every ETag that answers a PUT. Its version 1 and s3cmd do so unless the ETag has a dash, as those of
S3 for uploads in parts have. So the ETag of an upload is its MD5, and every other one has a dash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ebbtide.storage import Content
from ebbtide.storage.base import SizedPieces, chunks
from ebbtide.storage.parts import size_of
from ebbtide.store.content.entries import CHECKSUM, Entry, is_external

ETAG: Final = CHECKSUM + "etag"
"""The name of the metadata that keeps the ETag of an object that was written over S3."""

_KEPT: Final = re.compile(r"[0-9a-f]{32}(-[0-9]{1,5})?")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")


class Etag:
    """The ETag of bytes that are read once: their MD5."""

    def __init__(self) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)

    def read(self, data: Content) -> Content:
        """Returns the same bytes: `bytes` as such, and all else in pieces."""
        if isinstance(data, bytes):
            self._md5.update(data)
            return data
        size = size_of(data)
        pieces = self._pieces(data)
        is_stored = isinstance(data, SizedPieces) and data.is_stored
        return pieces if size is None else SizedPieces(pieces, size, is_stored)

    def text(self) -> str:
        """Returns the ETag of the bytes that were read up to now."""
        return self._md5.hexdigest()

    def metadata(self) -> dict[str, str]:
        """Returns the metadata that keeps the ETag."""
        return {ETAG: self.text()}

    def _pieces(self, data: Content) -> Iterator[bytes]:
        for piece in chunks(data):
            self._md5.update(piece)
            yield piece


def metadata_of_parts(etags: Sequence[str]) -> dict[str, str]:
    """Returns the metadata that keeps the ETag of an upload in parts, as S3 makes it of theirs."""
    joined = b"".join(map(bytes.fromhex, etags))
    return {ETAG: f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(etags)}"}


def etag_of(entry: Entry) -> str:
    """Returns the ETag of an object, without quotation marks."""
    if not is_external(entry.address):
        return etag_among(entry.metadata, entry.checksum)
    checksum = entry.checksum
    if not _VISIBLE.fullmatch(checksum) or '"' in checksum:
        # The importer gave any text, or none. Other bytes have another address, size or date.
        told = f"{checksum} {entry.address} {entry.size_bytes} {entry.mtime.isoformat()}"
        checksum = hashlib.sha256(told.encode()).hexdigest()
    return _dashed(checksum)


def etag_among(metadata: Mapping[str, str], checksum: str) -> str:
    """Returns the ETag of a stored object with that metadata and that checksum."""
    kept = metadata.get(ETAG, "")
    return kept if _KEPT.fullmatch(kept) else _dashed(checksum)


def names(entry: Entry, tag: str) -> bool:
    """Whether a client that has the ETag `tag` has the object. Older versions of this program gave
    the checksum as the ETag."""
    return tag != "" and tag in (etag_of(entry), entry.checksum)


def _dashed(checksum: str) -> str:
    return checksum if "-" in checksum else f"{checksum}-1"
