"""Repositories that are damaged: the run refuses and deletes nothing. Foreign files stay."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.formats.icechunk.operations import commit_array
from tests.support.icechunk import (
    SPEC_VERSIONS,
    build_random,
    contents,
    create_repository,
    listing,
    open_repository,
)
from tests.support.icechunk_lake import IcechunkLake, candidates
from tests.support.randomized import randomized
from tests.support.refusals import check_refused

pytestmark = pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
FOREIGN = (
    "chunks/README.txt",
    "chunks/0123456789ABCDEFGHJK",
    "chunks/nested/1CECHNKREP0F1RSTCMT0",
    "manifests/.DS_Store",
    "snapshots/1cechnkrep0f1rstcmt0",
    "notes/todo.md",
    "overwritten/repo.old",
)


@pytest.fixture(scope="module")
def sound_lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, IcechunkLake]:
    """A random repository of each version, with garbage, in which a head has a manifest."""
    directory = tmp_path_factory.mktemp("sound")
    found: dict[int, IcechunkLake] = {}
    for spec_version in SPEC_VERSIONS:
        for seed in itertools.count(3):
            lake = found[spec_version] = IcechunkLake(directory / f"{spec_version}-{seed}")
            build_random(lake.path, seed, spec_version)
            repository = open_repository(lake.path)
            repository.create_tag("precious", repository.lookup_branch("main"))
            lake.age()
            if live_manifests(lake) and candidates(lake.collector().plan()):
                break
    return found


@pytest.fixture
def lake(tmp_path: Path, sound_lakes: dict[int, IcechunkLake], spec_version: int) -> IcechunkLake:
    """A copy of the sound one, to be damaged."""
    shutil.copytree(sound_lakes[spec_version].path, tmp_path / "lake")
    return IcechunkLake(tmp_path / "lake")


def live_manifests(lake: IcechunkLake) -> list[Path]:
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
    return lake.path / "snapshots" / open_repository(lake.path).lookup_branch("main")


def refused(lake: IcechunkLake, kind: str) -> None:
    before = listing(lake.path)
    check_refused(lake.collect(), kind)
    assert listing(lake.path) == before


def rewrite(path: Path, data: bytes) -> None:
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def version(number: int, data: bytes) -> bytes:
    return data[:36] + bytes([number]) + data[37:]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


REF = "refs/tag.precious/ref.json"
Damage = tuple[str, Callable[[bytes], bytes] | None, str]
DAMAGES: list[Damage] = [
    ("manifest", half, "corrupt_node"),
    ("manifest", None, "missing_node"),
    ("manifest", partial(version, 3), "unknown_format_version"),
    ("snapshot", None, "missing_tree"),
    ("snapshot", partial(version, 3), "unknown_format_version"),
    ("chunk", None, "missing_object"),
    ("repo", half, "corrupt_repo"),
    ("repo", partial(version, 9), "unknown_format_version"),
    (REF, lambda _: b"", "corrupt_ref"),
    (REF, lambda _: b'{"snapshot": "nonsense"}', "corrupt_ref"),
]
"""A file; what becomes of it, if it is not deleted; and the refusal. Of a damaged ref of version 1
Icechunk says that it is deleted, and it may be all that keeps a snapshot."""


def test_damage_refuses_the_run(lake: IcechunkLake, subtests: pytest.Subtests) -> None:
    planned = candidates(lake.collector().plan())
    live = [a for a in listing(lake.path) if a.startswith("chunks/") and a not in planned]
    files = {"manifest": live_manifests(lake)[0], "snapshot": head_snapshot(lake)}
    files |= {"chunk": lake.path / live[0]}
    tried = 0
    for name, change, kind in DAMAGES:
        path = files.get(name, lake.path / name)
        if not path.exists():
            continue  # of the other version
        away = shutil.copy2(path, lake.path.with_name("away"))
        if change is None:
            path.unlink()
        else:
            rewrite(path, change(path.read_bytes()))
        with subtests.test(file=name, kind=kind):
            refused(lake, kind)
        shutil.copy2(away, path)
        tried += 1
    assert tried >= 8
    assert candidates(lake.collector().plan()) == planned
    for anchor in (lake.path / "repo", lake.path / "refs"):
        if anchor.exists():
            anchor.rename(lake.path.with_name("elsewhere"))
    with pytest.raises(Exception, match="no Icechunk repository"):
        lake.collect()


@randomized("damaged Icechunk repositories")
def test_a_flipped_bit_lets_go_nothing_that_is_needed(lake: IcechunkLake, seed: int) -> None:
    """In a manifest or snapshot that is needed: refused, or without consequence."""
    choices = random.Random(seed)
    allowed = candidates(lake.collector().plan()).keys()
    for path in (head_snapshot(lake), choices.choice(live_manifests(lake))):
        original = path.read_bytes()
        bit = choices.randrange(8 * len(original))
        changed = bytearray(original)
        changed[bit // 8] ^= 1 << bit % 8
        rewrite(path, bytes(changed))
        report = lake.collector().plan()
        if report.state == "planned":
            assert candidates(report).keys() <= allowed, f"{path.name} at {bit}"
        rewrite(path, original)


def test_foreign_files_are_told_of_and_stay(tmp_path: Path, lake: IcechunkLake) -> None:
    """A link is not followed."""
    for name in FOREIGN:
        path = lake.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("not of Icechunk")
    lake.age()
    outside = tmp_path / "outside"
    outside.write_text("precious")
    link = lake.path / "chunks" / "0000000000000000000G"
    link.symlink_to(outside)
    before = contents(lake.path)
    report = lake.swept()
    assert report.kinds["foreign"].objects >= len(FOREIGN)
    assert listing(lake.path).keys() >= set(FOREIGN)
    assert contents(lake.path) == before
    assert link.is_symlink()
    assert outside.read_text() == "precious"


def test_a_chunk_of_what_stays_for_sessions_alone(tmp_path: Path, spec_version: int) -> None:
    """Whoever still reads the snapshot may miss it; a run does not, and keeps the rest."""
    path = tmp_path / "lake"
    repository = create_repository(path, spec_version, inline_bytes_max=0)
    first = commit_array(repository, "first", 1.0)
    before = set(listing(path))
    commit_array(repository, "second", 2.0)
    added = {each for each in set(listing(path)) - before if each.startswith("chunks/")}
    repository.reset_branch("main", first)
    (path / min(added)).unlink()
    lake = IcechunkLake(path)
    report = lake.planned()
    assert not added & candidates(report).keys()
    (path / min(each for each in before if each.startswith("chunks/"))).unlink()
    refused(lake, "missing_object")
