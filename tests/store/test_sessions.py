"""Sessions: begun with a key, ended by time, by their owner and with the key; and made by nobody
else, even with the database at hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import EbbtideError
from ebbtide.ids import CLOCKS_APART_MAX
from ebbtide.store.access.keys import KeyPair, Role
from ebbtide.store.database.schema import access_keys, sessions
from ebbtide.store.embedded import Store
from tests.support.clock import ManualClock


@pytest.fixture
def pair(store: Store) -> KeyPair:
    return store.keys.create(Role.READER, name="anna")


def test_a_session_is_found_until_it_ends(store: Store, clock: ManualClock, pair: KeyPair) -> None:
    session = store.sessions.start(pair.key.access_key_id, pair.secret)
    assert session.expires_at == clock.now + timedelta(hours=12)
    found = store.sessions.find(session.token)
    assert found == session
    assert found is not None and found.form_token == session.form_token != session.token
    assert session.token not in repr(session)
    clock.advance(timedelta(hours=12) - timedelta(microseconds=1))
    assert store.sessions.find(session.token) == session
    clock.advance(timedelta(microseconds=1))
    assert store.sessions.find(session.token) is None


def test_what_ends_sessions(store: Store, clock: ManualClock, pair: KeyPair) -> None:
    """The owner ends one, and no other; a key that is revoked ends all. Ended ones are dropped."""
    with pytest.raises(EbbtideError, check=lambda error: error.kind == "key_invalid"):
        store.sessions.start(pair.key.access_key_id, "wrong")
    assert _rows(store) == []
    one, other = (store.sessions.start(pair.key.access_key_id, pair.secret) for _ in range(2))
    assert one.token not in str(_rows(store)), "tokens are not in the database"
    assert store.sessions.find(_rows(store)[0].token_hash) is None
    for _ in range(2):
        store.sessions.end(one.token)
    assert store.sessions.find(one.token) is None
    assert store.sessions.find(other.token) == other
    clock.advance(timedelta(hours=13))
    last = store.sessions.start(pair.key.access_key_id, pair.secret)
    assert len(_rows(store)) == 1
    store.keys.revoke(pair.key.access_key_id)
    assert store.sessions.find(last.token) is None


def test_a_session_of_the_future_is_none(store: Store, clock: ManualClock, pair: KeyPair) -> None:
    """A clock was ahead when it began. It must not last until then."""
    session = store.sessions.start(pair.key.access_key_id, pair.secret)
    clock.advance(-CLOCKS_APART_MAX)
    assert store.sessions.find(session.token) is not None, "clocks differ by as much"
    clock.advance(timedelta(microseconds=-1))
    assert store.sessions.find(session.token) is None


def test_who_writes_to_the_database_becomes_nobody_else(
    store: Store, clock: ManualClock, pair: KeyPair
) -> None:
    admin = store.keys.create(Role.ADMIN)
    session = store.sessions.start(pair.key.access_key_id, pair.secret)
    for change in (
        {"access_key_id": admin.key.access_key_id},
        {"expires_at": clock.now + timedelta(days=400)},
    ):
        before = _rows(store)[0]._mapping
        _change(store, sessions, **change)
        assert store.sessions.find(session.token) is None, change
        _change(store, sessions, **{name: before[name] for name in change})
        assert store.sessions.find(session.token) == session
    _change(store, access_keys, role="admin")
    assert store.sessions.find(session.token) is None


def _rows(store: Store) -> list[Any]:
    with store.metadata.snapshot() as tx:
        return list(tx.execute(sa.select(sessions)).all())


def _change(store: Store, table: sa.Table, **values: Any) -> None:
    with store.metadata.transaction() as tx:
        tx.execute(sa.update(table).values(**values))
