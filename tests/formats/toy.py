"""A toy format: a directory of files, and a JSON list of snapshots.

snapshots.json       {"refs": {"main": "s2"}, "snapshots": {"s2": {"parents": ["s1"], "at": "…"}}}
snapshots/s2.json    the files of a snapshot: ["data/a", "data/b"]
data/…               files
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from ebbtide.arrow import Column, around, first_match
from ebbtide.errors import Conflict
from ebbtide.formats.base import FOREIGN, NODES_SCHEMA, SYSTEM, Identity, RunHold, changed, refusing
from ebbtide.formats.schemes import Scheme
from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots
from ebbtide.settings import Settings
from ebbtide.storage import Storage, open_storage

LIST: Final = "snapshots.json"
SYSTEM_FILES: Final = (SYSTEM, f"{LIST}|_ebbtide/.+")
KINDS: Final = (("snapshot", r"snapshots/[^/]+\.json"), ("file", "data/.+"), SYSTEM_FILES)


class ToyLayout:  # a snapshot is a tree with one node, which is the same file
    delete_order = ("snapshot", "file")

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        return first_match(addresses, KINDS, otherwise=FOREIGN)

    def tree_addresses(self, tree_ids: Column) -> Column:
        return around("snapshots/", tree_ids, ".json")

    node_addresses = tree_addresses

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        count = len(self.read_node(storage, tree_id, checksum, entry_count=-1))
        return pa.table([[tree_id], [""], [count]], schema=NODES_SCHEMA)

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        address = f"snapshots/{node_id}.json"
        with refusing(storage, address, what="node", damaged=ValueError):
            return pa.array(json.loads(storage.get(address)), pa.string())


@dataclass(frozen=True)
class ToyWalk:
    storage: Storage

    def tree(self, tree_id: str) -> str:
        return f"snapshots/{tree_id}.json"

    def nodes(self, tree: str) -> list[str]:
        return [tree]

    def content(self, node: str) -> Iterator[str]:
        yield from json.loads(self.storage.get(node))


class ToyRepository:
    layout, landmark = ToyLayout(), LIST

    def __init__(self, storage: Storage) -> None:
        self.storage, self.walk = storage, ToyWalk(storage)
        self.identity = Identity("toy", storage.url, "toy", "toy")

    def now(self) -> datetime:
        return datetime.now(UTC)

    @contextmanager
    def reading(self, cutoff: datetime) -> Iterator[ToyRepository]:
        yield self  # one file has all metadata

    def roots(self) -> Roots:
        listed = json.loads(self.storage.get(LIST))
        commits = tuple(
            Commit(name, tuple(each["parents"]), datetime.fromisoformat(each["at"]), name)
            for name, each in listed["snapshots"].items()
        )
        refs = tuple(Ref(name, "branch", head) for name, head in listed["refs"].items())
        policy = Policy.parse({"default": "keep", "mode": "rewrite"})
        return Roots(
            self.now(), refs, commits, frozenset(), {c.tree_id: "" for c in commits}, policy
        )

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        return iter(())  # nothing is needed that no commit refers to

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        data, version = self.storage.get_versioned(LIST)
        listed = json.loads(data)
        kept = {name: row for name, row in listed["snapshots"].items() if name not in commit_ids}
        needed = {*listed["refs"].values(), *(p for row in kept.values() for p in row["parents"])}
        if not needed.isdisjoint(commit_ids):
            raise changed("a snapshot is needed again")
        hold.check()
        try:
            new = json.dumps(listed | {"snapshots": kept}).encode()
            self.storage.replace(LIST, new, version=version)
        except Conflict:
            raise changed(f"{LIST} is another") from None


class ToyScheme(Scheme):
    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[ToyRepository, timedelta]:
        return ToyRepository(open_storage(name.removeprefix("toy:"))), timedelta(days=1)
