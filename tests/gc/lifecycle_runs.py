"""Runs of the collector over projects and collections, and what is there when they are over."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.store.database.commits import find_commits
from tests.gc.lifecycle_model import Bundle, Folder, LifecycleModel
from tests.gc.lifecycle_users import LifecycleUsers
from tests.gc.lines import Reader
from tests.gc.uncommitted_runs import Runs


@dataclass(slots=True)
class LifecycleRuns(Runs):
    """The runs of one history."""

    model: LifecycleModel
    users: LifecycleUsers

    def check_commits(self) -> None:
        """Every commit, and content, is intact, or closed and forgotten by the run that the
        definition says. Of content nothing is left."""
        context = self.world.lake.context
        with context.metadata.snapshot() as tx:
            records = find_commits(tx, context.repository_id, list(self.model.commits))
        for commit_id in self.model.commits:
            record = records.get(commit_id)
            if record is None:
                assert commit_id in self.model.forgotten
                assert commit_id in self.model.content_ids
            else:
                assert record.tombstoned_by == self.model.closed.get(commit_id)
                assert record.forgotten_by == self.model.forgotten.get(commit_id)

    def check_all(self) -> None:
        """Every ref, project and collection is what the model says, and reads back whole."""
        self.check_refs()
        self.world.lake = reader = Reader(self.world).lake
        items: list[Folder | Bundle] = [*self.model.folders.values(), *self.model.bundles.values()]
        for item in items:
            for expired in (False, True):
                self.users.check_got(item, expired=expired)
        for folder in self.model.folders.values():
            self.users.check_listed(folder, expired=True)
        for bundle in self.model.bundles.values():
            if self.model.is_visible(bundle, self.world.now, expired=True):
                walked = reader.collections.walk(bundle.item_id, include_expired=True)
                contents = self.model.commits[bundle.content_id].contents
                assert {entry.path: entry.address for entry in walked} == contents
                self._check_readable(bundle)

    def _check_readable(self, bundle: Bundle) -> None:
        """Byte for byte, if its data is kept and has not been let go."""
        is_open = bundle.content_id not in self.model.closed and bundle.copies
        if is_open and self.model.is_visible(bundle, self.world.now):
            collections = self.world.lake.collections
            for path, address in self.model.commits[bundle.content_id].contents.items():
                found = b"".join(collections.open(bundle.item_id, path).stream())
                assert found == self.model.files[address]
