"""A locator that is given while the transaction that takes its object's name away is open.

The transaction dates its records when it writes them, and they count from its commit. The locator
is younger than these dates. So it outlasts each promise that begins at one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ebbtide.store.collections.contents import ContentChange, Files, Located
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import branches, collections, commits, reflog
from ebbtide.store.objects.locators import Signed
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.gc.test_signed_reads import commit_without
from tests.support.boundaries import HeldMetadata, SteppingMetadata
from tests.support.world import World

LEASE: Final = timedelta(hours=1)
SETTINGS: Final = {"lease_ttl": LEASE}
HELD: Final = LEASE / 2
"""How long the transaction stays open until the locator is asked for."""
SECOND: Final = timedelta(seconds=1)
WAIT_SECONDS_MAX: Final = 60.0


def _sign_in_collection(lake: Repository, collection_id: str) -> Signed:
    (signed,) = lake.collections.locators(collection_id).entries
    return signed


Way = tuple[
    Callable[[Repository, str], object], Callable[[Repository, str], Signed], sa.Select[Any]
]
WAYS: Final[dict[str, Way]] = {
    "commit": (
        lambda lake, _: commit_without(lake, "main"),
        lambda lake, _: lake.locators.sign_path("main@", "a"),
        sa.select(commits.c.commit_id).where(commits.c.message == "without"),
    ),
    "branch deleted": (
        lambda lake, _: lake.branches.delete("side"),
        lambda lake, _: lake.locators.sign_path("side@", "s"),
        sa.select(branches.c.name).where(branches.c.expires_at.is_not(None)),
    ),
    "collection replaced": (
        lambda lake, collection_id: lake.collections.update(
            collection_id, ContentChange(replaces=True)
        ),
        _sign_in_collection,
        sa.select(reflog.c.commit_id).where(reflog.c.kind == "collection"),
    ),
    "collection deleted": (
        lambda lake, collection_id: lake.collections.delete(collection_id),
        _sign_in_collection,
        sa.select(collections.c.name).where(collections.c.expires_at.is_not(None)),
    ),
}
"""How an object loses its name, how a locator of it is asked for, and by what a transaction can be
told that takes the name away."""


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_lasts_until_its_end(world: World, way: Way) -> None:
    lake = world.lake
    project_id = lake.projects.create("project").project_id
    world.save("main", days_ago=30, put=["a"])
    lake.branches.create("side", "main")
    world.save("side", days_ago=20, put=["s"], delete=["a"])
    change = ContentChange([Files([NewObject("file", b"collected")])])
    collection_id = lake.collections.create(project_id, "old", change).collection_id
    world.keep(default={"keep_last": 1})
    world.clock.advance(2 * LEASE)
    signed = sign_while_it_is_lost(world, way, collection_id)
    world.clock.now = signed.expires_at - SECOND
    report = world.collect(grace=SECOND, unsafe=True, allow_share=True)
    assert report.state == "swept"
    made = lake.collections.create(
        project_id, "saved", ContentChange([Located({"file": signed.locator})])
    )
    saved = b"".join(lake.collections.open(made.collection_id, "file").stream())
    assert saved in (b"a", b"s", b"collected")
    world.collect(grace=SECOND, unsafe=True, allow_share=True)
    assert b"".join(lake.collections.open(made.collection_id, "file").stream()) == saved


def sign_while_it_is_lost(world: World, way: Way, collection_id: str) -> Signed:
    """The locator asked for between the write that takes the name away, and the COMMIT."""
    lose, ask, is_lost = way
    found: list[Signed] = []
    waits = threading.Event()

    def sign() -> None:
        # Who wants to write has to wait for the open transaction; who only reads has not.
        metadata = SteppingMetadata(
            world.lake.context.metadata, lambda step: waits.set() if step == "transaction" else None
        )
        try:
            found.append(ask(of(world, metadata), collection_id))
        finally:
            waits.set()

    signer = threading.Thread(target=sign, daemon=True)

    def hold(tx: Transaction) -> None:
        if signer.ident is None and tx.execute(is_lost).first() is not None:
            world.clock.advance(HELD)
            signer.start()
            assert waits.wait(WAIT_SECONDS_MAX)

    lose(of(world, HeldMetadata(world.lake.context.metadata, hold)), collection_id)
    signer.join(WAIT_SECONDS_MAX)
    (signed,) = found
    return signed


def of(world: World, metadata: HeldMetadata | SteppingMetadata) -> Repository:
    return Repository(replace(world.lake.context, metadata=metadata))
