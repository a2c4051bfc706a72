"""Access keys, persons of an issuer, sessions and grants: who gets in, and what ends it."""

from __future__ import annotations

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import Denied, EbbtideError
from ebbtide.ids import CLOCKS_APART_MAX, new_id
from ebbtide.server.auth import Rights
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import PERSON_PREFIX, GivenKey, KeyPair, Role
from ebbtide.store.access.secrets import KEY_FILE, SecretBox
from ebbtide.store.access.sessions import Person, PersonLogin, Session, Sessions
from ebbtide.store.database.schema import access_key_grants, access_keys, sessions
from ebbtide.store.embedded import Store
from tests.support.clock import ManualClock
from tests.support.collections import raises


def test_a_key_is_known_by_its_secret(store: Store, clock: ManualClock) -> None:
    pair = store.keys.create(Role.WRITER, name="é")
    found = store.keys.authenticate(pair.key.access_key_id, pair.secret)
    assert found == pair.key
    assert (found.role, found.name, found.created_at) == (Role.WRITER, "é", clock.now)
    assert store.keys.list() == [found]
    assert pair.secret not in repr(pair)


def test_a_given_key(store: Store) -> None:
    for key_id in ("A" * 15, "A" * 129, "A" * 20 + "/", "é" * 20, "OIDC" * 5):
        with raises("invalid_argument"):
            store.keys.create(Role.READER, given=GivenKey(key_id, "s" * 20))
    secret = "a/b:c+" * 4
    pair = store.keys.create(Role.READER, given=GivenKey("AKIAIOSFODNN7EXAMPLE", secret))
    assert secret not in repr(pair)
    assert store.keys.authenticate("AKIAIOSFODNN7EXAMPLE", secret) == pair.key
    with raises("key_exists"):
        store.keys.create(Role.ADMIN, given=GivenKey("AKIAIOSFODNN7EXAMPLE", "t" * 20))
    assert store.keys.list() == [pair.key]


def test_nobody_else_is(store: Store, clock: ManualClock) -> None:
    pair = store.keys.create(Role.ADMIN)
    key_id, secret = pair.key.access_key_id, pair.secret
    for guessed in (
        *((key_id, f"{secret}x"), (key_id, ""), (key_id, "\ud800")),
        *((f"{key_id} ", secret), ("", secret), ("nobody", "")),
    ):
        with raises("key_invalid"):
            store.keys.authenticate(*guessed)
    revoked = store.keys.revoke(key_id)
    assert revoked == replace(pair.key, revoked_at=clock.now)
    assert store.keys.revoke(key_id) == revoked
    with raises("key_invalid"):
        store.keys.authenticate(key_id, secret)
    with raises("key_not_found"):
        store.keys.revoke("nobody")


def test_an_unknown_id_costs_the_same_work(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = store.keys.create(Role.ADMIN)
    opened: list[str] = []
    open_box = SecretBox.open

    def counted(box: SecretBox, sealed: bytes, *, bound_to: str) -> bytes:
        opened.append(bound_to)
        return open_box(box, sealed, bound_to=bound_to)

    monkeypatch.setattr(SecretBox, "open", counted)
    for access_key_id in (pair.key.access_key_id, "nobody"):
        with raises("key_invalid"):
            store.keys.authenticate(access_key_id, "wrong")
    assert len(opened) == 2


def test_secrets_are_encrypted_and_bound_to_their_role(store: Store) -> None:
    pair = store.keys.create(Role.READER)
    with store.metadata.transaction() as tx:
        row = tx.execute(sa.select(access_keys)).one()
        assert pair.secret.encode() not in row.secret
        tx.execute(sa.update(access_keys).values(role="admin"))
    with raises("secret_key_wrong"):
        store.keys.authenticate(pair.key.access_key_id, pair.secret)


def test_the_file_with_the_key(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "store" / KEY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    pair = store.keys.create(Role.ADMIN)
    held = file.read_text()

    def authenticate(directory: Path | None, settings: Settings) -> None:
        with Store.open(directory, settings=settings) as opened:
            opened.keys.authenticate(pair.key.access_key_id, pair.secret)

    authenticate(store.directory, store.settings)
    file.write_text(base64.urlsafe_b64encode(os.urandom(32)).decode())
    with raises("secret_key_wrong"):
        authenticate(store.directory, store.settings)
    file.write_text("nonsense")
    with raises("invalid_setting"):
        authenticate(store.directory, store.settings)
    file.unlink()
    with raises("secret_key_missing"):
        authenticate(store.directory, store.settings)
    # On another machine the setting stands for the file.
    authenticate(None, store.settings.model_copy(update={"secret_key": held}))
    with raises("secret_key_missing"):
        authenticate(None, store.settings)


def test_roles() -> None:
    assert [[role.allows(needed) for needed in Role] for role in Role] == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]
    with raises("invalid_argument"):
        Role.parse("root")
    assert "hunter2" not in repr(Settings(secret_key="hunter2"))


ISSUER = "https://login.example.org"
ADA = Person(ISSUER, "ada", "Ada")
LOGIN = PersonLogin(ISSUER, Role.READER, {"r1": Role.WRITER}, "https://login.example.org/end?a=b")
AT_A_TIME = 4


def sessions_of(store: Store, issuer: str | None = ISSUER) -> Sessions:
    settings = Settings()
    return Sessions(
        store.metadata,
        store.keys,
        store.box,
        ttl=settings.session_ttl,
        person_ttl=settings.oidc_session_ttl,
        issuer=issuer,
    )


def test_a_session_has_what_the_login_gave(store: Store) -> None:
    sessions = sessions_of(store)
    session = sessions.start_of(ADA, LOGIN)
    assert sessions.find(session.token) == session
    assert (session.key.role, session.key.name) == (Role.READER, "Ada")
    assert session.key.of_login == {"r1": Role.WRITER}
    assert session.logout_url == LOGIN.logout_url
    assert str(session.logout_url) not in repr(session)
    assert store.keys.list()[0].role is Role.NONE


@pytest.mark.parametrize("issuer", [None, "https://other.example.org"])
def test_settings_without_the_issuer_end_it(store: Store, issuer: str | None) -> None:
    token = sessions_of(store).start_of(ADA, LOGIN).token
    assert sessions_of(store, issuer).find(token) is None
    assert sessions_of(store).find(token) is not None
    pair = store.keys.create(Role.READER)
    own = sessions_of(store, issuer).start(pair.key.access_key_id, pair.secret)
    assert sessions_of(store).find(own.token) == own, "keys do not depend on it"


def test_persons_of_other_issuers_are_others() -> None:
    ids = {
        Person(issuer, subject, "").access_key_id
        for issuer, subject in ((ISSUER, "a"), (ISSUER, "b"), (ISSUER + "a", ""), ("x", "a"))
    }
    assert len(ids) == 4
    assert all(each.startswith(PERSON_PREFIX) for each in ids)


def test_nobody_has_the_secret_of_a_person(store: Store) -> None:
    sessions_of(store).start_of(ADA, LOGIN)
    before = store.keys.find_pair(ADA.access_key_id)
    assert before is not None and len(before.secret) == 40
    for guess in ("", ADA.access_key_id, "Ada"):
        with pytest.raises(Denied):
            store.keys.authenticate(ADA.access_key_id, guess)
    sessions_of(store).start_of(ADA, LOGIN)
    assert store.keys.find_pair(ADA.access_key_id) == before, "a later login keeps the key"


@pytest.mark.twins
def test_first_logins_at_one_time_make_one_key(store: Store) -> None:
    sessions = sessions_of(store)
    together = Barrier(AT_A_TIME)

    def begin(_: int) -> Session:
        together.wait()
        return sessions.start_of(ADA, LOGIN)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        begun = list(pool.map(begin, range(AT_A_TIME)))
    assert len(store.keys.list()) == 1
    for each in begun:
        assert sessions.find(each.token) == each


def test_a_revoked_person_is_refused(store: Store) -> None:
    """A role that is written into the database ends the sessions, too: the key's role is sealed."""
    sessions = sessions_of(store)
    session = sessions.start_of(ADA, LOGIN)
    for role, is_found in ((Role.ADMIN, False), (Role.NONE, True)):
        with store.metadata.transaction() as tx:
            tx.execute(sa.update(access_keys).values(role=role))
        assert (sessions.find(session.token) is not None) is is_found
    store.keys.revoke(ADA.access_key_id)
    assert sessions.find(session.token) is None
    with pytest.raises(Denied, match="an admin revoked") as caught:
        sessions.start_of(ADA, LOGIN)
    assert caught.value.kind == "login_refused"


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


GIVEN = (Role.READER, Role.WRITER, Role.ADMIN)


def make(store: Store, name: str) -> str:
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
