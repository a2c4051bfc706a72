"""A benchmark fills stores faster than the server does: the result is the same."""

from __future__ import annotations

import hashlib
import re
import stat
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from benchmarks import arvados_store as filled
from ebbtide.settings import Settings
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.database.schema import (
    collections,
    metadata,
)
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.world import START

COLLECTIONS, BLOCKS, ENDED = 5, 3, 2
RANDOM: Final = re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}|\b[0-9a-z]{5}-[0-9a-z]{5}-[0-9a-z]{15}\b")
"""Ids, checksums of files that have ids in them, and Arvados's ids."""
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


def described(store: Store, lake: Repository) -> dict[str, object]:
    """Rows and files of a store without what is random in them; manifests, with their files."""
    root = Path(lake.storage.url.removeprefix("file://"))

    def plain(text: str) -> str:
        return RANDOM.sub("#", text.replace(str(root), "root"))

    with store.metadata.snapshot() as tx:
        tables = {
            table.name: tx.execute(sa.select(table)).mappings().all()
            for table in metadata.sorted_tables
            if table.name not in OTHERS
        }
    files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    del files["_ebbtide/OWNER"]
    return {
        "rows": {name: sorted(plain(str(dict(row))) for row in tables[name]) for name in tables},
        # Trees and ranges name random addresses. They are compared by what is read from them.
        "files": sorted(
            (
                plain(address),
                path.read_bytes() if address.startswith(DATA_PREFIX) else b"",
                stat.filemode(path.stat().st_mode),
            )
            for address, path in files.items()
        ),
        "manifests": {
            row["name"]: (
                lake.arvados_collections.unsigned_manifest(row["collection_id"]),
                [
                    (entry.path, entry.size_bytes, entry.checksum, entry.metadata)
                    for entry in lake.collections.walk(row["collection_id"], include_expired=True)
                ],
            )
            for row in tables[collections.name]
        },
    }


def test_the_benchmark_fills_a_store_as_the_server_does(tmp_path: Path) -> None:
    """The same rows in all tables, the same manifests, and the same files with the same modes."""
    found: list[dict[str, object]] = []
    for name in ("server", "benchmark"):
        settings = Settings(lease_ttl="1h", trash_time="7d")
        with Store.init(tmp_path / name, settings=settings, clock=ManualClock(START)) as store:
            lake = store.create_repository("lake")
            if name == "server":
                fill_as_the_server(lake)
            else:
                filled.fill(lake, COLLECTIONS, BLOCKS, ENDED, processes=1)
            found.append(described(store, lake))
    server, benchmark = found
    assert server["manifests"]
    for what in server:
        assert server[what] == benchmark[what], what
