"""Uploads in parts: what happens while they are written, and what no client can see. Histories
against a model: `test_signed_parts.py`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import EbbtideError, Failed, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.store.database.schema import completed_uploads
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.multipart import Multipart, PartReader, WantedPart
from ebbtide.store.staging.multipart_queries import TOKEN, drop_ended_uploads
from tests.conftest import START
from tests.support.clock import ManualClock
from tests.support.reachable import stored


def clock_of(lake: Repository) -> ManualClock:
    """The clock of the fixture."""
    clock = lake.context.clock
    assert isinstance(clock, ManualClock)
    return clock


def test_a_result_is_dropped_when_its_upload_would_have_expired(lake: Repository) -> None:
    clock = clock_of(lake)
    upload = lake.multipart.create("main", "a")
    part = lake.multipart.put_part(upload, 1, b"1")
    lake.multipart.complete(upload, [WantedPart(1, part.etag)])

    def count_after_dropping() -> int:
        with lake.context.metadata.transaction() as tx:
            drop_ended_uploads(tx, lake.context.repository_id, amount=None)
            return len(tx.execute(sa.select(completed_uploads)).all())

    assert count_after_dropping() == 1
    clock.advance(lake.context.settings.write_ttl)
    assert count_after_dropping() == 0


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Repository]:
    with Store.init(tmp_path / "store", clock=ManualClock(START)) as store:
        yield store.create_repository("lake", storage_url=f"memory:{new_id()}")


def test_a_part_cannot_be_linked(lake: Repository) -> None:
    """Somebody who learns its address has no token that is signed."""
    upload = lake.multipart.create("main", "a")
    part = lake.multipart.put_part(upload, 1, b"1")
    url = f"{lake.storage.url.rstrip('/')}/{part.address}"
    assert lake.addresses.token_of(url) == TOKEN
    with pytest.raises(InvalidInput) as error:
        lake.addresses.link("main", "a", TOKEN)
    assert error.value.kind == "token_invalid"


def test_a_part_that_is_replaced_during_a_complete(lake: Repository) -> None:
    upload = lake.multipart.create("main", "a")
    etag = lake.multipart.put_part(upload, 1, b"1").etag

    class Replacing(PartReader):
        def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
            yield from super().read(parts)
            lake.multipart.put_part(upload, 1, b"1")

    with pytest.raises(InvalidInput) as error:
        lake.multipart.complete(upload, [WantedPart(1, etag)], Replacing())
    assert error.value.kind == "part_invalid"
    lake.multipart.complete(upload, [WantedPart(1, etag)])
    assert lake.objects.get("main", "a") == b"1"


def test_an_upload_that_expires_while_a_part_arrives(lake: Repository) -> None:
    clock = clock_of(lake)
    upload = lake.multipart.create("main", "a")

    def pieces() -> Iterator[bytes]:
        yield b"1"
        clock.advance(timedelta(days=1))

    with pytest.raises(NotFound) as error:
        lake.multipart.put_part(upload, 1, pieces())
    assert error.value.kind == "upload_not_found"
    assert stored(lake) == set()


def test_the_numbers_of_parts(lake: Repository) -> None:
    upload = lake.multipart.create("main", "a")
    for number in (0, 10_001):
        with pytest.raises(InvalidInput, match="from 1 to 10000"):
            lake.multipart.put_part(upload, number, b"")


def test_two_completes_at_once(lake: Repository) -> None:
    upload = lake.multipart.create("main", "a")
    wanted = [WantedPart(1, lake.multipart.put_part(upload, 1, b"1").etag)]
    lake.multipart.put_part(upload, 2, b"2")

    class Overtaken(PartReader):
        def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
            yield from super().read(parts)
            lake.multipart.complete(upload, wanted)
            lake.objects.put("main", "a", b"later")

    with pytest.raises(NotFound) as error:
        lake.multipart.complete(upload, wanted, Overtaken())
    assert error.value.kind == "upload_not_found"
    assert lake.objects.get("main", "a") == b"later"


def test_an_abort_during_a_complete(lake: Repository) -> None:
    upload = lake.multipart.create("main", "a")
    etags = [lake.multipart.put_part(upload, number, b"1").etag for number in (1, 2)]

    class Aborted(PartReader):
        def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
            yield from next(parts)
            lake.multipart.abort("main", "a", upload.upload_id)
            yield from super().read(parts)

    wanted = [WantedPart(number, etag) for number, etag in zip((1, 2), etags, strict=True)]
    with pytest.raises(NotFound) as error:
        lake.multipart.complete(upload, wanted, Aborted())
    assert error.value.kind == "upload_not_found"
    assert stored(lake) == set()


def test_a_part_whose_commit_has_no_answer(
    lake: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is recorded, although the client is told of an error: it must not be deleted."""
    upload = lake.multipart.create("main", "a")
    record = Multipart._record

    def lost(self: Multipart, *arguments: Any) -> None:
        record(self, *arguments)
        raise Failed("database_error", "the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Multipart, "_record", lost)
        with pytest.raises(Failed):
            lake.multipart.put_part(upload, 1, b"1")
    (part,) = lake.multipart.parts(upload)
    lake.multipart.complete(upload, [WantedPart(1, part.etag)])
    assert lake.objects.get("main", "a") == b"1"


def test_a_protected_branch(repository: Repository) -> None:
    """It is refused before the parts are sent; and at the end, if the rule came meanwhile."""
    begun = repository.multipart.create("main", "a")
    part = repository.multipart.put_part(begun, 1, b"data")
    repository.protection.set(["main"])
    with pytest.raises(EbbtideError, check=lambda error: error.kind == "write_protected"):
        repository.multipart.create("main", "b")
    with pytest.raises(EbbtideError, check=lambda error: error.kind == "write_protected"):
        repository.multipart.complete(begun, [WantedPart(1, part.etag)])
