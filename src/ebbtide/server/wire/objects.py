"""Objects, and places to upload them to."""

from __future__ import annotations

from typing import Final, Literal, Self

from ebbtide.server.wire.base import Metadata, Pagination, Seconds, Text, Wire, seconds_of
from ebbtide.store.content.entries import Entry, is_external

OCTETS: Final = "application/octet-stream"
"""What an object is whose type nobody told."""


class ObjectStats(Wire):
    """What is known of an object, or of a prefix that several have in common."""

    path: str
    path_type: Literal["object", "common_prefix"]
    physical_address: str
    checksum: str
    size_bytes: int
    mtime: int
    metadata: dict[str, str] | None = None
    content_type: str | None = None

    @classmethod
    def of(cls, entry: Entry, root: str, *, user_metadata: bool = True) -> Self:
        """An object; `root` is the URL of the repository's storage."""
        address = entry.address
        return cls(
            path=entry.path,
            path_type="object",
            physical_address=address if is_external(address) else f"{root.rstrip('/')}/{address}",
            checksum=entry.checksum,
            size_bytes=entry.size_bytes,
            mtime=seconds_of(entry.mtime),
            metadata=dict(entry.metadata) if user_metadata else None,
            content_type=entry.content_type or OCTETS,
        )

    @classmethod
    def of_prefix(cls, prefix: str) -> Self:
        """A prefix."""
        return cls(
            path=prefix,
            path_type="common_prefix",
            physical_address="",
            checksum="",
            size_bytes=0,
            mtime=0,
        )


class ObjectMove(Wire):
    """What to move within a branch."""

    src_path: Text


class ObjectStatsList(Wire):
    """Objects and prefixes, by path."""

    pagination: Pagination
    results: list[ObjectStats]


class ObjectCopyCreation(Wire):
    """What to copy; without `src_ref`, from the branch that it is copied to."""

    src_path: Text
    src_ref: Text | None = None
    shallow: bool = False


class ObjectStageCreation(Wire):
    """An object that stays where it is, outside the repository."""

    physical_address: Text
    checksum: Text
    size_bytes: int
    mtime: Seconds | None = None
    metadata: Metadata | None = None
    content_type: Text | None = None


class PathList(Wire):
    """Paths."""

    paths: list[Text]


class ObjectErrorAnswer(Wire):
    """Why one path of many was not done."""

    status_code: int
    message: str
    path: str


class ObjectErrorList(Wire):
    """All that was not done."""

    errors: list[ObjectErrorAnswer]


class StagingLocation(Wire):
    """A place to upload to; passed back as it came when the upload is linked."""

    physical_address: Text | None = None
    presigned_url: Text | None = None
    presigned_url_expiry: int | None = None


class StagingMetadata(Wire):
    """What was uploaded. A `checksum` of 64 digits is compared, as SHA-256; others say nothing."""

    staging: StagingLocation
    checksum: Text
    size_bytes: int
    user_metadata: Metadata | None = None
    content_type: Text | None = None
