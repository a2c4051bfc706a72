"""Collections and blocks of Arvados: manifests, hashes, names, versions, signatures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.doors.arvados.store.collections import ArvadosCollection
from ebbtide.doors.arvados.store.manifests import BLOCK_BYTES_MAX, EMPTY_BLOCK, parse_manifest
from ebbtide.doors.arvados.store.replacements import Replacements
from ebbtide.doors.arvados.store.repository import ArvadosRepository
from ebbtide.doors.arvados.store.trashable import Timers
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.storage import Content
from ebbtide.store.collections.collections import Collections
from ebbtide.store.collections.queries import COLLECTIONS
from ebbtide.store.database.commit_rows import require_commit
from ebbtide.store.database.schema import (
    arvados_blocks,
    arvados_collections,
    commits,
    upload_tokens,
)
from ebbtide.store.embedded import Store
from ebbtide.store.gc.references import list_intact
from ebbtide.store.gc.run_metadata import drop_ended
from ebbtide.store.repository import Repository
from tests.support.arvados import (
    HOLDER,
    manifest_of,
    md5,
    put_block,
    read_block,
    read_blocks,
    save,
    signed,
)
from tests.support.clock import ManualClock
from tests.support.collections import of, of_files, raises
from tests.support.lakes import meanwhile, pending_addresses
from tests.support.reachable import stored

LEASE = timedelta(hours=1)
SECOND = timedelta(seconds=1)
TRASH = timedelta(days=7)


def test_what_is_read_is_what_was_saved(repository: Repository, project_id: str) -> None:
    one, two = put_block(repository, b"one"), put_block(repository, b"two!")
    text = f". {one} {two} 0:5:a 5:2:b\n./d\\040e {two} {EMPTY_BLOCK} 1:2:c 4:0:empty\n"
    made = save(repository, project_id, "made", text)
    assert (made.listed.file_count, made.listed.file_size_total) == (4, 9)
    plain = parse_manifest(text)
    assert made.listed.portable_data_hash == plain.portable_data_hash
    again = signed(repository, made)
    assert parse_manifest(again).text == plain.text
    assert sorted(read_blocks(repository, again)) == [b"", b"one", b"two!"]
    by_hash = ArvadosRepository(repository).collections.get(plain.portable_data_hash)
    assert by_hash == made == ArvadosRepository(repository).collections.get(made.listed.uuid)
    assert (
        ArvadosRepository(repository).collections.unsigned_manifest(made.listed.collection_id)
        == plain.text
    )
    empty = save(repository, project_id, "empty", "")
    assert signed(repository, empty) == ""


def test_a_manifest_that_is_read_leases_its_blocks(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    """A fence keeps content whose lease has not ended, also of a deleted collection."""
    made = save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))
    clock.advance(2 * LEASE)  # what was signed until now has ended
    signed(repository, made)
    with repository.context.metadata.snapshot() as tx:
        intact = list(list_intact(tx, repository.context.repository_id))
    (content,) = [each for each in intact if each.collection_id == made.listed.collection_id]
    assert content.leased_until is not None
    assert content.leased_until >= clock.now + repository.context.settings.lease_ttl


def test_updates_and_versions(repository: Repository, project_id: str) -> None:
    collections = ArvadosRepository(repository).collections
    one, two = (manifest_of(put_block(repository, data)) for data in (b"one", b"two"))
    made = save(repository, project_id, "made", one).listed
    changed = collections.update(made.uuid, holder="EBBTOTHER", preserve_version=True).listed
    assert (changed.version, changed.preserve_version) == (1, True)
    assert changed.modified_by == "EBBTOTHER"
    changed = collections.update(made.uuid, holder=HOLDER, manifest_text=two, name="new").listed
    assert (changed.version, changed.preserve_version, changed.name) == (2, False, "new")
    assert changed.portable_data_hash == parse_manifest(two).portable_data_hash
    assert collections.get(made.uuid).listed == changed
    collections.update(made.uuid, holder=HOLDER, manifest_text="")
    kept = repository.collections.versions(made.collection_id)
    assert [each.version for each in kept] == [1]
    # A version that is asked for during an update: the update becomes visible later.
    ask = lambda: collections.update(made.uuid, holder=HOLDER, preserve_version=True)  # noqa: E731
    slow = meanwhile(repository, ask, "")
    changed = (
        ArvadosRepository(slow)
        .collections.update(made.uuid, holder=HOLDER, manifest_text=one)
        .listed
    )
    assert (changed.version, changed.preserve_version) == (4, False)
    kept = repository.collections.versions(made.collection_id)
    assert [each.version for each in kept] == [3, 1]


def test_by_hash_the_one_that_lasts_longest(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    """A signature ends with its collection. A name in the trash is free."""
    lake, ends_at = ArvadosRepository(repository).collections, clock.now + LEASE / 2
    text = manifest_of(put_block(repository, b"data"))
    made = [save(repository, project_id, name, text).listed for name in "abc"]
    with raises("invalid_date"):
        wrong = Timers(trash_at=ends_at, delete_at=ends_at)
        lake.update(made[1].uuid, holder=HOLDER, timers=wrong)
    later = Timers(trash_at=ends_at, delete_at=ends_at + TRASH)
    lake.update(made[1].uuid, holder=HOLDER, timers=later)
    lake.update(made[2].uuid, holder=HOLDER, timers=Timers(trash_at=clock.now))
    found = made[0].portable_data_hash
    assert lake.get(found).listed.uuid == made[0].uuid
    lake.delete(made[0].uuid)
    assert lake.get(found).listed.uuid == made[1].uuid
    (locator,) = parse_manifest(signed(repository, lake.get(found))).locators.popitem()[1]
    block = ArvadosRepository(repository).blocks.find(locator, holder=HOLDER)
    assert block is not None
    assert block.expires_at == ends_at
    lake.delete(made[1].uuid)
    for gone in (found, made[0].uuid):
        with raises("collection_not_found"):
            lake.get(gone)
    assert lake.get(made[0].uuid, include_expired=True).state is LifecycleState.TRASHED
    assert "+A" not in lake.unsigned_manifest(made[0].collection_id)
    save(repository, project_id, "a", "")
    with raises("collection_exists"):
        lake.restore(made[0].uuid)
    assert lake.restore(made[0].uuid, ensure_unique_name=True).listed.name == "a (2)"


def test_two_objects_of_one_block(repository: Repository, project_id: str) -> None:
    """A block that was written again has two objects. A manifest may name both."""
    first = put_block(repository, b"data")
    made = save(repository, project_id, "made", manifest_of(first))
    first = signed(repository, made).split(" ")[1]
    with repository.context.metadata.transaction() as tx:
        tx.execute(sa.delete(arvados_blocks))
    second = put_block(repository, b"data")
    assert first.split("+")[2] != second.split("+")[2]
    both = save(repository, project_id, "both", f". {first} {second} 0:8:f\n")
    assert read_blocks(repository, signed(repository, both)) == [b"data"]


def test_files_that_another_program_changed(repository: Repository, project_id: str) -> None:
    made = save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))
    repository.collections.update(
        made.listed.collection_id, of(of_files({"x": b"1"}), replaces=True)
    )
    with raises("corrupt_object"):
        signed(repository, made)
    with raises("corrupt_object"):
        ArvadosRepository(repository).collections.unsigned_manifest(made.listed.collection_id)


def test_records_end_with_their_collections(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    made = save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))
    put_block(repository, b"unused")
    ArvadosRepository(repository).collections.delete(made.listed.uuid)
    clock.advance(TRASH)
    repository_id = repository.info.repository_id
    with repository.context.metadata.transaction() as tx:
        tx.lock_repository(repository_id, "exclusive")
        drop_ended(tx, repository_id, lease_ttl=LEASE, trash_time=TRASH)
        assert tx.execute(sa.select(arvados_collections)).all() == []
        rows = tx.execute(sa.select(arvados_blocks.c.size_bytes)).scalars().all()
    assert rows == [4], "content that a run has not closed yet can be promised anew"


def test_another_writer_in_the_middle_of_a_replacement(
    repository: Repository, project_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacement is made again, of what the other writer left."""
    made = save(repository, project_id, "made", manifest_of(put_block(repository, b"one"), "a"))
    collections, uuid = ArvadosRepository(repository).collections, made.listed.uuid
    update = Collections.update
    calls: list[str] = []

    def after_another(self: Collections, collection_id: str, *given: Any, **named: Any) -> Any:
        calls.append(collection_id)
        if len(calls) == 1:
            collections.update(
                uuid, holder=HOLDER, replacements=Replacements({"/theirs": "current/a"})
            )
        return update(self, collection_id, *given, **named)

    monkeypatch.setattr(Collections, "update", after_another)
    collections.update(uuid, holder=HOLDER, replacements=Replacements({"/ours": "current/a"}))
    assert len(calls) == 3, "ours, theirs, and ours again"
    text = collections.unsigned_manifest(made.listed.collection_id)
    assert [token.rpartition(":")[2] for token in text.split()[2:]] == ["a", "ours", "theirs"]


def leased_until(lake: Repository, made: ArvadosCollection) -> datetime:
    """The end of the lease on the content of a collection."""
    with lake.context.metadata.snapshot() as tx:
        row = COLLECTIONS.by_id(tx, made.listed.collection_id)
        assert row is not None
        content = require_commit(tx, lake.info.repository_id, row.content_id)
    assert content.leased_until is not None
    return content.leased_until


def pieces(data: bytes) -> Iterator[bytes]:
    yield data[:2]
    yield data[2:]


def test_written_and_read(repository: Repository, clock: ManualClock) -> None:
    assert put_block(repository, b"") == EMPTY_BLOCK
    assert read_block(repository, EMPTY_BLOCK) == b""
    assert stored(repository) == set()
    locator = put_block(repository, b"data")
    assert read_block(repository, locator) == b"data"
    found = ArvadosRepository(repository).blocks.find(locator, holder=HOLDER)
    assert found is not None
    assert (found.size_bytes, found.expires_at) == (4, clock.now + LEASE)
    streamed = ArvadosRepository(repository).blocks.put(
        md5(b"other"), pieces(b"other"), holder=HOLDER
    )
    assert read_block(repository, streamed) == b"other"


def test_what_is_not_stored(repository: Repository) -> None:
    blocks, piece = ArvadosRepository(repository).blocks, bytes(2**20)
    endless = (piece for _ in range(BLOCK_BYTES_MAX // len(piece) + 1))
    put: list[tuple[str, str, Content, int | None]] = [
        ("checksum_mismatch", md5(b"data"), b"dato", None),
        ("checksum_mismatch", md5(b"data"), pieces(b"dato"), None),
        ("checksum_mismatch", md5(b"data"), b"data", 5),
        ("checksum_mismatch", EMPTY_BLOCK[:32], b"x", None),
        ("too_large", md5(b"x"), endless, None),
        ("too_large", md5(b"x"), b"x", BLOCK_BYTES_MAX + 1),
    ]
    for kind, name, data, size in put:
        with raises(kind):
            blocks.put(name, data, holder=HOLDER, size_bytes=size)
    assert stored(repository) == set()
    assert pending_addresses(repository) == []


def test_a_known_block_is_not_written_again(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    first = put_block(repository, b"data")
    clock.advance(LEASE / 2)
    second = put_block(repository, b"data")
    assert len(stored(repository)) == 1
    clock.advance(LEASE / 2 + SECOND)
    with raises("token_expired"):
        read_block(repository, first)
    assert read_block(repository, second) == b"data", "the promise was made anew"
    made = save(repository, project_id, "made", manifest_of(second))
    before = stored(repository)
    clock.advance(LEASE / 2)
    third = put_block(repository, b"data")
    assert stored(repository) == before, "content has it"
    assert leased_until(repository, made) >= clock.now + LEASE, "even if it is deleted now"
    clock.advance(LEASE - SECOND)
    assert read_block(repository, third) == b"data"
    assert made.listed.file_size_total == 4


def test_other_bytes_with_a_known_hash(repository: Repository) -> None:
    put_block(repository, b"data")
    with repository.context.metadata.transaction() as tx:
        # Two texts with one MD5 are long. So the stored SHA-256 is changed.
        tx.execute(sa.update(arvados_blocks).values(checksum="ab" * 32))
    with raises("checksum_mismatch") as caught:
        put_block(repository, b"data")
    assert "other bytes" in caught.value.message


def test_a_block_whose_promise_ended_is_written_again(
    repository: Repository, clock: ManualClock
) -> None:
    put_block(repository, b"data")
    clock.advance(LEASE)
    locator = put_block(repository, b"data")
    assert len(stored(repository)) == 2, "the first one can be deleted at any moment"
    assert read_block(repository, locator) == b"data"
    with repository.context.metadata.snapshot() as tx:
        known = tx.execute(sa.select(arvados_blocks.c.address)).scalar_one()
        promised = tx.execute(sa.select(upload_tokens.c.address)).scalars().all()
    assert known in promised


def test_content_that_a_run_has_closed_promises_nothing(
    repository: Repository, project_id: str
) -> None:
    save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))
    before = stored(repository)
    with repository.context.metadata.transaction() as tx:
        tx.execute(sa.update(commits).values(tombstoned_by="run"))
    locator = put_block(repository, b"data")
    assert len(stored(repository) - before) == 1, "it was written again"
    assert read_block(repository, locator) == b"data"


def test_the_promise_of_another_holder_outlasts_the_content(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    """Two wrote one block. Content of the earlier promise must keep the later one, too."""
    first = put_block(repository, b"data")
    clock.advance(LEASE / 2)
    later = put_block(repository, b"data", holder="EBBTOTHER")
    made = save(repository, project_id, "made", manifest_of(first))
    promised = ArvadosRepository(repository).blocks.find(later, holder="EBBTOTHER")
    assert promised is not None
    assert leased_until(repository, made) >= promised.expires_at


def test_refused_locators(repository: Repository, store: Store, project_id: str) -> None:
    locator = put_block(repository, b"data")
    made = save(repository, project_id, "made", manifest_of(locator))
    locator = signed(repository, made).split(" ")[1]
    for kind, holder, bad in (
        ("token_invalid", "EBBTOTHER", locator),
        ("token_invalid", HOLDER, locator.replace("+A", "+A0")[:-1]),
        ("token_truncated", HOLDER, locator[:-1]),
        ("token_invalid", HOLDER, f"{md5(b'data')}+4"),
        ("token_invalid", HOLDER, md5(b"data")),
    ):
        with raises(kind):
            ArvadosRepository(repository).blocks.read(bad, holder=holder)
        if holder == HOLDER and "+" in bad:
            with raises(kind):
                save(repository, project_id, "new", manifest_of(bad))
    store.signing_keys.rotate(at_once=True)
    with raises("token_key_retired"):
        ArvadosRepository(repository).blocks.read(locator, holder=HOLDER)
    assert read_block(repository, signed(repository, made).split(" ")[1]) == b"data"


def test_damaged_bytes_are_noticed(repository: Repository) -> None:
    data = bytes(20 * 2**20)
    locator = put_block(repository, data)
    (address,) = stored(repository)
    repository.storage.put(address, data[:-1] + b"x")
    count = 0
    with raises("corrupt_object"):
        for piece in ArvadosRepository(repository).blocks.read(locator, holder=HOLDER).pieces:
            count += len(piece)
    assert 0 < count < len(data), "a client that counts notices, too"
    repository.storage.delete([address])
    with raises("corrupt_object"):
        read_block(repository, locator)
