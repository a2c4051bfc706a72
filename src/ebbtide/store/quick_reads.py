"""The usual read of an object, by one statement: it finds the key, the repository, the ref, its
commit and the staged entry.

What is not usual is not found here, and the caller takes the long way: `AccessKeys`, `Store` and
`Objects` say what is wrong. So a find here is always one that the long way would make, too. Not
for: roles, or the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import sqlalchemy as sa

from ebbtide.errors import EbbtideError
from ebbtide.ids import ID_PATTERN
from ebbtide.storage.local import LocalStorage
from ebbtide.store.access.access_keys import KEYS, AccessKey, AccessKeys
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.trees import find_held
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import COMMITS, CommitRecord
from ebbtide.store.database.engine import Metadata
from ebbtide.store.database.prepared import Prepared, Values
from ebbtide.store.database.schema import access_keys, branches, commits, repositories, staged, tags
from ebbtide.store.objects.objects import Readable, checked
from ebbtide.store.objects.views import FoundEntry
from ebbtide.store.repositories.repository_rows import REPOSITORIES, RepositoryInfo
from ebbtide.store.repository import Repository
from ebbtide.store.staging.staged_rows import STAGED_COLUMNS

_FULL_ID: Final = re.compile(ID_PATTERN)
_REF_COLUMNS: Final = (
    branches.c.commit_id,
    branches.c.sealed_tokens,
    branches.c.expires_at,
    tags.c.commit_id,
    tags.c.expires_at,
)
_GROUPS: Final = (
    KEYS.columns,
    REPOSITORIES.columns,
    _REF_COLUMNS,
    COMMITS.columns,
    STAGED_COLUMNS,
)
_ENDS: Final = [0, *accumulate(map(len, _GROUPS))]
_KEY, _REPOSITORY, _REF, _COMMIT, _STAGED = (slice(*pair) for pair in pairwise(_ENDS))


def _query() -> sa.Select[tuple[object, ...]]:
    """Returns the query. A name can have several rows, of which at most one has no ref that ends:
    only that one is used."""
    repository_id = repositories.c.repository_id
    ref, path = sa.bindparam("ref", type_=sa.Text), sa.bindparam("path", type_=sa.Text)
    commit_id = sa.func.coalesce(branches.c.commit_id, tags.c.commit_id, ref)

    def of(table: sa.Table, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        return sa.and_(table.c.repository_id == repository_id, *conditions)

    joined = (
        access_keys.join(repositories, repositories.c.expires_at.is_(None))
        .outerjoin(branches, of(branches, branches.c.name == ref))
        .outerjoin(tags, of(tags, tags.c.name == ref))
        .outerjoin(commits, of(commits, commits.c.commit_id == commit_id))
        .outerjoin(
            staged, of(staged, staged.c.token == branches.c.staging_token, staged.c.path == path)
        )
    )
    return (
        sa.select(*(column.label(None) for group in _GROUPS for column in group))
        .select_from(joined)
        .where(
            access_keys.c.access_key_id == sa.bindparam("key", type_=sa.Text),
            repositories.c.name == sa.bindparam("repository", type_=sa.Text),
        )
    )


@dataclass(frozen=True, slots=True)
class QuickRead:
    """An object that was found, and the key that asked for it."""

    key: AccessKey
    found: Readable


@dataclass(frozen=True, slots=True)
class InMemory:
    """An object and its bytes, which are not checked yet."""

    entry: Entry
    data: bytes

    def stream(self, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Returns the bytes, as `Objects.stream` does."""
        if start or end is not None:
            return iter((self.data[start:end],))
        return checked(iter((self.data,)), self.entry)


def in_memory(found: Readable, *, bytes_max: int) -> InMemory | None:
    """Returns an object with its bytes, if it is of at most that size, and the system has it in
    memory. Else None, without a wait for the disk."""
    storage, entry = found.storage, found.entry
    if entry.size_bytes > bytes_max or not isinstance(storage, LocalStorage):
        return None
    try:
        data = storage.get_cached(entry.address, entry.size_bytes)
    except EbbtideError:
        return None
    return None if data is None else InMemory(entry, data)


class QuickReads:
    """The usual reads of one store. `opened` opens a repository."""

    def __init__(
        self,
        metadata: Metadata,
        keys: AccessKeys,
        opened: Callable[[RepositoryInfo], Repository],
    ) -> None:
        self._keys = keys
        self._opened = opened
        self._prepared = Prepared(metadata, _query())

    def find(
        self,
        access_key_id: str,
        repository: str,
        ref: str,
        path: str,
        *,
        is_right: Callable[[bytes], bool],
    ) -> QuickRead | None:
        """Returns the object that `ref` shows at `path`, if `is_right` says so of the key's secret.
        None says nothing: the caller then takes the long way. Reads no file.

        Raises Failed `database_error`, and as `is_right` does.
        """
        values = {"key": access_key_id, "repository": repository, "ref": ref, "path": path}
        if not _is_storable("".join(values.values())):
            return None
        row, decoded = self._prepared.first(values), self._prepared.decoded
        # Without a row this takes as long, so that nobody learns which keys there are.
        key = self._keys.verified(None if row is None else KEYS.of(decoded(row, _KEY)), is_right)
        if row is None or key is None:
            return None
        opened = self._opened(REPOSITORIES.of(decoded(row, _REPOSITORY)))
        entry = self._entry(opened.context, row, ref, path)
        return None if entry is None else QuickRead(key, Readable(opened.objects, entry))

    def _entry(
        self, context: RepositoryContext, row: Values, ref: str, path: str
    ) -> FoundEntry | None:
        decoded = self._prepared.decoded
        branched, sealed, branch_ends, tagged, tag_ends = row[_REF]
        if sealed or branch_ends is not None or tag_ends is not None:
            return None
        if row[_STAGED][0] is not None:
            is_deleted = row[_STAGED][1] is None
            return None if is_deleted else FoundEntry(Entry(*decoded(row, _STAGED)), None)
        if row[_COMMIT][0] is None:
            return None
        commit = COMMITS.of(decoded(row, _COMMIT))
        is_named = branched is not None or tagged is not None
        if not is_named and (commit.collection_id is not None or not _FULL_ID.fullmatch(ref)):
            return None
        entry = _committed(context, commit, path)
        return None if entry is None else FoundEntry(entry, commit)


def _is_storable(text: str) -> bool:
    """Whether a database can look for a text."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _committed(context: RepositoryContext, commit: CommitRecord, path: str) -> Entry | None:
    """Returns the entry of an intact commit, if its tree and range are in the cache."""
    if not commit.is_intact:
        return None
    return find_held(context.cache, *commit.require_tree(), path)
