"""Repositories that are damaged: the run refuses and deletes nothing. Foreign files stay."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import icechunk
import pytest

from tests.support.icechunk import (
    SPEC_VERSIONS,
    backdate,
    build_random,
    contents,
    create_repository,
    listing,
    open_repository,
)
from tests.support.icechunk_lake import LONG_AGO, IcechunkLake, candidates
from tests.support.requirements import require_or_skip

FIXTURES = os.environ.get("EBBTIDE_TEST_FIXTURES")
"""A directory with `icechunk/NAME`: repositories that other versions of Icechunk wrote."""

HEADER_BYTES = 39

both = pytest.mark.parametrize("spec_version", SPEC_VERSIONS)


@pytest.fixture
def lake(tmp_path: Path, spec_version: int) -> IcechunkLake:
    """A random repository with garbage, in which a head has a manifest."""
    seed = 3
    while True:
        path = tmp_path / str(seed)
        build_random(path, seed, spec_version)
        found = IcechunkLake(path)
        found.age()
        if live_manifests(found) and candidates(found.collector().plan()):
            return found
        seed += 1


def live_manifests(lake: IcechunkLake) -> list[Path]:
    """The manifests of main's head."""
    repository = open_repository(lake.path)
    if not hasattr(repository, "list_manifest_files"):
        pytest.skip("this Icechunk, older than 2, does not name manifests")
    head = repository.lookup_branch("main")
    return [
        lake.path / "manifests" / info.id
        for info in repository.list_manifest_files(head)
        if info.num_chunk_refs
    ]


def head_snapshot(lake: IcechunkLake) -> Path:
    """The file of main's head."""
    return lake.path / "snapshots" / open_repository(lake.path).lookup_branch("main")


def refused(lake: IcechunkLake) -> str:
    """The kind of refusal, after which all is as it was."""
    before = listing(lake.path)
    report = lake.collect()
    assert report.state == "refused"
    assert report.error is not None
    assert listing(lake.path) == before
    assert report.error["message"]
    return report.error["kind"]


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file's bytes, and keep its date."""
    status = path.stat()
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@both
def test_a_manifest_that_is_cut_short(lake: IcechunkLake) -> None:
    rewrite(live_manifests(lake)[0], lambda data: data[: len(data) // 2])
    assert refused(lake) == "corrupt_node"


@both
def test_a_manifest_that_is_not_there(lake: IcechunkLake) -> None:
    live_manifests(lake)[0].unlink()
    assert refused(lake) == "missing_node"


@both
def test_a_snapshot_that_is_not_there(lake: IcechunkLake) -> None:
    head_snapshot(lake).unlink()
    assert refused(lake) == "missing_tree"


@both
def test_a_chunk_that_is_not_there(lake: IcechunkLake) -> None:
    planned = candidates(lake.collector().plan())
    live = [a for a in listing(lake.path) if a.startswith("chunks/") and a not in planned]
    (lake.path / live[0]).unlink()
    assert refused(lake) == "missing_object"


@both
@pytest.mark.parametrize("what", ["snapshot", "manifest"])
def test_an_unknown_version(lake: IcechunkLake, what: str) -> None:
    path = head_snapshot(lake) if what == "snapshot" else live_manifests(lake)[0]
    rewrite(path, lambda data: data[:36] + b"\x03" + data[37:])
    assert refused(lake) == "unknown_format_version"


@pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="this Icechunk writes version 1 alone")
@pytest.mark.parametrize("change", ["cut", "version", "magic", "gone"])
def test_a_damaged_repo_file(tmp_path: Path, change: str) -> None:
    lake = IcechunkLake(tmp_path / "lake")
    build_random(lake.path, 5, 2)
    lake.age()
    repo = lake.path / "repo"
    if change == "cut":
        rewrite(repo, lambda data: data[:-20])
        assert refused(lake) == "corrupt_repo"
    elif change == "version":
        rewrite(repo, lambda data: data[:36] + b"\x09" + data[37:])
        assert refused(lake) == "unknown_format_version"
    elif change == "magic":
        rewrite(repo, lambda data: b"X" + data[1:])
        assert refused(lake) == "corrupt_repo"
    else:
        repo.rename(tmp_path / "elsewhere")
        with pytest.raises(Exception, match="no Icechunk repository"):
            lake.collect()


@pytest.mark.parametrize("content", [b"", b"{", b'{"snapshot": "nonsense"}', b"[]"])
def test_a_damaged_ref_of_version_1(tmp_path: Path, content: bytes) -> None:
    """It may be all that keeps a snapshot: Icechunk takes a damaged tag for a deleted one."""
    lake = IcechunkLake(tmp_path / "lake")
    build_random(lake.path, 4, 1)
    repository = open_repository(lake.path)
    repository.create_tag("precious", repository.lookup_branch("main"))
    lake.age()
    rewrite(lake.path / "refs" / "tag.precious" / "ref.json", lambda _: content)
    assert refused(lake) == "corrupt_ref"


@both
def test_flipped_bits_let_go_nothing_that_is_needed(lake: IcechunkLake) -> None:
    """Each in a manifest or snapshot that is needed: refused, or without consequence."""
    allowed = candidates(lake.collector().plan()).keys()
    flipped = [head_snapshot(lake), *live_manifests(lake)][:2]
    for path in flipped:
        size = path.stat().st_size
        for position in (*range(HEADER_BYTES, size, max((size - HEADER_BYTES) // 6, 1)), 37):
            original = path.read_bytes()
            rewrite(path, lambda data, at=position: flip(data, at))  # type: ignore[misc]
            report = lake.collector().plan()
            rewrite(path, lambda _, data=original: data)  # type: ignore[misc]
            if report.state == "planned":
                assert candidates(report).keys() <= allowed, f"{path.name} at {position}"


def flip(data: bytes, position: int) -> bytes:
    """The bytes with one bit another."""
    return data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]


@both
def test_foreign_files_are_told_of_and_stay(lake: IcechunkLake) -> None:
    foreign = [
        "chunks/README.txt",
        "chunks/0123456789ABCDEFGHJK",
        "chunks/nested/1CECHNKREP0F1RSTCMT0",
        "manifests/.DS_Store",
        "snapshots/1cechnkrep0f1rstcmt0",
        "notes/todo.md",
        "overwritten/repo.old",
    ]
    for name in foreign:
        path = lake.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("not of Icechunk")
    lake.age()
    before = contents(lake.path)
    report = lake.collect()
    assert report.state == "swept", report.error
    assert report.kinds["foreign"].objects == len(foreign)
    assert listing(lake.path).keys() >= set(foreign)
    assert contents(lake.path) == before


@both
def test_a_link_is_not_followed(tmp_path: Path, lake: IcechunkLake) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    link = lake.path / "chunks" / "0000000000000000000G"
    link.symlink_to(outside)
    assert lake.collect().state == "swept"
    assert link.is_symlink()
    assert outside.read_text() == "precious"


@pytest.mark.parametrize(
    "name",
    ["expire-repo-v1-by-1.1.21", "expire-repo-v2-by-2.0.5", "test-repo-v1", "test-repo-v2"],
)
def test_repositories_of_other_versions_are_read(tmp_path: Path, name: str) -> None:
    """Every file is accounted for, and everything that a ref reaches stays."""
    if FIXTURES is None:
        pytest.skip("EBBTIDE_TEST_FIXTURES names no directory with icechunk/NAME")
    source = Path(FIXTURES) / "icechunk" / name
    if not source.is_dir():
        require_or_skip("fixtures", f"{source} is not there")
    lake = IcechunkLake(tmp_path / "lake")
    shutil.copytree(source, lake.path)
    backdate(lake.path, LONG_AGO)
    files = listing(lake.path)
    refs = ancestries(lake)

    report = lake.collect()

    assert report.state == "swept", report.error
    assert "foreign" not in report.kinds
    counted = sum(count.objects for count in report.kinds.values())
    assert counted == len(files)
    kept = listing(lake.path).keys()
    for ids in refs.values():
        assert {f"snapshots/{snapshot_id}" for snapshot_id in ids} <= kept
    assert ancestries(lake) == refs
    assert lake.collector().plan().counts["candidate"].objects == 0


def ancestries(lake: IcechunkLake) -> dict[str, list[str]]:
    """What each ref reaches, in Icechunk's eyes; the virtual data of these is elsewhere."""
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(lake.path)))
    branches = {("branch", name) for name in repository.list_branches()}
    refs = branches | {("tag", name) for name in repository.list_tags()}
    return {
        f"{kind}/{name}": [found.id for found in repository.ancestry(**{kind: name})]
        for kind, name in sorted(refs)
    }


@both
def test_an_empty_repository_has_nothing_to_collect(tmp_path: Path, spec_version: int) -> None:
    lake = IcechunkLake(tmp_path / "lake")
    create_repository(lake.path, spec_version)
    lake.age()
    report = lake.collect()
    assert report.state == "swept", report.error
    assert report.counts["candidate"].objects == 0
    assert contents(lake.path).refs["branch/main"]
