"""A benchmark fills stores faster than the server does: the result is the same."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from benchmarks import arvados_store as filled
from ebbtide.settings import Settings
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.content.ranges import read_range
from ebbtide.store.content.trees import read_tree
from ebbtide.store.database.schema import (
    arvados_blocks,
    branches,
    collections,
    commits,
    metadata,
    projects,
)
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.world import START

COLLECTIONS, BLOCKS, ENDED = 5, 3, 2
NUMBER_DIGITS: Final = 8
OTHERS: Final = ("owner_epochs", "signing_keys", "store_info")
"""Tables that say nothing about collections. OWNER moves with each transaction that changes what is
kept."""


def fill_as_the_server(lake: Repository) -> None:
    project_id = lake.projects.create("samples").project_id
    for number in range(COLLECTIONS):
        locators = [
            lake.blocks.put(
                hashlib.md5(data, usedforsecurity=False).hexdigest(), data, holder=filled.HOLDER
            )
            for data in filled.block_data(number, BLOCKS)
        ]
        made = lake.arvados_collections.create(
            project_id,
            filled.collection_name(number),
            filled.manifest_text(locators),
            holder=filled.HOLDER,
        )
        if number % ENDED == 0:
            lake.arvados_collections.delete(made.listed.uuid)


class Described:
    """Rows and files of a store, with names in place of all that is random."""

    def __init__(self, store: Store, lake: Repository) -> None:
        self.storage = lake.context.storage
        self.root = Path(self.storage.url.removeprefix("file://"))
        self.names = {self.storage.url: "root", lake.context.repository_id: "repository"}
        with store.metadata.snapshot() as tx:
            tables = {
                table.name: tx.execute(sa.select(table)).mappings().all()
                for table in metadata.sorted_tables
                if table.name not in OTHERS
            }
        self.names |= {row["project_id"]: "project" for row in tables[projects.name]}
        for row in tables[branches.name]:
            self.names |= {row["branch_id"]: "branch", row["staging_token"]: "token"}
        owners = {row["collection_id"]: row["name"] for row in tables[collections.name]}
        self.names |= {each: f"collection {name}" for each, name in owners.items()}
        self.names |= {
            row["uuid"]: f"uuid {owners[row['collection_id']]}"
            for row in tables["arvados_collections"]
        }
        trees: list[str] = []
        for row in tables[commits.name]:
            owner = owners.get(row["collection_id"], "main")
            self.names[row["commit_id"]] = f"content {owner}"
            trees += self._tree(owner, row["tree_id"], row["tree_checksum"])
        self.rows = {
            name: sorted(self._named(str(dict(row))) for row in found)
            for name, found in tables.items()
            if found
        }
        self.trees = sorted(map(self._named, trees))
        self.files = sorted(self._files())
        self.block_count = len(tables[arvados_blocks.name])

    def _tree(self, owner: str, tree_id: str, checksum: str) -> Iterator[str]:
        """The entries of a tree, whose files are read with their checksums."""
        self.names |= {tree_id: f"tree {owner}", checksum: f"checksum of tree {owner}"}
        for info in read_tree(self.storage, tree_id, checksum).ranges:
            self.names |= {info.range_id: f"range {owner}", info.checksum: f"checksum of {owner}"}
            yield str(info)
            for entry in read_range(self.storage, info):
                number = entry.address.rpartition("/")[2][:NUMBER_DIGITS]
                self.names[entry.address] = f"{DATA_PREFIX}slice/{number}"
                yield str(entry)

    def _files(self) -> Iterator[tuple[str, bytes, str]]:
        for path in self.root.rglob("*"):
            address = str(path.relative_to(self.root))
            if path.is_file() and address != "_ebbtide/OWNER":
                # Trees and ranges name random addresses. They were compared decoded.
                content = path.read_bytes() if address.startswith(DATA_PREFIX) else b""
                yield self._named(address), content, stat.filemode(path.stat().st_mode)

    def _named(self, text: str) -> str:
        for found, name in self.names.items():
            text = text.replace(found, name)
        return text


def test_the_benchmark_fills_a_store_as_the_server_does(tmp_path: Path) -> None:
    """The same rows in all tables, the same trees, and the same files with the same modes."""
    found: list[Described] = []
    for name in ("server", "benchmark"):
        settings = Settings(lease_ttl="1h", trash_time="7d")
        with Store.init(tmp_path / name, settings=settings, clock=ManualClock(START)) as store:
            lake = store.create_repository("lake")
            if name == "server":
                fill_as_the_server(lake)
            else:
                filled.fill(lake, COLLECTIONS, BLOCKS, ENDED, processes=1)
            found.append(Described(store, lake))
    server, benchmark = found
    assert server.block_count == COLLECTIONS * BLOCKS
    assert server.rows == benchmark.rows
    assert server.trees == benchmark.trees
    assert server.files == benchmark.files
