"""Defects that the simulation finds: each takes something out of the real code again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, Final

import pytest

from ebbtide.errors import Conflict
from ebbtide.gc import undoing
from ebbtide.gc.undoing import Undo
from ebbtide.storage import Storage
from ebbtide.store import owner
from ebbtide.store.owner import OWNER_ADDRESS, OwnerFile

Patch = tuple[object, str, Any]
"""Of what, which name, and what takes its place."""


def _write(
    storage: Storage,
    content: OwnerFile,
    version: str,
    *,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> bool:
    """Writes OWNER over whatever is there."""
    del alone
    while True:
        try:
            storage.replace(OWNER_ADDRESS, owner._encode(content), version=version)
            return True
        except Conflict:
            _, version = storage.get_versioned(OWNER_ADDRESS)


FAULTS: Final[Mapping[str, tuple[Patch, ...]]] = {
    "an undo that reads no intents": ((undoing, "unsettled", lambda _folder: []),),
    "an undo that takes files on trust": (
        (Undo, "_incomplete", lambda _self, _trees, _risks: frozenset()),
    ),
    "OWNER is written over whatever is there": ((owner, "_write", _write),),
}


@contextmanager
def made(*faults: str) -> Iterator[None]:
    """In the block the code has these faults."""
    with pytest.MonkeyPatch.context() as patch:
        for target, name, replacement in chain.from_iterable(FAULTS[each] for each in faults):
            patch.setattr(target, name, replacement)
        yield
