"""Locators over HTTP: whoever holds one reads, until it ends; and the keys that sign them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import httpx

from tests.support.collected import done, new_collection, new_project, new_repository, refused
from tests.support.server import Server


def signed(http: httpx.Client, repository: str, ref: str = "main", path: str = "a") -> str:
    place = f"/repositories/{repository}/locators"
    return str(done(http.post(place, params={"ref": ref, "path": path}), 201)["locator"])


def test_whoever_holds_one_reads(leasing: Server, leases: httpx.Client) -> None:
    """Without a key; a part of it or all; and nothing else."""
    repository = new_repository(leases, a="abc")
    with leasing.http("reader") as reader:
        token = signed(reader, repository)
    with leasing.http(None) as anybody:
        got = anybody.get(f"/locators/{token}")
        assert (got.status_code, got.content) == (200, b"abc")
        assert got.headers["cache-control"] == "no-store"
        assert "last-modified" not in got.headers
        part = anybody.get(f"/locators/{token}", headers={"Range": "bytes=1-"})
        assert (part.status_code, part.content) == (206, b"bc")
        head = anybody.head(f"/locators/{token}")
        assert (head.headers["content-length"], head.content) == ("3", b"")
        same = anybody.get(f"/locators/{token}", headers={"If-None-Match": head.headers["etag"]})
        assert same.status_code == 304
        refused(anybody.get(f"/locators/{token}/x"), 401, "key_invalid")
        refused(anybody.get("/locators/"), 401, "key_invalid")
        refused(anybody.get(f"/locators/a%2F..%2F{token}"), 400, "token_invalid")
        refused(anybody.delete(f"/locators/{token}"), 405, "route_not_found")


def test_uploads(leasing: Server, leases: httpx.Client) -> None:
    """What was uploaded by itself becomes a file of a collection, and moves no more."""
    repository = new_repository(leases)
    project = new_project(leases, repository)["id"]
    place = f"/repositories/{repository}/uploads"
    with leasing.http("writer") as writer:
        first = done(writer.post(place, content=b"abc", headers={"Content-Type": "x/y"}), 201)
    form = {"content": ("name", b"in a form", "text/plain")}
    second = done(leases.post(place, files=form), 201)
    assert (first["size_bytes"], first["content_type"]) == (3, "x/y")
    tokens = {"plain": first["locator"], "form": second["locator"]}
    made = new_collection(leases, project, locators=tokens)
    content = f"/collections/{made['id']}/files/content"
    assert leases.get(content, params={"path": "plain"}).content == b"abc"
    got = leases.get(content, params={"path": "form"})
    assert (got.text, got.headers["content-type"]) == ("in a form", "text/plain; charset=utf-8")
    long = {"Content-Type": "x" * 300}
    refused(leases.post(place, content=b"x", headers=long), 400, "invalid_argument")


def test_urls(leases: httpx.Client) -> None:
    """What is given reads without a key, and what the storage signs ends before the locator."""
    repository = new_repository(leases, a="abc")
    project = new_project(leases, repository)["id"]
    soon = datetime.now(UTC) + timedelta(minutes=2)
    made = new_collection(leases, project, from_ref={"ref": "main"}, expires_at=soon.isoformat())
    listed = done(leases.get(f"/collections/{made['id']}/files?locators=true"))["results"]
    given = [
        *listed,
        done(leases.post(f"/repositories/{repository}/locators?ref=main&path=a"), 201),
        done(leases.post(f"/repositories/{repository}/uploads", content=b"abc"), 201),
    ]
    for each in given:
        assert httpx.get(each["url"], verify=False).content == b"abc"
        query = parse_qs(urlsplit(each["url"]).query)
        if query:
            signed_at = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%S%z")
            ends_at = signed_at + timedelta(seconds=int(query["X-Amz-Expires"][0]))
            assert ends_at <= datetime.fromisoformat(each["expires_at"])
    assert datetime.fromisoformat(listed[0]["expires_at"]) == soon


def test_keys_that_sign(timed: httpx.Client) -> None:
    """A locator ends with its key. When it ends by time is the store's."""
    token = signed(timed, "lake", path="b")
    rotated = done(timed.post("/signing-keys/rotate"))
    assert (rotated["retired_ids"], rotated["verifying_ids"]) == ([], [token.partition(".")[0]])
    assert timed.get(f"/locators/{token}").status_code == 200
    leaked = signed(timed, "lake", path="b")
    assert leaked.partition(".")[0] == rotated["key_id"]
    done(timed.post("/signing-keys/rotate", json={"at_once": True}))
    refused(timed.get(f"/locators/{leaked}"), 400, "token_key_retired")
    assert timed.get(f"/locators/{signed(timed, 'lake', path='b')}").status_code == 200


def test_what_is_refused(leases: httpx.Client) -> None:
    """What is none, each with a kind of its own, to readers and in new content alike."""
    repository, other = (new_repository(leases, a="abc") for _ in range(2))
    token, foreign = signed(leases, repository), signed(leases, other)
    asked = {"project_id": new_project(leases, repository)["id"], "name": "n"}
    for wrong, kind in ((f"{token}A", "token_invalid"), (token[:-1], "token_truncated")):
        error = refused(leases.get(f"/locators/{httpx.URL(path=wrong)}"), 400, kind)
        assert set(error) - {"detail"} == {"message", "kind"}
        refused(leases.post("/collections", json=asked | {"locators": {"a": wrong}}), 400, kind)
    # Another repository's can be read, and made nothing of here.
    assert leases.get(f"/locators/{foreign}").content == b"abc"
    answer = leases.post("/collections", json=asked | {"locators": {"a": foreign}})
    refused(answer, 400, "token_foreign")
