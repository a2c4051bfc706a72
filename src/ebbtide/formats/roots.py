"""Finds the roots of other repositories among the files that a format does not know.

A root is known by the names of files that every repository of its kind has and no other program
makes. Tables of Delta Lake or Iceberg are no roots in this sense: their files have no name that a
run deletes, and lakeFS itself exports such tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from ebbtide.arrow import Column, texts
from ebbtide.errors import NotFound, Refused
from ebbtide.storage import Storage
from ebbtide.store.content.layout import OWNER_ADDRESS
from ebbtide.text import shown

_OF_A_STORE: Final = "a repository of an Ebbtide store"
_KINDS: Final = (
    ("owner", OWNER_ADDRESS, _OF_A_STORE),
    # An id of `formats.icechunk.ids`, which builds on the modules that use this one.
    ("icechunk", "snapshots/[0-9A-HJKMNP-TV-Z]{19}[0G]", "an Icechunk repository"),
    ("lakefs", "_lakefs/(?:dummy|[0-9a-f]{64})", "the storage namespace of a lakeFS repository"),
)
_ROOT: Final = (
    r"\A(?P<place>(?:(?s:.)*?/)?)(?:"
    + "|".join(f"(?P<{name}>{pattern})" for name, pattern, _ in _KINDS)
    + r")\z"
)


@dataclass(frozen=True, slots=True)
class OtherRoot:
    """The root of another repository. `place` is its prefix, empty or ending in `/`; `what` says
    what it is, and `address` is the file that shows it."""

    place: str
    what: str
    address: str


def roots_among(addresses: Column) -> Iterator[OtherRoot]:
    """Yields a root for each of the addresses that shows one. The same root can come repeatedly."""
    if not pc.any(pc.match_substring_regex(addresses, _ROOT), min_count=0).as_py():
        return
    found: Any = pc.extract_regex(addresses, _ROOT)
    for address, row in zip(texts(addresses), found.to_pylist(), strict=True):
        if row is not None:
            what = next(what for name, _, what in _KINDS if row[name])
            yield OtherRoot(row["place"], what, address)


def check_unowned(storage: Storage) -> None:
    """Raises Refused `nested_root` if a repository of an Ebbtide store has the same root. For
    formats whose listing leaves out Ebbtide's own directory."""
    root = OtherRoot("", _OF_A_STORE, OWNER_ADDRESS)
    if not is_ended(storage, root):
        raise nested_root(storage, root)


def is_ended(storage: Storage, root: OtherRoot) -> bool:
    """Whether a root is shown by OWNER, and this file does not exist any more or says that its
    repository has ended."""
    if not root.address.endswith(OWNER_ADDRESS):
        return False
    try:
        content = json.loads(storage.get(root.address))
    except NotFound:
        return True
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("closed") is True


def nested_root(storage: Storage, root: OtherRoot) -> Refused:
    """Returns the refusal of a run whose storage has another root."""
    where = f"{storage.url}/{root.place}".rstrip("/")
    lies = "lies inside" if root.place else "is"
    return Refused(
        "nested_root",
        f"{shown(where)} {lies} the root of this repository, and is the root of {root.what} too: "
        f"it has {shown(root.address)}. Nothing was deleted. Move one of the two to a root of its "
        "own. If this is only a copy, move it to a place outside of the repository. Then run again",
    )
