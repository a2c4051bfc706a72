"""The repositories that other tests collect are what they are said to be."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import icechunk
import pytest

from tests.support.icechunk import (
    SPEC_VERSIONS,
    build_random,
    collect_with_icechunk,
    contents,
    open_repository,
    virtual_file,
)

pytestmark = [
    pytest.mark.parametrize("spec_version", SPEC_VERSIONS),
    pytest.mark.drawn("tools of tests on Icechunk"),
]


def kinds(paths: dict[str, int] | frozenset[str]) -> Counter[str]:
    return Counter(path.split("/")[0] for path in paths)


def test_random_repositories_have_garbage_of_every_kind_and_every_kind_of_chunk(
    tmp_path: Path, spec_version: int
) -> None:
    """Soon, and no reader finds a virtual chunk whose file is gone."""
    deleted: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    for seed in itertools.count():
        path = tmp_path / str(seed)
        build_random(path, seed, spec_version)
        before, found = contents(path), open_repository(path).chunk_storage_stats()
        bytes_of = {name: getattr(found, f"{name}_bytes") for name in ("native", "inlined")}
        chunks.update(bytes_of, virtual=found.virtual_bytes)
        collection = collect_with_icechunk(path)
        deleted += kinds(collection.deleted)
        assert kinds(collection.added) == ({"overwritten": 1} if spec_version > 1 else {})
        assert contents(path) == before
        if found.virtual_bytes:
            virtual_file(path).unlink()
            with pytest.raises(icechunk.IcechunkError):
                contents(path)
        if len(deleted) == 4 and all(chunks.values()):
            break
    assert deleted.keys() == {"chunks", "manifests", "snapshots", "transactions"}
    assert seed < 12
