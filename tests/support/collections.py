"""What tests of projects and collections say often."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ebbtide.errors import EbbtideError
from ebbtide.store.collections.contents import ContentChange, Files, Source
from ebbtide.store.collections.reading import Collection
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject


def raises(kind: str) -> pytest.RaisesExc[EbbtideError]:
    return pytest.raises(EbbtideError, check=lambda error: error.kind == kind)


def of_files(files: Mapping[str, bytes]) -> Files:
    return Files([NewObject(path, data) for path, data in files.items()])


def of(*sources: Source, **more: object) -> ContentChange:
    return ContentChange(sources, **more)  # type: ignore[arg-type]


def collect_files(
    lake: Repository, collection_id: str, version: int | None = None
) -> dict[str, bytes]:
    found = lake.collections.walk(collection_id, version=version)
    return {
        entry.path: b"".join(
            lake.collections.open(collection_id, entry.path, version=version).stream()
        )
        for entry in found
    }


def put_collection(
    lake: Repository, project_id: str, name: str, files: Mapping[str, bytes] | None = None
) -> Collection:
    return lake.collections.create(project_id, name, of(of_files(files or {})))
