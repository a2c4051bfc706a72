"""Where a storage is: spellings, nesting, nonsense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.storage import (
    LocalStorage,
    RemoteStorage,
    contains,
    normalize_url,
    object_url,
    open_storage,
    stream_external,
)
from ebbtide.storage.base import CHUNK_BYTES
from tests.support.errors import raises

SPELLINGS = {
    "s3://bucket/": "s3://bucket",
    "s3a://bucket/a/b//": "s3://bucket/a/b",
    "S3N://bucket/A": "s3://bucket/A",
    "s3://bucket/per%20cent é": "s3://bucket/per%20cent é",
    "az://container/a/": "az://container/a",
    "memory://name/": "memory:name",
    "file:///no/where/../here/": "file:///no/here",
    "file://localhost/no": "file:///no",
    "FILE:/no": "file:///no",
    "file:///no%20w%23here": "file:///no%20w%23here",
    "/no/./where//x/": "file:///no/where/x",
    "/": "file:///",
}


@pytest.mark.parametrize("url", SPELLINGS)
def test_spellings(url: str) -> None:
    normal = SPELLINGS[url]
    assert normalize_url(url) == normalize_url(normal) == normal
    options = {"account_name": "test"} if url.startswith("az:") else None
    assert open_storage(url, options).url == normal


NONSENSE = [
    "", "s3:", "s3:///a", "s3:bucket", "s3://bu cket", "s3://bucket/a/../b", "s3://b//a",
    "s3://key:secret@bucket/a", "s3://bucket/a?x=1", "s3://bucket/a#x", "memory:", "memory:a/b",
    "http://host/x", "file://host/x", "file:relative", "file:///a?b", "/a\0b", "x:y", "file:///a%00b",
    "file:///%ff", "file:///a\nb", "file:///\ud800", "/\ud800", "file://[/x",
]  # fmt: skip


def test_nonsense_is_refused_with_a_way_out() -> None:
    for url in NONSENSE:
        for function in (normalize_url, open_storage):
            with raises("invalid_argument", "s3://bucket/prefix", of=InvalidInput):
                function(url)


def test_local_paths_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real dir"
    real.mkdir()
    (tmp_path / "alias").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    spellings = ["real dir", "./real dir/", "alias", str(real), str(tmp_path / "alias" / "."),
                 real.as_uri(), f"file://{tmp_path}/alias", f"{real}/../alias"]  # fmt: skip
    assert {normalize_url(each) for each in spellings} == {real.as_uri()}
    assert {open_storage(each) for each in spellings} == {LocalStorage(str(real))}
    assert open_storage(real.as_uri()).url == real.as_uri()


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("s3://b/a", "s3a://b/a/", True),
        ("s3://b", "s3://b/a/c", True),
        ("s3://b/a", "s3://b/ab", False),
        ("s3://b/a/c", "s3://b/a", False),
        ("s3://b", "s3://bb", False),
        ("s3://b/a", "gs://b/a", False),
        ("memory:a", "memory:a", True),
        ("memory:a", "memory:ab", False),
        ("/no/a", "file:///no/a/b", True),
        ("/no/a", "/no/ab", False),
        ("/", "/no", True),
        ("/", "s3://b", False),
        ("s3://bucket/a", "s3://bucket/a/b?c#d", True),
        ("s3://bucket", "s3a://bucket/?", True),
        ("s3://bucket/a", "s3://bucket/a?/b", False),
    ],
)
def test_containing(outer: str, inner: str, *, expected: bool) -> None:
    assert contains(outer, inner) is expected


def test_containing_looks_through_links(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    assert contains(str(tmp_path / "alias"), str(tmp_path / "real" / "deep" / "not" / "yet"))
    assert contains(str(tmp_path / "real"), str(tmp_path / "alias" / "deep"))
    assert not contains(str(tmp_path / "real" / "deep"), str(tmp_path / "alias"))


def test_two_names_of_one_directory_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a second mount, which this test can't make: only the identity is the same."""
    (tmp_path / "one" / "x").mkdir(parents=True)
    (tmp_path / "two" / "x").mkdir(parents=True)
    real_stat = os.stat

    def stat(path: str | Path, **options: bool) -> os.stat_result:
        return real_stat(tmp_path / "one" if Path(path) == tmp_path / "two" else path, **options)

    assert not contains(str(tmp_path / "one"), str(tmp_path / "two" / "x"))
    monkeypatch.setattr(os, "stat", stat)
    assert contains(str(tmp_path / "one"), str(tmp_path / "two" / "x"))


def test_options() -> None:
    options = {"region": "x", "access_key_id": "key", "secret_access_key": "hidden"}
    storage = open_storage("s3://bucket", options)
    assert storage == open_storage("s3a://bucket/", dict(reversed(options.items())))
    assert storage != open_storage("s3://bucket")
    assert isinstance(storage, RemoteStorage)
    assert "hidden" not in repr(storage)
    for url, wrong in (("s3://bucket", {"bogus": "1"}), ("/tmp", {"region": "x"})):
        with raises("invalid_setting", of=InvalidInput):
            open_storage(url, wrong)


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("s3a://bucket/key", "s3://bucket/key"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("s3n://bucket/a?b/c#d?e f", "s3://bucket/a?b/c#d?e f"),
        ("FILE://localhost/no/../x", "file:///x"),
        ("file:////no//x", "file:///no/x"),
        ("file:///no/%2e%2e/a%2Fb%23", "file:///a/b%23"),
    ],
)
def test_spellings_of_objects(url: str, normal: str) -> None:
    assert object_url(url) == object_url(normal) == normal


NO_OBJECTS = [
    "", "s3://bucket", "s3://bucket/", "s3://bucket/dir/", "s3://", "s3:key", "memory:x",
    "memory://x/y", "file:///", "file:///no/..", "file:///no/", "file:no", "http://host/x",
    "s3://b//x", "s3://b/../x", "s3://b/\ud800", "file:///x%00",
]  # fmt: skip


def test_urls_that_name_no_object() -> None:
    for url in NO_OBJECTS:
        for function in (object_url, stream_external):
            with raises("invalid_address", "s3://bucket/", of=InvalidInput):
                function(url)


def test_streams_of_objects_anywhere(tmp_path: Path) -> None:
    """They come in pieces."""
    (tmp_path / "some where").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "some where")
    for name in ("x", "é ü", "a%20b", "a#b?c", "a+b", "x#12", ".hidden", "[1]"):
        file = tmp_path / "some where" / name
        file.write_bytes(b"0123456789")
        url = file.as_uri()
        for start, end in ((0, None), (3, 5), (8, 50), (10, None)):
            assert b"".join(stream_external(url, start=start, end=end)) == b"0123456789"[start:end]
        through = f"file://localhost{tmp_path}/alias/./{url.rpartition('/')[2]}"
        assert b"".join(stream_external(through)) == b"0123456789"
    file.write_bytes(b"x" * (CHUNK_BYTES + 5))
    sizes = [len(piece) for piece in stream_external(file.as_uri())]
    assert sum(sizes) == CHUNK_BYTES + 5
    assert len(sizes) > 1 and max(sizes) <= CHUNK_BYTES


def test_streams_of_nothing(tmp_path: Path) -> None:
    """Told at the call, before the first piece is asked for."""
    (tmp_path / "directory").mkdir()
    for name in ("absent", "absent/x", "directory"):
        with raises("object_not_found", of=NotFound):
            stream_external((tmp_path / name).as_uri())
    with pytest.raises(NotFound) as caught:  # in the root directory
        stream_external("file:///no-such-file-here")
    assert caught.value.details == {"address": "no-such-file-here"}
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with pytest.raises(EbbtideError):
        stream_external(f"file://{tmp_path}/one/x")


def test_streams_from_a_bucket_keep_the_key(s3_url: str) -> None:
    """Keys are taken as they are: nothing in them is percent-encoded."""
    place = f"{s3_url}/{new_id()}"
    for key in ("a?b/c#d", "q?&=;", "#", "per%3Fcent", "a/per%20cent é"):
        open_storage(place).put(key, b"0123")
        for url in (place, place.replace("s3:", "s3a:")):
            assert b"".join(stream_external(f"{url}/{key}", start=1, end=3)) == b"12"


def test_google_is_refused_with_a_reason() -> None:
    assert normalize_url("gcs://bucket/lake/") == "gs://bucket/lake"
    with raises("invalid_argument", "not supported", of=InvalidInput):
        open_storage("gs://bucket/lake")
