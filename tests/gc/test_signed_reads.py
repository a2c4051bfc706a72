"""Signed URLs: until one ends, no run and no reclaimer deletes its object."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ebbtide.errors import EbbtideError
from ebbtide.storage import LocalStorage
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import leased_addresses, released
from ebbtide.store.objects.signed_reads import SignedRead
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from tests.support.boundaries import HeldMetadata
from tests.support.collections import raises
from tests.support.world import World

LEASE: Final = timedelta(hours=1)
SETTINGS: Final = {"lease_ttl": LEASE}
SECOND: Final = timedelta(seconds=1)
WAIT_SECONDS_MAX: Final = 60.0
SHORT: Final[dict[str, Any]] = {"grace": SECOND, "unsafe": True, "allow_share": True}


@pytest.fixture(autouse=True)
def signing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that signs, as S3 does."""

    def sign_get(
        _storage: object, address: str, *, lasts: timedelta, method: str = "GET"
    ) -> str | None:
        return f"{method} {address} {lasts.total_seconds():.0f}"

    monkeypatch.setattr(LocalStorage, "sign_get", sign_get)


def ends(world: World, signed: SignedRead) -> timedelta:
    """For how long the URL lasts, from now on."""
    return signed.expires_at - world.now


def clear(world: World) -> None:
    """All that could delete."""
    Reclaimer(world.store).once()
    assert world.collect(**SHORT).state == "swept"
    Reclaimer(world.store).once()


def check_until_its_end(world: World, *signed: SignedRead) -> None:
    """The objects are there as long as their URLs last, and go later."""
    places = [world.root / each.entry.address for each in signed]
    (ends_at,) = {each.expires_at for each in signed}
    clear(world)
    world.clock.now = ends_at
    clear(world)
    assert [place.exists() for place in places] == [True] * len(places)
    world.clock.advance(2 * LEASE)
    clear(world)
    assert not any(place.exists() for place in places)


def commit_without(lake: Repository, branch: str) -> object:
    lake.objects.delete(branch, "a")
    return lake.commits.commit(branch, "without")


Lose = Callable[[Repository, str], object]
COMMITTED: Final[list[Lose]] = [
    commit_without,
    lambda lake, branch: lake.branches.delete(branch),
]


def test_committed_objects(world: World) -> None:
    world.save("main", days_ago=30)
    for number in range(len(COMMITTED)):
        world.lake.branches.create(f"side{number}", "main")
        world.save(f"side{number}", days_ago=20, put=["a"])
    world.keep(default={"keep_last": 1})
    world.clock.advance(2 * LEASE)
    signed = [world.lake.signed_reads.sign(f"side{n}", "a") for n in range(len(COMMITTED))]
    for number, lose in enumerate(COMMITTED):
        seconds = ends(world, signed[number]).total_seconds()
        assert signed[number].url == f"GET {signed[number].entry.address} {seconds:.0f}"
        assert LEASE / 2 < ends(world, signed[number]) < LEASE
        lose(world.lake, f"side{number}")
    check_until_its_end(world, *signed)


STAGED: Final[list[Lose]] = [
    lambda lake, branch: lake.objects.put(branch, "a", b"other"),
    lambda lake, branch: lake.objects.delete(branch, "a"),
    lambda lake, branch: lake.commits.reset_path(branch, "a"),
    lambda lake, branch: lake.commits.reset_prefix(branch, "a"),
    lambda lake, branch: lake.commits.reset(branch),
    lambda lake, branch: lake.branches.delete(branch),
]


@pytest.mark.parametrize("leased_before", [False, True])
def test_staged_objects(world: World, leased_before: bool) -> None:
    """Also if a file is much older than the grace, and if an earlier URL made the lease."""
    world.save("main", days_ago=1)
    branches = [f"side{number}" for number in range(len(STAGED))]
    for branch in branches:
        world.lake.branches.create(branch, "main")
        world.lake.objects.put(branch, "a", b"a")
    world.clock.advance(timedelta(days=10))
    if leased_before:
        for branch in branches:
            world.lake.signed_reads.sign(branch, "a")
        world.clock.advance(LEASE / 2 - SECOND)
    signed = [world.lake.signed_reads.sign(branch, "a") for branch in branches]
    for branch, lose, each in zip(branches, STAGED, signed, strict=True):
        assert LEASE / 2 < ends(world, each) < LEASE
        lose(world.lake, branch)
    check_until_its_end(world, *signed)


def test_one_that_is_committed_later(world: World) -> None:
    world.lake.objects.put("main", "a", b"a")
    world.clock.advance(timedelta(days=10))
    signed = world.lake.signed_reads.sign("main", "a")
    world.save("main", days_ago=2)
    world.save("main", days_ago=1, delete=["a"])
    world.keep(default={"keep_last": 1})
    world.clock.advance(timedelta(minutes=1))
    check_until_its_end(world, signed)


@pytest.mark.parametrize("leased_before", [False, True])
def test_one_that_is_dropped_while_it_is_signed(world: World, leased_before: bool) -> None:
    """The drop dates its records half a lease before its transaction ends. Either the URL waits for
    it, and there is none; or the object outlasts the URL."""
    lake = world.lake
    lake.objects.put("main", "a", b"a")
    world.clock.advance(timedelta(days=10))
    if leased_before:
        lake.signed_reads.sign("main", "a")
    found: list[SignedRead | str] = []

    def sign() -> None:
        try:
            found.append(lake.signed_reads.sign("main", "a"))
        except EbbtideError as error:
            found.append(error.kind)

    signer = threading.Thread(target=sign, daemon=True)

    def hold(tx: Transaction) -> None:
        if signer.ident is None and tx.execute(sa.select(released.c.address)).first() is not None:
            world.clock.advance(LEASE / 2 - SECOND)
            signer.start()
            # Who finds a lease does not wait for this transaction.
            signer.join(WAIT_SECONDS_MAX if leased_before else 0.3)

    metadata = HeldMetadata(lake.context.metadata, hold)
    Repository(replace(lake.context, metadata=metadata)).objects.delete("main", "a")
    signer.join(WAIT_SECONDS_MAX)
    (signed,) = found
    if leased_before:
        assert isinstance(signed, SignedRead)
        check_until_its_end(world, signed)
    else:
        assert signed == "object_not_found"


def test_a_plan_from_before_the_url(world: World) -> None:
    """A run that planned while the object was staged, and sweeps when it is dropped."""
    lake = world.lake
    lake.objects.put("main", "a", b"a")
    world.clock.advance(timedelta(days=10))
    plan = world.collector(**SHORT).plan()
    signed = lake.signed_reads.sign("main", "a")
    lake.objects.delete("main", "a")
    world.collector(**SHORT).sweep(plan.run_id)
    assert (world.root / signed.entry.address).exists()
    check_until_its_end(world, signed)


def test_a_page(world: World) -> None:
    world.save("main", days_ago=3, put=["a", "d/b", "x"])
    world.lake.objects.put("main", "d/c", b"c")
    world.lake.objects.put("main", "x", b"y")
    world.lake.objects.delete("main", "a")
    world.lake.addresses.stage("main", "out", "file:///elsewhere/out", size_bytes=3)
    plain = world.lake.objects.list("main", amount=10)
    page = world.lake.signed_reads.list("main", amount=10)
    assert [each.entry for each in page.entries] == list(plain.entries)
    assert len({each.url for each in page.entries}) == 4
    assert all(each.entry.address.split("/")[-1] in each.url for each in page.entries)
    grouped = world.lake.signed_reads.list("main", delimiter="/", after="a", amount=2)
    assert grouped.common_prefixes == ("d/",)
    assert [each.path for each in grouped.entries] == ["out"]
    assert grouped.next_after == "out"
    assert world.lake.signed_reads.list("main", prefix="none", amount=1).entries == ()
    with world.store.metadata.snapshot() as tx:
        leased = set(tx.execute(sa.select(leased_addresses.c.address)).scalars())
    assert leased == {plain.entries[1].address, plain.entries[3].address}


def test_what_is_never_signed(world: World) -> None:
    lake = world.lake
    old = world.save("main", days_ago=30, put=["a"])
    world.save("main", days_ago=1, put=["b"], delete=["a"])
    for ref, path, kind in (
        ("main", "a", "object_not_found"),
        ("main", "none", "object_not_found"),
        ("none", "a", "ref_not_found"),
    ):
        with raises(kind):
            lake.signed_reads.sign(ref, path)
    world.keep(default={"keep_last": 1})
    world.clock.advance(2 * LEASE)
    clear(world)
    for sign in (
        lambda: lake.signed_reads.sign(old, "a"),
        lambda: lake.signed_reads.list(old, amount=5),
    ):
        with raises("commit_expired"):
            sign()
    world.save("main", days_ago=0.5, put=["a"])
    soon = world.now + timedelta(minutes=30)
    world.lake.branches.create("brief", "main", expires_at=soon)
    world.lake.objects.put("brief", "b", b"b")
    for path in "ab":
        assert world.lake.signed_reads.sign("brief", path).expires_at < soon


def test_a_storage_or_a_lease_that_allows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)  # its leases last no time
    world.save("main", days_ago=1, put=["a"])
    with raises("presign_unsupported"):
        world.lake.signed_reads.sign("main", "a")
    world.close()
    monkeypatch.undo()
    world = World(tmp_path / "other", settings={"lease_ttl": LEASE})
    world.save("main", days_ago=1, put=["a"])
    with raises("presign_unsupported"):
        world.lake.signed_reads.list("main", amount=1)
    assert not world.store.can_sign()
    world.close()
