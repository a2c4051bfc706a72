"""Blocks: written once, promised anew, and read by signed locators only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import sqlalchemy as sa

from ebbtide.store.arvados.collections import ArvadosCollection
from ebbtide.store.arvados.manifests import BLOCK_BYTES_MAX, EMPTY_BLOCK
from ebbtide.store.collections.queries import find_collection
from ebbtide.store.database.commits import require_commit
from ebbtide.store.database.schema import arvados_blocks, commits, upload_tokens
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.arvados import (
    HOLDER,
    manifest_of,
    md5,
    put_block,
    read_block,
    save,
    signed,
)
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import pending_addresses
from tests.support.reachable import stored

LEASE = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def leased_until(lake: Repository, made: ArvadosCollection) -> datetime:
    """The end of the lease on the content of a collection."""
    with lake.context.metadata.snapshot() as tx:
        row = find_collection(tx, made.listed.collection_id)
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
    found = repository.blocks.find(locator, holder=HOLDER)
    assert found is not None
    assert (found.size_bytes, found.expires_at) == (4, clock.now + LEASE)
    streamed = repository.blocks.put(md5(b"other"), pieces(b"other"), holder=HOLDER)
    assert read_block(repository, streamed) == b"other"


def test_what_is_not_stored(repository: Repository) -> None:
    blocks, piece = repository.blocks, bytes(2**20)
    endless = (piece for _ in range(BLOCK_BYTES_MAX // len(piece) + 1))
    put: list[tuple[str, Callable[[], str]]] = [
        ("checksum_mismatch", lambda: blocks.put(md5(b"data"), b"dato", holder=HOLDER)),
        ("checksum_mismatch", lambda: blocks.put(md5(b"data"), pieces(b"dato"), holder=HOLDER)),
        (
            "checksum_mismatch",
            lambda: blocks.put(md5(b"data"), b"data", holder=HOLDER, size_bytes=5),
        ),
        ("checksum_mismatch", lambda: blocks.put(EMPTY_BLOCK[:32], b"x", holder=HOLDER)),
        ("too_large", lambda: blocks.put(md5(b"x"), endless, holder=HOLDER)),
        (
            "too_large",
            lambda: blocks.put(md5(b"x"), b"x", holder=HOLDER, size_bytes=BLOCK_BYTES_MAX + 1),
        ),
    ]
    for kind, each in put:
        with raises(kind):
            each()
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
    promised = repository.blocks.find(later, holder="EBBTOTHER")
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
            repository.blocks.read(bad, holder=holder)
        if holder == HOLDER and "+" in bad:
            with raises(kind):
                save(repository, project_id, "new", manifest_of(bad))
    store.signing_keys.rotate(at_once=True)
    with raises("token_key_retired"):
        repository.blocks.read(locator, holder=HOLDER)
    assert read_block(repository, signed(repository, made).split(" ")[1]) == b"data"


def test_damaged_bytes_are_noticed(repository: Repository) -> None:
    data = bytes(20 * 2**20)
    locator = put_block(repository, data)
    (address,) = stored(repository)
    repository.storage.put(address, data[:-1] + b"x")
    count = 0
    with raises("corrupt_object"):
        for piece in repository.blocks.read(locator, holder=HOLDER).pieces:
            count += len(piece)
    assert 0 < count < len(data), "a client that counts notices, too"
    repository.storage.delete([address])
    with raises("corrupt_object"):
        read_block(repository, locator)
