"""Persons who log in by an issuer: their keys, and what their sessions hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import sqlalchemy as sa

from ebbtide.errors import Denied
from ebbtide.settings import Settings
from ebbtide.store.access.keys import PERSON_PREFIX, Role
from ebbtide.store.access.persons import Person, PersonLogin
from ebbtide.store.access.sessions import Session, Sessions
from ebbtide.store.database.schema import access_keys
from ebbtide.store.embedded import Store

ISSUER = "https://login.example.org"
ADA = Person(ISSUER, "ada", "Ada")
LOGIN = PersonLogin(ISSUER, Role.READER, {"r1": Role.WRITER}, "https://login.example.org/end?a=b")
AT_A_TIME = 4


def sessions_of(store: Store, issuer: str | None = ISSUER) -> Sessions:
    """The sessions of a store whose settings name this issuer."""
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
