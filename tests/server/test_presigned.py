"""Signed URLs over HTTP, on a real S3 server: what clients get, and where there are none."""

from __future__ import annotations

import time

import httpx
import lakefs

from ebbtide.ids import new_id
from tests.server.conftest import Servers
from tests.support.collected import done, new_repository, refused
from tests.support.server import Server


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
