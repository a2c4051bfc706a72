"""ETags: the MD5 of what a client wrote over S3, and for all else a text that no client takes for
one. Conditions also take the ETags that earlier versions gave."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import lakefs
import pytest

from ebbtide.doors.s3.object_headers import lists
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.etags import ETAG, Etag, etag_of, metadata_of_parts
from tests.doors.s3.conftest import Client
from tests.doors.s3.test_objects import code_of
from tests.support.server import Server
from tests.support.world import START

DATA = b"0123456789"
MD5 = hashlib.md5(DATA).hexdigest()
SHA256 = hashlib.sha256(DATA).hexdigest()


def seen(s3: Client, bucket: str, key: str) -> set[str]:
    """The ETags that all kinds of reads show."""
    where = {"Bucket": bucket, "Key": key}
    listed = [
        *s3.list_objects(Bucket=bucket, Prefix=key)["Contents"],
        *s3.list_objects_v2(Bucket=bucket, Prefix=key)["Contents"],
    ]
    attributes = s3.get_object_attributes(**where, ObjectAttributes=["ETag"])["ETag"]
    reads = (s3.get_object(**where), s3.head_object(**where), s3.get_object(**where, PartNumber=1))
    return {each["ETag"].strip('"') for each in (*reads, *listed)} | {attributes}


def test_the_etag_of_an_upload_is_its_md5(s3: Client, repo: lakefs.Repository) -> None:
    put = s3.put_object(Bucket=repo.id, Key="main/a", Body=DATA, Metadata={"x": "y"})
    assert put["ETag"] == f'"{MD5}"'
    source = f"{repo.id}/main/a"
    replaced = {"MetadataDirective": "REPLACE", "Metadata": {"new": "1"}}
    for key, more in (("main/b", {}), ("main/c", replaced)):
        copied = s3.copy_object(Bucket=repo.id, Key=key, CopySource=source, **more)
        assert copied["CopyObjectResult"]["ETag"] == f'"{MD5}"'
    repo.branch("main").commit("m")
    for key in ("main/a", "main/b", "main/c"):
        assert seen(s3, repo.id, key) == {MD5}


def test_every_other_etag_has_a_dash(s3: Client, server: Server, repo: lakefs.Repository) -> None:
    """What the API wrote has no MD5; an importer may give any text, as for an encrypted object."""
    repo.branch("main").object("api").upload(DATA, mode="wb")
    s3.copy_object(Bucket=repo.id, Key="main/copy", CopySource=f"{repo.id}/main/api")
    for key in ("main/api", "main/copy"):
        assert seen(s3, repo.id, key) == {f"{SHA256}-1"}
    place = f"/repositories/{repo.id}/branches/main/objects"
    with server.http() as http:
        for checksum in (MD5, "", 'a "b"', "ü", f"{MD5}-3"):
            staged = {"physical_address": "s3://elsewhere/a", "checksum": checksum, "size_bytes": 1}
            assert http.put(place, params={"path": "it"}, json=staged).status_code == 201
            etag = s3.head_object(Bucket=repo.id, Key="main/it")["ETag"]
            assert re.fullmatch(r'"[\x21\x23-\x7e]+-[0-9]+"', etag), checksum


def test_conditions_take_old_etags_too(s3: Client, bucket: str) -> None:
    """A client may have kept the SHA-256 that it was told."""
    where = {"Bucket": bucket, "Key": "main/a"}
    copy = {"CopySource": f"{bucket}/main/a", "Key": "main/b"}
    calls: list[tuple[Callable[..., Any], str, dict[str, Any]]] = [
        (s3.head_object, "IfMatch", {}),
        (s3.put_object, "IfMatch", {"Body": DATA}),
        (s3.copy_object, "CopySourceIfMatch", copy),
        (s3.delete_object, "IfMatch", {}),
    ]
    s3.put_object(**where, Body=DATA)
    for call, name, more in calls:
        unmet = where | more | {name: f'"{SHA256[:-1]}"'}
        assert code_of(lambda: call(**unmet))[1] == 412  # noqa: B023
        call(**where | more, **{name: f'"{SHA256}"'})
    # What a client has is not sent again.
    s3.put_object(**where, Body=DATA)
    for etag in (f'"{MD5}"', f'"{SHA256}"'):
        assert code_of(lambda: s3.get_object(**where, IfNoneMatch=etag)) == ("304", 304)  # noqa: B023
        unmet = where | copy | {"CopySourceIfNoneMatch": etag}
        assert code_of(lambda: s3.copy_object(**unmet))[1] == 412  # noqa: B023


def entry_with(address: str = "data/a/b", **metadata: str) -> Entry:
    return Entry("a", address, 10, SHA256, START, metadata=metadata)


def test_what_is_no_etag_of_s3() -> None:
    """Metadata of an earlier version has none, and that of an import does not describe it."""
    old = entry_with(color="blue")
    for header in (f'"{SHA256}-1"', f'"{SHA256}"', SHA256, f'"x", W/"{SHA256}"', "*"):
        assert lists(header, old)
    assert not lists(f'"{MD5}", ""', old)
    wrong = ("", "x", f"{MD5}-", f'{MD5}"', MD5.upper(), SHA256)
    others = [entry_with(**{ETAG: text}) for text in wrong]
    for entry in (old, *others, entry_with("s3://elsewhere/a", **{ETAG: MD5})):
        assert etag_of(entry) == f"{SHA256}-1", entry.metadata
    # Parts of an earlier version have a SHA-256. They can be completed.
    assert re.fullmatch(r"[0-9a-f]{32}-2", metadata_of_parts([SHA256, MD5])[ETAG])


@pytest.mark.parametrize("data", [DATA, [DATA[:3], b"", DATA[3:]], iter([DATA])])
def test_bytes_are_read_once(data: Any) -> None:
    etag = Etag()
    read = etag.read(data)
    assert (read if isinstance(read, bytes) else b"".join(read)) == DATA
    assert etag.text() == MD5


def test_the_api_takes_the_etag_of_s3(s3: Client, server: Server, bucket: str) -> None:
    """Its own ETag is the SHA-256. In lakeFS both are one text."""
    etag = s3.put_object(Bucket=bucket, Key="main/a", Body=DATA)["ETag"]
    place, where = f"/repositories/{bucket}", {"path": "a"}
    read, write = f"{place}/refs/main/objects", f"{place}/branches/main/objects"
    with server.http() as http:
        for tag in (etag, f'"{SHA256}"'):
            same = http.get(read, headers={"If-None-Match": tag}, params=where)
            assert same.status_code == 304
            done = http.post(write, headers={"If-Match": tag}, content=DATA, params=where)
            assert done.status_code == 201
            s3.put_object(Bucket=bucket, Key="main/a", Body=DATA)
        for tag in ('""', '"x"'):
            unmet = http.post(write, headers={"If-Match": tag}, content=DATA, params=where)
            assert unmet.status_code == 412
