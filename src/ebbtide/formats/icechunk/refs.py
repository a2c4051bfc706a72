"""Branches and tags of version 1: a small file for each.

Source: Icechunk specification, version 1, "Reference Files".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from ebbtide.arrow import texts
from ebbtide.errors import Conflict, NotFound, Refused
from ebbtide.formats.icechunk.ids import id_bytes
from ebbtide.model import Ref, RefKind
from ebbtide.storage import Storage

REFS_PREFIX: Final = "refs/"
MAIN_ADDRESS: Final = "refs/branch.main/ref.json"

_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"
_KINDS: Final[tuple[tuple[str, RefKind], ...]] = (("branch.", "branch"), ("tag.", "tag"))


def read_refs(storage: Storage) -> tuple[Ref, ...]:
    """All branches and tags, but for deleted tags, by name.

    Refused `corrupt_ref` where a file cannot be understood: it may be all that keeps a snapshot.
    """
    found = {address for batch in storage.list(REFS_PREFIX) for address in texts(batch[0])}
    refs = (
        ref
        for address in sorted(found)
        if address.endswith(_FILE) and address + ".deleted" not in found
        for ref in _read_ref(storage, address)
    )
    return tuple(refs)


def delete_branch(storage: Storage, name: str) -> None:
    """Delete a branch's file."""
    storage.delete([f"{REFS_PREFIX}branch.{name}{_FILE}"])


def delete_tag(storage: Storage, name: str) -> None:
    """Put a tombstone beside a tag's file: its name must not come back with another meaning."""
    try:
        storage.put(f"{REFS_PREFIX}tag.{name}{_TOMBSTONE}", b"", create_only=True)
    except Conflict:
        return  # somebody else deleted it too


def _read_ref(storage: Storage, address: str) -> Iterator[Ref]:
    """The ref of a file; none when the file went away since it was listed."""
    folder = address.removeprefix(REFS_PREFIX).removesuffix(_FILE)
    kinds = [(prefix, kind) for prefix, kind in _KINDS if folder.startswith(prefix)]
    if not kinds or "/" in folder:
        raise Refused("corrupt_ref", f"{storage.url}/{address} is neither a branch nor a tag")
    ((prefix, kind),) = kinds
    try:
        snapshot_id = json.loads(storage.get(address))["snapshot"]
        id_bytes(snapshot_id)
    except NotFound:
        return
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(
            "corrupt_ref",
            f"{storage.url}/{address} does not say which snapshot it points at ({error}): "
            "restore it, or delete it if nothing needs it",
        ) from error
    yield Ref(folder.removeprefix(prefix), kind, snapshot_id)
