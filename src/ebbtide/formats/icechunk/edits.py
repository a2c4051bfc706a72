"""Edits of an Icechunk repository's history: by an expiry, and by an undo. They delete no object.

An expiry edits in place, and keeps ids and dates. Version 1: the snapshot files get other parents,
one after the other; each edit is complete in itself. Version 2: one conditional write of `repo`.
Released snapshots stay in its list until a collection drops them. Until then, a new branch or tag
on such a snapshot makes it reachable again. Source: Icechunk design document 007, "Update A in
place".

An undo of version 2 lists snapshots in `repo` again: a snapshot that is not listed cannot be read.
Therefore a run keeps the entries of snapshots before it drops them. Version 1 has no such list: a
snapshot can be read while its file exists. A run of version 1 can be undone after an upgrade to
version 2: then the entries are made from the snapshots' files.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from ebbtide.errors import Conflict, EbbtideError, Incomplete, Refused
from ebbtide.formats.icechunk import refs as v1_refs
from ebbtide.formats.icechunk.ids import id_bytes
from ebbtide.formats.icechunk.layout import SNAPSHOTS_PREFIX, load_snapshot, refusing
from ebbtide.formats.icechunk.repo import (
    NO_PARENT,
    SNAPSHOT_INFO,
    Edit,
    ListedSnapshot,
    RepoFile,
    write_repo,
)
from ebbtide.formats.icechunk.snapshots import with_parent
from ebbtide.formats.icechunk.state import SnapshotHistory
from ebbtide.formats.icechunk.tables import decode, encode
from ebbtide.model import EPOCH
from ebbtide.retention.expiry import Expiry
from ebbtide.storage import Storage
from ebbtide.text import count_text

RECORDS_PREFIX: Final = "_ebbtide/expire/"


def write_record(
    storage: Storage, expire_id: str, history: SnapshotHistory, expiry: Expiry, now: datetime
) -> str:
    """Records the changes of an expiry with the old values, before they are made. Returns the
    address of the record."""
    record: dict[str, Any] = {
        "at": now.isoformat(),
        "edited": [
            {
                "snapshot_id": commit_id,
                "parent_id": history.commits[commit_id].first_parent_id,
                "new_parent_id": parent_id,
            }
            for commit_id, parent_id in sorted(expiry.new_parents.items())
        ],
        "released": sorted(expiry.released),
        "deleted_refs": [
            {"kind": ref.kind, "name": ref.name, "snapshot_id": ref.commit_id}
            for ref in expiry.deleted_refs
        ],
    }
    address = f"{RECORDS_PREFIX}{expire_id}.json"
    storage.put(address, json.dumps(record, indent=1).encode())
    return address


def apply_v1(storage: Storage, expiry: Expiry, parents: Mapping[str, str | None]) -> None:
    """Edits the snapshot files, then deletes the refs.

    `parents` are the parents that the expiry was planned with. Raises Refused `repository_changed`
    if a snapshot has another parent by now, because somebody else edits history. Also raises
    Refused `missing_tree`, `corrupt_tree` and `unknown_format_version`. After the first edit, any
    error is Incomplete.
    """
    done, total = 0, len(expiry.new_parents) + len(expiry.deleted_refs)
    try:
        for _ in _edits_v1(storage, expiry, parents):
            done += 1
    except EbbtideError as error:
        if not done:
            raise
        raise Incomplete(
            "incomplete",
            f"the expiry was stopped after {done} of {count_text(total, 'edit')}: {error.message}. "
            "Each edit is complete in itself: run the expiry again, it does the others",
        ) from error


def _edits_v1(
    storage: Storage, expiry: Expiry, parents: Mapping[str, str | None]
) -> Iterator[None]:
    """Makes the edits, and yields after each."""
    for snapshot_id, parent_id in sorted(expiry.new_parents.items()):
        address = f"{SNAPSHOTS_PREFIX}{snapshot_id}"
        with refusing(storage, address, what="tree"):
            data, version = storage.get_versioned(address)
            edited = with_parent(data, snapshot_id, parent_id, expected=str(parents[snapshot_id]))
        try:
            if edited is None:
                raise _changed(snapshot_id)
            storage.replace(address, edited, version=version)
        except Conflict:
            raise _changed(snapshot_id) from None
        yield
    for ref in expiry.deleted_refs:
        if ref.kind == "branch":
            v1_refs.delete_branch(storage, ref.name)
        else:
            v1_refs.delete_tag(storage, ref.name)
        yield


def _changed(snapshot_id: str) -> Refused:
    return Refused(
        "repository_changed",
        f"snapshot {snapshot_id} was changed by another process meanwhile, perhaps by Icechunk's "
        "own expiration: run this again when that has ended",
    )


def apply_v2(storage: Storage, file: RepoFile, expiry: Expiry, now: datetime) -> None:
    """Writes `repo`. Raises Conflict `object_changed` if somebody else was faster: plan again."""
    names = {
        kind: {ref.name for ref in expiry.deleted_refs if ref.kind == kind}
        for kind in ("branch", "tag")
    }
    edit = Edit(
        kind="ExpirationRan",
        new_parents=expiry.new_parents,
        drop_branches=names["branch"],
        drop_tags=names["tag"],
    )
    write_repo(storage, file, edit, now)


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
