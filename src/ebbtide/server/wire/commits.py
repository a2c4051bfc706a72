"""Commits, and what differs between two."""

from __future__ import annotations

from typing import Literal

from ebbtide.server.wire.base import Metadata, Pagination, Seconds, Text, Wire, seconds_of
from ebbtide.server.wire.objects import OCTETS
from ebbtide.store.content.diffing import Change
from ebbtide.store.metadata.commits import CommitRecord


class CommitCreation(Wire):
    """`date` dates a commit back, as those of an imported history are."""

    message: Text
    metadata: Metadata | None = None
    date: Seconds | None = None
    allow_empty: bool = False


class CommitAnswer(Wire):
    """A commit. `meta_range_id` is empty once its record was let go."""

    id: str
    parents: list[str]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: dict[str, str]

    @classmethod
    def of(cls, record: CommitRecord) -> CommitAnswer:
        """As it is now."""
        return cls(
            id=record.commit_id,
            parents=list(record.parent_ids),
            committer=record.committer,
            message=record.message,
            creation_date=seconds_of(record.created_at),
            meta_range_id=record.tree_id or "",
            metadata=dict(record.metadata),
        )


class CommitList(Wire):
    """Commits, the youngest first."""

    pagination: Pagination
    results: list[CommitAnswer]


class RightSide(Wire):
    """What the right side of a difference has."""

    checksum: str
    mtime: int
    content_type: str
    metadata: dict[str, str]


class DiffAnswer(Wire):
    """One path that differs, or a prefix below which some do."""

    type: Literal["added", "removed", "changed", "conflict", "prefix_changed"]
    path: str
    path_type: Literal["common_prefix", "object"]
    size_bytes: int | None = None
    right: RightSide | None = None

    @classmethod
    def of(cls, change: Change, *, right_stats: bool = False) -> DiffAnswer:
        """One change."""
        entry = change.right or change.left
        assert entry is not None  # a change has a side
        right = None
        if right_stats and change.right is not None:
            right = RightSide(
                checksum=change.right.checksum,
                mtime=seconds_of(change.right.mtime),
                content_type=change.right.content_type or OCTETS,
                metadata=dict(change.right.metadata),
            )
        return cls(
            type=change.kind,
            path=change.path,
            path_type="object",
            size_bytes=entry.size_bytes,
            right=right,
        )

    @classmethod
    def of_prefix(cls, prefix: str) -> DiffAnswer:
        """Many changes."""
        return cls(type="prefix_changed", path=prefix, path_type="common_prefix")


class DiffList(Wire):
    """Differences, by path."""

    pagination: Pagination
    results: list[DiffAnswer]
