"""Grants: the roles of keys in single repositories, against a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import EbbtideError
from ebbtide.ids import new_id
from ebbtide.server.rights import Rights
from ebbtide.settings import Settings
from ebbtide.store.access.keys import Role
from ebbtide.store.database.schema import access_key_grants
from ebbtide.store.embedded import Store
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.randomized import examples, randomized

GIVEN = (Role.READER, Role.WRITER, Role.ADMIN)


def make(store: Store, name: str) -> str:
    """A new repository; its id."""
    made = store.create_repository(name, storage_url=f"memory:{new_id()}")
    return made.info.repository_id


@pytest.mark.twins
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


@pytest.mark.twins
def test_a_deleted_repository_leaves_no_grant(store: Store) -> None:
    key = store.keys.create(Role.NONE).key
    lake = make(store, "lake")
    store.grants.add(key.access_key_id, "lake", Role.ADMIN)
    store.catalog.delete("lake")
    assert store.grants.list() == []
    new = make(store, "lake")
    rights = Rights(key, store)
    assert rights.role_in(new) is rights.role_in(lake) is Role.NONE
    assert rights.readable_ids == frozenset()
    store.catalog.delete("lake")
    store.catalog.restore(lake)
    assert store.grants.of(key.access_key_id) == {}


def test_an_expired_repository_keeps_its_grants(store: Store, clock: ManualClock) -> None:
    """They are its own, and not those of the next one with its name."""
    key = store.keys.create(Role.NONE).key
    old = make(store, "lake")
    store.grants.add(key.access_key_id, "lake", Role.WRITER)
    store.catalog.set_expiry("lake", clock.now + timedelta(hours=1))
    clock.advance(timedelta(hours=2))
    new = make(store, "lake")
    rights = Rights(key, store)
    assert rights.id_of({"repository": "lake"}) == new
    assert (rights.role_in(new), rights.role_in(old)) == (Role.NONE, Role.WRITER)


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


NAMES = ("aaa", "bbb", "ccc")


@dataclass
class Oracle:
    """What should be so: the ids of live repositories by name, and the roles of keys by id."""

    live: dict[str, str] = field(default_factory=dict)
    granted: dict[tuple[int, str], Role] = field(default_factory=dict)

    def role(self, default: Role, key: int, name: str) -> Role:
        """The role of a key in the repository that has a name now."""
        roles = list(Role)
        given = self.granted.get((key, self.live.get(name, "")), Role.NONE)
        return max(default, given, key=roles.index)


_NAME = st.sampled_from(NAMES)
_KEY = st.integers(0, len(Role) - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), _KEY, _NAME, st.sampled_from(GIVEN)),
        st.tuples(st.just("ungrant"), _KEY, _NAME, st.none()),
        st.tuples(st.just("delete"), st.just(0), _NAME, st.none()),
        st.tuples(st.just("make"), st.just(0), _NAME, st.none()),
    ),
    min_size=4,
    max_size=14,
)


def step(
    store: Store, oracle: Oracle, keys: list[str], each: tuple[str, int, str, Role | None]
) -> None:
    """Carries out a step in the store, and in the dictionary if the store can do it."""
    what, key, name, role = each
    if what == "make":
        if name not in oracle.live:
            oracle.live[name] = make(store, name)
        return
    if name not in oracle.live:
        with raises("repository_not_found"):
            _change(store, keys[key], each)
        return
    _change(store, keys[key], each)
    place = oracle.live[name]
    if what == "grant":
        assert role is not None
        oracle.granted[key, place] = role
    elif what == "ungrant":
        oracle.granted.pop((key, place), None)
    else:
        del oracle.live[name]
        oracle.granted = {at: kept for at, kept in oracle.granted.items() if at[1] != place}


def _change(store: Store, key: str, each: tuple[str, int, str, Role | None]) -> None:
    what, _, name, role = each
    if what == "grant":
        assert role is not None
        store.grants.add(key, name, role)
    elif what == "ungrant":
        store.grants.remove(key, name)
    else:
        store.catalog.delete(name)


@randomized("grants of roles")
@examples("grants of roles")
@given(steps=STEPS)
def test_roles_against_a_dictionary(
    steps: list[tuple[str, int, str, Role | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One key of each role. After each step, every key is asked for every role in every name."""
    with Store.init(tmp_path_factory.mktemp("grants") / "store", settings=Settings()) as store:
        keys = [store.keys.create(role).key for role in Role]
        ids = [key.access_key_id for key in keys]
        oracle = Oracle()
        for each in [("make", 0, "aaa", None), *steps]:
            step(store, oracle, ids, each)
            for number, key in enumerate(keys):
                for name in NAMES:
                    expected = oracle.role(key.role, number, name)
                    assert allowed(store, number, ids, name) == {
                        role for role in Role if expected.allows(role)
                    }, (key.role, name)
                readable = Rights(key, store).readable_ids
                if key.role is Role.NONE:
                    assert readable == frozenset(at for who, at in oracle.granted if who == number)
                else:
                    assert readable is None


def allowed(store: Store, number: int, ids: list[str], name: str) -> set[Role]:
    """The roles that a key passes for in the repository of a name."""
    key = store.keys.find(ids[number])
    assert key is not None
    found = set()
    for role in Role:
        rights = Rights(key, store)
        try:
            rights.require(role, {"repository": name})
        except EbbtideError as error:
            assert error.kind == "role_missing"
        else:
            found.add(role)
    return found
