"""Uploads in parts: what happens while they are written, and what no client can see. Histories
against a model: `test_signed_parts.py`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import Failed, InvalidInput
from ebbtide.store.database.schema import completed_uploads
from ebbtide.store.repository import Repository
from ebbtide.store.staging.multipart import Multipart, PartReader, WantedPart
from ebbtide.store.staging.multipart_rows import TOKEN, drop_ended_uploads
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.reachable import stored


def test_a_result_is_dropped_when_its_upload_would_have_expired(
    repository: Repository, clock: ManualClock
) -> None:
    upload = repository.multipart.create("main", "a")
    part = repository.multipart.put_part(upload, 1, b"1")
    repository.multipart.complete(upload, [WantedPart(1, part.etag)])

    def count_after_dropping() -> int:
        with repository.context.metadata.transaction() as tx:
            drop_ended_uploads(tx, repository.context.repository_id, amount=None)
            return len(tx.execute(sa.select(completed_uploads)).all())

    assert count_after_dropping() == 1
    clock.advance(repository.context.settings.write_ttl)
    assert count_after_dropping() == 0


def test_a_part_cannot_be_linked(repository: Repository) -> None:
    """Somebody who learns its address has no token that is signed."""
    upload = repository.multipart.create("main", "a")
    part = repository.multipart.put_part(upload, 1, b"1")
    url = f"{repository.storage.url.rstrip('/')}/{part.address}"
    assert repository.addresses.token_of(url) == TOKEN
    with raises("token_invalid"):
        repository.addresses.link("main", "a", TOKEN)


def test_a_part_that_is_replaced_during_a_complete(repository: Repository) -> None:
    upload = repository.multipart.create("main", "a")
    etag = repository.multipart.put_part(upload, 1, b"1").etag

    class Replacing(PartReader):
        def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
            yield from super().read(parts)
            repository.multipart.put_part(upload, 1, b"1")

    with raises("part_invalid"):
        repository.multipart.complete(upload, [WantedPart(1, etag)], Replacing())
    repository.multipart.complete(upload, [WantedPart(1, etag)])
    assert repository.objects.get("main", "a") == b"1"


def test_an_upload_that_expires_while_a_part_arrives(
    repository: Repository, clock: ManualClock
) -> None:
    upload = repository.multipart.create("main", "a")

    def pieces() -> Iterator[bytes]:
        yield b"1"
        clock.advance(timedelta(days=1))

    with raises("upload_not_found"):
        repository.multipart.put_part(upload, 1, pieces())
    assert stored(repository) == set()


def test_the_numbers_of_parts(repository: Repository) -> None:
    upload = repository.multipart.create("main", "a")
    for number in (0, 10_001):
        with pytest.raises(InvalidInput, match="from 1 to 10000"):
            repository.multipart.put_part(upload, number, b"")


def test_two_completes_at_once(repository: Repository) -> None:
    upload = repository.multipart.create("main", "a")
    wanted = [WantedPart(1, repository.multipart.put_part(upload, 1, b"1").etag)]
    repository.multipart.put_part(upload, 2, b"2")

    class Overtaken(PartReader):
        def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
            yield from super().read(parts)
            repository.multipart.complete(upload, wanted)
            repository.objects.put("main", "a", b"later")

    with raises("upload_not_found"):
        repository.multipart.complete(upload, wanted, Overtaken())
    assert repository.objects.get("main", "a") == b"later"


def test_an_abort_during_a_complete(repository: Repository) -> None:
    upload = repository.multipart.create("main", "a")
    etags = [repository.multipart.put_part(upload, number, b"1").etag for number in (1, 2)]

    class Aborted(PartReader):
        def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
            yield from next(parts)
            repository.multipart.abort("main", "a", upload.upload_id)
            yield from super().read(parts)

    wanted = [WantedPart(number, etag) for number, etag in zip((1, 2), etags, strict=True)]
    with raises("upload_not_found"):
        repository.multipart.complete(upload, wanted, Aborted())
    assert stored(repository) == set()


def test_a_part_whose_commit_has_no_answer(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is recorded, although the client is told of an error: it must not be deleted."""
    upload = repository.multipart.create("main", "a")
    record = Multipart._record

    def lost(self: Multipart, *arguments: Any) -> None:
        record(self, *arguments)
        raise Failed("database_error", "the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Multipart, "_record", lost)
        with pytest.raises(Failed):
            repository.multipart.put_part(upload, 1, b"1")
    (part,) = repository.multipart.parts(upload)
    repository.multipart.complete(upload, [WantedPart(1, part.etag)])
    assert repository.objects.get("main", "a") == b"1"


def test_a_protected_branch(repository: Repository) -> None:
    """It is refused before the parts are sent; and at the end, if the rule came meanwhile."""
    begun = repository.multipart.create("main", "a")
    part = repository.multipart.put_part(begun, 1, b"data")
    repository.protection.set(["main"])
    with raises("write_protected"):
        repository.multipart.create("main", "b")
    with raises("write_protected"):
        repository.multipart.complete(begun, [WantedPart(1, part.etag)])
