"""Damaged files: each is refused as damaged, or read; never another error, a hang, or much memory.

A snapshot that is read although a bit of it is another must not hide a manifest: either all are
there, or one that the repository does not have, which stops a collection.
"""

from __future__ import annotations

import random
import resource
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zarr

from ebbtide.formats.icechunk.files import (
    HEADER_BYTES,
    PAYLOAD_BYTES_FREE,
    DamagedError,
    FileType,
    pack,
    payload_limit,
    unpack,
)
from ebbtide.formats.icechunk.ids import id_text
from ebbtide.formats.icechunk.repo import REPO, parse_repo
from ebbtide.formats.icechunk.snapshots import Snapshot, manifest_chunks, read_snapshot
from ebbtide.formats.icechunk.tables import encode
from ebbtide.formats.icechunk.walk import IcechunkWalk
from ebbtide.storage import open_storage
from tests.formats.icechunk.damage import CHANGES, REFUSALS, flips, refused, rewrites, survey
from tests.support.icechunk import SPEC_VERSIONS, create_repository, virtual_file
from tests.support.icechunk_files import (
    ID_BYTES,
    Fields,
    MadeManifest,
    MadeRef,
    bomb,
    file_of_blocks,
    files_of,
    plain,
    random_ref,
    slow_manifest,
    spell,
    unpacked,
)
from tests.support.randomized import randomized

MEMORY_KILOBYTES_MAX = 300_000
needs_v2 = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="writes no version 2")


@pytest.fixture(autouse=True)
def _memory_stays_small() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KILOBYTES_MAX


@pytest.fixture(scope="module", params=SPEC_VERSIONS)
def repository(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a manifest of 21 references, a third of them of each kind; a branch and a tag."""
    path = tmp_path_factory.mktemp("damage") / "repo"
    made = create_repository(path, request.param, inline_bytes_max=60)
    values = np.random.default_rng(1)
    session = made.writable_session("main")
    array = zarr.open_group(session.store, mode="a").create_array(
        "a", shape=(21 * 64,), chunks=(64,), dtype="float64"
    )
    for place in range(21):
        if place % 3 == 2:
            url = f"file://{virtual_file(path)}"
            session.store.set_virtual_ref(f"a/c/{place}", url, offset=place, length=100)
        else:
            data = place if place % 3 else values.random(64)  # equal values are packed small
            array[place * 64 : place * 64 + 64] = data
    first = session.commit("first")
    made.create_branch("side", first)
    made.create_tag("tag", first)
    session = made.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["second"] = 2
    session.commit("second")
    return path


@randomized("damaged Icechunk files")
def test_a_changed_snapshot_hides_no_manifest(repository: Path, seed: int) -> None:
    """Version 1 alone trusts the file to name its parent."""
    for snapshot_id, data in files_of(repository, "snapshots").items():
        manifests = manifests_of(read_snapshot(data, snapshot_id))
        for bit, changed in flips(unpacked(data), seed):
            with suppress(*REFUSALS):
                found = manifests_of(read_snapshot(plain(data, changed), snapshot_id))
                assert found >= manifests or found - manifests, f"{bit // 8}.{bit % 8}"
        counts: Counter[str] = Counter()
        for changed in rewrites(data, seed):
            refused(partial(read_snapshot, changed, snapshot_id), counts)
        assert counts["DamagedError"] > 0.6 * CHANGES


def manifests_of(snapshot: Snapshot) -> set[tuple[str, int, int]]:
    return {(each.manifest_id, each.size_bytes, each.entry_count) for each in snapshot.manifests}


class TestManifests:
    @randomized("damaged Icechunk files")
    def test_a_changed_bit_of_a_real_one(self, repository: Path, seed: int) -> None:
        """Ids of this repository decide which bits matter: errors are looked for, and, among the
        offsets to references, hidden chunks."""
        (data,) = files_of(repository, "manifests").values()
        payload = unpacked(data)
        assert slow_manifest(payload)[1] == 21
        counts, _ = survey(payload, seed)
        assert counts["refused"] > CHANGES / 6
        (refs,) = Fields(payload).tables(1)
        places = [start + i for start in refs.starts(1, 4) for i in range(4)]
        assert not survey(payload, seed, places=places)[1]

    @randomized("damaged Icechunk files")
    def test_a_changed_bit_hides_no_chunk(self, seed: int) -> None:
        """Among references of many kinds, and among native ones alone."""
        choices = random.Random(1)
        refs = [random_ref(choices) for _ in range(40)]
        some = [ref for ref in refs if len(ref.data) < 100][:20]
        for made in (some, [MadeRef(("native",))] * 20):
            refs = [replace(ref, chunk_id=choices.randbytes(ID_BYTES)) for ref in made]
            manifest = MadeManifest(choices.randbytes(ID_BYTES), [refs[:13], refs[13:]])
            assert not survey(manifest.payload(), seed)[1]

    @randomized("damaged Icechunk files")
    def test_changed_bytes(self, repository: Path, seed: int) -> None:
        """Of the file, and of what is packed in it."""
        ((manifest_id, data),) = files_of(repository, "manifests").items()
        choices = random.Random(seed)
        made = MadeManifest(bytes(ID_BYTES), [[random_ref(choices) for _ in range(30)]])
        counts: Counter[str] = Counter()

        def read(changed: bytes) -> None:
            payload = unpack(changed, FileType.MANIFEST).payload
            manifest_chunks(payload, manifest_id, entry_count=21)

        for changed in rewrites(data, seed):
            refused(partial(read, changed), counts)
        for changed in rewrites(made.payload(), seed):
            own = spell(made.manifest_id)
            refused(partial(manifest_chunks, changed, own, entry_count=made.count), counts)
        assert counts["DamagedError"] > CHANGES


@needs_v2
@randomized("damaged Icechunk files")
def test_changed_bytes_of_repo_are_refused_as_damage_or_read(repository: Path, seed: int) -> None:
    """And changed bits: of the file, and of what is packed in it. A date that is none is refused,
    as is a file that is cut off."""
    if not (repository / "repo").exists():
        pytest.skip("version 1 has no such file")
    data = (repository / "repo").read_bytes()
    counts: Counter[str] = Counter()
    for changed in rewrites(data, seed):
        refused(partial(parse_repo, changed, ""), counts)
    assert counts["DamagedError"] > CHANGES / 2
    payload = unpacked(data)
    for changed in (*rewrites(payload, seed), *(each for _, each in flips(payload, seed))):
        refused(partial(parse_repo, plain(data, changed), ""), counts)
    for length in range(len(data)):
        with pytest.raises(REFUSALS):
            parse_repo(data[:length], "")
    row = parse_repo(data, "").row
    for name, place in (("snapshots", "flushed_at"), ("latest_updates", "updated_at")):
        first, *others = row[name]
        dated = {**row, name: [{**first, place: 1 << 63}, *others]}
        what = f"snapshot {id_text(first['id'])}" if place == "flushed_at" else "operations log"
        with pytest.raises(DamagedError, match=f"{what} is dated"):
            parse_repo(plain(data, encode(dated, REPO)), "")


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """What Python allocates meanwhile is never more."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < limit


class TestBombs:
    """Small files that would unpack to what fills the memory."""

    GIBIBYTE = 2**30
    MEBIBYTE = 2**20

    @pytest.mark.parametrize("size", [GIBIBYTE, 6 * GIBIBYTE])
    def test_no_more_is_unpacked_than_such_a_file_may_hold(self, size: int) -> None:
        file_type = random.choice(list(FileType))
        data = bomb(file_type, size)
        limit = payload_limit(len(data) - HEADER_BYTES)
        assert limit < 200 * self.MEBIBYTE
        with memory_below(limit + self.MEBIBYTE), pytest.raises(DamagedError, match="unpacks to"):
            unpack(data, file_type)

    def test_no_more_by_the_second_reader_either(self, tmp_path: Path) -> None:
        storage = open_storage(str(tmp_path))
        data = bomb(FileType.SNAPSHOT, self.GIBIBYTE)
        storage.put("snapshots/A", data)
        limit = payload_limit(len(data) - HEADER_BYTES)
        # What it holds grows by an eighth at a time.
        with memory_below(limit * 5 // 4), pytest.raises(ValueError, match="can't be unpacked"):
            IcechunkWalk(storage).nodes("snapshots/A")

    def test_what_any_file_may_unpack_to(self) -> None:
        """One block more is refused. Manifests with zeros unpack to a hundred times their size."""
        for blocks in (1, 512):
            size = blocks * PAYLOAD_BYTES_FREE // 512
            assert unpack(bomb(FileType.REPO, size), FileType.REPO).payload == bytes(size)
        data = bomb(FileType.REPO, PAYLOAD_BYTES_FREE + 1)
        with pytest.raises(DamagedError, match="unpacks to more than 67,108,864 bytes"):
            unpack(data, FileType.REPO)
        values = random.Random(1)
        payload = b"".join(bytes(65_000) + values.randbytes(600) for _ in range(1_200))
        packed = pack(payload, FileType.MANIFEST, writer="test", spec_version=2)
        assert len(payload) > max(PAYLOAD_BYTES_FREE, 80 * len(packed))
        assert unpack(packed, FileType.MANIFEST).payload == payload

    @pytest.mark.parametrize("frame_bytes", [10, 2_047, 2_048, 2_049])
    def test_what_is_cut_short_or_goes_on_is_refused_wherever_it_ends(
        self, frame_bytes: int
    ) -> None:
        """It is unpacked in pieces of 2 KiB first; a frame may end where one of them does."""
        block = random.Random(1).randbytes(frame_bytes - 9)
        data = file_of_blocks([block], len(block), 0, FileType.REPO)
        assert len(data) == HEADER_BYTES + frame_bytes
        assert unpack(data, FileType.REPO).payload == block
        for wrong in (data[:-1], data[: HEADER_BYTES + 5], data + b"x", data + data[HEADER_BYTES:]):
            with pytest.raises(DamagedError):
                unpack(wrong, FileType.REPO)
