"""Uploads in parts, also to signed URLs, whose holders write whenever they like: random histories
with runs and the reclaimer, and what a test alone can bring about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from ebbtide.errors import EbbtideError, Failed
from ebbtide.storage import Storage
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from ebbtide.store.staging.multipart import WantedPart
from ebbtide.store.staging.multipart_rows import MultipartUpload
from ebbtide.store.staging.signed_parts import SignedUpload
from tests.support.collections import raises
from tests.support.faulty import FaultyStorage, Hook, nothing, with_storage
from tests.support.memory_world import MemoryWorld, Place
from tests.support.randomized import randomized
from tests.support.reachable import committed, staged_live

ZERO: Final[Mapping[str, Any]] = {"grace": timedelta(0), "unsafe": True}
STEPS: Final = 60
HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True)
class SigningStorage(FaultyStorage):
    """A storage that signs. `ends` says until when each address can be written by a URL."""

    now: Callable[[], datetime] = field(kw_only=True)
    ends: dict[str, datetime] = field(kw_only=True)

    def sign_put(self, address: str, *, lasts: timedelta) -> str | None:
        if address != "probe":
            end = self.now() + lasts
            self.ends[address] = max(end, self.ends.get(address, end))
        return address


class Holders:
    """The clients that have signed URLs, in one world."""

    def __init__(self, world: MemoryWorld) -> None:
        self.world = world
        self.storage: Storage = world.lake.context.storage
        self.ends: dict[str, datetime] = {}
        self.written: dict[str, bytes] = {}

    def lake(self, before: Hook = nothing) -> Repository:
        """The repository through a storage that signs."""
        storage = SigningStorage(self.storage, before, now=lambda: self.world.now, ends=self.ends)
        return with_storage(self.world.lake, storage)

    def put(self, address: str, data: bytes) -> str:
        assert self.world.now < self.ends[address]
        self.storage.put(address, data)
        self.written[address] = data
        return etag_of(data)


def etag_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class ModelUpload:
    """An upload: its parts are the addresses of signed ones, and the bytes of all others."""

    upload: MultipartUpload
    parts: dict[int, str | bytes] = field(default_factory=dict)
    is_ended: bool = False
    result: tuple[list[WantedPart], str] | None = None
    """Of a complete that S3's clients can ask for again."""


class History:
    """What clients do by chance, and what the branch then has to show."""

    def __init__(self, world: MemoryWorld, random: Random) -> None:
        self.world = world
        self.random = random
        self.holders = Holders(world)
        self.lake = self.holders.lake()
        self.uploads: list[ModelUpload] = []
        self.shown: dict[str, bytes] = {}

    def run(self) -> None:
        steps: Sequence[Callable[[], None]] = (
            *(self.begin, self.sign, self.copy_part, self.complete, self.complete) * 2,
            *(self.put,) * 6,
            *(self.abort, self.put_object, self.commit, self.wait, self.reclaim, self.collect),
            *(self.break_part, self.complete_again),
        )
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.check()
        self.settle()

    def is_live(self, model: ModelUpload) -> bool:
        return not model.is_ended and self.world.now < model.upload.expires_at

    def chosen(self) -> ModelUpload | None:
        """One of the uploads, more often a live one."""
        live = [each for each in self.uploads if self.is_live(each)]
        among = live if live and self.random.random() < 0.9 else self.uploads
        return self.random.choice(among) if among else None

    def path(self) -> str:
        return self.random.choice(["a", "b/c"])

    def data(self) -> bytes:
        return self.random.randbytes(self.random.choice([0, 1, 2, 3]))

    def begin(self) -> None:
        path, count = self.path(), self.random.randint(0, 3)
        begun = self.lake.signed_parts.create("main", path, part_count=count)
        upload = self.lake.signed_parts.get("main", path, begun.upload_id, begun.url)
        parts: dict[int, str | bytes] = dict(enumerate(begun.part_urls, 1))
        assert len(parts) == count
        self.uploads.append(ModelUpload(upload, parts))

    def sign(self) -> None:
        model, number = self.chosen(), self.random.randint(1, 4)
        if model is None:
            return
        if not self.is_live(model):
            refused("upload_not_found", lambda: self.lake.signed_parts.sign(model.upload, number))
            return
        address = self.lake.signed_parts.sign(model.upload, number)
        before = model.parts.get(number)
        assert before == address or not isinstance(before, str), "the same address once more"
        model.parts[number] = address

    def put(self) -> None:
        now, ends = self.holders.world.now, self.holders.ends
        found = sorted(each for each, end in ends.items() if now < end)
        if found:
            self.holders.put(self.random.choice(found), self.data())

    def copy_part(self) -> None:
        """By this program, as `uploadPartCopy` and the S3 gateway do."""
        model, number, data = self.chosen(), self.random.randint(1, 4), self.data()
        if model is None:
            return
        if self.is_live(model):
            self.lake.multipart.put_part(model.upload, number, data)
            model.parts[number] = data
        else:
            refused(
                "upload_not_found", lambda: self.lake.multipart.put_part(model.upload, number, data)
            )

    def break_part(self) -> None:
        """The client goes away while it sends a part, or its upload ends."""
        model, number, ends = self.chosen(), self.random.randint(1, 4), self.random.random() < 0.5
        if model is None:
            return

        def pieces() -> Iterator[bytes]:
            yield b"1"
            if not ends:
                raise Failed("storage_error", "the client is gone")
            self.abort(model)

        kind = "storage_error" if self.is_live(model) and not ends else "upload_not_found"
        refused(kind, lambda: self.lake.multipart.put_part(model.upload, number, pieces()))

    def abort(self, model: ModelUpload | None = None) -> None:
        model = model or self.chosen()
        if model is None:
            return
        where = (model.upload.branch, model.upload.path, model.upload.upload_id)
        if self.is_live(model):
            self.lake.multipart.abort(*where)
            model.is_ended = True
        else:
            refused("upload_not_found", lambda: self.lake.multipart.abort(*where))

    def bytes_of(self, part: str | bytes | None) -> bytes | None:
        """What a part has now; None if it was not written."""
        return self.holders.written.get(part) if isinstance(part, str) else part

    def complete(self) -> None:
        """With the right ETags or not, and while something else happens, or not."""
        model = self.chosen()
        if model is None:
            return
        numbers = sorted(self.random.sample(range(1, 5), self.random.randint(1, 4)))
        if self.random.random() < 0.7:
            numbers = [each for each in numbers if self.bytes_of(model.parts.get(each)) is not None]
        if not numbers:
            return
        found = [self.bytes_of(model.parts.get(number)) for number in numbers]
        wanted = [
            WantedPart(number, etag_of(b"?") if data is None else f'"{self.etag(model, number)}"')
            for number, data in zip(numbers, found, strict=True)
        ]
        must_succeed = None not in found and self.is_live(model)
        meanwhile = self.random.choice([None, self.put, self.wait, self.reclaim, self.collect])
        is_harmless = meanwhile in (None, self.reclaim, self.collect)

        def before(method: str, _address: str) -> None:
            nonlocal meanwhile
            if method in ("head", "stream", "put") and self.random.random() < 0.4:
                happening, meanwhile = meanwhile, None
                if happening is not None:
                    happening()

        lake = self.holders.lake(before)
        by_s3 = not any(isinstance(model.parts.get(number), str) for number in numbers)
        if by_s3 and self.random.random() < 0.7:
            # This program's ETags have no quotes, which clients of lakeFS pass on.
            wanted = [replace(each, etag=each.etag.strip('"')) for each in wanted]
        else:
            by_s3 = False
        try:
            if by_s3:
                entry = lake.multipart.complete(model.upload, wanted)
            else:
                entry = lake.signed_parts.complete(lake.signed_parts.choose(model.upload, wanted))
        except EbbtideError as error:
            assert error.kind in ("part_invalid", "upload_not_found"), error
            assert not (must_succeed and is_harmless), error
            return
        assert None not in found
        model.is_ended = True
        whole = b"".join(data for data in found if data is not None)
        assert (entry.size_bytes, entry.checksum) == (len(whole), etag_of(whole))
        self.shown[model.upload.path] = whole
        if by_s3:
            model.result = (wanted, entry.checksum)

    def complete_again(self) -> None:
        """The result of then, for the same parts, while the upload would last."""
        for model in self.uploads:
            upload = model.upload
            where = (upload.branch, upload.path, upload.upload_id)
            others = [WantedPart(4, "x")]
            if model.result is not None and self.world.now < upload.expires_at:
                parts, checksum = model.result
                assert self.lake.multipart.completed(*where, parts).checksum == checksum
            refused("upload_not_found", lambda: self.lake.multipart.completed(*where, others))  # noqa: B023

    def etag(self, model: ModelUpload, number: int) -> str:
        """The ETag of a part, as the storage or this program has it."""
        part = model.parts[number]
        if isinstance(part, bytes):
            return hashlib.md5(part).hexdigest()
        return etag_of(self.holders.written[part])

    def put_object(self) -> None:
        path, data = self.path(), self.data()
        self.lake.objects.put("main", path, data)
        self.shown[path] = data

    def commit(self) -> None:
        self.lake.commits.commit("main", "m", allow_empty=True)

    def wait(self) -> None:
        self.world.clock.advance(self.random.choice([HOUR / 3, HOUR, 5 * HOUR, 25 * HOUR]))

    def reclaim(self) -> None:
        Reclaimer(self.world.store).once()

    def collect(self) -> None:
        mode = self.random.choice(["clean", "auto"])
        assert self.world.collect(**ZERO, mode=mode).state == "swept"

    def check(self) -> None:
        """The branch shows what it should, and no live upload lacks anything."""
        for path, data in self.shown.items():
            assert self.lake.objects.get("main", path) == data
        live = [each for each in self.uploads if self.is_live(each)]
        listed = {each.upload_id for each in self.lake.multipart.page()}
        assert listed == {each.upload.upload_id for each in live}
        for model in live:
            for part in model.parts.values():
                if isinstance(part, str) and part in self.holders.written:
                    assert self.holders.storage.get(part) == self.holders.written[part]
            parts = self.lake.multipart.parts(model.upload)
            assert {each.part_number: each.etag for each in parts} == {
                number: self.etag(model, number)
                for number, part in model.parts.items()
                if isinstance(part, bytes)
            }

    def settle(self) -> None:
        """When all URLs have ended, reclaimer or collector alone leaves nothing over."""
        self.world.clock.advance(26 * HOUR)
        by_reclaimer = self.random.random() < 0.5
        for _ in range(3):
            if by_reclaimer:
                self.reclaim()
            else:
                self.world.collect(**ZERO, mode="clean")
            self.world.clock.advance(2 * HOUR)
        self.check()
        assert self.world.files("data/") == committed(self.lake) | staged_live(self.lake)


def refused(kind: str, work: Callable[[], object]) -> None:
    with raises(kind):
        work()


@randomized("histories of signed parts")
def test_histories(place: Place, seed: int) -> None:
    random = Random(seed)
    settings = {
        "lease_ttl": random.choice(["0s", "10m", "1h"]),
        "upload_ttl": random.choice(["1h", "12h", "30h"]),
    }
    History(MemoryWorld(place, settings=settings, seed=seed), random).run()


@pytest.fixture
def holders(place: Place) -> Holders:
    return Holders(MemoryWorld(place, settings={"lease_ttl": "10m", "upload_ttl": "12h"}))


def begun(lake: Repository, part_count: int) -> tuple[MultipartUpload, SignedUpload]:
    made = lake.signed_parts.create("main", "a", part_count=part_count)
    return lake.signed_parts.get("main", "a", made.upload_id, made.url), made


def test_a_url_lasts_no_longer_than_its_upload(holders: Holders) -> None:
    """And a storage may sign nothing."""
    world, lake = holders.world, holders.lake()
    upload, made = begun(lake, 1)
    (url,) = made.part_urls
    assert holders.ends == {url: world.now + timedelta(hours=12)}
    world.clock.advance(timedelta(hours=20))
    assert lake.signed_parts.sign(upload, 1) == url
    assert holders.ends == {url: upload.expires_at}
    create = world.lake.signed_parts.create
    refused("presign_unsupported", lambda: create("main", "b", part_count=1))


def test_ten_thousand_parts(holders: Holders) -> None:
    """The most that lakeFS has."""
    lake = holders.lake()
    for count in (-1, 10_001):
        create = partial(lake.signed_parts.create, "main", "a", part_count=count)
        refused("invalid_argument", create)
    upload, made = begun(lake, 10_000)
    assert len(set(made.part_urls)) == 10_000
    wanted = [
        WantedPart(number, holders.put(made.part_urls[number - 1], b"%d" % number))
        for number in (1, 10_000)
    ]
    # Clients of S3 cannot name a signed part: its ETag is the storage's.
    refused("part_invalid", lambda: lake.multipart.complete(upload, wanted[:1]))
    lake.signed_parts.complete(lake.signed_parts.choose(upload, wanted))
    assert lake.objects.get("main", "a") == b"110000"
    assert len(holders.world.files("data/")) == 1


@pytest.mark.parametrize("is_swept", [False, True])
def test_what_is_written_after_the_end_is_reclaimed_after_the_urls_end(
    holders: Holders, *, is_swept: bool
) -> None:
    """The reclaimer, which lists nothing, must not forget an address that can still be written. Nor
    does a run that has deleted its first file."""
    world, lake = holders.world, holders.lake()
    upload, made = begun(lake, 2)
    wanted = [WantedPart(1, holders.put(made.part_urls[0], b"1"))]
    entry = lake.signed_parts.complete(lake.signed_parts.choose(upload, wanted))
    assert world.files("data/") == {entry.address}
    if is_swept:
        holders.put(made.part_urls[1], b"first")
    world.clock.advance(timedelta(hours=11))
    if is_swept:
        assert world.collect(**ZERO, mode="clean").state == "swept"
        assert world.files("data/") == {entry.address}
    Reclaimer(world.store).once()
    for url in made.part_urls:
        holders.put(url, b"late")
    Reclaimer(world.store).once()
    world.clock.advance(upload.expires_at - world.now + timedelta(minutes=9))
    Reclaimer(world.store).once()
    assert world.files("data/") == {entry.address, *made.part_urls}
    world.clock.advance(timedelta(minutes=2))
    Reclaimer(world.store).once()
    assert world.files("data/") == {entry.address}
