"""Objects, and addresses for uploads."""

from __future__ import annotations

from typing import Final, Literal, Self

from ebbtide.server.wire.base import Metadata, Pagination, Seconds, Text, Wire, seconds_of
from ebbtide.store.content.entries import Entry, is_external

OCTETS: Final = "application/octet-stream"
"""The type of an object that was stored without a type."""


class ObjectStats(Wire):
    """The metadata of an object; or a prefix that several paths have in common."""

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
        """Makes the answer for an object; `root` is the URL of the repository's storage root."""
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
        """Makes the answer for a common prefix."""
        return cls(
            path=prefix,
            path_type="common_prefix",
            physical_address="",
            checksum="",
            size_bytes=0,
            mtime=0,
        )


class ObjectMove(Wire):
    """The source of a move within a branch."""

    src_path: Text


class ObjectStatsList(Wire):
    """Objects and prefixes, sorted by path."""

    pagination: Pagination
    results: list[ObjectStats]


class ObjectCopyCreation(Wire):
    """The source of a copy. Without `src_ref` it is the branch that the copy goes to. `shallow` is
    ignored."""

    src_path: Text
    src_ref: Text | None = None
    shallow: bool = False


class ObjectStageCreation(Wire):
    """An object outside the repository that stays where it is."""

    physical_address: Text
    checksum: Text
    size_bytes: int
    mtime: Seconds | None = None
    metadata: Metadata | None = None
    content_type: Text | None = None


class PathList(Wire):
    """A list of paths."""

    paths: list[Text]


class ObjectErrorAnswer(Wire):
    """The error for one path of a request with several paths."""

    status_code: int
    message: str
    path: str


class ObjectErrorList(Wire):
    """The paths of a request that failed."""

    errors: list[ObjectErrorAnswer]


class StagingLocation(Wire):
    """An address to upload to. To link the upload, the client sends it back unchanged."""

    physical_address: Text | None = None
    presigned_url: Text | None = None
    presigned_url_expiry: int | None = None


class StagingMetadata(Wire):
    """The description of an upload. A `checksum` of 64 hexadecimal digits is compared as SHA-256;
    any other checksum is ignored."""

    staging: StagingLocation
    checksum: Text
    size_bytes: int
    user_metadata: Metadata | None = None
    content_type: Text | None = None
