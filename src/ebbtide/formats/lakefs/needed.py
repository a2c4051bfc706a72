"""Objects that clients need although no reading names them, or not any more.

lakeFS knows no closed commits: a branch, a tag, a revert or a merge can make the data of an expired
commit live again at any time. The sweep cannot prevent this. Before each batch it reads the refs
(`LakefsGuard`). If a ref is new or has moved since the recheck, it reads the objects that its
commits have added. It stops if the batch has one of them. The recheck has decided on a ref that is
as it was: a tag may point at a commit that expires. An old object outside the batch is no risk: it
may have been staged for long.

Some objects that a branch reads are neither committed nor staged by the server's word (`restaged`).
A client can upload the same bytes to a path again. This stages a new object, but lakeFS sees no
difference: its list of uncommitted objects leaves the new object out. The branch then reads the new
object, not the committed one. Therefore each path with an entry of a candidate's size at the head
of a branch is looked up. If there are many paths, all objects of the branch are listed instead.

A server that keeps its objects in a directory also leaves out linked objects, because their
addresses do not begin with the name of its storage namespace. For such a server, all objects of all
branches are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.errors import NotFound
from ebbtide.formats.base import NODES_SCHEMA, PROTECTED_SCHEMA, LateNeeds, changed, node_address
from ebbtide.formats.lakefs.committed import read_entries
from ebbtide.formats.lakefs.layout import LakefsLayout, began_at, refusing
from ebbtide.formats.lakefs.refs import LakefsHistory, commit_of, read_refs
from ebbtide.formats.lakefs.server import LOCAL, PAGE, LakefsServer, Namespace
from ebbtide.model import Ref
from ebbtide.storage import Storage

REASON: Final = "read by the branch, though not listed as uncommitted"
AT_ONCE: Final = 16
RANGES_HELD: Final = 10_000
ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Similar:
    """The paths in a range whose entries have the size of a candidate, and how many entries the
    range has."""

    paths: tuple[str, ...]
    count: int


def restaged(
    server: LakefsServer,
    storage: Storage,
    layout: LakefsLayout,
    namespace: Namespace,
    history: LakefsHistory,
    candidates: Iterable[pa.Table],
) -> Iterator[pa.Table]:
    """Yields the objects that branches read now at the paths that can have a candidate
    (PROTECTED_SCHEMA). Not all of them are candidates. `candidates` have a column `size_bytes`.

    Raises as `Layout.read_tree` and `Layout.read_node` do; Failed `lakefs_error`.
    """
    sizes = _sizes(candidates)
    if not len(sizes):
        return

    @lru_cache(RANGES_HELD)
    def similar(range_id: str) -> _Similar:
        address = node_address(layout, range_id)
        with refusing(storage, address, what="node"):
            found = read_entries(storage.get(address), range_id, namespaces=layout.namespaces)
        chosen = found.filter(pc.is_in(found.column("size_bytes"), value_set=sizes))
        return _Similar(tuple(texts(chosen.column("path"))), found.num_rows)

    def read_now(branch: Ref) -> Iterator[str]:
        if namespace.root.startswith(LOCAL):
            return (url for _, url in server.view(branch.name))
        tree_id = history.commits[branch.commit_id].tree_id
        nodes = layout.read_tree(storage, tree_id, tree_id).column("node_id")
        return _read_now(server, branch.name, [similar(range_id) for range_id in texts(nodes)])

    rows: list[dict[str, Any]] = []
    for branch in history.refs:
        if branch.kind != "branch":
            continue
        for url in read_now(branch):
            address = namespace.relative(url)
            if address is not None:
                rows.append({"address": address, "reason": f"{REASON}: {branch.name}"})
            if len(rows) >= ROWS:
                yield _table(rows)
                rows = []
    if rows:
        yield _table(rows)


def _sizes(candidates: Iterable[pa.Table]) -> pa.Array[Any]:
    """Returns the sizes of candidates, each once."""
    found: pa.Array[Any] = pa.array([], pa.int64())
    for table in candidates:
        column: Any = table.column("size_bytes").drop_null().unique()
        found = pa.concat_arrays([found, column.cast(pa.int64())]).unique()
    return found


def _read_now(server: LakefsServer, branch: str, found: list[_Similar]) -> Iterator[str]:
    """Yields the URLs of the objects that a branch has now at these paths, and perhaps at
    others."""
    paths = [path for each in found for path in each.paths]
    if not paths:
        return
    if len(paths) * PAGE > sum(each.count for each in found) and len(paths) > AT_ONCE:
        for _, url in server.view(branch):
            yield url
        return

    def look_up(path: str) -> str | None:
        try:
            return server.address_at(branch, path)
        except NotFound:
            return None  # deleted on the branch: what it read before is committed

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from (url for url in pool.map(look_up, paths) if url is not None)


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=PROTECTED_SCHEMA)


COMMITS_MAX: Final = 1_000
"""The most new commits of one ref that are looked at before a batch."""


@dataclass(slots=True)
class LakefsGuard(LateNeeds):
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

    def needed(self) -> Mapping[str, str]:
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
