"""Uploads in parts to signed URLs, by lakeFS's own client, on a real S3 server."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import httpx
import lakefs_sdk
import pytest
from lakefs_sdk.exceptions import ApiException

from tests.server.conftest import Servers
from tests.support.collected import new_repository, refused
from tests.support.server import Server, place_of

PATH: Final = "d/large ü"


@pytest.fixture
def remote(servers: Servers) -> Server:
    """A server on PostgreSQL and S3 whose leases last."""
    return servers("shared", EBBTIDE_LEASE_TTL="1h")


class Lake:
    """A repository through lakeFS's client, and through no client at all."""

    def __init__(self, server: Server) -> None:
        self.server = server
        with server.http() as http:
            self.name = new_repository(http, a="0123456789")
        client = server.client().sdk_client
        self.api = client.experimental_api
        self.objects = client.objects_api

    def begin(self, parts: int | None = None) -> lakefs_sdk.PresignMultipartUpload:
        """Begins an upload."""
        return self.api.create_presign_multipart_upload(self.name, "main", PATH, parts=parts)

    def named(self, begun: lakefs_sdk.PresignMultipartUpload) -> dict[str, str]:
        """The arguments that name an upload."""
        return {
            "repository": self.name,
            "branch": "main",
            "upload_id": begun.upload_id,
            "path": PATH,
        }

    def sign(self, begun: lakefs_sdk.PresignMultipartUpload, number: int) -> str:
        """A URL for a part."""
        asked = lakefs_sdk.UploadPartFrom(physical_address=begun.physical_address)
        signed = self.api.upload_part(
            **self.named(begun), part_number=number, upload_part_from=asked
        )
        return str(signed.presigned_url)

    def complete(
        self, begun: lakefs_sdk.PresignMultipartUpload, etags: dict[int, str], **more: Any
    ) -> lakefs_sdk.ObjectStats:
        """Completes an upload."""
        parts = [lakefs_sdk.UploadPart(part_number=number, etag=etags[number]) for number in etags]
        asked = lakefs_sdk.CompletePresignMultipartUpload(
            physical_address=begun.physical_address, parts=parts, **more
        )
        return self.api.complete_presign_multipart_upload(
            **self.named(begun), complete_presign_multipart_upload=asked
        )

    def abort(self, begun: lakefs_sdk.PresignMultipartUpload) -> None:
        """Aborts an upload."""
        asked = lakefs_sdk.AbortPresignMultipartUpload(physical_address=begun.physical_address)
        self.api.abort_presign_multipart_upload(
            **self.named(begun), abort_presign_multipart_upload=asked
        )

    def read(self) -> bytes:
        """The bytes of the object."""
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


@pytest.fixture
def lake(remote: Server) -> Lake:
    return Lake(remote)


def put(url: str, data: bytes) -> str:
    """Writes a part; returns the ETag that the storage answered."""
    headers = {"Content-Type": "application/octet-stream"}
    with httpx.Client(verify=False, timeout=60.0) as anybody:
        sent = anybody.put(url, content=data, headers=headers)
    assert sent.status_code == 200, sent.text
    return sent.headers["etag"]


def kind_of(error: pytest.ExceptionInfo[ApiException]) -> tuple[int, str]:
    found = httpx.Response(200, content=error.value.body).json()
    return error.value.status, found["kind"]


def test_parts_become_an_object(lake: Lake) -> None:
    before = lake.files()
    begun = lake.begin(parts=2)
    first, second = begun.presigned_urls
    # More than a piece of a stream, so that the part is read by several requests.
    data = {1: bytes(range(256)) * 40_000, 2: b"b", 3: b"", 7: b"last"}
    urls = {1: first, 2: second, 3: lake.sign(begun, 3), 7: lake.sign(begun, 7)}
    put(urls[1], b"earlier")
    etags = {number: put(urls[number], data[number]) for number in urls}
    etags[2] = etags[2].strip('"')
    made = lake.complete(begun, etags, content_type="text/x", user_metadata={"Key": "value"})
    whole = b"".join(data.values())
    assert lake.read() == whole
    assert made.checksum == hashlib.sha256(whole).hexdigest()
    assert (made.path, made.size_bytes, made.content_type) == (PATH, len(whole), "text/x")
    assert made.metadata == {"Key": "value"}
    stat = lake.objects.stat_object(lake.name, "main", PATH)
    assert stat == made
    assert len(lake.files() - before) == 1
    with pytest.raises(ApiException) as error:
        lake.complete(begun, etags)
    assert kind_of(error) == (404, "upload_not_found")
    # The holder of a URL can still write there. The object does not change.
    put(first, b"changed")
    assert lake.read() == whole


def test_a_part_of_another_object(lake: Lake) -> None:
    begun = lake.begin()
    assert begun.presigned_urls is None
    asked = lakefs_sdk.UploadPartCopyFrom(
        physical_address=begun.physical_address,
        copy_source={"repository": lake.name, "ref": "main", "path": "a", "range": "bytes=1-3"},
    )
    etags = {}
    for number in (1, 2):
        copied = lake.api.upload_part_copy_with_http_info(
            **lake.named(begun), part_number=number, upload_part_copy_from=asked
        )
        assert copied.status_code == 204
        etags[number] = copied.headers["ETag"]
        asked.copy_source.range = None
    # A new URL replaces the copy.
    lake.sign(begun, 2)
    with pytest.raises(ApiException) as error:
        lake.complete(begun, etags)
    assert kind_of(error) == (400, "part_invalid")
    etags[2] = put(lake.sign(begun, 2), b"x")
    lake.complete(begun, etags)
    assert lake.read() == b"123x"


def test_an_aborted_upload(lake: Lake) -> None:
    before = lake.files()
    begun = lake.begin(parts=1)
    etag = put(begun.presigned_urls[0], b"1")
    assert len(lake.files()) == len(before) + 1
    lake.abort(begun)
    assert lake.files() == before
    for again in (
        lambda: lake.abort(begun),
        lambda: lake.complete(begun, {1: etag}),
        lambda: lake.sign(begun, 1),
    ):
        with pytest.raises(ApiException) as error:
            again()
        assert kind_of(error) == (404, "upload_not_found")


def test_refused_completes_leave_the_upload(lake: Lake) -> None:
    begun = lake.begin(parts=3)
    etags = {number: put(begun.presigned_urls[number - 1], b"%d" % number) for number in (1, 2)}
    for wrong, kind in (
        ({}, "invalid_argument"),
        ({2: etags[2], 1: etags[1]}, "invalid_argument"),
        ({1: etags[2]}, "part_invalid"),
        ({1: etags[1], 3: etags[1]}, "part_invalid"),
        ({4: etags[1]}, "part_invalid"),
        ({1: ""}, "part_invalid"),
    ):
        with pytest.raises(ApiException) as error:
            lake.complete(begun, wrong)
        assert kind_of(error) == (400, kind)
    overwritten = put(begun.presigned_urls[0], b"one")
    with pytest.raises(ApiException) as error:
        lake.complete(begun, etags)
    assert kind_of(error) == (400, "part_invalid")
    lake.complete(begun, {1: overwritten, 2: etags[2]})
    assert lake.read() == b"one2"


def test_what_lakefs_refuses(lake: Lake) -> None:
    """As lakeFS's own tests have it."""
    with lake.server.http() as http:
        place = f"/repositories/{lake.name}/branches/main/staging/pmpu"
        for path, parts in (("", 3), ("a", -1), ("a", 10_001)):
            answer = http.post(place, params={"path": path, "parts": parts})
            assert answer.status_code == 400, answer.text
        away = http.post(place.replace("main", "no"), params={"path": "a"})
        refused(away, 404, "branch_not_found")
        listed = [{"part_number": 1, "etag": "x"}]
        for path, address in (("", "addr"), ("a", "")):
            body = {"physical_address": address, "parts": listed}
            for method in ("PUT", "DELETE"):
                answer = http.request(method, f"{place}/id", params={"path": path}, json=body)
                assert answer.status_code == 400, answer.text
        body = {"physical_address": "addr", "parts": listed}
        missing = http.put(
            "/repositories/no/branches/main/staging/pmpu/id", params={"path": "a"}, json=body
        )
        refused(missing, 404, "repository_not_found")
        begun = lake.begin()
        named = {"physical_address": begun.physical_address}
        for number in (0, 10_001, "x"):
            asked = f"{place}/{begun.upload_id}/parts/{number}"
            assert http.put(asked, params={"path": PATH}, json=named).status_code == 400
        other = http.put(f"{place}/{begun.upload_id}/parts/1", params={"path": "other"}, json=named)
        refused(other, 404, "upload_not_found")


def test_a_storage_that_signs_nothing(servers: Servers) -> None:
    with servers("local", EBBTIDE_LEASE_TTL="1h").http() as http:
        assert not http.get("/config").json()["storage_config"]["pre_sign_multipart_upload"]
        name = new_repository(http)
        answer = http.post(
            f"/repositories/{name}/branches/main/staging/pmpu", params={"path": "a", "parts": 1}
        )
        refused(answer, 400, "presign_unsupported")
