"""Objects that a branch reads although the server names them neither as committed nor as staged.

A client can upload the same bytes to a path again. This stages a new object, but lakeFS sees no
difference: its list of uncommitted objects leaves the new object out. The branch then reads the new
object, not the committed one. Therefore each path with an entry of a candidate's size at the head
of a branch is looked up. If there are many paths, all objects of the branch are listed instead.

A server that keeps its objects in a directory also leaves out linked objects, because their
addresses do not begin with the name of its storage namespace. For such a server, all objects of all
branches are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.errors import NotFound
from ebbtide.formats.base import PROTECTED_SCHEMA
from ebbtide.formats.lakefs.committed import read_entries
from ebbtide.formats.lakefs.layout import LakefsLayout, refusing
from ebbtide.formats.lakefs.refs import LakefsHistory
from ebbtide.formats.lakefs.server import PAGE, LakefsServer
from ebbtide.formats.lakefs.urls import LOCAL, Namespace
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
        address = layout.node_address(range_id)
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
