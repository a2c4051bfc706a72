"""Making a repository: its root is checked to be empty and unowned, then claimed.

Not for: the OWNER file itself (`owner`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final, cast

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.errors import Conflict, EbbtideError, Refused
from ebbtide.ids import new_id
from ebbtide.model import EPOCH
from ebbtide.storage import Storage, contains, normalize_url, open_storage, options_of
from ebbtide.store.content.layout import OWNER_ADDRESS, classify
from ebbtide.store.content.trees import Tree, write_tree
from ebbtide.store.database.commit_rows import CommitRecord, insert_commit
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.refs.ref_rows import BranchRow, insert_branch
from ebbtide.store.repositories.owner import Ownership, close_owner, read_owner
from ebbtide.store.repositories.repository_rows import (
    RepositoryInfo,
    delete_new_repository,
    find_repository,
    insert_repository,
    list_repositories,
    lock_all_repositories,
)
from ebbtide.text import shown

INITIAL_MESSAGE: Final = "Repository created"


def default_root(storage_url: str, name: str) -> str:
    """Returns the root for a repository of that name under the store's own storage.

    Memory storages cannot be nested: their root is `<storage>.<name>`.
    """
    base = normalize_url(storage_url)
    return f"{base}.{name}" if base.startswith("memory:") else f"{base}/{name}"


_LEFT: Final = frozenset(("tree", "temporary"))
"""The kinds of files that an interrupted creation leaves at a root. They belong to no repository,
and the next repository's runs delete them. OWNER of an ended repository can be there, too."""

_SIGNS: Final = {
    "_lakefs/dummy": "the lakeFS repository",
    "snapshots/1CECHNKREP0F1RSTCMT0": "the Icechunk repository",
}
"""Files that repositories of other formats have from their beginning. A listing of everything above
a root would be too long. Later runs of the outer repository find all that `formats.roots` knows."""


def check_root(storage: Storage) -> None:
    """Checks that a root is empty, and not inside another repository's root.

    Raises Conflict `nested_root` or `root_not_empty`, Failed `storage_error` if the root cannot be
    read.
    """
    for parent_url in _parents(storage.url):
        # A profile for the root alone counts above it, too.
        options = options_of(parent_url) or options_of(storage.url)
        parent = open_storage(parent_url, dict(options))
        signs = (what for name, what in _SIGNS.items() if parent.head(name) is not None)
        what = "the repository" if _is_owned(parent) else next(signs, None)
        if what is not None:
            raise Conflict(
                "nested_root",
                f"{storage.url} lies inside {what} at {parent_url}: choose another root",
            )
    is_owned: bool | None = None
    for batch in storage.list():
        if batch.num_rows and is_owned is None:
            is_owned = _is_owned(storage)
        kinds = classify(cast("pa.StringArray", batch.column("address"))).to_pylist()
        for address, kind, regular in zip(
            texts(batch.column("address")), kinds, batch.column("regular").to_pylist(), strict=True
        ):
            if regular and not is_owned and (address == OWNER_ADDRESS or kind in _LEFT):
                continue
            raise Conflict(
                "root_not_empty",
                f"{storage.url} is not empty, it holds {shown(address)}: choose another root",
            )


def _is_owned(storage: Storage) -> bool:
    """Whether the root belongs to a repository that has not ended. If OWNER cannot be read, the
    answer is yes."""
    try:
        found = read_owner(storage)
    except Refused:
        return True
    return found is not None and not found.closed


def _parents(url: str) -> Iterator[str]:
    """Yields the URLs above a URL, up to the root of the file system or the bucket."""
    scheme, separator, place = url.partition("://")
    if not separator:
        return
    while "/" in place:
        place = place.rpartition("/")[0]
        # `file:///` is the root of the file system, and `s3://bucket` the root of a bucket.
        yield f"{scheme}://{place}" if place else f"{scheme}:///"


def require_apart(existing: Iterable[RepositoryInfo], storage_url: str) -> None:
    """Raises Conflict `nested_root` if the root contains, or is in, the root of another
    repository."""
    for info in existing:
        if contains(info.storage_url, storage_url) or contains(storage_url, info.storage_url):
            raise Conflict(
                "nested_root",
                f"{storage_url} is, lies in or holds the root of repository {info.name!r} "
                f"({info.storage_url}, id {info.repository_id}), and one that was deleted keeps "
                "its root until a run collected it: choose another root",
            )


def create(
    metadata: Metadata, info: RepositoryInfo, storage: Storage, ownership: Ownership
) -> None:
    """Makes a repository with an empty first commit on its default branch.

    The tree is written first, and OWNER last. A crash leaves either the tree's file at a root
    without an owner, or a repository that refuses every write until `repo adopt`.
    """
    with metadata.snapshot() as tx:
        _require_free(tx, info)
    check_root(storage)
    tree = Tree(new_id())
    try:
        commit = _initial_commit(tree.tree_id, write_tree(storage, tree), info.created_at)
        with metadata.transaction() as tx:
            lock_all_repositories(tx)
            _require_free(tx, info)
            insert_repository(tx, info)
            _insert_contents(tx, info, commit)
        ownership.claim()
    except BaseException:
        # The first error is reported. Files that cannot be deleted here stay as after a crash.
        with suppress(EbbtideError):
            with metadata.transaction() as tx:
                # If the answer to the COMMIT was lost, the repository can exist now, or a moment
                # later. The lock waits until this is decided. Once the row is not there, or is
                # deleted, the tree can be deleted.
                lock_all_repositories(tx)
                delete_new_repository(tx, info.repository_id)
            _disown(storage, info)
            storage.delete([tree.address])
        raise


def _disown(storage: Storage, info: RepositoryInfo) -> None:
    """Closes OWNER if it names the repository.

    The write can have succeeded although the storage's answer was lost. An OWNER that is not closed
    would prevent the next repository at this root.
    """
    found = read_owner(storage)
    if found is not None and found.repository_id == info.repository_id:
        close_owner(storage, store_id=found.store_id, repository_id=info.repository_id)


def _require_free(tx: Transaction, info: RepositoryInfo) -> None:
    """Raises Conflict `repository_exists` or `nested_root`."""
    if find_repository(tx, info.name) is not None:
        raise Conflict("repository_exists", f"there is a repository {info.name!r} already")
    require_apart(list_repositories(tx), info.storage_url)


def _initial_commit(tree_id: str, checksum: str, created_at: datetime) -> CommitRecord:
    return CommitRecord(
        commit_id=new_id(),
        parent_ids=(),
        created_at=EPOCH,
        written_at=created_at,
        tree_id=tree_id,
        tree_checksum=checksum,
        message=INITIAL_MESSAGE,
    )


def _insert_contents(tx: Transaction, info: RepositoryInfo, commit: CommitRecord) -> None:
    insert_commit(tx, info.repository_id, commit)
    branch = BranchRow(
        branch_id=new_id(),
        name=info.default_branch,
        commit_id=commit.commit_id,
        staging_token=new_id(),
        sealed_tokens=(),
        created_at=info.created_at,
        expires_at=None,
    )
    insert_branch(tx, info.repository_id, branch)
