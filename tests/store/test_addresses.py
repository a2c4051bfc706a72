"""Physical addresses: given out, uploaded to, linked once; and objects that stay outside."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from ebbtide.doors.arvados.store.manifests import parse_manifest
from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.storage.external import ExternalObject
from ebbtide.store.access.signed_tokens import SigningKey, read_signing_keys, sign, verify
from ebbtide.store.collections.contents import summary_of
from ebbtide.store.commits.publication import CommitDetails
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.content.ranges import write_range
from ebbtide.store.database.schema import copies, pending, staged, upload_tokens
from ebbtide.store.embedded import Store
from ebbtide.store.import_sources import ImportSource
from ebbtide.store.imports import ImportRequest
from ebbtide.store.repositories.repository_rows import (
    RepositoryInfo,
    insert_repository,
    lock_all_repositories,
)
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.faulty import FailNth, FaultyStorage, OncePut, with_storage
from tests.support.lakes import rows
from tests.support.locks import waits_for_a_lock
from tests.support.reachable import stored
from tests.support.world import World

DATA = b"what a client uploads"
CHECKSUM = hashlib.sha256(DATA).hexdigest()
TTL = timedelta(hours=1)
MOMENT = timedelta(microseconds=1)
ZERO: dict[str, Any] = {"grace": timedelta(0), "unsafe": True}


def everything(repository: Repository) -> tuple[object, ...]:
    """What must not change when an operation is refused."""
    tables = (staged, pending, upload_tokens, copies)
    return *(rows(repository, table) for table in tables), stored(repository)


def key_of(repository: Repository) -> SigningKey:
    with repository.context.metadata.snapshot() as tx:
        return read_signing_keys(tx)[0]


def uploaded(repository: Repository, path: str = "a", *, branch: str = "main") -> tuple[str, str]:
    found = repository.addresses.get(branch, path)
    repository.context.storage.put(found.address, DATA)
    return found.address, found.token


def hooked(repository: Repository, **hooks: Callable[[str, str], Any]) -> Repository:
    return with_storage(repository, FaultyStorage(repository.context.storage, **hooks))


def test_an_address_is_fresh_and_in_the_slice_that_uploads_go_to(
    repository: Repository, clock: ManualClock
) -> None:
    before = repository.objects.put("main", "x", b"1").address
    found = [repository.addresses.get("main", "a/b") for _ in range(3)]
    after = repository.objects.put("main", "y", b"1").address
    addresses = [before, *(each.address for each in found), after]
    assert len(set(addresses)) == 5
    assert len({address.split("/")[1] for address in addresses}) == 1
    for each in found:
        assert (each.branch, each.path) == ("main", "a/b")
        assert each.expires_at == clock.now + TTL
        assert each.url == f"{repository.context.storage.url}/{each.address}"
        assert each.presigned_url is None, "memory has no such thing"
    assert stored(repository) == {before, after}, "nothing is written for it"
    assert len(rows(repository, staged)) == 2


def test_addresses_fill_slices(tmp_path: Path, clock: ManualClock) -> None:
    """Were they not counted, a slice would grow without end."""
    settings = Settings(slice_objects_max=2)
    with Store.init(tmp_path / "store", settings=settings, clock=clock) as store:
        lake = store.create_repository("lake", storage_url=f"memory:{new_id()}")
        found = [lake.addresses.get("main", "a").address.split("/")[1] for _ in range(4)]
    assert found[0] == found[1] != found[2] == found[3]


def test_what_storages_sign_is_handed_on(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sign_put(_storage: object, address: str, *, lasts: timedelta) -> str:
        return f"https://storage/{address}?lasts={lasts.total_seconds():.0f}"

    monkeypatch.setattr(FaultyStorage, "sign_put", sign_put)
    found = hooked(repository).addresses.get("main", "a")
    assert found.presigned_url == f"https://storage/{found.address}?lasts=3600"


def test_no_address_for_what_cannot_be_linked(repository: Repository, clock: ManualClock) -> None:
    """Nor on a storage of somebody else."""
    for branch, path, kind in (
        ("main~0", "a", "branch_not_found"),
        ("main", "a\0", "invalid_path"),
    ):
        with raises(kind):
            repository.addresses.get(branch, path)
    repository.context.storage.delete(["_ebbtide/OWNER"])
    clock.advance(TTL)
    with raises("storage_foreign"):
        repository.addresses.get("main", "a")
    assert rows(repository, upload_tokens) == []


def test_what_was_uploaded_is_linked(repository: Repository, clock: ManualClock) -> None:
    address, token = uploaded(repository, "a/é")
    clock.advance(TTL / 2)
    entry = repository.addresses.link(
        "main",
        "a/é",
        token,
        size_bytes=len(DATA),
        checksum=CHECKSUM.upper(),
        content_type="text/plain",
        metadata={"k": "v"},
    )
    assert entry == Entry(
        path="a/é",
        address=entry.address,
        size_bytes=len(DATA),
        checksum=CHECKSUM,
        mtime=clock.now,
        content_type="text/plain",
        metadata={"k": "v"},
    )
    assert repository.objects.stat("main", "a/é") == entry
    assert repository.objects.get("main", "a/é") == DATA
    assert entry.address != address
    assert stored(repository) == {entry.address}, "what was uploaded is deleted"
    assert rows(repository, upload_tokens) == rows(repository, pending) == []
    repository.commits.commit("main", "linked")
    assert repository.objects.get("main@", "a/é") == DATA


def test_a_token_is_good_once_and_until_it_expires(
    repository: Repository, clock: ManualClock
) -> None:
    (_, first), (_, second) = uploaded(repository), uploaded(repository)
    clock.advance(TTL - MOMENT)
    clock.host_offset = timedelta(days=2)  # it is the database that knows the time
    repository.addresses.link("main", "a", first)
    before = everything(repository)
    with raises("token_used"):
        repository.addresses.link("main", "a", first)
    clock.host_offset = timedelta(0)
    clock.database_offset = MOMENT
    for token in (first, second):
        with raises("token_expired"):
            repository.addresses.link("main", "a", token)
    assert everything(repository) == before


def test_tokens_of_another_place_or_that_the_store_did_not_sign(
    store: Store, repository: Repository
) -> None:
    """Every change of a token is tried where tokens are read: `test_signing.py`."""
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    repository.branches.create("dev", "main")
    _, token = uploaded(repository)
    key = key_of(repository)
    payload = verify({key.key_id: key.secret}, token)
    before = everything(repository), everything(other)
    for place, branch, path in (
        (other, "main", "a"),
        (repository, "dev", "a"),
        (repository, "nowhere", "a"),
        (repository, "main", "a/"),
        (repository, "main", "\ud800"),
    ):
        with raises("token_foreign"):
            place.addresses.link(branch, path, token)
    for kind, forged in (
        ("token_invalid", sign(SigningKey(key.key_id, b"0" * 32), payload)),
        ("token_invalid", sign(key, payload | {"for": "x"})),
        ("token_invalid", sign(key, {"path": "a"})),
        ("token_truncated", token[:-1]),
    ):
        with raises(kind):
            repository.addresses.link("main", "a", forged)
    assert (everything(repository), everything(other)) == before


def test_after_a_refusal_the_token_is_as_good_as_before(repository: Repository) -> None:
    """Also if nothing was uploaded, and if other bytes are uploaded then."""
    found = repository.addresses.get("main", "a")
    with pytest.raises(NotFound, match="upload first") as caught:
        repository.addresses.link("main", "a", found.token)
    assert (caught.value.kind, caught.value.details) == (
        "object_not_found",
        {"address": found.address},
    )
    # It is copied in parts: the storage is in the middle of an upload when a mismatch is found.
    data = b"x" * (17 << 20)
    repository.context.storage.put(found.address, data)
    before = everything(repository)
    refused: tuple[tuple[str, dict[str, Any]], ...] = (
        ("checksum_mismatch", {"size_bytes": 0}),
        ("checksum_mismatch", {"checksum": CHECKSUM[:-1]}),
        ("checksum_mismatch", {"size_bytes": len(data), "checksum": CHECKSUM}),
        ("invalid_argument", {"content_type": "x" * 256}),
        ("invalid_argument", {"metadata": {"k": "\0"}}),
    )
    for kind, given in refused:
        with raises(kind):
            repository.addresses.link("main", "a", found.token, **given)
        assert everything(repository) == before, given
    repository.context.storage.put(found.address, b"")
    entry = repository.addresses.link("main", "a", found.token, size_bytes=0)
    assert (entry.size_bytes, repository.objects.get("main", "a")) == (0, b"")


def test_what_was_put_there_is_no_file(world: World, tmp_path: Path) -> None:
    """A client may link what it wrote, and not what this program can read beside that."""
    secret = tmp_path / "secret"
    secret.write_text("of this machine")
    for target in (None, secret, tmp_path / "nowhere"):
        found = world.lake.addresses.get("main", "a")
        place = world.root / found.address
        place.parent.mkdir(parents=True, exist_ok=True)
        if target is None:
            place.mkdir()
        else:
            place.symlink_to(target)
        with raises("object_not_found"):
            world.lake.addresses.link("main", "a", found.token)
    assert rows(world.lake, staged) == rows(world.lake, pending) == []


def outcome_of(repository: Repository, token: str) -> Entry | str:
    try:
        return repository.addresses.link("main", "a", token)
    except Conflict as error:
        return error.kind


def check_one_won(repository: Repository, outcomes: list[Entry | str]) -> None:
    (won,) = (each for each in outcomes if isinstance(each, Entry))
    assert outcomes.count("token_used") == len(outcomes) - 1
    assert repository.objects.stat("main", "a") == won
    assert repository.objects.get("main", "a") == DATA
    assert stored(repository) == {won.address}, "who lost leaves no file behind"
    assert rows(repository, pending) == rows(repository, upload_tokens) == []


@pytest.mark.twins
def test_of_two_links_that_have_both_copied_one_wins(repository: Repository) -> None:
    meeting = Barrier(2, timeout=60)
    _, token = uploaded(repository)
    met = hooked(repository, after=lambda method, _: method == "put" and meeting.wait())
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome_of, [met] * 2, [token] * 2))
    check_one_won(repository, outcomes)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_happens_while_bytes_are_copied(
    repository: Repository, clock: ManualClock, when: str
) -> None:
    """Before the first byte or after the last, another link is faster, or the token expires."""
    _, token = uploaded(repository)
    outcomes: list[Entry | str] = []
    overtake = OncePut(DATA_PREFIX, lambda: outcomes.append(outcome_of(repository, token)))
    outcomes.append(outcome_of(hooked(repository, **{when: overtake}), token))
    check_one_won(repository, outcomes)
    before = stored(repository)
    address, token = uploaded(repository)
    late = OncePut(DATA_PREFIX, lambda: clock.advance(TTL))
    with raises("token_expired"):
        hooked(repository, **{when: late}).addresses.link("main", "a", token)
    assert rows(repository, pending) == []
    assert stored(repository) == {*before, address}, "which a collector finds"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_storage_that_fails_at_any_call(repository: Repository, when: str) -> None:
    """The token stays good until the entry is staged; then only what was uploaded may stay."""
    address, token = uploaded(repository)
    before = everything(repository)
    for nth in range(20):
        faulty = hooked(repository, **{when: FailNth(nth)})
        try:
            entry = faulty.addresses.link("main", "a", token)
        except Failed as error:
            assert error.kind == "storage_error"
            assert everything(repository) == before
        else:
            break
    assert nth == 2, "the put, the stream that it reads, and then the deletion"
    assert repository.objects.get("main", "a") == DATA
    assert stored(repository) - {address} == {entry.address}
    assert (address in stored(repository)) == (when == "before"), "it fails before it has deleted"
    assert rows(repository, upload_tokens) == rows(repository, pending) == []


def upload_file(world: World, address: str) -> Path:
    place = world.root / address
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(DATA)
    os.utime(place, (world.now.timestamp(), world.now.timestamp()))
    return place


def at(world: World, moment: datetime, **options: Any) -> None:
    world.clock.advance(moment - world.now)
    assert world.collect(**options).state == "swept"


def test_what_is_never_linked_goes_after_token_and_grace(world: World) -> None:
    found = world.lake.addresses.get("main", "a")
    world.clock.advance(TTL - timedelta(seconds=10))
    place, half = upload_file(world, found.address), upload_file(world, f"{found.address}#123")
    uploaded_at = world.now
    at(world, found.expires_at - MOMENT, **ZERO)
    assert place.exists(), "its token is good: the least of graces does not take it"
    assert half.exists(), "an upload that is under way"
    grace = timedelta(hours=3)
    at(world, found.expires_at, grace=grace)
    at(world, uploaded_at + grace - timedelta(seconds=1), grace=grace)
    assert place.exists(), "younger than the grace"
    at(world, found.expires_at + grace, grace=grace)
    assert not place.exists()
    assert not half.exists()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "out side" / "é#1"
    file.parent.mkdir()
    file.write_bytes(DATA)
    return file


def test_an_external_object_is_staged_as_it_was_told(
    repository: Repository, clock: ManualClock, outside: Path
) -> None:
    plain = repository.addresses.stage("main", "b", "s3a://bucket/some/key", size_bytes=5 * 2**50)
    assert plain == Entry("b", "s3://bucket/some/key", 5 * 2**50, "", clock.now)
    repository.commits.reset("main")
    mtime = clock.now - timedelta(days=9)
    entry = repository.addresses.stage(
        "main",
        "a",
        outside.as_uri(),
        size_bytes=len(DATA),
        checksum="crc32:1234",
        mtime=mtime,
        content_type="text/plain",
        metadata={"k": "v"},
    )
    expected = Entry(
        "a", outside.as_uri(), len(DATA), "crc32:1234", mtime, "text/plain", {"k": "v"}
    )
    assert entry == expected == repository.objects.stat("main", "a")
    assert repository.objects.get("main", "a") == DATA
    assert b"".join(repository.objects.stream("main", "a", start=5, end=8)) == DATA[5:8]
    repository.commits.commit("main", "")
    assert repository.objects.stat("main@", "a") == expected
    assert repository.objects.get("main@", "a") == DATA
    assert stored(repository) == set()


def test_an_external_object_goes_through_branches(repository: Repository, outside: Path) -> None:
    repository.branches.create("dev", "main")
    entry = repository.addresses.stage("dev", "a", outside.as_uri(), size_bytes=len(DATA))
    copy = repository.objects.copy("dev", "b", "dev", "a")
    assert copy == replace(entry, path="b")
    assert rows(repository, copies) == [], "nothing of it can be collected"
    repository.commits.commit("dev", "")
    repository.commits.merge("dev", "main")
    for path in "ab":
        assert repository.objects.stat("main@", path) == replace(entry, path=path)
    inside = repository.objects.copy("main", "own", "main@", "a")
    assert inside.address in stored(repository)
    assert inside.checksum == CHECKSUM
    outside.unlink()
    for read in (
        lambda: repository.objects.get("main", "a"),
        lambda: list(repository.objects.stream("main", "a", start=1)),
        lambda: repository.objects.copy("main", "b", "main@", "a"),
    ):
        with pytest.raises(EbbtideError) as caught:
            read()
        assert caught.value.kind in ("corrupt_object", "object_not_found")


Spelling = Callable[[Path, Path], str]

INSIDE: dict[str, Spelling] = {
    "an object": lambda root, _: next((root / "data").rglob("?" * 32 + "/*")).as_uri(),
    "an object, through a link": lambda _, links: (links / "object").as_uri(),
    "the root": lambda root, _: root.as_uri(),
    "what is not there": lambda root, _: (root / "no" / "such").as_uri(),
    "escaped dots": lambda root, _: f"file://{root}/%2e%2E/{root.name}/x",
    "a link to a directory above": lambda root, links: f"file://{links}/above/{root.name}/x",
    "a link that leads to nothing yet": lambda _, links: (links / "dangling").as_uri(),
    "dots behind a link": lambda _, links: f"file://{links}/data/../x",
}


@pytest.mark.parametrize("whose", ["lake", "far"])
def test_nothing_inside_a_root_is_staged(
    world: World, tmp_path: Path, whose: str, subtests: pytest.Subtests
) -> None:
    """Other spellings of one URL are compared in `tests/storage/test_urls.py`."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "far").symlink_to(tmp_path / "elsewhere")
    world.store.create_repository("far", storage_url=f"{tmp_path}/far/root")
    repository = world.store.repository(whose)
    address = repository.objects.put("main", "x", b"x").address
    root = tmp_path / "elsewhere" / "root" if whose == "far" else world.root.parent / whose
    assert (root / address).is_file()
    links = tmp_path / "links"
    links.mkdir()
    (links / "object").symlink_to(root / address)
    (links / "above").symlink_to(root.parent)
    (links / "data").symlink_to(root / "data")
    (links / "dangling").symlink_to(root / "nothing" / "here")
    before = everything(world.lake)
    for how, spelling in INSIDE.items():
        with subtests.test(how=how):
            with pytest.raises(InvalidInput) as caught:
                world.lake.addresses.stage("main", "a", spelling(root, links), size_bytes=1)
            assert caught.value.kind == "invalid_address"
            assert f"repository {whose!r}" in caught.value.message
            assert everything(world.lake) == before


def test_what_is_inside_a_bucket_of_the_store_or_no_url(
    repository: Repository, clock: ManualClock
) -> None:
    """How URLs are read is tested in `tests/storage/test_urls.py`."""
    with repository.context.metadata.transaction() as tx:
        for name, root in (("on-s3", "s3://bucket/lake"), ("on-gs", "gs://whole")):
            insert_repository(tx, RepositoryInfo(new_id(), name, root, "main", clock.now))
    address = repository.objects.put("main", "own", b"1").address
    before = everything(repository)
    for url in (
        *("s3a://bucket/lake/data/x", "S3N://bucket/lake/x", "s3://bucket/lake", "gcs://whole/x"),
        *("", "/data/file", address, "file:///data/", "s3://bucket", "s3://bucket/dir/"),
        *("memory:x", "http://bucket.s3.amazonaws.com/lake/x", "s3://bucket/" + "x" * 5000),
    ):
        with pytest.raises(InvalidInput) as caught:
            repository.addresses.stage("main", "a", url, size_bytes=1)
        assert caught.value.kind == "invalid_address", url
        assert len(caught.value.message) < 1000
    assert everything(repository) == before
    for url in ("s3://bucket/lake2/x", "s3://bucket/other/lake/x", "gs://bucket/lake/x"):
        entry = repository.addresses.stage("main", "a", url, size_bytes=1)
        assert repository.objects.stat("main", "a") == entry


def test_what_cannot_be_staged(repository: Repository) -> None:
    refused: tuple[tuple[str, dict[str, Any]], ...] = (
        ("invalid_argument", {"checksum": "x" * 256}),
        ("invalid_date", {"mtime": datetime(2020, 1, 1)}),
        ("invalid_argument", {"metadata": {"k": "\ud800"}}),
        ("invalid_path", {"path": "a\0"}),
        ("branch_not_found", {"branch": "main~0"}),
    )
    for kind, given in refused:
        arguments = {"branch": "main", "path": "a", "size_bytes": 1, **given}
        with raises(kind):
            repository.addresses.stage(url="s3://bucket/key", **arguments)
    assert rows(repository, staged) == []


def test_sizes_that_cannot_be(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one object, and of many together: 5 PiB is accepted for each, and a column has 8 EiB."""

    def imported() -> None:
        found = ExternalObject("s3://bucket/x", "x", 2**63 - 1, many[0].mtime, "")
        monkeypatch.setattr("ebbtide.store.import_sources.find_external", lambda _: found)
        sources = (ImportSource("s3://bucket/x", "x", is_prefix=False),)
        asked = ImportRequest(branch="main", sources=sources, details=CommitDetails(""))
        repository.imports.run(repository.imports.begin(asked), asked)

    many = [
        Entry(f"{n:04}", f"s3://bucket/{n}", 5 * 2**50, "", datetime(2026, 1, 1, tzinfo=UTC))
        for n in range(1639)
    ]
    block = f"{'0' * 32}+{2**26}"
    with monkeypatch.context() as small:
        small.setattr("ebbtide.store.names.TOTAL_BYTES_MAX", 2**27 - 1)
        with raises("invalid_argument"):
            parse_manifest(f". {block} 0:{2**26}:a 0:{2**26}:b\n")
        repository.addresses.stage("main", "a", "s3://bucket/a", size_bytes=2**26)
        repository.addresses.stage("main", "b", "s3://bucket/b", size_bytes=2**26)
        with raises("invalid_argument"):
            repository.commits.commit("main", "")
    repository.commits.commit("main", "")
    for size in (-1, 5 * 2**50 + 1, 2**63):
        with raises("invalid_argument"):
            repository.addresses.stage("main", "c", "s3://bucket/c", size_bytes=size)
    for attempt in (
        imported,
        lambda: write_range(repository.storage, many, range_id=new_id()),
        lambda: summary_of(many),
    ):
        with raises("invalid_argument"):
            attempt()
    assert rows(repository, staged) == rows(repository, pending) == []
    assert write_range(repository.storage, many[1:], range_id=new_id()).entry_count == 1638
    assert summary_of(many[1:]).size_bytes == 1638 * 5 * 2**50


@pytest.mark.twins
def test_staging_waits_for_a_repository_that_is_being_made(repository: Repository) -> None:
    """Its root may be where the object lies."""
    context = repository.context
    with ThreadPoolExecutor(1) as pool:
        with context.metadata.transaction() as tx:
            lock_all_repositories(tx)
            root = "s3://bucket/new"
            insert_repository(tx, RepositoryInfo(new_id(), "new", root, "main", tx.now()))
            made = pool.submit(
                repository.addresses.stage, "main", "a", "s3://bucket/new/x", size_bytes=1
            )
            assert waits_for_a_lock(context.metadata, made)
        with raises("invalid_address"):
            made.result(timeout=20)
    assert rows(repository, staged) == []
