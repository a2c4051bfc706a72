"""Manifests and snapshots, read as a slow decoder reads them that follows the schema by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from pathlib import Path

import pytest

from ebbtide.formats.icechunk.files import (
    DamagedError,
    FileType,
    UnknownFieldError,
    UnknownVersionError,
    pack,
    unpack,
)
from ebbtide.formats.icechunk.snapshots import Snapshot, manifest_chunks, read_snapshot, with_parent
from ebbtide.model import EPOCH
from tests.support.icechunk import SPEC_VERSIONS, build_random
from tests.support.icechunk_files import (
    ID_BYTES,
    MadeManifest,
    MadeRef,
    MadeSnapshot,
    RefKind,
    files_of,
    new_file,
    random_manifest,
    random_ref,
    random_snapshot,
    slow_manifest,
    slow_snapshot,
    spell,
    unpacked,
)
from tests.support.randomized import randomized

MANIFEST, SNAPSHOT = 2, 1
SOME_ID = bytes(range(ID_BYTES))


def chunks(made: MadeManifest, *, count: int | None = None) -> list[str | None]:
    return manifest_chunks(
        made.payload(),
        spell(made.manifest_id),
        entry_count=made.count if count is None else count,
    ).to_pylist()


def snapshot(made: MadeSnapshot) -> Snapshot:
    data = new_file(made.payload(), SNAPSHOT, 2, compressed=False)
    return read_snapshot(data, spell(made.snapshot_id))


def packed(made: MadeSnapshot, choices: random.Random) -> bytes:
    """The file of a snapshot, of either version, compressed or not."""
    compressed = choices.random() < 0.3
    return new_file(made.payload(), SNAPSHOT, choices.choice((1, 2)), compressed=compressed)


def check_snapshot(data: bytes, payload: bytes, snapshot_id: str) -> dict[str, tuple[int, int]]:
    """Compare; what the slow decoder says of its manifests."""
    expected = slow_snapshot(payload)
    found = read_snapshot(data, snapshot_id)
    assert found.snapshot_id == expected.snapshot_id == snapshot_id
    assert found.parent_id == expected.parent_id
    assert found.flushed_at == EPOCH + timedelta(microseconds=expected.flushed_at_micros)
    manifests = {each.manifest_id: (each.size_bytes, each.entry_count) for each in found.manifests}
    assert manifests == expected.manifests
    assert len(manifests) == len(found.manifests)
    assert expected.named <= manifests.keys()
    return manifests


@pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
@randomized("Icechunk repositories, read")
def test_all_real_files_are_read_as_the_slow_decoder_reads_them(
    tmp_path: Path, spec_version: int, seed: int
) -> None:
    path = tmp_path / "repo"
    build_random(path, seed, spec_version)
    infos: dict[str, tuple[int, int]] = {}
    for snapshot_id, data in files_of(path, "snapshots").items():
        infos |= check_snapshot(data, unpacked(data), snapshot_id)
    addresses = set()
    for manifest_id, data in files_of(path, "manifests").items():
        payload = unpacked(data)
        assert unpack(data, FileType.MANIFEST).payload == payload
        expected_id, count, expected = slow_manifest(payload)
        assert expected_id == manifest_id
        # What was abandoned is in no snapshot.
        assert infos.get(manifest_id, (len(data), count)) == (len(data), count)
        assert manifest_chunks(payload, manifest_id, entry_count=count).to_pylist() == expected
        addresses |= set(expected)
    # Sessions that were given up left chunks that nothing refers to.
    assert addresses <= {f"chunks/{name}" for name in files_of(path, "chunks")}


class TestMadeManifests:
    @randomized("Icechunk files made by hand")
    def test_random_ones(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        monkeypatch.setattr("ebbtide.formats.icechunk.files.ROWS_MAX", (1 << 20, 4, 1)[seed % 3])
        made = random_manifest(random.Random(seed))
        assert slow_manifest(made.payload()) == (spell(made.manifest_id), made.count, made.chunks)
        assert chunks(made) == made.chunks

    def test_another_number_of_references_or_manifest_is_refused(self) -> None:
        made = MadeManifest(SOME_ID, [[MadeRef(("native",))] * 2, [MadeRef(("inline",))]])
        for count in (0, 2, 4, 1 << 31):
            with pytest.raises(DamagedError, match="has 3 references"):
                chunks(made, count=count)
        with pytest.raises(DamagedError, match=f"holds manifest {spell(SOME_ID)}"):
            manifest_chunks(made.payload(), spell(b"\1" * ID_BYTES), entry_count=3)

    def test_a_reference_that_is_not_of_one_kind_is_refused(self) -> None:
        """A virtual one may have its place twice."""
        mixed: tuple[RefKind, ...] = ("inline", "native", "virtual", "packed")
        wrong = {each for n in range(5) for each in combinations(mixed, n) if n != 1}
        for kinds in wrong - {("virtual", "packed")}:
            refs = [random_ref(random.Random(i)) for i in range(7)]
            refs[3] = replace(refs[3], kinds=kinds)
            with pytest.raises(DamagedError, match="not of one kind"):
                chunks(MadeManifest(SOME_ID, [[], refs]))
        assert chunks(MadeManifest(SOME_ID, [[MadeRef(("virtual", "packed"))]])) == []

    def test_an_unknown_field_is_refused_unless_it_is_absent(self) -> None:
        """A newer writer has longer tables of offsets, and zeros in them."""
        refs = [random_ref(random.Random(i)) for i in range(7)]
        refs[5] = replace(refs[5], unknown=1)
        for made in (MadeManifest(SOME_ID, [refs]), MadeManifest(SOME_ID, [], unknown=1)):
            with pytest.raises(UnknownFieldError):
                chunks(made)
        made = MadeManifest(SOME_ID, [[MadeRef(("native",), unknown=0, full=False)]])
        assert chunks(made) == made.chunks

    @randomized("Icechunk files made by hand")
    def test_cut_at_any_length_it_is_refused_or_has_all_chunks(self, seed: int) -> None:
        choices = random.Random(seed)
        made = MadeManifest(SOME_ID, [[random_ref(choices) for _ in range(12)]])
        payload = made.payload()
        for length in choices.sample(range(len(payload)), 12):
            try:
                found = manifest_chunks(
                    payload[:length], spell(SOME_ID), entry_count=made.count
                ).to_pylist()
            except DamagedError:
                continue
            assert found == made.chunks, length


class TestMadeSnapshots:
    @randomized("Icechunk files made by hand")
    def test_random_ones(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        monkeypatch.setattr("ebbtide.formats.icechunk.files.ROWS_MAX", (1 << 20, 2)[seed % 2])
        choices = random.Random(seed)
        made = random_snapshot(choices)
        data = packed(made, choices)
        manifests = check_snapshot(data, made.payload(), spell(made.snapshot_id))
        infos = (*made.listed, *(made.listed_v2 or ()))
        assert manifests == {spell(i): (size, count) for i, size, count in infos}

    def test_what_cannot_be_is_refused(self) -> None:
        data = new_file(MadeSnapshot(SOME_ID).payload(), SNAPSHOT, 2, compressed=True)
        with pytest.raises(DamagedError, match="holds snapshot"):
            read_snapshot(data, spell(bytes(ID_BYTES)))
        listed = (b"\1" * ID_BYTES, 1, 1)
        made = MadeSnapshot(SOME_ID, listed_v2=[listed], nodes=[None, [SOME_ID, listed[0]]])
        with pytest.raises(DamagedError, match=f"manifest {spell(SOME_ID)}, which"):
            snapshot(made)
        assert snapshot(replace(made, nodes=[None, [listed[0]]]))
        with pytest.raises(UnknownFieldError):
            snapshot(MadeSnapshot(SOME_ID, unknown=1))
        assert snapshot(MadeSnapshot(SOME_ID, unknown=0))
        last = 253_402_300_799_999_999  # of year 9999, in microseconds
        assert snapshot(MadeSnapshot(SOME_ID, flushed_at_micros=last)).flushed_at.year == 9999
        for micros in (last + 1, (1 << 64) - 1):
            with pytest.raises(DamagedError, match="is dated"):
                snapshot(MadeSnapshot(SOME_ID, flushed_at_micros=micros))

    @randomized("Icechunk files made by hand")
    def test_another_parent_is_all_that_changes(self, seed: int) -> None:
        choices = random.Random(seed)
        made = random_snapshot(choices)
        own, new = spell(made.snapshot_id), choices.randbytes(ID_BYTES)
        data = packed(made, choices)
        edited = with_parent(data, own, spell(new), expected=spell(made.parent_id or SOME_ID))
        if made.parent_id is None:
            assert edited is None
            return
        assert edited is not None
        assert unpacked(edited) == replace(made, parent_id=new).payload()
        assert edited[:38] == data[:38]
        assert with_parent(data, own, spell(new), expected=spell(new)) is None


def test_an_envelope_that_is_not_whole_or_not_known_is_refused() -> None:
    whole = new_file(MadeSnapshot(SOME_ID).payload(), SNAPSHOT, 2, compressed=True)

    def read(data: bytes) -> None:
        read_snapshot(data, spell(SOME_ID))

    read(whole)
    found = unpack(whole, FileType.SNAPSHOT)
    assert (found.writer, found.spec_version) == ("by hand", 2)
    for version in (0, 3, 255):
        with pytest.raises(UnknownVersionError, match=f"spec version {version}, written by by h"):
            read(whole[:36] + bytes([version]) + whole[37:])
    for file_type in (0, 2, 255):
        with pytest.raises(DamagedError, match=f"file type {file_type}, not 1"):
            read(whole[:37] + bytes([file_type]) + whole[38:])
    with pytest.raises(UnknownVersionError, match="compression 2"):
        read(whole[:38] + b"\2" + whole[39:])
    for length in range(len(whole)):
        with pytest.raises(DamagedError):
            read(whole[:length])
    for more in (b"\0", b"\0" * 1000, whole[39:]):
        with pytest.raises(DamagedError, match="after its end"):
            read(whole + more)


def test_what_is_packed_is_unpacked() -> None:
    for size in (0, 1000, 1 << 20):
        payload = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
        data = pack(payload, FileType.REPO, writer="somebody-1.2", spec_version=2)
        found = unpack(data, FileType.REPO)
        assert (found.writer, found.spec_version, found.payload) == ("somebody-1.2", 2, payload)
