"""The values that all other modules use: commits and refs.

Not for: reading, writing or deciding. Of Ebbtide, this module imports only `documents`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from ebbtide.documents import documented

RefKind = Literal["branch", "tag", "collection"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The date of every repository's initial, empty commit."""
ONE_MICROSECOND = timedelta(microseconds=1)
"""The precision of dates."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a repository.

    `parent_ids` has the first parent first. `created_at` is UTC, to the microsecond. If
    `tombstoned` is true, the fence of a run has closed the commit: its objects may be gone.
    `leased_until` is the end of the last lease on its data. If `is_content` is true, the commit is
    the content of a collection. It is not part of a history, so that only refs, holds and leases
    keep it.
    """

    commit_id: str
    parent_ids: tuple[str, ...]
    created_at: datetime
    tree_id: str
    tombstoned: bool = False
    leased_until: datetime | None = None
    is_content: bool = False

    @property
    def first_parent_id(self) -> str | None:
        """The commit that the branch pointed at before this one, if there was one."""
        return self.parent_ids[0] if self.parent_ids else None


@dataclass(frozen=True, slots=True)
class Ref:
    """A name that points at a commit. `expires_at` is None if the ref is persistent.

    If `keeps_data` is false, the ref keeps only the commit's record, tree and nodes.
    """

    name: str
    kind: RefKind
    commit_id: str
    expires_at: datetime | None = None
    keeps_data: bool = True

    def is_in_trash(self, now: datetime) -> bool:
        """Whether the ref has expired: it can be restored, and keeps its commit for some time."""
        return self.expires_at is not None and self.expires_at <= now

    def text(self, now: datetime) -> str:
        """Returns kind and name for people: `tag v1`, or `tag v1 (in the trash)`."""
        return f"{self.kind} {self.name}" + " (in the trash)" * self.is_in_trash(now)


@documented
@dataclass(frozen=True, slots=True)
class Hold:
    """A hold: the commit is kept until the hold is released, whatever the policy says."""

    commit_id: str
    reason: str
    created_at: datetime
