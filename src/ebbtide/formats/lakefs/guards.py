"""Checks before each batch of deletes whether a candidate is needed again.

lakeFS knows no closed commits: a branch, a tag, a revert or a merge can make the data of an expired
commit live again at any time. The sweep cannot prevent this. Before each batch it reads the refs.
If a ref is new or has moved since the recheck, it reads the objects that its commits have added. It
stops if the batch has one of them. The recheck has decided on a ref that is as it was: a tag may
point at a commit that expires. An old object outside the batch is no risk: it may have been staged
for long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, texts
from ebbtide.formats.base import NODES_SCHEMA
from ebbtide.formats.lakefs.layout import LakefsLayout, began_at
from ebbtide.formats.lakefs.refs import commit_of, read_refs
from ebbtide.formats.lakefs.server import LakefsServer
from ebbtide.formats.plain import changed
from ebbtide.model import Ref
from ebbtide.storage import Storage

COMMITS_MAX: Final = 1_000
"""The most new commits of one ref that are looked at before a batch."""


@dataclass(slots=True)
class LakefsGuard:
    """The guard of one sweep. `kept` are the commits that the fence keeps, `refs` those at the
    recheck. Objects that are younger than `cutoff` are no candidates.

    An executor remembers the commits that it has looked at and what they need, until its task ends.
    """

    server: LakefsServer
    storage: Storage
    layout: LakefsLayout
    kept: frozenset[str]
    refs: frozenset[Ref]
    cutoff: datetime
    _known: set[str] = field(default_factory=set)
    _needed: dict[str, str] = field(default_factory=dict)

    def __call__(self, addresses: Column) -> None:
        """Raises Refused `repository_changed` to stop the sweep."""
        needed = self.revived()
        for address in texts(addresses):
            if address in needed:
                raise changed(f"{needed[address]} has {address} again")

    def revived(self) -> Mapping[str, str]:
        """Returns the old objects that new or moved refs reach, each with its ref and its commit.
        Raises Refused `repository_changed` if a ref has too many new commits to look at."""
        for ref in set(read_refs(self.server)) - self.refs:
            self._look_at(f"{ref.kind} {ref.name}", ref.commit_id)
        return self._needed

    def _look_at(self, ref: str, head: str) -> None:
        """Reads the commits that a ref reaches, down to the commits that the fence keeps. Those
        above are new, or had expired at the fence. Notes the old objects that each of them adds to
        its parents."""
        waiting, seen = [head], set[str]()
        while waiting:
            commit_id = waiting.pop()
            if commit_id in seen or commit_id in self.kept or commit_id in self._known:
                continue
            seen.add(commit_id)
            if len(seen) > COMMITS_MAX:
                raise changed(f"{ref} has more than {COMMITS_MAX} commits that are new or expired")
            commit = commit_of(self.server, commit_id)
            parents = [commit_of(self.server, each).tree_id for each in commit.parent_ids]
            for address in self._old_objects(commit.tree_id, parents):
                self._needed.setdefault(address, f"{ref}, by commit {commit_id},")
            waiting += commit.parent_ids
        self._known |= seen

    def _old_objects(self, tree_id: str, parents: list[str]) -> list[str]:
        """Returns the objects that a tree has and its parents have not, without young ones."""
        before = [self.layout.read_tree(self.storage, each, each) for each in parents]
        known = pa.concat_tables([NODES_SCHEMA.empty_table(), *before])
        now = self.layout.read_tree(self.storage, tree_id, tree_id)
        added = self._objects(now, without=known)
        gone = self._objects(known, without=now)
        new = added.filter(pc.invert(pc.is_in(added, value_set=gone)))
        return [address for address in texts(new) if not self._is_young(address)]

    def _objects(self, nodes: pa.Table, *, without: pa.Table) -> pa.ChunkedArray[Any]:
        """Returns the addresses in `nodes`, except in nodes that `without` has too."""
        is_other = pc.is_in(nodes.column("node_id"), value_set=without.column("node_id"))
        rows = nodes.filter(pc.invert(is_other))
        found = [
            self.layout.read_node(self.storage, node_id, node_id, entry_count=count)
            for node_id, _, count in zip(*(each.to_pylist() for each in rows.columns), strict=True)
        ]
        return pa.chunked_array(found, pa.string())

    def _is_young(self, address: str) -> bool:
        """Whether the address is no candidate: it is not an object below `data/`, or the server
        began its partition within the grace."""
        kind = self.layout.classify(pa.array([address]))[0].as_py()
        if kind != "object":
            return True
        opened_at = began_at(address.rpartition("/")[0], now=self.cutoff + timedelta(days=365))
        return opened_at is not None and opened_at >= self.cutoff
