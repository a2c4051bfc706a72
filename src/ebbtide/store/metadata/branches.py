"""Queries: branches, and the reflog of what branches and tags pointed at.

A name belongs to at most one branch that is not trashed; any number of trashed ones may bear it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.errors import NotFound
from ebbtide.store.metadata.engine import LockMode, Transaction
from ebbtide.store.metadata.prefixes import begins_with
from ebbtide.store.metadata.schema import branches, reflog


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch as it is stored. `sealed_tokens` has the newest first."""

    branch_id: str
    name: str
    commit_id: str
    staging_token: str
    sealed_tokens: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    hidden: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        """Every token that holds staged entries of the branch; a newer one hides older ones."""
        return (self.staging_token, *self.sealed_tokens)


_COLUMNS: Final = (
    branches.c.branch_id,
    branches.c.name,
    branches.c.commit_id,
    branches.c.staging_token,
    branches.c.sealed_tokens,
    branches.c.created_at,
    branches.c.expires_at,
    branches.c.hidden,
)

# Made once: with each request several of these run, and making them takes longer than running them.
_LIVE_BY_NAME: Final = sa.select(*_COLUMNS).where(
    branches.c.repository_id == sa.bindparam("repository_id"),
    branches.c.name == sa.bindparam("name"),
    sa.or_(branches.c.expires_at.is_(None), branches.c.expires_at > sa.bindparam("now")),
)
_LIVE_BY_NAME_LOCKED: Final[Mapping[LockMode | None, sa.Select[Any]]] = {
    None: _LIVE_BY_NAME,
    "share": _LIVE_BY_NAME.with_for_update(read=True),
    "exclusive": _LIVE_BY_NAME.with_for_update(key_share=True),
}


def find_branch(
    tx: Transaction, repository_id: str, name: str, *, lock: LockMode | None = None
) -> BranchRow | None:
    """The branch of that name that is not trashed, by the database's now.

    With `lock`, its row is held until the transaction's end: shared by whoever stages entries
    under its token, exclusive by whoever changes it.
    """
    row = tx.execute(
        _LIVE_BY_NAME_LOCKED[lock],
        {"repository_id": repository_id, "name": name, "now": tx.now()},
    ).one_or_none()
    if row is None or (row.expires_at is not None and row.expires_at <= tx.now()):
        # The second look is for one that expired while its lock was waited for.
        return None
    return BranchRow(**row._mapping)


def require_branch(
    tx: Transaction, repository_id: str, name: str, *, lock: LockMode | None = None
) -> BranchRow:
    """As `find_branch`. Raises NotFound `branch_not_found`, saying so if one is in the trash."""
    branch = find_branch(tx, repository_id, name, lock=lock)
    if branch is not None:
        return branch
    hint = ""
    if trashed_branches(tx, repository_id, name):
        hint = ": it was deleted or has expired, and 'ebbtide branch restore' may bring it back"
    raise NotFound("branch_not_found", f"there is no branch {name[:100]!r}{hint}")


def trashed_branches(tx: Transaction, repository_id: str, name: str) -> list[BranchRow]:
    """The expired branches of that name, gone ones too, the last to expire first."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(
            branches.c.repository_id == repository_id,
            branches.c.name == name,
            ~_is_live(tx.now()),
        )
        .order_by(branches.c.expires_at.desc(), branches.c.branch_id)
    )
    return [BranchRow(**row._mapping) for row in rows]


def list_branches(tx: Transaction, repository_id: str) -> Iterator[BranchRow]:
    """All branches, trashed and gone ones too, by name."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(branches.c.repository_id == repository_id)
        .order_by(branches.c.name, branches.c.created_at, branches.c.branch_id)
    )
    return (BranchRow(**row._mapping) for row in rows)


def page_of_branches(
    tx: Transaction, repository_id: str, *, prefix: str, after: str, amount: int, hidden: bool
) -> list[BranchRow]:
    """At most `amount` branches that are not trashed, by name; hidden ones if asked for."""
    query = sa.select(*_COLUMNS).where(
        branches.c.repository_id == repository_id,
        branches.c.name > after,
        *begins_with(branches.c.name, prefix),
        _is_live(tx.now()),
    )
    if not hidden:
        query = query.where(branches.c.hidden.is_(False))
    rows = tx.execute(query.order_by(branches.c.name).limit(amount))
    return [BranchRow(**row._mapping) for row in rows]


def insert_branch(tx: Transaction, repository_id: str, branch: BranchRow) -> None:
    """Record a branch."""
    tx.execute(
        sa.insert(branches).values(
            repository_id=repository_id,
            branch_id=branch.branch_id,
            name=branch.name,
            commit_id=branch.commit_id,
            staging_token=branch.staging_token,
            sealed_tokens=branch.sealed_tokens,
            created_at=branch.created_at,
            expires_at=branch.expires_at,
            hidden=branch.hidden,
        )
    )


def update_branch(
    tx: Transaction,
    repository_id: str,
    branch_id: str,
    **values: Any,  # of the columns' own types
) -> None:
    """Change columns of a branch."""
    tx.execute(
        sa.update(branches)
        .where(branches.c.repository_id == repository_id, branches.c.branch_id == branch_id)
        .values(**values)
    )


def insert_reflog(
    tx: Transaction, repository_id: str, *, kind: str, name: str, commit_id: str
) -> None:
    """Remember that a ref pointed at `commit_id` until now: whoever read it there was promised
    its data for a lease."""
    tx.execute(
        sa.insert(reflog).values(
            repository_id=repository_id,
            kind=kind,
            name=name,
            commit_id=commit_id,
            left_at=tx.now(),
        )
    )


def is_branch_on(
    tx: Transaction, repository_id: str, commit_id: str, *, gone_before: datetime
) -> bool:
    """Whether a branch points at the commit: a trashed one too, unless it expired that early."""
    query = sa.select(branches.c.branch_id).where(
        branches.c.repository_id == repository_id,
        branches.c.commit_id == commit_id,
        _is_live(gone_before),
    )
    return tx.execute(query.limit(1)).first() is not None


def _is_live(now: datetime) -> sa.ColumnElement[bool]:
    return sa.or_(branches.c.expires_at.is_(None), branches.c.expires_at > now)
