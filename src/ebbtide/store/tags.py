"""Tags: made, listed, trashed and brought back."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace
from datetime import datetime

from ebbtide.errors import InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState, state_at
from ebbtide.store.branches import require_free_name
from ebbtide.store.context import RepositoryContext
from ebbtide.store.listing import check_amount
from ebbtide.store.metadata.branches import insert_reflog
from ebbtide.store.metadata.commits import require_intact_commits
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.tags import (
    TagRow,
    find_tag,
    insert_tag,
    list_tags,
    page_of_tags,
    trashed_tags,
    update_tag_expiry,
)
from ebbtide.store.names import check_ref_name, shown
from ebbtide.store.revisions import resolve


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag as it was when it was looked at."""

    tag_id: str
    name: str
    commit_id: str
    created_at: datetime
    expires_at: datetime | None
    state: LifecycleState


class Tags:
    """The tags of one repository. A tag never moves; it can be deleted and made anew."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id

    def create(self, name: str, ref: str) -> Tag:
        """Name the commit that `ref` means; nothing staged comes along.

        Raises InvalidInput `invalid_name`, Conflict `branch_exists` or `tag_exists`, NotFound,
        Gone `commit_expired`.
        """
        check_ref_name(name)
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive")
            require_free_name(tx, self._repository_id, name)
            commit = resolve(tx, self._repository_id, ref).commit
            commit.require_intact()
            row = TagRow(new_id(), name, commit.commit_id, tx.now(), None)
            insert_tag(tx, self._repository_id, row)
            return self._tag(tx, row)

    def get(self, name: str, *, include_expired: bool = False) -> Tag:
        """The tag of that name; with `include_expired`, else the last of it in the trash.

        Raises NotFound `tag_not_found`.
        """
        with self._metadata.snapshot() as tx:
            row = find_tag(tx, self._repository_id, name)
            if row is None and include_expired:
                row = self._recoverable(tx, name)
            if row is None:
                raise self._not_found(tx, name)
            return self._tag(tx, row)

    def list(self, *, include_expired: bool = False) -> list[Tag]:
        """All tags by name; with `include_expired`, those in the trash too."""
        with self._metadata.snapshot() as tx:
            found = [self._tag(tx, row) for row in list_tags(tx, self._repository_id)]
        return [tag for tag in found if tag.state.is_visible(include_expired=include_expired)]

    def page(self, *, prefix: str = "", after: str = "", amount: int = 1000) -> builtins.list[Tag]:
        """At most `amount` tags behind a name, by name. Raises InvalidInput `invalid_argument`."""
        check_amount(amount)
        with self._metadata.snapshot() as tx:
            rows = page_of_tags(tx, self._repository_id, prefix=prefix, after=after, amount=amount)
            return [self._tag(tx, row) for row in rows]

    def delete(self, name: str) -> Tag:
        """Put a tag in the trash: its name is free, and its commit kept for `trash_time`.

        Raises NotFound `tag_not_found`.
        """
        with self._metadata.transaction() as tx:
            return self._expire(tx, name, tx.now())

    def set_expiry(self, name: str, expires_at: datetime | None) -> Tag:
        """Say when a tag will go to the trash by itself; None is never, a past time is now.

        Raises NotFound `tag_not_found`, InvalidInput `invalid_date` for a time without a zone.
        """
        if expires_at is not None and expires_at.tzinfo is None:
            raise InvalidInput("invalid_date", f"{expires_at} has no time zone: give one")
        with self._metadata.transaction() as tx:
            if expires_at is not None:
                expires_at = max(expires_at, tx.now())
            return self._expire(tx, name, expires_at)

    def restore(self, name: str) -> Tag:
        """Bring the tag of that name that was last trashed back.

        Raises NotFound `tag_not_found`, Conflict `branch_exists` or `tag_exists` when the name
        was taken since.
        """
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive")
            require_free_name(tx, self._repository_id, name)
            row = self._recoverable(tx, name)
            if row is None:
                raise NotFound("tag_not_found", f"there is no tag {shown(name)} to restore")
            require_intact_commits(tx, self._repository_id, [row.commit_id])
            return self._update_expiry(tx, row, None)

    def _expire(self, tx: Transaction, name: str, expires_at: datetime | None) -> Tag:
        # Exclusively: tags have no row locks of their own, and two may be at it.
        tx.lock_repository(self._repository_id, "exclusive")
        row = find_tag(tx, self._repository_id, name)
        if row is None:
            raise self._not_found(tx, name)
        if expires_at is not None and expires_at <= tx.now():
            insert_reflog(tx, self._repository_id, kind="tag", name=name, commit_id=row.commit_id)
        return self._update_expiry(tx, row, expires_at)

    def _update_expiry(self, tx: Transaction, row: TagRow, expires_at: datetime | None) -> Tag:
        update_tag_expiry(tx, self._repository_id, row.tag_id, expires_at)
        return self._tag(tx, replace(row, expires_at=expires_at))

    def _recoverable(self, tx: Transaction, name: str) -> TagRow | None:
        for row in trashed_tags(tx, self._repository_id, name):
            if self._tag(tx, row).state is LifecycleState.TRASHED:
                return row
        return None

    def _not_found(self, tx: Transaction, name: str) -> NotFound:
        hint = ""
        if self._recoverable(tx, name) is not None:
            hint = ": it was deleted or has expired, and 'ebbtide tag restore' brings it back"
        return NotFound("tag_not_found", f"there is no tag {shown(name)}{hint}")

    def _tag(self, tx: Transaction, row: TagRow) -> Tag:
        state = state_at(row.expires_at, trash_time=self._context.trash_time, now=tx.now())
        return Tag(row.tag_id, row.name, row.commit_id, row.created_at, row.expires_at, state)
