"""The tags of a repository. `refs` has the operations that branches share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState, expiry_asked
from ebbtide.store.context import RepositoryContext
from ebbtide.store.names import check_ref_name
from ebbtide.store.refs.queries import TAGS, TagRow
from ebbtide.store.refs.refs import Refs, require_free_name
from ebbtide.store.refs.revisions import resolve


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag as it was when it was read."""

    tag_id: str
    name: str
    commit_id: str
    created_at: datetime
    expires_at: datetime | None
    state: LifecycleState

    @property
    def ref_id(self) -> str:
        """The tag's id."""
        return self.tag_id


class Tags(Refs[TagRow, Tag]):
    """The tags of one repository. A tag never moves. It can be deleted, and made again."""

    def __init__(self, context: RepositoryContext) -> None:
        super().__init__(context, TAGS)

    def create(self, name: str, ref: str, *, expires_at: datetime | None = None) -> Tag:
        """Makes a tag of the commit that `ref` names, without staged changes.

        At `expires_at` the tag moves to the trash. A past time means now.

        Raises InvalidInput `invalid_name`, `invalid_date`; Conflict `branch_exists` or
        `tag_exists`; NotFound; Gone `commit_expired`.
        """
        check_ref_name(name)
        with self._context.changing("exclusive") as tx:
            require_free_name(tx, self._repository_id, name)
            commit = resolve(tx, self._repository_id, ref).commit
            commit.require_intact()
            now = tx.now()
            expires = expiry_asked(expires_at, now=now)
            row = TagRow(new_id(), name, commit.commit_id, now, expires)
            self._table.insert(tx, self._repository_id, row)
            return self._look(tx, row)

    def _found(self, row: TagRow, state: LifecycleState) -> Tag:
        return Tag(row.tag_id, row.name, row.commit_id, row.created_at, row.expires_at, state)
