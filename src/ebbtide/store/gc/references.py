"""Queries: the staged entries, writes and copies that refer to addresses; the commits and refs that
lead to trees; and the data that projects and collections keep.

A collection ends at the earliest of its own date and the dates of the projects above it. A locator
that was signed before this end is valid for at most one lease after the end, even if the date was
changed since. Until then the content is promised, although the collection can be gone. Not for:
whether a reference prevents a purge (`ebbtide.purge`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.model import Ref
from ebbtide.retention.lifecycle import earliest
from ebbtide.store.collections.queries import (
    ContentUse,
    ProjectLink,
    delete_collections,
    delete_projects,
    read_content_uses,
    read_project_tree,
)
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows, in_batches
from ebbtide.store.database.schema import (
    branches,
    commits,
    copies,
    leased_addresses,
    pending,
    readings,
    staged,
    tags,
    upload_tokens,
)

AMONG_MAX: Final = 500
"""Up to this number of addresses, a query names them. For more, each table is read as a whole."""
ROWS_PER_BATCH: Final = 50_000


@dataclass(frozen=True, slots=True)
class IntactCommit:
    """A commit, or content of a collection, that has its data."""

    commit_id: str
    tree_id: str
    tree_checksum: str
    collection_id: str | None
    leased_until: datetime | None


@dataclass(frozen=True, slots=True)
class StagedAddress:
    """A staged entry: its token, path and address."""

    token: str
    path: str
    address: str


_INTACT: Final = Rows(commits, IntactCommit, commits.c.commit_id)


def list_intact(tx: Transaction, repository_id: str) -> Iterator[IntactCommit]:
    """Yields all commits and contents that have their data: neither closed nor given up."""
    query = _INTACT.select(
        commits.c.repository_id == repository_id,
        commits.c.tombstoned_by.is_(None),
        commits.c.forgotten_by.is_(None),
        commits.c.given_up_at.is_(None),
    )
    return _INTACT.each(tx, query)


def names_of_commits(
    tx: Transaction, repository_id: str, *, gone_before: datetime
) -> dict[str, list[str]]:
    """Returns the names of the branches and tags that point at each commit: branches first, by
    name. Trashed refs are included. Refs that expired before `gone_before` are not."""
    found: dict[str, list[str]] = {}
    for table in (branches, tags):
        rows = tx.execute(
            sa.select(table.c.commit_id, table.c.name)
            .where(table.c.repository_id == repository_id, _is_there(table, gone_before))
            .order_by(table.c.name)
        )
        for row in rows:
            found.setdefault(row.commit_id, []).append(row.name)
    return found


def names_of_tokens(
    tx: Transaction, repository_id: str, *, gone_before: datetime
) -> dict[str, str]:
    """Returns the name of the branch of each staging token, also of sealed tokens and of trashed
    branches."""
    rows = tx.execute(
        sa.select(branches.c.name, branches.c.staging_token, branches.c.sealed_tokens).where(
            branches.c.repository_id == repository_id, _is_there(branches, gone_before)
        )
    )
    return {token: row.name for row in rows for token in (row.staging_token, *row.sealed_tokens)}


def _is_there(table: sa.Table, gone_before: datetime) -> sa.ColumnElement[bool]:
    return sa.or_(table.c.expires_at.is_(None), table.c.expires_at > gone_before)


def staged_among(
    tx: Transaction, repository_id: str, addresses: Collection[str]
) -> Iterator[StagedAddress]:
    """Yields the staged entries, under any token, that have one of the addresses."""
    query = sa.select(staged.c.address, staged.c.token, staged.c.path).where(
        staged.c.repository_id == repository_id, staged.c.address.is_not(None)
    )
    for row in _among(tx, query, staged.c.address, addresses):
        yield StagedAddress(row.token, row.path, row.address)


@dataclass(frozen=True, slots=True)
class StagedPlace:
    """A place where an address is staged: the branch, the path, and the date."""

    branch: str
    path: str
    staged_at: datetime
    branch_expires_at: datetime | None


def staged_places(
    tx: Transaction, repository_id: str, address: str, *, gone_before: datetime
) -> list[StagedPlace]:
    """Returns the places where an address is staged on branches that are not gone, by branch and
    path."""
    rows = tx.execute(
        sa.select(staged.c.token, staged.c.path, staged.c.mtime).where(
            staged.c.repository_id == repository_id, staged.c.address == address
        )
    ).all()
    here = sa.select(
        branches.c.name,
        branches.c.staging_token,
        branches.c.sealed_tokens,
        branches.c.expires_at,
    ).where(branches.c.repository_id == repository_id, _is_there(branches, gone_before))
    of_token = {
        token: branch
        for branch in tx.execute(here)
        for token in (branch.staging_token, *branch.sealed_tokens)
    }
    found = [
        StagedPlace(of_token[row.token].name, row.path, row.mtime, of_token[row.token].expires_at)
        for row in rows
        if row.token in of_token
    ]
    return sorted(found, key=lambda place: (place.branch, place.path))


def writes_among(tx: Transaction, repository_id: str, addresses: Collection[str]) -> Iterator[str]:
    """Yields each of the addresses that is being written."""
    query = sa.select(pending.c.address).where(
        pending.c.repository_id == repository_id, pending.c.ends_at > tx.now()
    )
    return (row.address for row in _among(tx, query, pending.c.address, addresses))


def last_promise(
    tx: Transaction, repository_id: str, addresses: Collection[str]
) -> datetime | None:
    """Returns the latest end of an upload token or signed URL for one of the addresses, or None."""
    ends: list[datetime] = []
    for until in (upload_tokens.c.expires_at, leased_addresses.c.leased_until):
        table = until.table
        query = sa.select(table.c.address, until).where(table.c.repository_id == repository_id)
        ends += (row[1] for row in _among(tx, query, table.c.address, addresses))
    return max(ends, default=None)


def copies_among(tx: Transaction, repository_id: str, addresses: Collection[str]) -> Iterator[str]:
    """Yields each of the addresses that belongs to a copy that a current reading needs."""
    oldest = (
        sa.select(sa.func.min(readings.c.started_at))
        .where(readings.c.repository_id == repository_id, readings.c.ends_at > tx.now())
        .scalar_subquery()
    )
    query = sa.select(copies.c.address).where(
        copies.c.repository_id == repository_id, copies.c.made_at >= oldest
    )
    return (row.address for row in _among(tx, query, copies.c.address, addresses))


def _among(
    tx: Transaction,
    query: sa.Select[Any],  # its first column is `address`
    column: sa.Column[str],
    addresses: Collection[str],
) -> Iterator[Any]:  # rows of the query
    if len(addresses) <= AMONG_MAX:
        yield from tx.execute(query.where(column.in_(list(addresses))))
        return
    result = tx.execute(query, execution_options={"yield_per": ROWS_PER_BATCH})
    for rows in result.partitions():
        yield from (row for row in rows if row[0] in addresses)


def drop_staged(
    tx: Transaction, repository_id: str, entries: Collection[StagedAddress], *, oldest_token: str
) -> None:
    """Drops staged entries, if they still have their addresses.

    A commit that is being made of a dropped entry must not be published. Publishing compares sealed
    tokens. Therefore `oldest_token`, which is new and empty, is added as the oldest sealed token of
    each affected branch.
    """
    if not entries:
        return
    for entry in entries:
        tx.execute(
            sa.delete(staged).where(
                staged.c.repository_id == repository_id,
                staged.c.token == entry.token,
                staged.c.path == entry.path,
                staged.c.address == entry.address,
            )
        )
    tokens = {entry.token for entry in entries}
    rows = tx.execute(
        sa.select(branches.c.branch_id, branches.c.sealed_tokens)
        .where(branches.c.repository_id == repository_id)
        .with_for_update(key_share=True)
    ).all()
    for row in rows:
        if tokens.intersection(row.sealed_tokens):
            tx.execute(
                sa.update(branches)
                .where(
                    branches.c.repository_id == repository_id,
                    branches.c.branch_id == row.branch_id,
                )
                .values(sealed_tokens=(*row.sealed_tokens, oldest_token))
            )


@dataclass(frozen=True, slots=True)
class ProjectPlace:
    """A project's path, end and depth. The end is the earliest date of the project and of the
    projects above it."""

    path: str
    ends_at: datetime | None
    depth: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything that collections keep.

    `refs` are the collections and versions that are not gone. `promised` maps content to the end of
    the last lease on it, for collections that have an end.
    """

    refs: list[Ref] = field(default_factory=list)
    promised: dict[str, datetime] = field(default_factory=dict)


def read_kept(
    tx: Transaction,
    repository_id: str,
    *,
    now: datetime,
    lease_ttl: timedelta,
    trash_time: timedelta,
) -> Kept:
    """Returns everything that the collections of a repository keep at `now`."""
    kept = Kept()
    places = read_places(tx, repository_id)
    for use in read_content_uses(tx, repository_id):
        place = places[use.project_id]
        ends_at = earliest(use.expires_at, place.ends_at)
        if ends_at is None or now - ends_at < trash_time:
            kept.refs.append(_ref(use, place, ends_at))
        if ends_at is not None and use.replication_desired > 0 and now - ends_at < lease_ttl:
            # A collection that keeps no data signs no locators. The reflog covers earlier ones.
            promised = ends_at + lease_ttl
            kept.promised[use.content_id] = max(
                promised, kept.promised.get(use.content_id, promised)
            )
    return kept


def drop_gone(
    tx: Transaction, repository_id: str, *, lease_ttl: timedelta, trash_time: timedelta
) -> None:
    """Deletes gone collections, with their versions, and gone projects.

    They stay for at least one lease after their end: until then, locators that were signed through
    them are valid.
    """
    now, lasts = tx.now(), max(trash_time, lease_ttl)
    places = read_places(tx, repository_id)

    def is_over(ends_at: datetime | None) -> bool:
        return ends_at is not None and now - ends_at >= lasts

    over = {
        use.collection_id
        for use in read_content_uses(tx, repository_id)
        if is_over(earliest(use.expires_at, places[use.project_id].ends_at))
    }
    for batch in in_batches(sorted(over)):
        delete_collections(tx, batch)
    # The deepest first: a project is deleted after the projects in it.
    gone = [project_id for project_id, place in places.items() if is_over(place.ends_at)]
    for batch in in_batches(sorted(gone, key=lambda project_id: -places[project_id].depth)):
        delete_projects(tx, batch)


def read_places(tx: Transaction, repository_id: str) -> dict[str, ProjectPlace]:
    """Returns the place of every project of a repository, in any state: project id to place."""
    tree = read_project_tree(tx, repository_id)
    places: dict[str, ProjectPlace] = {}
    for project_id in tree:
        _place(project_id, tree, places)
    return places


def _place(
    project_id: str, tree: Mapping[str, ProjectLink], places: dict[str, ProjectPlace]
) -> None:
    """Sets the places of a project and of those above it, the outermost first."""
    line = [project_id]
    while (parent_id := tree[line[-1]].parent_id) is not None and parent_id not in places:
        line.append(parent_id)
    for inner in reversed(line):
        link = tree[inner]
        if link.parent_id is None:
            places[inner] = ProjectPlace(link.name, link.expires_at, 0)
        else:
            above = places[link.parent_id]
            places[inner] = ProjectPlace(
                f"{above.path}/{link.name}",
                earliest(link.expires_at, above.ends_at),
                above.depth + 1,
            )


def _ref(use: ContentUse, place: ProjectPlace, ends_at: datetime | None) -> Ref:
    version = "" if use.version is None else f"@{use.version}"
    return Ref(
        f"{place.path}/{use.name}{version}",
        "collection",
        use.content_id,
        ends_at,
        keeps_data=use.replication_desired > 0,
    )
