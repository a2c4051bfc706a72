"""Defects that the simulation finds: each takes something out of the real code again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ebbtide.clock import Clock
from ebbtide.errors import Conflict
from ebbtide.formats.base import EPOCH_ADDRESS, Clocks, storage_clocks, unguarded
from ebbtide.formats.icechunk import repository as icechunk
from ebbtide.formats.icechunk import repository as icechunk_repository
from ebbtide.formats.icechunk.repository import IcechunkRepository
from ebbtide.formats.icechunk.state import read_state
from ebbtide.gc import deletes, sweep
from ebbtide.gc import planner as making
from ebbtide.gc.quarantine import NO_KEYS
from ebbtide.gc.quarantines import Needed, Quarantines, Recovered
from ebbtide.retention.expiry import Expiry
from ebbtide.storage import Storage
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.database.schema import branches
from ebbtide.store.objects.locators import Locators
from ebbtide.store.repositories import owner
from ebbtide.store.repositories.owner import OWNER_ADDRESS, OwnerFile, Ownership
from tests.simulation.histories import History
from tests.simulation.simulation import Simulation, told

Patch = tuple[object, str, Any]
"""Of what, which name, and what takes its place."""


def _write(
    storage: Storage,
    content: OwnerFile,
    version: str,
    *,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> str:
    """Writes OWNER over whatever is there."""
    del alone
    while True:
        try:
            return storage.replace(OWNER_ADDRESS, owner._encode(content), version=version)
        except Conflict:
            _, version = storage.get_versioned(OWNER_ADDRESS)


_lease = Locators.lease


def _no_lease_of_heads(
    locators: Locators, commit: CommitRecord, *, ends_at_most: datetime | None
) -> datetime:
    """Leases no commit that a branch points at."""
    context = locators._context
    is_head = (branches.c.repository_id == context.repository_id) & (
        branches.c.commit_id == commit.commit_id
    )
    with context.metadata.snapshot() as tx:
        if tx.execute(sa.select(branches.c.name).where(is_head)).first() is None:
            return _lease(locators, commit, ends_at_most=ends_at_most)
        ends_at = tx.now() + context.settings.lease_ttl
        return ends_at if ends_at_most is None else min(ends_at, ends_at_most)


def _lease_without_a_trace(
    locators: Locators, commit: CommitRecord, *, ends_at_most: datetime | None
) -> datetime:
    """Leases a commit, and does not say so in OWNER."""
    # Not by a patch: it would still be there for others while this one sleeps.
    quiet: Any = SimpleNamespace(require=lambda: None, announce=lambda: None)
    silent = Locators(replace(locators._context, ownership=quiet))
    return _lease(silent, commit, ends_at_most=ends_at_most)


def _held_by_nothing(repository: IcechunkRepository, expiry: Expiry, _dated: datetime) -> None:
    """Looks at no date behind an expiry."""
    repository._remember_unreachable(expiry.released, forgetting=False)


def _clocks_of_a_run(storage: Storage, _written: str, clock: Clock) -> Clocks:
    """Takes the file that the last run left for one that was written just now."""
    return storage_clocks(storage, EPOCH_ADDRESS, clock)


FAULTS: Final[Mapping[str, tuple[Patch, ...]]] = {
    "an undo that reads no intents": ((deletes, "unsettled", lambda _folder: []),),
    "a locator of a head that rests on the reflog": ((Locators, "lease", _no_lease_of_heads),),
    "a locator that leaves no trace": ((Locators, "lease", _lease_without_a_trace),),
    "OWNER that moves once a minute": (
        (Ownership, "announce", lambda _self: None),
        (Ownership, "require", Ownership.touch),
    ),
    "OWNER is written over whatever is there": ((owner, "_write", _write),),
    "Icechunk: an expiry that is dated by a run": (
        (icechunk_repository, "storage_clocks", _clocks_of_a_run),
        (Clocks, "check", lambda *_, **__: None),
        (IcechunkRepository, "_hold_released", _held_by_nothing),
    ),
    "lakeFS: needed files that nobody restores": (
        (sweep.Sweep, "_restore", lambda *_: None),
        (Quarantines, "rescue", lambda *_: Needed(NO_KEYS, unguarded, Recovered())),
    ),
    "lakeFS: a restored database that nobody notices": (
        (making, "check_last_swept", lambda *_: None),
        (sweep, "check_planned", lambda *_: None),
    ),
    "Icechunk: sessions that nobody thinks of": (
        (icechunk, "read_state", lambda *args, **more: read_state(*args, **more | {"quiet": True})),
    ),
}


@contextmanager
def made(*faults: str) -> Iterator[None]:
    """In the block the code has these faults."""
    with pytest.MonkeyPatch.context() as patch:
        for target, name, replacement in chain.from_iterable(FAULTS[each] for each in faults):
            patch.setattr(target, name, replacement)
        yield


def require_found(simulation: Simulation, fault: str, shows: History, kind: str) -> None:
    """The check of that kind finds a fault by a history that shows it, and nothing without it."""
    with made(fault):
        found = simulation.run(shows)
    assert found.violation is not None, told(found)
    assert found.violation.kind == kind
    mended = simulation.run(shows)
    assert mended.violation is None, told(mended)
