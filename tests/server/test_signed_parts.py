"""Uploads in parts to signed URLs, by lakeFS's own client, on a real S3 server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import httpx
import lakefs_sdk
import pytest
from lakefs_sdk.exceptions import ApiException

from tests.support.collected import new_repository, refused
from tests.support.server import Server, place_of

PATH: Final = "d/large ü"


class Lake:
    """A repository through lakeFS's client, and one upload of it."""

    def __init__(self, server: Server, parts: int | None = None) -> None:
        self.server = server
        with server.http() as http:
            self.name = new_repository(http, a="0123456789")
        client = server.client().sdk_client
        self.api, self.objects = client.experimental_api, client.objects_api
        self.files_before = self.files()
        begun = self.api.create_presign_multipart_upload(self.name, "main", PATH, parts=parts)
        self.urls: list[str] | None = begun.presigned_urls
        self.address = {"physical_address": begun.physical_address}
        self.upload_id = begun.upload_id
        self.named = {
            "repository": self.name,
            "branch": "main",
            "upload_id": begun.upload_id,
            "path": PATH,
        }

    def sign(self, number: int) -> str:
        asked = lakefs_sdk.UploadPartFrom(**self.address)
        signed = self.api.upload_part(**self.named, part_number=number, upload_part_from=asked)
        return str(signed.presigned_url)

    def complete(self, etags: dict[int, str], **more: Any) -> lakefs_sdk.ObjectStats:
        parts = [lakefs_sdk.UploadPart(part_number=number, etag=etags[number]) for number in etags]
        asked = lakefs_sdk.CompletePresignMultipartUpload(parts=parts, **self.address, **more)
        return self.api.complete_presign_multipart_upload(
            **self.named, complete_presign_multipart_upload=asked
        )

    def abort(self) -> None:
        asked = lakefs_sdk.AbortPresignMultipartUpload(**self.address)
        self.api.abort_presign_multipart_upload(**self.named, abort_presign_multipart_upload=asked)

    def read(self) -> bytes:
        return bytes(self.objects.get_object(self.name, "main", PATH))

    def files(self) -> set[str]:
        """The addresses of all data files."""
        root = f"{self.server.environment['EBBTIDE_STORAGE_URL']}/{self.name}"
        storage, _ = place_of(f"{root}/x")
        return {
            str(address)
            for batch in storage.list("data/")
            for address in batch.column("address").to_pylist()
        }


def put(url: str, data: bytes) -> str:
    """Writes a part; returns the ETag that the storage answered."""
    headers = {"Content-Type": "application/octet-stream"}
    with httpx.Client(verify=False, timeout=60.0) as anybody:
        sent = anybody.put(url, content=data, headers=headers)
    assert sent.status_code == 200, sent.text
    return sent.headers["etag"]


def failed(operation: Callable[[], object], status: int, kind: str) -> None:
    with pytest.raises(ApiException) as error:
        operation()
    found = httpx.Response(200, content=error.value.body).json()
    assert (error.value.status, found["kind"]) == (status, kind)


def test_parts_become_an_object(remote: Server) -> None:
    lake = Lake(remote, parts=2)
    assert lake.urls is not None
    # More than a piece of a stream, so that the part is read by several requests.
    data = {1: bytes(range(256)) * 40_000, 2: b"b", 3: b"", 7: b"last"}
    urls = {1: lake.urls[0], 2: lake.urls[1], 3: lake.sign(3), 7: lake.sign(7)}
    earlier = put(urls[1], b"earlier")
    etags = {number: put(urls[number], data[number]) for number in urls}
    etags[2] = etags[2].strip('"')
    # What is refused leaves the upload.
    for wrong, kind in (
        ({}, "invalid_argument"),
        ({2: etags[2], 1: etags[1]}, "invalid_argument"),
        (etags | {1: earlier}, "part_invalid"),
        (etags | {8: etags[1]}, "part_invalid"),
        ({1: ""}, "part_invalid"),
    ):
        failed(partial(lake.complete, wrong), 400, kind)
    made = lake.complete(etags, content_type="text/x", user_metadata={"Key": "value"})
    whole = b"".join(data.values())
    assert lake.read() == whole
    assert made.checksum == hashlib.sha256(whole).hexdigest()
    assert (made.path, made.size_bytes, made.content_type) == (PATH, len(whole), "text/x")
    assert made.metadata == {"Key": "value"}
    assert lake.objects.stat_object(lake.name, "main", PATH) == made
    assert len(lake.files() - lake.files_before) == 1
    failed(partial(lake.complete, etags), 404, "upload_not_found")
    # The holder of a URL can still write there. The object does not change.
    put(urls[1], b"changed")
    assert lake.read() == whole


def test_a_part_of_another_object(remote: Server) -> None:
    lake = Lake(remote)
    assert lake.urls is None
    source = {"repository": lake.name, "ref": "main", "path": "a", "range": "bytes=1-3"}
    asked = lakefs_sdk.UploadPartCopyFrom(**lake.address, copy_source=source)
    etags = {}
    for number in (1, 2):
        copied = lake.api.upload_part_copy_with_http_info(
            **lake.named, part_number=number, upload_part_copy_from=asked
        )
        assert copied.status_code == 204
        etags[number] = copied.headers["ETag"]
        asked.copy_source.range = None
    # A new URL replaces the copy.
    url = lake.sign(2)
    failed(partial(lake.complete, etags), 400, "part_invalid")
    lake.complete(etags | {2: put(url, b"x")})
    assert lake.read() == b"123x"


def test_an_aborted_upload(remote: Server) -> None:
    lake = Lake(remote, parts=1)
    assert lake.urls is not None
    etag = put(lake.urls[0], b"1")
    assert len(lake.files() - lake.files_before) == 1
    lake.abort()
    assert lake.files() == lake.files_before
    for again in (lake.abort, partial(lake.complete, {1: etag}), partial(lake.sign, 1)):
        failed(again, 404, "upload_not_found")


def test_what_lakefs_refuses(remote: Server) -> None:
    """As lakeFS's own tests have it."""
    lake = Lake(remote)
    place = f"/repositories/{lake.name}/branches/main/staging/pmpu"
    part, parts = f"{place}/{lake.upload_id}/parts", [{"part_number": 1, "etag": "x"}]
    nowhere = {"physical_address": "", "parts": parts}
    with remote.http() as http:
        for method, asked, body in (
            *(("POST", f"{place}?path={each}", None) for each in ("&parts=3", "a&parts=10001")),
            *((method, f"{place}/id?path=a", nowhere) for method in ("PUT", "DELETE")),
            *(("PUT", f"{part}/{number}?path={PATH}", lake.address) for number in (0, 10_001)),
        ):
            answer = http.request(method, asked, json=body)
            assert answer.status_code == 400, answer.text
        away = http.post(place.replace("main", "no"), params={"path": "a"})
        refused(away, 404, "branch_not_found")
        other = http.put(f"{part}/1", params={"path": "other"}, json=lake.address)
        refused(other, 404, "upload_not_found")
