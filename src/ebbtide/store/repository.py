"""One repository, with a part for each group of its operations."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from ebbtide.errors import Conflict, EbbtideError
from ebbtide.quarantined import Fate, fate_of, told
from ebbtide.storage import Storage
from ebbtide.store.collecting.dumping import Dumps
from ebbtide.store.collecting.exporting import Exports
from ebbtide.store.collecting.roots import run_states
from ebbtide.store.collections.collections import Collections
from ebbtide.store.collections.projects import Projects
from ebbtide.store.collections.queries import is_collection_on
from ebbtide.store.commits.commits import Commits
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord, is_held, require_commit, write_given_up
from ebbtide.store.importing.imports import Imports
from ebbtide.store.names import check_text
from ebbtide.store.objects.locators import Locators
from ebbtide.store.objects.objects import Objects
from ebbtide.store.objects.signed_reads import SignedReads
from ebbtide.store.objects.symlinks import Symlinks
from ebbtide.store.refs.policies import REASON_BYTES_MAX, Retention
from ebbtide.store.refs.protection import Protection
from ebbtide.store.refs.queries import is_branch_on, is_tag_on
from ebbtide.store.refs.refs import Branches, Tags
from ebbtide.store.repositories.promises import promised
from ebbtide.store.repositories.queries import RepositoryInfo
from ebbtide.store.staging.addresses import PhysicalAddresses
from ebbtide.store.staging.multipart import Multipart
from ebbtide.store.staging.signed_parts import SignedUploads
from ebbtide.store.staging.uploads import Uploads


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
