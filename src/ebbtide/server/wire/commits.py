"""Commits, and the differences between two commits."""

from __future__ import annotations

from typing import Literal

from ebbtide.server.wire.base import Metadata, Pagination, Seconds, Text, Wire, seconds_of
from ebbtide.server.wire.objects import OCTETS
from ebbtide.store.content.diffing import Change
from ebbtide.store.database.commits import CommitRecord


class CommitCreation(Wire):
    """A new commit. `date` gives it an earlier date, as for the commits of an imported history."""

    message: Text
    metadata: Metadata | None = None
    date: Seconds | None = None
    allow_empty: bool = False


class CommitAnswer(Wire):
    """A commit. `meta_range_id` is empty if the commit was forgotten."""

    id: str
    parents: list[str]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: dict[str, str]

    @classmethod
    def of(cls, record: CommitRecord) -> CommitAnswer:
        """Makes the answer for a commit's record."""
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
    """Commits, the newest first."""

    pagination: Pagination
    results: list[CommitAnswer]


class RightSide(Wire):
    """The object on the right side of a difference."""

    checksum: str
    mtime: int
    content_type: str
    metadata: dict[str, str]


class DiffAnswer(Wire):
    """A path that differs, or a prefix of paths that differ."""

    type: Literal["added", "removed", "changed", "conflict", "prefix_changed"]
    path: str
    path_type: Literal["common_prefix", "object"]
    size_bytes: int | None = None
    right: RightSide | None = None

    @classmethod
    def of(cls, change: Change, *, right_stats: bool = False) -> DiffAnswer:
        """Makes the answer for one change."""
        entry = change.right or change.left
        assert entry is not None  # a change has at least one side
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
        """Makes the answer for all changes with a prefix."""
        return cls(type="prefix_changed", path=prefix, path_type="common_prefix")


class DiffList(Wire):
    """Differences, sorted by path."""

    pagination: Pagination
    results: list[DiffAnswer]
