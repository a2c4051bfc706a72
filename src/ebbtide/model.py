"""The values that every other module speaks of: commits and refs.

Not for: anything that reads, writes or decides. This module imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

RefKind = Literal["branch", "tag", "collection"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The date of every repository's initial, empty commit."""
ONE_MICROSECOND = timedelta(microseconds=1)
"""As exact as dates are."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a repository.

    `parent_ids` has the first parent first. `created_at` is UTC, to the microsecond.
    `tombstoned` says that a collector has passed its fence over the commit: its objects may be
    gone. `leased_until` is the latest instant to which somebody was promised its data. One with
    `is_content` was made as the content of a collection: it is no part of a history, so that only
    refs, holds and leases keep it.
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
    """A name that points at a commit. `expires_at` is None for one that is persistent.

    One that does not keep the data keeps the commit's record, tree and nodes alone.
    """

    name: str
    kind: RefKind
    commit_id: str
    expires_at: datetime | None = None
    keeps_data: bool = True
