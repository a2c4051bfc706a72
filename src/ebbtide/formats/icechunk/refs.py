"""Branches and tags of version 1: a small file for each of them.

In a directory, the names of their folders are percent-encoded by the library that Icechunk writes
with. On S3, the names are as they were given.
Source: Icechunk specification, version 1, "Reference Files"; object_store, `path/parts.rs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote

from ebbtide.arrow import texts
from ebbtide.errors import Conflict, NotFound, Refused
from ebbtide.formats.icechunk.ids import id_bytes
from ebbtide.formats.icechunk.layout import is_directory
from ebbtide.model import Ref, RefKind
from ebbtide.retention import Policy
from ebbtide.retention.policy import invalid_policy
from ebbtide.storage import Storage

REFS_PREFIX: Final = "refs/"
MAIN_ADDRESS: Final = "refs/branch.main/ref.json"

_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"
_KINDS: Final[tuple[tuple[str, RefKind], ...]] = (("branch.", "branch"), ("tag.", "tag"))
_ENCODED: Final = re.compile(r'[\x00-\x1f\x7f"#%*<>?\[\\\]^`{|}~]|[^\x00-\x7f]')
"""The characters that are encoded in a directory."""


def read_refs(storage: Storage) -> tuple[Ref, ...]:
    """Returns all branches and tags, sorted by address, without deleted tags.

    Raises Refused `corrupt_ref` if a file cannot be understood: it can be the only ref of a
    snapshot.
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
    """Deletes a branch's file."""
    storage.delete([f"{folder}{_FILE}" for folder in _folders(storage, "branch", name)])


def delete_tag(storage: Storage, name: str) -> None:
    """Writes a tombstone beside a tag's file, so that the name cannot get another meaning."""
    for folder in _folders(storage, "tag", name):
        # If there is a tombstone already, somebody else deleted the tag too.
        with suppress(Conflict):
            storage.put(f"{folder}{_TOMBSTONE}", b"", create_only=True)


def check_spelling(storage: Storage, policy: Policy, refs: Iterable[Ref]) -> None:
    """Raises InvalidInput `invalid_policy` if a rule names a branch by its encoded folder name.

    Icechunk lists branches by this name. A rule for it would apply to no branch.
    """
    names = [ref.name for ref in refs if ref.kind == "branch"]
    for pattern in policy.unmatched(names):
        for name in names:
            if fnmatchcase(stored_name(storage, name), pattern):
                raise invalid_policy(
                    f"branches.{pattern}",
                    f"the directory spells branch {name!r} like this: write the name itself",
                )


def stored_name(storage: Storage, name: str) -> str:
    """Returns the storage's spelling of a branch's or tag's name."""
    if not is_directory(storage):
        return name
    return _ENCODED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def _name_of(storage: Storage, stored: str) -> str:
    """Returns the name of a ref that the storage spells as `stored`.

    If Icechunk would spell the decoded name otherwise, the folder was copied from another storage:
    then `stored` is the name itself.
    """
    try:
        name = unquote(stored, errors="strict")
    except UnicodeDecodeError:
        return stored
    return name if stored_name(storage, name) == stored else stored


def _folders(storage: Storage, kind: RefKind, name: str) -> list[str]:
    """Returns the existing folders of a ref: the one that Icechunk makes, and one that was copied
    from another storage."""
    spelt = sorted({stored_name(storage, name), name})
    folders = [f"{REFS_PREFIX}{kind}.{each}" for each in spelt]
    return [each for each in folders if storage.head(f"{each}{_FILE}") is not None]


def files_of(storage: Storage, ref: Ref) -> list[str]:
    """Returns the addresses of a ref's files: one, unless a copy of it has another spelling."""
    return [f"{folder}{_FILE}" for folder in _folders(storage, ref.kind, ref.name)]


def _read_ref(storage: Storage, address: str) -> Iterator[Ref]:
    """Yields the ref of a file, or nothing if the file was deleted since the listing. Raises
    Refused `corrupt_ref`."""
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
            "restore the file, or delete it if the ref is not needed",
        ) from error
    yield Ref(_name_of(storage, folder.removeprefix(prefix)), kind, snapshot_id)
