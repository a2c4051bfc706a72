"""Imported objects that are overwritten where they lie: every way to read them names the change."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.ids import new_id
from ebbtide.storage import open_storage
from ebbtide.storage.external import RecordedObject, find_external
from ebbtide.store.import_sources import ImportSource
from ebbtide.store.repository import Repository
from tests.store.test_imports import run, single
from tests.support.collections import raises
from tests.support.world import World

DATA = b"0123456789"
OTHERS = {"alike": b"9876543210", "shorter": b"0123", "longer": b"0123456789abcdef"}
READS: dict[str, Callable[[Repository], object]] = {
    "whole": lambda lake: lake.objects.get("main", "in"),
    "a range": lambda lake: list(lake.objects.stream("main", "in", start=2, end=5)),
    "a copy": lambda lake: lake.objects.copy("main", "copy", "main", "in"),
    "a copy from elsewhere": lambda lake: lake.objects.put_copy(
        "main", "copy", lake.objects.open("main", "in"), content_type=None, metadata={}
    ),
    "a signed URL": lambda lake: lake.signed_reads.sign("main", "in"),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that was written an hour ago."""
    found = tmp_path / "outside"
    found.write_bytes(DATA)
    before = found.stat().st_mtime - 3600
    os.utime(found, (before, before))
    return found


def test_a_file_that_was_overwritten(repository: Repository, outside: Path) -> None:
    """Also while it is read. A locator compares the size."""
    run(repository, single(outside, "in"))
    assert repository.objects.get("main", "in") == DATA
    locator = repository.locators.sign_path("main", "in").locator
    pieces = repository.objects.stream("main", "in")
    assert next(pieces) == DATA
    for other in OTHERS.values():
        outside.write_bytes(other)
        for read in READS.values():
            with raises("source_changed"):
                read(repository)
    with raises("source_changed"):
        list(pieces)
    with raises("source_changed"):
        repository.locators.read(locator)


def test_the_file_system_names_the_change(world: World, outside: Path) -> None:
    run(world.lake, single(outside, "in"))
    outside.write_bytes(OTHERS["alike"])
    files = EbbtideFileSystem(str(world.directory / "store"), skip_instance_cache=True)
    with pytest.raises(OSError, match="not the one that was imported") as caught:
        files.cat("lake/main/in")
    assert caught.value.errno == errno.ESTALE
    files.close()


def test_an_object_that_was_overwritten(repository: Repository, s3_url: str) -> None:
    storage, name = open_storage(s3_url), new_id()
    storage.put(name, DATA)
    run(repository, ImportSource(f"{s3_url}/{name}", "in", is_prefix=False))
    assert repository.objects.get("main", "in") == DATA
    assert list(repository.objects.stream("main", "in", start=2, end=5)) == [DATA[2:5]]
    for other in OTHERS.values():
        storage.put(name, other)
        for read in READS.values():
            with raises("source_changed"):
                read(repository)


def test_an_object_that_is_overwritten_while_it_is_read(s3_url: str) -> None:
    """Each piece is a request of its own."""
    storage, name = open_storage(s3_url), new_id()
    storage.put(name, bytes(20 << 20))
    found = find_external(f"{s3_url}/{name}")
    assert found is not None
    known = RecordedObject(found.url, found.size_bytes, found.etag, found.last_modified)
    pieces = known.stream()
    next(pieces)
    storage.put(name, b"1" * (20 << 20))
    with raises("source_changed"):
        list(pieces)


def test_what_a_caller_staged(repository: Repository, outside: Path) -> None:
    """Its date and its checksum are the caller's. They may be later, or of another kind."""
    found = find_external(outside.as_uri())
    assert found is not None
    whole = found.last_modified.replace(microsecond=0)
    later = found.last_modified + timedelta(days=1)
    for given in (
        {"mtime": whole},
        {"mtime": later},
        {"checksum": "a" * 64},
        {"checksum": "b" * 32},
    ):
        repository.addresses.stage("main", "in", outside.as_uri(), size_bytes=len(DATA), **given)
        assert repository.objects.get("main", "in") == DATA
    repository.addresses.stage("main", "in", outside.as_uri(), size_bytes=3)
    with raises("source_changed"):
        repository.objects.get("main", "in")
