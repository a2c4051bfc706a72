"""Signed URLs over HTTP, on a real S3 server: what clients get, and where there are none; and
uploads in parts to such URLs, by lakeFS's own client."""

from __future__ import annotations

import hashlib
import time
from functools import partial
from typing import Any, Final

import httpx
import lakefs
import lakefs_sdk

from ebbtide.ids import new_id
from tests.doors.s3.test_multipart import files
from tests.server.test_client import failed
from tests.support.collected import done, new_repository, refused
from tests.support.server import Server
from tests.support.servers import Servers


def test_all_ways_to_a_signed_url(remote: Server) -> None:
    with remote.http() as http, httpx.Client(verify=False, timeout=60.0) as anybody:
        config = http.get("/config").json()["storage_config"]
        assert config["pre_sign_support"] and config["pre_sign_multipart_upload"]
        name = new_repository(http, a="committed")
        place = f"/repositories/{name}/refs/main/objects"
        staged = f"/repositories/{name}/branches/main/objects"
        done(http.post(staged, params={"path": "d/b"}, content=b"staged"), 201)
        for path, data in (("a", b"committed"), ("d/b", b"staged")):
            asked = {"path": path, "presign": "true"}
            sent = http.get(place, params=asked)
            assert (sent.status_code, sent.headers["cache-control"]) == (302, "no-store")
            got = anybody.get(sent.headers["location"], headers={"Range": "bytes=1-"})
            assert (got.status_code, got.content) == (206, data[1:])
            head = http.head(place, params=asked)
            assert head.status_code == 302
            length = anybody.head(head.headers["location"]).headers["content-length"]
            assert length == str(len(data))
            plain = done(http.get(f"{place}/stat", params={"path": path}))
            stat = done(http.get(f"{place}/stat", params=asked))
            assert anybody.get(stat["physical_address"]).content == data
            assert 2400 < stat["physical_address_expiry"] - time.time() < 3600
            changed = {"physical_address", "physical_address_expiry"}
            assert all(stat[key] == plain[key] for key in plain.keys() - changed)
            etag = {"If-None-Match": f'"{plain["checksum"]}"'}
            assert http.get(place, params=asked, headers=etag).status_code == 304
        listed = done(http.get(f"{place}/ls", params={"presign": "true"}))["results"]
        contents = [anybody.get(each["physical_address"]).content for each in listed]
        assert contents == [b"committed", b"staged"]
        grouped = done(http.get(f"{place}/ls", params={"presign": "true", "delimiter": "/"}))
        found = [(each["path"], bool(each["physical_address"])) for each in grouped["results"]]
        assert found == [("a", True), ("d/", False)]


def test_lakefs_own_client(remote: Server) -> None:
    """It signs because the configuration says so."""
    repo = lakefs.Repository(f"r-{new_id()}", client=remote.client())
    repo.create(storage_namespace=f"local://{repo.id}")
    branch = repo.branch("main")
    made = branch.object("a").upload(b"abc", content_type="text/x", metadata={"k": "v"})
    assert made.stat().content_type == "text/x"
    assert made.reader().read() == b"abc"
    branch.commit("m")
    assert repo.ref("main").object("a").reader(pre_sign=True).read() == b"abc"
    assert made.stat(pre_sign=True).physical_address.startswith("http://")
    signed = branch.object("b").upload(b"more", pre_sign=True)
    assert signed.reader(pre_sign=False).read() == b"more"


def test_a_storage_that_signs_nothing(servers: Servers) -> None:
    """And leases of no time: a URL that would have ended at once is not offered."""
    for server in (servers("local", EBBTIDE_LEASE_TTL="1h"), servers("shared")):
        with server.http() as http:
            config = http.get("/config").json()["storage_config"]
            assert not config["pre_sign_support"] and not config["pre_sign_multipart_upload"]
            name = new_repository(http, a="1")
            place = f"/repositories/{name}/refs/main/objects"
            asked = {"path": "a", "presign": "true"}
            for ask in (place, f"{place}/stat", f"{place}/ls"):
                refused(http.get(ask, params=asked), 400, "presign_unsupported")
            assert http.head(place, params=asked).status_code == 400
            assert http.get(place, params={**asked, "presign": "false"}).content == b"1"
    with servers("local", EBBTIDE_LEASE_TTL="1h").http() as http:
        upload = f"/repositories/{new_repository(http)}/branches/main/staging/pmpu"
        refused(http.post(upload, params={"path": "a", "parts": 1}), 400, "presign_unsupported")


PATH: Final = "d/large ü"


class Lake:
    """A repository through lakeFS's client, and one upload of it."""

    def __init__(self, server: Server, parts: int | None = None) -> None:
        with server.http() as http:
            self.name = new_repository(http, a="0123456789")
        client = server.client().sdk_client
        self.api, self.objects = client.experimental_api, client.objects_api
        self.files_before = files(server, self.name)
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


def put(url: str, data: bytes) -> str:
    """Writes a part; returns the ETag that the storage answered."""
    headers = {"Content-Type": "application/octet-stream"}
    with httpx.Client(verify=False, timeout=60.0) as anybody:
        sent = anybody.put(url, content=data, headers=headers)
    assert sent.status_code == 200, sent.text
    return sent.headers["etag"]


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
        failed(400, partial(lake.complete, wrong), kind)
    made = lake.complete(etags, content_type="text/x", user_metadata={"Key": "value"})
    whole = b"".join(data.values())
    assert lake.read() == whole
    assert made.checksum == hashlib.sha256(whole).hexdigest()
    assert (made.path, made.size_bytes, made.content_type) == (PATH, len(whole), "text/x")
    assert made.metadata == {"Key": "value"}
    assert lake.objects.stat_object(lake.name, "main", PATH) == made
    assert len(files(remote, lake.name) - lake.files_before) == 1
    failed(404, partial(lake.complete, etags), "upload_not_found")
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
    failed(400, partial(lake.complete, etags), "part_invalid")
    lake.complete(etags | {2: put(url, b"x")})
    assert lake.read() == b"123x"


def test_an_aborted_upload(remote: Server) -> None:
    lake = Lake(remote, parts=1)
    assert lake.urls is not None
    etag = put(lake.urls[0], b"1")
    assert len(files(remote, lake.name) - lake.files_before) == 1
    lake.abort()
    assert files(remote, lake.name) == lake.files_before
    for again in (lake.abort, partial(lake.complete, {1: etag}), partial(lake.sign, 1)):
        failed(404, again, "upload_not_found")


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
