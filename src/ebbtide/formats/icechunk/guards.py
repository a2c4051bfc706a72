"""Checks whether a snapshot that is being deleted is needed again. The checks run before each batch
of deletes, and before history is dropped."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.arrow import Column
from ebbtide.formats.icechunk.layout import load_snapshot
from ebbtide.formats.icechunk.refs import read_refs
from ebbtide.formats.icechunk.state import SnapshotHistory, history_of, load_repo
from ebbtide.formats.plain import changed
from ebbtide.storage import Storage


@dataclass(frozen=True, slots=True)
class RefsGuard:
    """The guard of version 1, which cannot make refs conditional.

    Before each batch it reads the refs again. A ref that reaches a snapshot of `going` stops the
    sweep. `going` are the snapshots that the sweep deletes, `kept` those that it keeps.
    """

    storage: Storage
    kept: frozenset[str]
    going: frozenset[str]

    def __call__(self, addresses: Column) -> None:
        """Raises Refused `repository_changed` to stop the sweep, whatever the batch has."""
        del addresses
        for ref in read_refs(self.storage):
            place: str | None = ref.commit_id
            while place is not None and place not in self.kept:
                if place in self.going:
                    raise changed(f"{ref.kind} {ref.name} needs snapshot {place} again")
                place = load_snapshot(self.storage, place).parent_id


@dataclass(frozen=True, slots=True)
class RepoGuard:
    """The guard of version 2 in a directory. Before each batch it checks whether a branch or tag
    reaches a snapshot of `going`."""

    storage: Storage
    going: frozenset[str]

    def __call__(self, addresses: Column) -> None:
        """Raises Refused `repository_changed` to stop the sweep, whatever the batch has."""
        del addresses
        check_unreached(history_of(load_repo(self.storage)), self.going)


def check_unreached(history: SnapshotHistory, going: frozenset[str]) -> None:
    """Raises Refused `repository_changed` if a ref reaches a snapshot of `going`."""
    needed = history.reached() & going
    if needed:
        raise changed(f"a branch or tag needs snapshot {min(needed)} again")
