"""Snapshots that an undo restores: the records that a run keeps of them, and the holds on them.

Version 2 lists its snapshots in `repo`, and a snapshot that is not listed cannot be read.
Therefore a run keeps the entries of snapshots before it drops them. Version 1 has no such list: a
snapshot can be read while its file exists.

In both versions, `_ebbtide/gc/reopened.json` says until when restored snapshots are held. The hold
includes files that they share with other snapshots. The file also holds the snapshots that a slow
expiry released. A run of version 1 can be undone after an upgrade to version 2: then the entries
are made from the snapshots' files.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from ebbtide.formats.icechunk.ids import id_bytes
from ebbtide.formats.icechunk.layout import load_snapshot
from ebbtide.formats.icechunk.repo import NO_PARENT, ListedSnapshot, RepoFile
from ebbtide.formats.icechunk.repo_schema import SNAPSHOT_INFO
from ebbtide.formats.icechunk.tables import decode, encode
from ebbtide.model import EPOCH
from ebbtide.storage import Storage

BACK: Final = "restored by an undo, or released by an expiry that took long"


def records_of(file: RepoFile | None, snapshot_ids: Collection[str]) -> list[dict[str, Any]]:
    """Returns the records of snapshots that will be deleted, as JSON.

    `file` is None for version 1. In version 2, only listed snapshots have a record. A snapshot is
    its own tree, and its checksum is not known.
    """
    entries: Iterable[tuple[str, ListedSnapshot | None]]
    if file is None:
        entries = [(name, None) for name in sorted(snapshot_ids)]
    else:
        entries = [(name, found) for name, found in file.listed.items() if name in snapshot_ids]
    return [
        {
            "commit_id": name,
            "tree_id": name,
            "tree_checksum": "",
            "parent_id": None if found is None else found.parent_id,
            "entry": None if found is None else _packed(found),
        }
        for name, found in entries
    ]


def listable(
    storage: Storage, file: RepoFile, records: Sequence[Mapping[str, Any]]
) -> dict[str, ListedSnapshot]:
    """Returns the snapshots of `records` that can be listed in `file` again, by id.

    The parent of each must be in the list of `file`, or in the result. Raises Refused
    `missing_tree` or `corrupt_tree`.
    """
    found = {
        row["commit_id"]: _unpacked(row) if row["entry"] else _made(storage, row["commit_id"])
        for row in records
        if row["commit_id"] not in file.listed
    }
    while True:
        known = {None, *file.ids, *found}
        orphans = [name for name, each in found.items() if each.parent_id not in known]
        if not orphans:
            return found
        for name in orphans:
            del found[name]


def _packed(found: ListedSnapshot) -> str:
    return b64encode(encode(found.row, SNAPSHOT_INFO)).decode()


def _unpacked(record: Mapping[str, Any]) -> ListedSnapshot:
    return ListedSnapshot(
        decode(b64decode(record["entry"]), SNAPSHOT_INFO), parent_id=record["parent_id"]
    )


def _made(storage: Storage, snapshot_id: str) -> ListedSnapshot:
    """Returns the entry of a snapshot of version 1. Its metadata is left out: only the snapshot's
    file has it."""
    found = load_snapshot(storage, snapshot_id)
    row = {
        "id": id_bytes(snapshot_id),
        "parent_offset": NO_PARENT,
        "flushed_at": (found.flushed_at - EPOCH) // timedelta(microseconds=1),
        "message": found.message,
        "metadata": [],
    }
    return ListedSnapshot(row, found.parent_id)
