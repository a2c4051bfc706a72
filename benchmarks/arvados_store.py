"""Fills a repository with collections of Arvados, straight into tables and storage.

Rows and files are those that the server writes, with other ids.
`tests/doors/arvados/store/test_listing.py` compares the two. Only OWNER has moved less often. Not
for: measuring (`arvados`).
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from ebbtide.doors.arvados.store.collections import MANIFEST
from ebbtide.doors.arvados.store.manifests import Manifest, parse_manifest
from ebbtide.doors.arvados.store.rows import ArvadosRow, BlockRow
from ebbtide.doors.arvados.store.uuids import COLLECTION, cluster_of, uuid_of
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.storage import Content, LocalStorage
from ebbtide.store.collections.contents import summary_of
from ebbtide.store.collections.queries import CollectionRow
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.ranges import checksum_of, write_range
from ebbtide.store.content.trees import Tree, write_tree
from ebbtide.store.context import CurrentSlice
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.database.schema import (
    arvados_blocks,
    arvados_collections,
    collections,
    commits,
)
from ebbtide.store.repository import Repository

HOLDER: Final = "EBBTBENCHMARK"
BLOCK_BYTES: Final = 64
BATCH: Final = 1_000
PROCESSES: Final = 2
POOL: Final = multiprocessing.get_context("spawn").Pool
"""A process that is forked would share the database's connections."""

Made: TypeAlias = tuple[CommitRecord, CollectionRow, ArvadosRow, list[BlockRow]]
"""The rows of a collection: its content, itself, what Arvados adds, and its blocks."""
Rows: TypeAlias = list[Made]


class UnflushedStorage(LocalStorage):
    """A directory whose new files are written in place, and not flushed to disk. Nobody reads them
    meanwhile, and a store that is lost can be made again."""

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        """Writes a new file. Raises FileExistsError."""
        del create_only, durable
        assert isinstance(data, bytes)
        path = f"{self.directory}/{address}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            descriptor = os.open(path, flags, 0o644)
        except FileNotFoundError:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)


@dataclass(frozen=True, slots=True)
class Filling:
    """What all collections have in common. Each `ended`-th is in the trash since `now`."""

    directory: str
    settings: Settings
    repository_id: str
    project_id: str
    now: datetime
    blocks: int
    ended: int


def block_data(number: int, blocks: int) -> list[bytes]:
    """Returns the blocks of a collection."""
    drawn = random.Random(number)
    return [drawn.randbytes(BLOCK_BYTES) for _ in range(blocks)]


def collection_name(number: int) -> str:
    """Returns the name of a collection."""
    return f"sample {number:07d}"


def manifest_text(locators: Sequence[str]) -> str:
    """Returns a manifest of one file, which has these blocks."""
    return f". {' '.join(locators)} 0:{BLOCK_BYTES * len(locators)}:file\n"


def fill(
    lake: Repository, count: int, blocks: int, ended: int, *, processes: int = PROCESSES
) -> None:
    """Makes `count` collections of `blocks` blocks each in a new project, and deletes each
    `ended`-th. The files are written by at most `processes` processes."""
    context = lake.context
    assert isinstance(context.storage, LocalStorage)
    project_id = lake.projects.create("samples").project_id
    with context.metadata.snapshot() as tx:
        now = tx.now()
    filling = Filling(
        directory=context.storage.directory,
        settings=context.settings,
        repository_id=context.repository_id,
        project_id=project_id,
        now=now,
        blocks=blocks,
        ended=ended,
    )
    batches = [range(start, min(start + BATCH, count)) for start in range(0, count, BATCH)]
    with POOL(min(processes, len(batches)), _begin, (filling,)) as pool:
        for rows in pool.imap(_make_files, batches):
            _insert_rows(lake, rows)


def _insert_rows(lake: Repository, rows: Rows) -> None:
    """Writes the rows of collections whose files are there, in one transaction."""
    repository_id = lake.context.repository_id
    blocks = [block for *_, found in rows for block in found]
    with lake.context.changing("exclusive") as tx:
        for table, records in (
            (commits, [content for content, *_ in rows]),
            (collections, [collection for _, collection, *_ in rows]),
            (arvados_collections, [record for _, _, record, _ in rows]),
            (arvados_blocks, blocks),
        ):
            values = [{"repository_id": repository_id} | _columns(each) for each in records]
            tx.execute(sa.insert(table), values)


_makers: list[_Maker] = []
"""The maker of this process of the pool."""


def _begin(filling: Filling) -> None:
    _makers.append(_Maker(filling))


def _make_files(numbers: Sequence[int]) -> Rows:
    return [_makers[0].make(number) for number in numbers]


class _Maker:
    """Writes the files of collections, in one process."""

    def __init__(self, filling: Filling) -> None:
        self._filling = filling
        self._storage = UnflushedStorage(filling.directory)
        self._slices = CurrentSlice(filling.settings)

    def make(self, number: int) -> Made:
        """Writes the files of a collection. Returns its rows."""
        blocks: dict[str, Entry] = {}
        for data in block_data(number, self._filling.blocks):
            md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
            blocks[md5] = self._put(f"{md5}+{len(data)}", data)
        text = manifest_text([entry.path for entry in blocks.values()])
        manifest = self._put(MANIFEST, text.encode(), "text/plain")
        entries = sorted((*blocks.values(), manifest), key=attrgetter("path"))
        content, collection = self._collection(number, entries)
        found = [
            BlockRow(
                md5=md5,
                size_bytes=entry.size_bytes,
                checksum=entry.checksum,
                address=entry.address,
                content_id=content.commit_id,
            )
            for md5, entry in blocks.items()
        ]
        return content, collection, _record(collection, parse_manifest(text)), found

    def _put(self, path: str, data: bytes, content_type: str | None = None) -> Entry:
        now = self._filling.now
        (address,) = self._slices.new_addresses(1, now=now)
        self._storage.put(address, data, create_only=True)
        return Entry(path, address, len(data), checksum_of(data), now, content_type)

    def _collection(
        self, number: int, entries: Sequence[Entry]
    ) -> tuple[CommitRecord, CollectionRow]:
        filling, now = self._filling, self._filling.now
        tree = Tree(new_id(), (write_range(self._storage, entries, range_id=new_id()),))
        summary, collection_id = summary_of(entries), new_id()
        content = CommitRecord(
            commit_id=new_id(),
            parent_ids=(),
            created_at=now,
            written_at=now,
            tree_id=tree.tree_id,
            tree_checksum=write_tree(self._storage, tree),
            # As long as the signatures by which the blocks were named.
            leased_until=now + filling.settings.lease_ttl,
            collection_id=collection_id,
        )
        collection = CollectionRow(
            collection_id=collection_id,
            repository_id=filling.repository_id,
            project_id=filling.project_id,
            name=collection_name(number),
            description="",
            properties={},
            version=1,
            content_id=content.commit_id,
            content_hash=summary.content_hash,
            file_count=summary.file_count,
            size_bytes=summary.size_bytes,
            replication_desired=1,
            created_at=now,
            modified_at=now,
            expires_at=now if number % filling.ended == 0 else None,
        )
        return content, collection


def _record(collection: CollectionRow, manifest: Manifest) -> ArvadosRow:
    return ArvadosRow(
        collection_id=collection.collection_id,
        repository_id=collection.repository_id,
        uuid=uuid_of(cluster_of(collection.repository_id), COLLECTION, collection.collection_id),
        portable_data_hash=manifest.portable_data_hash,
        file_count=manifest.file_count,
        file_size_total=manifest.file_size_total,
        preserve_version=False,
        modified_by=HOLDER,
    )


def _columns(row: Any) -> dict[str, Any]:  # a record of any kind
    return {name: getattr(row, name) for name in row.__dataclass_fields__}
