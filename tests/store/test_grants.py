"""Grants: the roles of keys in single repositories, against a dictionary."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.ids import new_id
from ebbtide.server.rights import Rights
from ebbtide.store.access.keys import Role
from ebbtide.store.database.schema import access_key_grants
from ebbtide.store.embedded import Store
from tests.support.clock import ManualClock
from tests.support.collections import raises

GIVEN = (Role.READER, Role.WRITER, Role.ADMIN)


def make(store: Store, name: str) -> str:
    """A new repository; its id."""
    made = store.create_repository(name, storage_url=f"memory:{new_id()}")
    return made.info.repository_id


def test_a_grant_is_read_back(store: Store) -> None:
    key = store.keys.create(Role.NONE).key.access_key_id
    other = store.keys.create(Role.NONE).key.access_key_id
    lake, sea = make(store, "lake"), make(store, "sea")
    assert store.grants.add(key, "lake", Role.READER).repository_id == lake
    store.grants.add(key, "lake", Role.WRITER)
    store.grants.add(other, "sea", Role.ADMIN)
    assert store.grants.of(key) == {lake: Role.WRITER}
    assert [(each.access_key_id, each.repository, each.role) for each in store.grants.list()] == (
        sorted([(key, "lake", Role.WRITER), (other, "sea", Role.ADMIN)])
    )
    assert store.grants.remove(other, "sea")
    assert not store.grants.remove(other, "sea")
    assert store.grants.of(other) == {} and store.grants.of("nobody") == {}
    assert sea not in store.grants.of(key)


def test_what_is_refused(store: Store) -> None:
    key = store.keys.create(Role.NONE).key.access_key_id
    lake = make(store, "lake")
    with raises("invalid_argument"):
        store.grants.add(key, "lake", Role.NONE)
    with raises("key_not_found"):
        store.grants.add("nobody", "lake", Role.READER)
    with raises("key_not_found"):
        store.grants.remove("nobody", "lake")
    for absent in ("sea", lake):
        with raises("repository_not_found"):
            store.grants.add(key, absent, Role.READER)
        with raises("repository_not_found"):
            store.grants.remove(key, absent)
    store.keys.revoke(key)
    with raises("key_not_found"):
        store.grants.add(key, "lake", Role.READER)
    assert store.grants.list() == []


@pytest.mark.parametrize("column", ["access_key_id", "repository_id", "role"])
def test_a_row_that_was_tampered_with(store: Store, column: str) -> None:
    """Who can write to the database alone makes no grant of another one."""
    key, other = (store.keys.create(Role.NONE).key.access_key_id for _ in range(2))
    make(store, "lake")
    forged = {"access_key_id": other, "repository_id": make(store, "sea"), "role": "admin"}
    store.grants.add(key, "lake", Role.READER)
    with store.metadata.transaction() as tx:
        tx.execute(sa.update(access_key_grants).values({column: forged[column]}))
    with raises("secret_key_wrong"):
        store.grants.of(other if column == "access_key_id" else key)


def test_grants_of_repositories_that_were_deleted_or_expired(
    store: Store, clock: ManualClock
) -> None:
    """They are its own, and not those of the next one with its name."""
    key = store.keys.create(Role.NONE).key
    deleted = make(store, "lake")
    store.grants.add(key.access_key_id, "lake", Role.ADMIN)
    store.catalog.delete("lake")
    assert store.grants.list() == []
    expired = make(store, "lake")
    store.grants.add(key.access_key_id, "lake", Role.WRITER)
    store.catalog.set_expiry("lake", clock.now + timedelta(hours=1))
    clock.advance(timedelta(hours=2))
    new = make(store, "lake")
    rights = Rights(key, store)
    assert rights.id_of({"repository": "lake"}) == new
    assert rights.role_in(new) is rights.role_in(deleted) is Role.NONE
    assert rights.role_in(expired) is Role.WRITER
    assert rights.readable_ids == frozenset({expired})
    store.catalog.delete("lake")
    store.catalog.restore(deleted)
    assert store.grants.of(key.access_key_id) == {expired: Role.WRITER}


def test_a_name_that_went_to_another_repository(store: Store) -> None:
    """Between the check and the work, somebody replaced the repository."""
    key = store.keys.create(Role.READER).key
    make(store, "lake")
    store.grants.add(key.access_key_id, "lake", Role.WRITER)
    rights = Rights(key, store)
    rights.require(Role.WRITER, {"repository": "lake"})
    assert rights.opened(store.repository("lake")).info.name == "lake"
    store.catalog.delete("lake")
    make(store, "lake")
    with raises("role_missing"):
        rights.opened(store.repository("lake"))


def test_the_role_is_the_greater_of_the_own_and_the_granted_one(store: Store) -> None:
    lake = make(store, "lake")
    make(store, "sea")
    for own in Role:
        key = store.keys.create(own).key
        for granted in GIVEN:
            store.grants.add(key.access_key_id, "lake", granted)
            rights = Rights(key, store)
            for name, given in (("lake", granted), ("sea", Role.NONE)):
                for asked in Role:
                    is_allowed = own.allows(asked) or given.allows(asked)
                    with nullcontext() if is_allowed else raises("role_missing"):
                        rights.require(asked, {"repository": name})
            assert rights.readable_ids == (frozenset([lake]) if own is Role.NONE else None)
