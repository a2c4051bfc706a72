"""Uploads in parts: any sequence of operations against a model, and what no client can see."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule, run_state_machine_as_test

from ebbtide.errors import EbbtideError, Failed, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.database.schema import completed_uploads
from ebbtide.store.embedded import Store
from ebbtide.store.reclaim.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from ebbtide.store.staging.multipart import Multipart, PartReader, WantedPart
from ebbtide.store.staging.multipart_queries import TOKEN, MultipartUpload, drop_ended_uploads
from tests.conftest import START
from tests.support.clock import ManualClock
from tests.support.databases import SqliteDatabases
from tests.support.randomized import INDEPENDENT, examples, randomized
from tests.support.reachable import check_settled, stored

VOLUME = "uploads in parts"


@dataclass
class ModelUpload:
    """An upload with its parts, and whether it can still be used."""

    upload: MultipartUpload
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    is_open: bool = True
    result: tuple[list[WantedPart], str] | None = None


class MultipartMachine(RuleBasedStateMachine):
    """Uploads of one repository, and what they should hold."""

    template: Path
    uploads: Bundle[ModelUpload] = Bundle("uploads")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ebbtide-multipart-"))
        self.clock = ManualClock(START)
        shutil.copy(self.template, self.directory / "metadata.db")
        chosen = Settings(database_url=f"sqlite:///{self.directory / 'metadata.db'}")
        self.store = Store.init(None, settings=chosen, clock=self.clock)
        self.lake = self.store.create_repository("lake", storage_url=f"memory:{new_id()}")
        self.shown: dict[str, bytes] = {}
        self.known: list[ModelUpload] = []

    def teardown(self) -> None:
        for path, data in self.shown.items():
            assert self.lake.objects.get("main", path) == data
        check_settled(self.store, self.lake, self.clock)
        assert self.lake.multipart.page() == []
        self.store.close()
        shutil.rmtree(self.directory)

    def refused(self, kind: str, work: Callable[[], object]) -> None:
        with pytest.raises(EbbtideError) as error:
            work()
        assert error.value.kind == kind

    def is_live(self, model: ModelUpload) -> bool:
        return model.is_open and self.clock.host_now() < model.upload.expires_at

    @rule(target=uploads, path=st.sampled_from(["a", "b/c"]))
    def create(self, path: str) -> ModelUpload:
        model = ModelUpload(self.lake.multipart.create("main", path))
        self.known.append(model)
        return model

    @rule(model=uploads, number=st.integers(1, 3), data=st.binary(max_size=3))
    def put_part(self, model: ModelUpload, number: int, data: bytes) -> None:
        if not self.is_live(model):
            self.refused(
                "upload_not_found", lambda: self.lake.multipart.put_part(model.upload, number, data)
            )
            return
        part = self.lake.multipart.put_part(model.upload, number, data)
        model.parts[number] = (part.etag, data)

    @rule(model=uploads, number=st.integers(1, 3))
    def put_part_that_breaks(self, model: ModelUpload, number: int) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"1"
            raise Failed("storage_error", "the client is gone")

        kind = "storage_error" if self.is_live(model) else "upload_not_found"
        self.refused(kind, lambda: self.lake.multipart.put_part(model.upload, number, pieces()))

    @rule(model=uploads, number=st.integers(1, 3))
    def put_part_while_it_ends(self, model: ModelUpload, number: int) -> None:
        if not self.is_live(model):
            return

        def pieces() -> Iterator[bytes]:
            yield b"1"
            self.abort(model)

        self.refused(
            "upload_not_found", lambda: self.lake.multipart.put_part(model.upload, number, pieces())
        )

    @rule(model=uploads, numbers=st.sets(st.integers(1, 3), min_size=1))
    def complete(self, model: ModelUpload, numbers: set[int]) -> None:
        wanted = [
            WantedPart(number, model.parts.get(number, ("x", b""))[0]) for number in sorted(numbers)
        ]
        if not self.is_live(model):
            self.refused(
                "upload_not_found", lambda: self.lake.multipart.complete(model.upload, wanted)
            )
        elif not numbers <= model.parts.keys():
            self.refused("part_invalid", lambda: self.lake.multipart.complete(model.upload, wanted))
        else:
            entry = self.lake.multipart.complete(model.upload, wanted)
            model.is_open = False
            model.result = (wanted, entry.checksum)
            data = b"".join(model.parts[number][1] for number in sorted(numbers))
            self.shown[model.upload.path] = data

    @rule(model=uploads, numbers=st.sets(st.integers(1, 3), min_size=1))
    def complete_again(self, model: ModelUpload, numbers: set[int]) -> None:
        """The result of then, for the same parts, while the upload would last."""
        upload = model.upload
        where = (upload.branch, upload.path, upload.upload_id)
        wanted = [
            WantedPart(number, model.parts.get(number, ("x", b""))[0]) for number in sorted(numbers)
        ]
        if model.result is not None and self.clock.host_now() < upload.expires_at:
            parts, checksum = model.result
            assert self.lake.multipart.completed(*where, parts).checksum == checksum
            if wanted == parts:
                return
        self.refused("upload_not_found", lambda: self.lake.multipart.completed(*where, wanted))

    @rule(model=uploads)
    def abort(self, model: ModelUpload) -> None:
        upload = model.upload
        where = (upload.branch, upload.path, upload.upload_id)
        if self.is_live(model):
            self.lake.multipart.abort(*where)
            model.is_open = False
        else:
            self.refused("upload_not_found", lambda: self.lake.multipart.abort(*where))

    @rule(hours=st.integers(1, 30))
    def pass_time(self, hours: int) -> None:
        self.clock.advance(timedelta(hours=hours))

    @rule()
    def reclaim(self) -> None:
        Reclaimer(self.store).once()

    @rule()
    def look(self) -> None:
        live = [each for each in self.known if self.is_live(each)]
        listed = {each.upload_id for each in self.lake.multipart.page()}
        assert listed == {each.upload.upload_id for each in live}
        for each in live:
            found = self.lake.multipart.parts(each.upload)
            assert {part.part_number: part.etag for part in found} == {
                number: etag for number, (etag, _) in each.parts.items()
            }
            assert {part.address for part in found} <= stored(self.lake)


@randomized(VOLUME)
def test_any_sequence(sqlite_databases: SqliteDatabases) -> None:
    machine = type("Machine", (MultipartMachine,), {"template": sqlite_databases.template})
    chosen = examples(
        VOLUME,
        stateful_step_count=30,
        backend=INDEPENDENT,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)


def test_a_result_is_dropped_when_its_upload_would_have_expired(lake: Repository) -> None:
    clock = lake.context.clock
    assert isinstance(clock, ManualClock)
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
    clock = lake.context.clock
    assert isinstance(clock, ManualClock)
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
