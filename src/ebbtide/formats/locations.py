"""Locations of tables' files: folders within each other, and schemes that name one storage.

An address is relative to the root, and a folder ends in a slash; the root itself is empty. Not for:
how a format spells the paths in its metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ebbtide.arrow import texts

LOCAL: Final = "file"
FAMILIES: Final = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    "gcs": "gs",
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "az"),
}
"""Schemes that name the same storage as another one."""


def outermost(folders: Iterable[str]) -> tuple[str, ...]:
    """Returns the folders that lie in no other of them, in order."""
    found: list[str] = []
    for folder in sorted(set(folders)):
        if not found or not folder.startswith(found[-1]):
            found.append(folder)
    return tuple(found)


def are_apart(folders: Sequence[str], others: Sequence[str]) -> bool:
    """Whether no folder of one group is, or lies in, one of the other. Within each group, none lies
    in another."""
    return len(outermost([*folders, *others])) == len(folders) + len(others)


def folders_of(addresses: pa.StringArray, folders: Sequence[str]) -> Any:
    """Returns the place in `folders` of the innermost folder that has each address, as an array of
    NumPy; -1 for none."""
    places = {folder: place for place, folder in enumerate(folders)}
    known = {"": places.get("", -1)}

    def of(folder: str) -> int:
        if folder not in known:
            above = of(folder[: folder.rfind("/", 0, -1) + 1])
            known[folder] = places.get(folder, above)
        return known[folder]

    found = (each[: each.rfind("/") + 1] for each in texts(addresses))
    return np.fromiter(map(of, found), np.int64, len(addresses))
