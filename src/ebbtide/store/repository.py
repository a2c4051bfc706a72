"""One repository, with a part for each group of its operations."""

from __future__ import annotations

from collections.abc import Collection

from ebbtide.errors import EbbtideError
from ebbtide.quarantined import Fate
from ebbtide.storage import Storage
from ebbtide.store.arvados.blocks import Blocks
from ebbtide.store.arvados.collections import ArvadosCollections
from ebbtide.store.arvados.contents import ProjectContents
from ebbtide.store.arvados.groups import Groups
from ebbtide.store.arvados.links import LinkStore
from ebbtide.store.arvados.listed_collections import CollectionLists
from ebbtide.store.arvados.owners import Owners
from ebbtide.store.collecting.dumping import Dumps
from ebbtide.store.collecting.exporting import Exports
from ebbtide.store.collecting.fates import fates, tell
from ebbtide.store.collecting.giving_up import give_up
from ebbtide.store.collections.collections import Collections
from ebbtide.store.collections.projects import Projects
from ebbtide.store.commits.commits import Commits
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord
from ebbtide.store.importing.imports import Imports
from ebbtide.store.objects.locators import Locators
from ebbtide.store.objects.objects import Objects
from ebbtide.store.objects.signed_reads import SignedReads
from ebbtide.store.objects.symlinks import Symlinks
from ebbtide.store.refs.branches import Branches
from ebbtide.store.refs.policies import Retention
from ebbtide.store.refs.protection import Protection
from ebbtide.store.refs.tags import Tags
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
        self.blocks = Blocks(context)
        self.owners = Owners(context, self.projects)
        self.arvados_collections = ArvadosCollections(
            context, self.collections, self.blocks, self.owners
        )
        self.arvados_groups = Groups(context, self.projects, self.owners)
        self.arvados_lists = CollectionLists(context, self.owners)
        self.arvados_links = LinkStore(context)
        self.arvados_contents = ProjectContents(
            context, self.arvados_groups, self.arvados_lists, self.owners
        )

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
        """Returns what became of the data that runs took, by run."""
        return fates(self._context, run_ids)

    def tell(self, error: EbbtideError) -> None:
        """Completes an error about a commit that a run closed, as `Store.tell` does."""
        tell(self._context, error)

    def give_up(self, commit_id: str, reason: str) -> CommitRecord:
        """Records that a damaged commit is lost, as `giving_up.give_up` describes."""
        return give_up(self._context, commit_id, reason)
