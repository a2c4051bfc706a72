"""Locators: what they promise, and those that are no good."""

from __future__ import annotations

import base64
import json
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.ids import new_id
from ebbtide.store.access.signed_tokens import (
    SigningKey,
    date_signing_keys,
    insert_signing_key,
    read_signing_keys,
    retire_signing_keys,
    sign,
)
from ebbtide.store.collections.contents import ContentChange, Located
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import commits, signing_keys, upload_tokens
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import collect_files, of, put_collection, raises
from tests.support.dying import Died
from tests.support.lakes import tombstone

LEASE = timedelta(hours=1)
INSTANT = timedelta(microseconds=1)


def located(repository: Repository, project_id: str) -> str:
    made = put_collection(repository, project_id, new_id()[:8], {"file": b"data"})
    (signed,) = repository.collections.locators(made.collection_id).entries
    return signed.locator


def use(repository: Repository, project_id: str, token: str) -> str:
    change = of(Located({"copy": token}))
    made = repository.collections.create(project_id, new_id()[:8], change)
    assert collect_files(repository, made.collection_id) == {"copy": b"data"}
    return made.collection_id


def check_refused(repository: Repository, project_id: str, token: str, kind: str) -> None:
    """It can neither be read, nor used by new content or by an update, and nothing is made."""
    target = put_collection(repository, project_id, new_id()[:8], {"mine": b"1"})
    names = [each.name for each in repository.collections.page(project_id)]
    with raises(kind):
        repository.locators.read(token)
    with raises(kind):
        repository.collections.create(project_id, "new", of(Located({"copy": token})))
    with raises(kind):
        repository.collections.update(target.collection_id, of(Located({"copy": token})))
    assert [each.name for each in repository.collections.page(project_id)] == names
    assert repository.collections.get(target.collection_id) == target


def test_it_reads_and_is_used_until_its_end(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    token = located(repository, project_id)
    found = repository.locators.read(token)
    assert b"".join(found.pieces) == b"data"
    assert found.locator.expires_at == clock.now + LEASE
    assert (found.locator.size_bytes, found.locator.content_type) == (4, None)
    assert b"".join(repository.locators.read(token, start=1, end=3).pieces) == b"at"
    clock.advance(LEASE - INSTANT)
    assert b"".join(repository.locators.read(token).pieces) == b"data"
    use(repository, project_id, token)
    use(repository, project_id, token)
    clock.advance(INSTANT)
    check_refused(repository, project_id, token, "token_expired")


def test_pages_of_locators_and_data_that_is_not_kept(
    repository: Repository, project_id: str
) -> None:
    lake = repository.collections
    files = {f"{number}": b"%d" % number for number in range(4)} | {"x/y": b"z"}
    made = put_collection(repository, project_id, "a", files).collection_id
    found: dict[str, bytes] = {}
    after: str | None = ""
    while after is not None:
        page = lake.locators(made, after=after, amount=3)
        assert len(page.entries) <= 3
        for signed in page.entries:
            found[signed.entry.path] = b"".join(repository.locators.read(signed.locator).pieces)
        after = page.next_after
    assert found == files
    lake.update(made, ContentChange(replaces=True), keep_version=True)
    lake.update(made, replication_desired=0)
    for version in (None, 1, 2):
        with raises("data_released"):
            lake.locators(made, version=version)
        with raises("data_released"):
            lake.open(made, "0", version=version)


def test_tokens_that_are_no_good(store: Store, repository: Repository, project_id: str) -> None:
    """Every change of a token is tried where tokens are read: `test_signing.py`."""
    token = located(repository, project_id)
    key_id, body, _ = token.split(".")
    payload = json.loads(base64.urlsafe_b64decode(body + "=="[: -len(body) % 4]))
    stranger = SigningKey(key_id, b"0" * 32)
    given = repository.addresses.get("main", "path").token
    for bad in (sign(stranger, payload), "", given):
        check_refused(repository, project_id, bad, "token_invalid")
    check_refused(repository, project_id, token[:-1], "token_truncated")
    with raises("token_invalid"):
        repository.addresses.link("main", "path", token)
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    check_refused(other, other.projects.create("p").project_id, token, "token_foreign")


def test_a_rotation_that_takes_long_retires_no_key_early(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its transaction is open, others sign with the older key."""
    settings = store.settings
    longest = max(settings.lease_ttl, settings.upload_ttl, settings.prepare_ttl)

    def insert(tx: Transaction, key: SigningKey) -> None:
        insert_signing_key(tx, key)
        clock.advance(2 * longest)

    with monkeypatch.context() as patched:
        patched.setattr("ebbtide.store.access.signed_tokens.insert_signing_key", insert)
        first = store.signing_keys.rotate()
    (old,) = first.verifying_ids
    assert first.retirable_at == clock.now + longest
    clock.advance(longest)
    assert store.signing_keys.rotate().retired_ids == ()
    clock.advance(INSTANT)
    assert store.signing_keys.rotate().retired_ids == (old,)


def test_a_rotation_that_broke_off_retires_no_key(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key signs, and counts from when the next one finds it."""
    settings = store.settings
    longest = max(settings.lease_ttl, settings.upload_ttl, settings.prepare_ttl)

    calls: list[Transaction] = []

    def die(tx: Transaction) -> None:
        calls.append(tx)
        if len(calls) == 2:  # the first time is for the keys before it
            raise Died

    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr("ebbtide.store.access.signed_tokens.date_signing_keys", die)
        store.signing_keys.rotate()
    clock.advance(2 * longest)
    assert store.signing_keys.rotate().retired_ids == ()
    clock.advance(longest + 2 * INSTANT)
    assert len(store.signing_keys.rotate().retired_ids) == 2


def test_keys_rotate(
    store: Store, repository: Repository, project_id: str, clock: ManualClock
) -> None:
    old = located(repository, project_id)
    clock.advance(LEASE / 4)
    with store.metadata.transaction() as tx:
        insert_signing_key(tx, SigningKey.generate())
        date_signing_keys(tx)
    new = located(repository, project_id)
    assert old.split(".")[0] != new.split(".")[0], "the newest signs"
    use(repository, project_id, old)
    use(repository, project_id, new)
    with store.metadata.transaction() as tx:
        retired = retire_signing_keys(tx, superseded_before=clock.now + 2 * INSTANT)
        assert retired == [old.split(".")[0]]
        assert [key.key_id for key in read_signing_keys(tx)] == [new.split(".")[0]]
        assert tx.execute(sa.select(sa.func.count()).select_from(signing_keys)).scalar_one() == 2
    use(repository, project_id, new)
    clock.advance(LEASE)
    check_refused(repository, project_id, old, "token_key_retired")
    check_refused(repository, project_id, new, "token_expired")


def test_through_branches_commits_and_tags(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    lake = repository
    for number in range(3):
        lake.objects.put("main", "file", b"data")
        lake.objects.put("main", f"{number}", b"%d" % number)
        lake.commits.commit("main", "")
    lake.tags.create("v1", "main~1")

    def leased(ref: str) -> object:
        commit_id = lake.commits.resolve(ref)
        with lake.context.metadata.snapshot() as tx:
            query = sa.select(commits.c.leased_until).where(commits.c.commit_id == commit_id)
            return tx.execute(query).scalar_one()

    assert leased("main") is None
    for ref in ("main", "main@", "v1", "main~2"):
        signed = lake.locators.sign_path(ref, "file")
        assert (signed.expires_at, leased(ref)) == (clock.now + LEASE, clock.now + LEASE * 1.5)
        use(lake, project_id, signed.locator)
    first = leased("main~2")
    clock.advance(LEASE / 2)
    lake.locators.sign_path("main~2", "file")
    assert leased("main~2") == first, "long enough as it is"
    clock.advance(INSTANT)
    lake.locators.sign_path(lake.commits.resolve("main~2"), "file")
    assert leased("main~2") == clock.now + LEASE * 1.5


def test_what_cannot_be_signed(repository: Repository) -> None:
    for number in range(2):
        repository.objects.put("main", "committed", b"%d" % number)
        closed = repository.commits.commit("main", "").parent_ids[0]
    repository.objects.put("main", "staged", b"1")
    repository.objects.delete("main", "committed")
    tombstone(repository, closed)
    for ref, path, kind in (
        ("main", "staged", "not_committed"),
        ("main", "nothing", "object_not_found"),
        ("main", "committed", "object_not_found"),
        ("nobody", "committed", "ref_not_found"),
        ("main~9", "committed", "commit_not_found"),
        ("main~1", "committed", "commit_expired"),
        (closed, "committed", "commit_expired"),
    ):
        with raises(kind):
            repository.locators.sign_path(ref, path)
    assert repository.locators.sign_path("main@", "committed").entry.path == "committed"


def test_uploads(repository: Repository, project_id: str) -> None:
    signed = repository.locators.upload(iter([b"da", b"ta"]), content_type="text/plain")
    with repository.context.metadata.snapshot() as tx:
        outstanding = tx.execute(sa.select(upload_tokens.c.address)).scalars().all()
    assert outstanding == [signed.entry.address]
    assert b"".join(repository.locators.read(signed.locator).pieces) == b"data"
    (entry,) = repository.collections.walk(use(repository, project_id, signed.locator))
    assert (entry.address, entry.content_type) == (signed.entry.address, "text/plain")
