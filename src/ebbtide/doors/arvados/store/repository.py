"""One repository as Arvados's clients use it, with a part for each group of operations."""

from __future__ import annotations

from ebbtide.doors.arvados.store.blocks import Blocks
from ebbtide.doors.arvados.store.collections import ArvadosCollections
from ebbtide.doors.arvados.store.groups import Groups, ProjectContents
from ebbtide.doors.arvados.store.links import LinkStore
from ebbtide.doors.arvados.store.listed_collections import CollectionLists
from ebbtide.doors.arvados.store.owners import Owners
from ebbtide.store.repository import Repository


class ArvadosRepository:
    """A repository of an open store. It has no state of its own. Thread-safe."""

    def __init__(self, repository: Repository) -> None:
        context = repository.context
        self.blocks = Blocks(context)
        self.owners = Owners(context, repository.projects)
        self.collections = ArvadosCollections(
            context, repository.collections, self.blocks, self.owners
        )
        self.groups = Groups(context, repository.projects, self.owners)
        self.lists = CollectionLists(context, self.owners)
        self.links = LinkStore(context)
        self.contents = ProjectContents(context, self.groups, self.lists, self.owners)
