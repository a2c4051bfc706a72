"""Metadata that the S3 gateway keeps for itself, beside the metadata of users; and the names of
theirs.

The names have a colon. No header has one in its name, so that no metadata sent over S3 can have
such a name. Not for: the headers of S3 (`doors.s3`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CHECKSUM: Final = "s3:checksum:"
"""Begins the names of checksums: `s3:checksum:crc32` is the CRC32 of the object's bytes."""
META: Final = "X-Amz-Meta-"
"""Begins the names of metadata that users attach over S3, as in lakeFS: the header
`x-amz-meta-color` becomes `X-Amz-Meta-color`, with the rest in lower case."""
HEADER: Final = "http:"
"""Begins the names of `HEADERS`, as metadata has them: `http:cache-control`."""
HEADERS: Final = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
)
"""The headers that a writer may choose, and a reader is sent."""


def checksums_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns the checksums among metadata, with their names."""
    return {name: value for name, value in metadata.items() if name.startswith(CHECKSUM)}


def without_checksums(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns metadata without the checksums. These follow from the bytes, and say nothing more."""
    return {name: value for name, value in metadata.items() if not name.startswith(CHECKSUM)}
