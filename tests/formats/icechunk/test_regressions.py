"""What once went wrong: damage that hid chunks, operations logs cut short, snapshots let go."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zarr

from ebbtide.errors import Conflict, Refused
from ebbtide.formats.icechunk.flatbuffer import DamagedError
from ebbtide.formats.icechunk.ids import ROOT_ID, id_text
from ebbtide.formats.icechunk.refs import read_refs
from ebbtide.formats.icechunk.repo import Edit, backup_time, parse_repo, write_repo
from ebbtide.formats.icechunk.repo_schema import REPO
from ebbtide.formats.icechunk.state import RECENT, load_repo, read_state
from ebbtide.formats.icechunk.tables import encode
from ebbtide.storage import open_storage
from tests.formats.icechunk.damage import REFUSALS, flips, rewrites, survey
from tests.formats.icechunk.operations import History, check_history, commit, log_of
from tests.support.faulty import FaultyStorage
from tests.support.icechunk import SPEC_VERSIONS, create_repository, instant_between
from tests.support.icechunk_files import (
    ID_BYTES,
    Fields,
    MadeManifest,
    MadeRef,
    files_of,
    plain,
    random_ref,
    unpacked,
)
from tests.support.randomized import randomized

needs_v2 = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="writes no version 2")


class TestManifests:
    @randomized("damaged Icechunk files")
    def test_a_changed_bit_hides_no_chunk_among_references_of_many_kinds(self, seed: int) -> None:
        choices = random.Random(1)
        refs = [random_ref(choices) for _ in range(40)]
        refs = [ref for ref in refs if len(ref.data) < 100][:20]
        refs = [replace(ref, chunk_id=choices.randbytes(ID_BYTES)) for ref in refs]
        made = MadeManifest(choices.randbytes(ID_BYTES), [refs[:13], refs[13:]])
        assert not survey(made.payload(), seed)[1]

    @randomized("damaged Icechunk files")
    def test_a_changed_bit_hides_no_chunk_among_native_references(self, seed: int) -> None:
        choices = random.Random(2)
        refs = [MadeRef(("native",), chunk_id=choices.randbytes(ID_BYTES)) for _ in range(20)]
        made = MadeManifest(choices.randbytes(ID_BYTES), [refs[:13], refs[13:]])
        assert not survey(made.payload(), seed)[1]

    @pytest.mark.parametrize("dimensions", [1, 3])
    @randomized("damaged Icechunk files")
    def test_a_changed_bit_hides_no_chunk_in_a_file_of_icechunk(
        self, tmp_path: Path, dimensions: int, seed: int
    ) -> None:
        """Only the offsets to references are changed: what others do hangs on random ids."""
        repository = create_repository(tmp_path / "repo", SPEC_VERSIONS[-1])
        session = repository.writable_session("main")
        array = zarr.open_group(session.store, mode="a").create_array(
            "a",
            shape=(32 if dimensions == 1 else 6,) * dimensions,
            chunks=(2,) * dimensions,
            dtype="float64",
            compressors=None,
        )
        array[...] = 1
        session.commit("native chunks")
        (data,) = files_of(tmp_path / "repo", "manifests").values()
        payload = unpacked(data)
        (refs,) = Fields(payload).tables(1)
        places = [start + i for start in refs.starts(1, 4) for i in range(4)]
        assert not survey(payload, seed, places=places)[1]


@needs_v2
class TestDamagedRepo:
    @pytest.fixture
    def data(self, tmp_path: Path) -> bytes:
        repository = create_repository(tmp_path / "repo", 2)
        first = repository.lookup_branch("main")
        repository.create_branch("side", first)
        repository.create_tag("tag", first)
        session = repository.writable_session("main")
        zarr.open_group(session.store, mode="a").attrs["second"] = 2
        session.commit("second")
        return (tmp_path / "repo" / "repo").read_bytes()

    @randomized("damaged Icechunk files")
    def test_a_changed_bit_is_refused_as_damage_or_read(self, data: bytes, seed: int) -> None:
        for _, changed in flips(unpacked(data), seed):
            with suppress(*REFUSALS):
                parse_repo(plain(data, changed), "")

    @randomized("damaged Icechunk files")
    def test_changed_bytes_are_refused_as_damage_or_read(self, data: bytes, seed: int) -> None:
        for changed in rewrites(unpacked(data), seed):
            with suppress(*REFUSALS):
                parse_repo(plain(data, changed), "")

    def test_what_was_parsed_has_no_date_that_is_none(self, data: bytes) -> None:
        row = parse_repo(data, "").row
        for name, place in (("snapshots", "flushed_at"), ("latest_updates", "updated_at")):
            first, *others = row[name]
            changed = {**row, name: [{**first, place: 1 << 63}, *others]}
            what = f"snapshot {id_text(first['id'])}" if place == "flushed_at" else "operations log"
            with pytest.raises(DamagedError, match=f"{what} is dated"):
                parse_repo(plain(data, encode(changed, REPO)), "")


@needs_v2
class TestOperationsLog:
    @pytest.mark.parametrize("updates_per_file", [1, 2, 3])
    def test_it_stays_complete_when_an_answer_is_lost_and_somebody_commits(
        self, tmp_path: Path, updates_per_file: int
    ) -> None:
        """The write was done, and the commit after it names the copy that it made."""
        path = tmp_path / "repo"
        repository = create_repository(path, 2, updates_per_file=updates_per_file)
        before = log_of(path)

        def lose(method: str, address: str) -> None:
            if (method, address) == ("replace", "repo"):
                commit(repository)
                raise Conflict("object_changed", "the client met another write than its own")

        storage = FaultyStorage(open_storage(str(path)), after=lose)
        with suppress(Conflict):
            write_repo(storage, load_repo(storage), Edit(kind="GCRan"), datetime.now(UTC))
        after = log_of(path)
        assert [kind.partition("(")[0].rpartition(".")[2] for kind, _ in after[:2]] == [
            "NewCommit",
            "GCRan",
        ]
        assert after[2:] == before


@needs_v2
class TestRecent:
    """What nothing reached at the cutoff, a ref reached since, and nothing reaches now."""

    def recent(self, path: Path, cutoff: datetime) -> set[str]:
        state = read_state(open_storage(str(path)), cutoff=cutoff, quiet=False, first_seen={})
        return {name for name, why in state.held.items() if why == RECENT}

    def test_it_stays_where_an_expiry_deleted_the_ref(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        repository = create_repository(path, 2)
        lost = commit(repository)
        repository.reset_branch("main", ROOT_ID)
        cutoff = instant_between(path)
        repository.create_tag("back", lost)
        repository.expire_snapshots(cutoff, delete_expired_tags=True)
        assert self.recent(path, cutoff) == {lost}

    def test_it_stays_where_an_expiry_cut_it_off(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        repository = create_repository(path, 2)
        lost, head = commit(repository), commit(repository)
        repository.reset_branch("main", ROOT_ID)
        cutoff = instant_between(path)
        repository.create_branch("back", head)
        repository.expire_snapshots(repository.lookup_snapshot(head).written_at)
        assert lost in self.recent(path, cutoff)

    @randomized("Icechunk refs over time")
    def test_it_stays_in_random_histories(self, tmp_path: Path, seed: int) -> None:
        path = tmp_path / "repo"
        history = History(path, seed, revives=True)
        for _ in range(25):
            history.operate()
        check_history(path, history)


@needs_v2
def test_a_copy_made_within_the_millisecond_of_the_cutoff_stays(tmp_path: Path) -> None:
    """Its name has whole milliseconds, so that it may have been made later than that says."""
    path = tmp_path / "repo"
    repository = create_repository(path, 2)
    commit(repository)
    (name,) = files_of(path, "overwritten")
    os.utime(path / "overwritten" / name, (0, 0))
    made_at = backup_time(name)
    assert made_at is not None
    for micros, stays in ((0, True), (999, True), (1001, False)):
        cutoff = made_at + timedelta(microseconds=micros)
        state = read_state(open_storage(str(path)), cutoff=cutoff, quiet=True, first_seen={})
        assert state.backups == ({name} if stays else set())


def test_a_ref_of_version_1_that_nests_too_deep_is_refused(tmp_path: Path) -> None:
    create_repository(tmp_path / "repo", 1).create_tag("damaged", ROOT_ID)
    storage = open_storage(str(tmp_path / "repo"))
    storage.put("refs/tag.damaged/ref.json", b"[" * 100_000)
    with pytest.raises(Refused):
        read_refs(storage)
