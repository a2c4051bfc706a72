"""Branches and tags of version 1: a small file for each.

In a directory the names of their folders are percent-encoded, by the library through which Icechunk
writes there. On S3 they are as they were given.
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
from ebbtide.retention.rules import invalid_policy
from ebbtide.storage import Storage

REFS_PREFIX: Final = "refs/"
MAIN_ADDRESS: Final = "refs/branch.main/ref.json"

_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"
_KINDS: Final[tuple[tuple[str, RefKind], ...]] = (("branch.", "branch"), ("tag.", "tag"))
_ENCODED: Final = re.compile(r'[\x00-\x1f\x7f"#%*<>?\[\\\]^`{|}~]|[^\x00-\x7f]')
"""The characters that are encoded in a directory."""


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
    storage.delete([f"{folder}{_FILE}" for folder in _folders(storage, "branch", name)])


def delete_tag(storage: Storage, name: str) -> None:
    """Put a tombstone beside a tag's file: its name must not come back with another meaning."""
    for folder in _folders(storage, "tag", name):
        # Where there is one already, somebody else deleted the tag too.
        with suppress(Conflict):
            storage.put(f"{folder}{_TOMBSTONE}", b"", create_only=True)


def check_spelling(storage: Storage, policy: Policy, refs: Iterable[Ref]) -> None:
    """InvalidInput `invalid_policy` for a rule that names a branch as its folder is called, and as
    Icechunk lists it, and not as the branch was named: the rule would apply to nothing."""
    names = [ref.name for ref in refs if ref.kind == "branch"]
    for pattern in policy.unmatched(names):
        for name in names:
            if fnmatchcase(stored_name(storage, name), pattern):
                raise invalid_policy(
                    f"branches.{pattern}",
                    f"this is how the directory spells branch {name!r}: write the name itself",
                )


def stored_name(storage: Storage, name: str) -> str:
    """How the storage spells the name of a branch or tag."""
    if not is_directory(storage):
        return name
    return _ENCODED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def _name_of(storage: Storage, stored: str) -> str:
    """The name that is spelt so. What Icechunk would have spelt otherwise, since it was copied into
    the directory from elsewhere, is the name itself."""
    try:
        name = unquote(stored, errors="strict")
    except UnicodeDecodeError:
        return stored
    return name if stored_name(storage, name) == stored else stored


def _folders(storage: Storage, kind: RefKind, name: str) -> list[str]:
    """The folders of a ref: the one that Icechunk makes, and one that was copied to where it is."""
    spelt = sorted({stored_name(storage, name), name})
    folders = [f"{REFS_PREFIX}{kind}.{each}" for each in spelt]
    return [each for each in folders if storage.head(f"{each}{_FILE}") is not None]


def files_of(storage: Storage, ref: Ref) -> list[str]:
    """The addresses of a ref's files: one, unless a copy of it has another spelling."""
    return [f"{folder}{_FILE}" for folder in _folders(storage, ref.kind, ref.name)]


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
    yield Ref(_name_of(storage, folder.removeprefix(prefix)), kind, snapshot_id)
