"""One repository, with a part for each group of its operations; and the address behind a ref and a
path, to explain what happens to the file.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from ebbtide.errors import Conflict, EbbtideError, InvalidInput, NotFound
from ebbtide.quarantined import Fate, fate_of, told
from ebbtide.retention.lifecycle import earliest
from ebbtide.storage import Storage
from ebbtide.store.collections.collections import Collections
from ebbtide.store.collections.projects import Projects
from ebbtide.store.collections.queries import collections_with_id, is_collection_on
from ebbtide.store.collections.reading import only_one
from ebbtide.store.commits.commits import Commits
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.content.trees import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import (
    CommitRecord,
    find_commits,
    is_held,
    require_commit,
    write_given_up,
)
from ebbtide.store.gc.dumps import Dumps
from ebbtide.store.gc.exports import Exports
from ebbtide.store.gc.references import read_kept, read_places
from ebbtide.store.gc.run_metadata import run_states
from ebbtide.store.imports import Imports
from ebbtide.store.names import check_path, check_text
from ebbtide.store.objects import views
from ebbtide.store.objects.locators import Locators
from ebbtide.store.objects.objects import Objects
from ebbtide.store.objects.signed_reads import SignedReads
from ebbtide.store.objects.symlinks import Symlinks
from ebbtide.store.refs.policies import REASON_BYTES_MAX, Retention
from ebbtide.store.refs.protection import Protection
from ebbtide.store.refs.ref_rows import find_branch, find_tag, is_branch_on, is_tag_on
from ebbtide.store.refs.refs import Branches, Tags
from ebbtide.store.repositories.repository_rows import RepositoryInfo, promised
from ebbtide.store.staging.addresses import PhysicalAddresses
from ebbtide.store.staging.multipart import Multipart
from ebbtide.store.staging.signed_parts import SignedUploads
from ebbtide.store.staging.uploads import Uploads
from ebbtide.text import shown


class Repository:
    """One repository of an open store. Thread-safe."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self.branches = Branches(context)
        self.tags = Tags(context)
        uploads = Uploads(context)
        self.objects = Objects(context, uploads)
        self.addresses = PhysicalAddresses(context, uploads)
        self.multipart = Multipart(context, uploads)
        self.signed_parts = SignedUploads(context, self.multipart)
        self.commits = Commits(context)
        self.retention = Retention(context)
        self.protection = Protection(context)
        self.exports = Exports(context)
        self.dumps = Dumps(context)
        self.imports = Imports(context)
        self.symlinks = Symlinks(context, self.tags)
        self.projects = Projects(context)
        self.locators = Locators(context)
        self.signed_reads = SignedReads(context, self.locators)
        self.collections = Collections(context, self.projects, self.objects, self.locators)

    @property
    def context(self) -> RepositoryContext:
        """The context of operations on the repository: database, storage, settings, owner."""
        return self._context

    @property
    def info(self) -> RepositoryInfo:
        """The repository's id, name, root, default branch and dates."""
        return self._context.info

    @property
    def storage(self) -> Storage:
        """The storage of the repository's root."""
        return self._context.storage

    def fates(self, run_ids: Collection[str]) -> dict[str, Fate]:
        """Returns what became of the data that runs took, by run. Asks the storage, and so not in a
        transaction."""
        if not run_ids:
            return {}
        with self._context.metadata.snapshot() as tx:
            states, now = run_states(tx, self.info.repository_id, run_ids), tx.now()
        return {
            run_id: fate_of(
                self.storage,
                run_id,
                repository=self.info.name,
                run_state=states.get(run_id),
                now=now,
            )
            for run_id in run_ids
        }

    def tell(self, error: EbbtideError) -> None:
        """Completes an error about a commit that a run closed, as `Store.tell` does, and leaves all
        others as they are. If the database does not answer, the error stays true, and says less."""
        run_id = run_of(error)
        if run_id is not None:
            with suppress(EbbtideError):
                told(error, self.fates([run_id])[run_id])

    def give_up(self, commit_id: str, reason: str) -> CommitRecord:
        """Records that a damaged commit is lost, so that it no longer stops collector runs: an
        operator's explicit decision. A live tree or range that cannot be read stops every run,
        because the files that it refers to are unknown.

        From now on the commit counts as expired. Nothing can be made from it, and runs delete the
        data that only this commit needs.

        Raises Conflict `commit_in_use` while a branch, tag, collection or hold is on it; NotFound
        `commit_not_found`; InvalidInput `invalid_argument`.
        """
        check_text("the reason", reason, bytes_max=REASON_BYTES_MAX)
        repository_id = self.info.repository_id
        with self._context.metadata.transaction() as tx:
            # Exclusive, because a transaction that is publishing a commit can have found this
            # commit intact. This lock waits for it.
            tx.lock_repository(repository_id, "exclusive")
            require_commit(tx, repository_id, commit_id)
            gone_before = tx.now() - promised(tx, self._context.settings).trash_time
            if (
                is_branch_on(tx, repository_id, commit_id, gone_before=gone_before)
                or is_tag_on(tx, repository_id, commit_id, gone_before=gone_before)
                or is_collection_on(tx, repository_id, commit_id)
                or is_held(tx, repository_id, commit_id)
            ):
                raise Conflict(
                    "commit_in_use",
                    f"a branch, tag, collection or hold is on commit {commit_id}, perhaps in the "
                    "trash: move or delete it first",
                )
            write_given_up(tx, repository_id, commit_id, reason)
            return require_commit(tx, repository_id, commit_id)


def run_of(error: EbbtideError) -> str | None:
    """Returns the run that an error about a closed commit names; None for all other errors."""
    run_id: str | None = error.details.get("run_id")
    return run_id if error.kind == "commit_expired" else None


def address_at(context: RepositoryContext, ref: str, path: str) -> str:
    """Returns the address of the object at a path of a revision, or of a collection.

    `ref` is the revision, or the path or an id of the collection. Raises NotFound `ref_not_found`,
    `object_not_found`; InvalidInput `invalid_path`; Gone `commit_expired`. Raises InvalidInput
    `invalid_argument` if the object lies outside the storage root.
    """
    check_path(path)
    content_id = _content_of(context, ref) or content_with_id(context, ref)
    if content_id is None:
        found = views.find(context, ref, path)
        entry = None if found is None else found.entry
    else:
        entry = _entry_of_content(context, content_id, path)
    if entry is None:
        raise NotFound("object_not_found", f"{shown(ref)} has nothing at {shown(path)}")
    if is_external(entry.address):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(path)} of {shown(ref)} was imported from {entry.address}: files outside "
            "the storage root are never collected",
        )
    return entry.address


def _content_of(context: RepositoryContext, name: str) -> str | None:
    """Returns the content of the collection with that path, or None.

    For an earlier version, the path ends in `@` and its number. The collection must not be gone. If
    a branch or tag has the same name, the result is None.
    """
    with context.metadata.snapshot() as tx:
        kept = read_kept(
            tx,
            context.repository_id,
            now=tx.now(),
            lease_ttl=context.settings.lease_ttl,
            trash_time=context.trash_time,
        )
        found = next((ref.commit_id for ref in kept.refs if ref.name == name), None)
        if found is None or find_branch(tx, context.repository_id, name) is not None:
            return None
        return found if find_tag(tx, context.repository_id, name) is None else None


def content_with_id(context: RepositoryContext, name: str) -> str | None:
    """Returns the content of the collection that an id names, as `collections_with_id` describes
    ids. None if there is none that is not gone. Raises Conflict `ref_ambiguous`."""
    with context.metadata.snapshot() as tx:
        rows = collections_with_id(tx, context.repository_id, name)
        if not rows:
            return None
        places = read_places(tx, context.repository_id)
        gone_before = tx.now() - context.trash_time
        ends = [earliest(row.expires_at, places[row.project_id].ends_at) for row in rows]
        kept = [
            row
            for row, ends_at in zip(rows, ends, strict=True)
            if ends_at is None or ends_at > gone_before
        ]
        row = only_one(tx, name, kept)
    return None if row is None else row.content_id


def _entry_of_content(context: RepositoryContext, content_id: str, path: str) -> Entry | None:
    with context.metadata.snapshot() as tx:
        content = find_commits(tx, context.repository_id, [content_id])[content_id]
    with context.reading(content):
        tree = context.tree_of(content)
        return find_entry(context.storage, tree, path, read=context.cache.range)
