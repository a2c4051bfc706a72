"""The repositories that other tests collect are what they are said to be."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import icechunk
import pytest

from tests.support.icechunk import (
    BRANCHES,
    PARENTS,
    SPEC_VERSIONS,
    TAGS,
    backdate,
    build_random,
    collect_with_icechunk,
    contents,
    create_repository,
    design_example,
    listing,
    open_repository,
    virtual_file,
)
from tests.support.icechunk_writer import Writer, WriterProcess
from tests.support.randomized import randomized

pytestmark = [
    pytest.mark.parametrize("spec_version", SPEC_VERSIONS),
    pytest.mark.drawn("tools of tests on Icechunk"),
]


def kinds(paths: dict[str, int] | frozenset[str]) -> Counter[str]:
    """How many files there are of each kind, that is in each directory at the top."""
    return Counter(path.split("/")[0] for path in paths)


@randomized("Icechunk repositories, read")
def test_random_repositories_can_be_read_and_their_seed_makes_them(
    tmp_path: Path, spec_version: int, seed: int
) -> None:
    for name in ("one", "two"):
        build_random(tmp_path / name, seed, spec_version)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one.snapshots.keys() == set().union(*one.refs.values())
    assert kinds(listing(tmp_path / "one")) == kinds(listing(tmp_path / "two"))
    for ref, ids in (one.refs | two.refs).items():
        assert len(ids) == len(one.refs[ref]) == len(two.refs[ref])
        for pair in zip(one.refs[ref], two.refs[ref], strict=True):
            assert one.snapshots[pair[0]] == two.snapshots[pair[1]]


def test_random_repositories_have_garbage_of_every_kind_and_every_kind_of_chunk(
    tmp_path: Path, spec_version: int
) -> None:
    deleted: Counter[str] = Counter()
    native_bytes = inlined_bytes = virtual_bytes = 0
    for seed in range(8):
        path = tmp_path / str(seed)
        build_random(path, seed, spec_version)
        before = contents(path)
        statistics = open_repository(path).chunk_storage_stats()
        native_bytes += statistics.native_bytes
        inlined_bytes += statistics.inlined_bytes
        virtual_bytes += statistics.virtual_bytes
        collection = collect_with_icechunk(path)
        deleted += kinds(collection.deleted)
        assert kinds(collection.added) == ({"overwritten": 1} if spec_version > 1 else {})
        assert contents(path) == before
    assert deleted.keys() == {"chunks", "manifests", "snapshots", "transactions"}
    assert min(native_bytes, inlined_bytes, virtual_bytes) > 0


@pytest.mark.parametrize("kind", ["chunks", "manifests", "snapshots"])
def test_contents_misses_files_that_are_not_there(
    tmp_path: Path, spec_version: int, kind: str
) -> None:
    design_example(tmp_path / "repo", spec_version)
    needed = contents(tmp_path / "repo")
    paths = sorted((tmp_path / "repo" / kind).iterdir())
    assert len(paths) == {"chunks": 28, "manifests": 28, "snapshots": 15}[kind]
    for path in paths[::4]:
        away = path.rename(tmp_path / "away")
        with pytest.raises(icechunk.IcechunkError):
            contents(tmp_path / "repo")
        away.rename(path)
    assert contents(tmp_path / "repo") == needed


def test_contents_misses_virtual_chunks(tmp_path: Path, spec_version: int) -> None:
    path = tmp_path / "repo"
    seed = 0
    while not path.exists() or not open_repository(path).chunk_storage_stats().virtual_bytes:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(virtual_file(path).parent, ignore_errors=True)
        build_random(path, seed, spec_version)
        seed += 1
    virtual_file(path).unlink()
    with pytest.raises(icechunk.IcechunkError):
        contents(path)


def test_design_example(tmp_path: Path, spec_version: int) -> None:
    example = design_example(tmp_path / "repo", spec_version)
    repository = open_repository(tmp_path / "repo")
    infos = {number: repository.lookup_snapshot(each) for number, each in example.ids.items()}
    assert {number: info.parent_id for number, info in infos.items()} == {0: None} | {
        number: example.ids[parent] for number, parent in PARENTS.items()
    }
    assert {name: repository.lookup_branch(name) for name in repository.list_branches()} == {
        name: example.ids[number] for name, number in BRANCHES.items()
    }
    assert {name: repository.lookup_tag(name) for name in repository.list_tags()} == {
        name: example.ids[number] for name, number in TAGS.items()
    }
    dates = [infos[number].written_at for number in range(15)]
    assert dates == sorted(set(dates))
    assert dates[7] < example.threshold <= dates[8]
    assert example.threshold.utcoffset() == UTC.utcoffset(None)


def test_design_example_collected_by_icechunk(tmp_path: Path, spec_version: int) -> None:
    """Version 2 lets `main` keep 5 only because a tag keeps that; then 1, 2 and 4 go in both."""
    path = tmp_path / "repo"
    ids = design_example(path, spec_version).ids
    collection = collect_with_icechunk(
        path, expire_older_than=open_repository(path).lookup_snapshot(ids[8]).written_at
    )
    snapshots = {each for each in collection.deleted if each.startswith("snapshots/")}
    assert snapshots == {f"snapshots/{ids[number]}" for number in (1, 2, 4, 6, 7)}
    assert contents(path).refs["branch/develop"] == [ids[11], ids[10], ids[0]]


def test_age_is_that_of_files(tmp_path: Path, spec_version: int) -> None:
    path = tmp_path / "repo"
    design_example(path, spec_version)
    open_repository(path).delete_branch("qa")
    hour_ago = datetime.now(UTC).timestamp() - 3600
    threshold = datetime.fromtimestamp(hour_ago, UTC)
    assert not collect_with_icechunk(path, delete_older_than=threshold).deleted
    backdate(path, 7200)
    assert collect_with_icechunk(path, delete_older_than=threshold).deleted


def test_listing_leaves_out_what_ebbtide_wrote(tmp_path: Path, spec_version: int) -> None:
    path = tmp_path / "repo"
    create_repository(path, spec_version)
    before = listing(path)
    (path / "_ebbtide").mkdir()
    (path / "_ebbtide" / "OWNER").write_bytes(b"someone")
    assert listing(path) == before
    assert before["snapshots/1CECHNKREP0F1RSTCMT0"] > 39


def test_writer_commits_until_stopped(
    tmp_path: Path, spec_version: int, writer_process: WriterProcess
) -> None:
    create_repository(tmp_path / "repo", spec_version)
    with Writer(writer_process, tmp_path / "repo") as writer:
        writer.wait_for_commits(3)
        committed = writer.stop()
    assert len(committed) >= 3
    found = contents(tmp_path / "repo")
    assert found.refs["branch/main"][:-1] == committed[::-1]
    for each in committed:
        assert found.snapshots[each][Writer.PATH] == writer.descriptions[each]


def test_writer_holds_a_commit_whose_chunks_are_written(
    tmp_path: Path, spec_version: int, writer_process: WriterProcess
) -> None:
    path = tmp_path / "repo"
    create_repository(path, spec_version)
    with Writer(writer_process, path, hold=True) as writer:
        assert kinds(listing(path))["chunks"] > 0
        before = contents(path).refs["branch/main"]
        committed = writer.stop()
    assert contents(path).refs["branch/main"] == committed + before


def test_writer_that_fails_says_so_and_the_next_one_writes(
    tmp_path: Path, spec_version: int, writer_process: WriterProcess
) -> None:
    create_repository(tmp_path / "repo", spec_version)
    with (
        pytest.raises(RuntimeError, match=r"the writer failed: .*nowhere"),
        Writer(writer_process, tmp_path / "repo", "nowhere", hold=True),
    ):
        pass
    with Writer(writer_process, tmp_path / "repo", hold=True) as writer:
        assert len(writer.stop()) == 1
