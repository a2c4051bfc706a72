"""A toy format: a directory of files, and a JSON list of snapshots.

snapshots.json       {"refs": {"main": "s2"}, "snapshots": {"s2": {"parent": "s1", "at": "…"}}}
snapshots/s2.json    the files of a snapshot: ["data/a", "data/b"]
data/…               files
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import first_match
from ebbtide.errors import Conflict, NotFound, Refused
from ebbtide.formats.base import FOREIGN, NODES_SCHEMA, SYSTEM, Identity, RunHold
from ebbtide.formats.plain import PlainLayout, PlainReading, PlainRepository
from ebbtide.formats.schemes import Scheme
from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots
from ebbtide.settings import Settings
from ebbtide.storage import Storage, open_storage
from ebbtide.storage.local import TEMPORARY_SUFFIX

LIST: Final = "snapshots.json"
KINDS: Final = (
    ("temporary", f"(?:data/.+|snapshots/.+|{LIST}){TEMPORARY_SUFFIX}"),
    ("snapshot", r"snapshots/[^/]+\.json"),
    ("file", "data/.+"),
    (SYSTEM, f"{LIST}|_ebbtide/.+"),
)


@dataclass(frozen=True)
class ToyLayout(PlainLayout):
    """A snapshot is a tree with one node, which is the same file."""

    delete_order: tuple[str, ...] = ("snapshot", "file", "temporary")

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        return first_match(addresses, KINDS, otherwise=FOREIGN)

    def tree_address(self, tree_id: str) -> str:
        return f"snapshots/{tree_id}.json"

    def node_address(self, node_id: str) -> str:
        return self.tree_address(node_id)

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        count = len(self.read_node(storage, tree_id, checksum, entry_count=-1))
        return pa.table([[tree_id], [""], [count]], schema=NODES_SCHEMA)

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        del checksum, entry_count
        address = self.node_address(node_id)
        try:
            return pa.array(json.loads(storage.get(address)), pa.string())
        except NotFound:
            raise Refused("missing_node", f"{address} is missing: restore it") from None
        except (ValueError, TypeError) as error:
            raise Refused("corrupt_node", f"{address} is damaged: {error}") from error


@dataclass(frozen=True)
class ToyWalk:
    storage: Storage

    def tree(self, tree_id: str) -> str:
        return f"snapshots/{tree_id}.json"

    def nodes(self, tree: str) -> list[str]:
        return [tree]

    def content(self, node: str) -> Iterator[str]:
        yield from json.loads(self.storage.get(node))


@dataclass(frozen=True)
class ToyReading(PlainReading):
    listed: dict[str, Any]
    now: datetime
    closed: frozenset[str]

    def roots(self) -> Roots:
        commits = tuple(
            Commit(
                name,
                (each["parent"],) if each["parent"] else (),
                datetime.fromisoformat(each["at"]),
                name,
                tombstoned=name in self.closed,
            )
            for name, each in self.listed["snapshots"].items()
        )
        refs = tuple(Ref(name, "branch", head) for name, head in self.listed["refs"].items())
        policy = Policy.parse({"default": "keep", "mode": "rewrite"})
        checksums = {commit.tree_id: "" for commit in commits}
        return Roots(self.now, refs, commits, frozenset(), checksums, policy)


class ToyRepository(PlainRepository):
    layout = ToyLayout()
    landmark = LIST

    def __init__(self, storage: Storage, *, settings: Settings) -> None:
        super().__init__(storage, Identity("toy", storage.url, "toy", "toy"), settings=settings)
        self.walk = ToyWalk(storage)

    @contextmanager
    def reading(self, cutoff: datetime) -> Iterator[ToyReading]:
        del cutoff
        yield ToyReading(json.loads(self.storage.get(LIST)), self.now(), self._closed)

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Drops the snapshots from the list, unless a ref or another snapshot needs one by now."""
        del run_id
        data, version = self.storage.get_versioned(LIST)
        listed = json.loads(data)
        going = frozenset(commit_ids)
        kept = {name: each for name, each in listed["snapshots"].items() if name not in going}
        parents = {each["parent"] for each in kept.values()}
        if going & {*listed["refs"].values(), *parents}:
            raise Refused("repository_changed", "a snapshot is needed again: run again")
        hold.check()
        try:
            changed = json.dumps(listed | {"snapshots": kept}).encode()
            self.storage.replace(LIST, changed, version=version)
        except Conflict:
            raise Refused("repository_changed", f"{LIST} changed: run again") from None


class ToyScheme(Scheme):
    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[ToyRepository, timedelta]:
        del run_dir, quiet
        found = ToyRepository(open_storage(name.removeprefix("toy:")), settings=settings)
        return found, timedelta(days=1)
