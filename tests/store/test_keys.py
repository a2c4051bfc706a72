"""Access keys: made, told apart, revoked; and the key that encrypts their secrets."""

from __future__ import annotations

import base64
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from ebbtide.settings import Settings
from ebbtide.store.access.keys import GivenKey, Role
from ebbtide.store.access.secrets import KEY_FILE, SecretBox
from ebbtide.store.database.schema import access_keys
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
