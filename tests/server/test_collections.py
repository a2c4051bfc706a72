"""Collections and their files over HTTP. Names, states, lists and races are the store's, and are
tested there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from ebbtide.errors import Gone
from ebbtide.ids import new_id
from ebbtide.server.errors import answer_of
from ebbtide.store.embedded import Store
from tests.support.app import serving
from tests.support.clock import ManualClock
from tests.support.collected import (
    done,
    listed,
    new_collection,
    new_project,
    new_repository,
    refused,
)
from tests.support.server import Server

FILES = {"a/x": "xx", "a/y": "y", "b": "", "c/ü d": "text"}


@pytest.fixture
def http(leasing: Server) -> Iterator[httpx.Client]:
    """An admin of a server whose locators last."""
    with leasing.http() as client:
        yield client


@pytest.fixture
def timed(store: Store) -> Iterator[httpx.Client]:
    """The server of a store with a clock that the test sets, and files in a repository `lake`."""
    lake = store.create_repository("lake", storage_url=f"memory:{new_id()}")
    for path, text in FILES.items():
        lake.objects.put("main", path, text.encode())
    lake.commits.commit("main", "files")
    with serving(store) as client:
        yield client


def paths(found: list[dict[str, Any]]) -> list[str]:
    return [each["path"] for each in found]


def content_hash(files: dict[str, str]) -> str:
    """As the documents define it."""
    digest = hashlib.sha256()
    for path, text in sorted(files.items(), key=lambda item: item[0].encode()):
        data = text.encode()
        checksum = hashlib.sha256(data).hexdigest()
        digest.update(f"{path}\0{len(data)}\0{checksum}\0".encode())
    return digest.hexdigest()


def read(http: httpx.Client, collection: dict[str, Any], **params: Any) -> dict[str, str]:
    """Every file, by path."""
    place = f"/collections/{collection['id']}/files"
    found = listed(http, place, amount=3, **params)
    return {
        path: http.get(f"{place}/content", params={"path": path, **params}).text
        for path in paths(found)
    }


def test_content_from_everywhere(http: httpx.Client) -> None:
    """Whatever it was made of, equal files are equal content."""
    repository = new_repository(http, **FILES)
    project = new_project(http, repository)["id"]
    empty = new_collection(http, project, "empty")
    assert (empty["file_count"], empty["content_hash"]) == (0, content_hash({}))
    whole = new_collection(http, project, "whole", from_ref={"ref": "main"})
    assert (whole["file_count"], whole["size_bytes"], whole["version"]) == (4, 7, 1)
    assert whole["content_hash"] == content_hash(FILES)
    assert read(http, whole) == FILES
    copied = new_collection(http, project, "copied", from_collection={"collection_id": whole["id"]})
    place = f"/collections/{whole['id']}/files"
    tokens = {
        each["path"]: each["locator"] for each in listed(http, place, locators=True, amount=100)
    }
    located = new_collection(http, project, "located", locators=tokens)
    assert {each["content_hash"] for each in (whole, copied, located)} == {content_hash(FILES)}
    assert read(http, located) == FILES

    # A locator wins over a collection, and that over a commit.
    mixed = new_collection(
        http,
        project,
        "mixed",
        from_ref={"ref": "main", "prefix": "a/", "into": "n/"},
        from_collection={"collection_id": whole["id"], "prefix": "c/", "into": "n/"},
        locators={"n/x": tokens["a/y"]},
    )
    assert read(http, mixed) == {"n/x": "y", "n/y": "y", "n/ü d": "text"}
    emptied = http.patch(f"/collections/{mixed['id']}", json={"replaces": True})
    assert done(emptied)["content_hash"] == content_hash({})


def test_files(http: httpx.Client) -> None:
    """Listed, read in ranges, put, deleted; each change is a version that may be kept."""
    repository = new_repository(http, **FILES)
    project = new_project(http, repository)["id"]
    made = new_collection(http, project, from_ref={"ref": "main"})
    place = f"/collections/{made['id']}/files"
    assert paths(listed(http, place, delimiter="/")) == ["a/", "b", "c/"]
    assert paths(listed(http, place, delimiter="/", locators=True)) == ["a/", "b", "c/"]
    assert paths(listed(http, place, prefix="a/")) == ["a/x", "a/y"]

    big = bytes(range(256)) * 20_000
    put: dict[str, Any] = {"path": "big", "keep_version": True}
    headers = {"Content-Type": "x/y", "X-Lakefs-Meta-Who": "me"}
    pieces = (big[start : start + 65536] for start in range(0, len(big), 65536))
    changed = done(http.put(place, params=put, content=pieces, headers=headers))
    assert (changed["version"], changed["file_count"]) == (2, 5)

    def ask(method: str, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return http.request(method, f"{place}/content", params={"path": "big"}, headers=named)

    got = ask("GET")
    assert (got.content, got.headers["content-type"]) == (big, "x/y")
    part = ask("GET", Range="bytes=256-511")
    assert (part.status_code, part.content) == (206, big[256:512])
    head = ask("HEAD")
    assert (head.headers["content-length"], head.content) == (str(len(big)), b"")
    assert ask("GET", If_None_Match=head.headers["etag"]).status_code == 304
    behind = ask("GET", Range=f"bytes={len(big)}-")
    refused(behind, 416, "range_invalid")
    (entry,) = listed(http, place, prefix="big")
    assert (entry["metadata"], entry["checksum"]) == (
        {"who": "me"},
        hashlib.sha256(big).hexdigest(),
    )

    form = {"content": ("name", b"in a form", "text/plain")}
    done(http.put(place, params={"path": "b"}, files=form))
    assert http.get(f"{place}/content", params={"path": "b"}).text == "in a form"
    versions_of_files(http, made, place)


def versions_of_files(http: httpx.Client, made: dict[str, Any], place: str) -> None:
    """The third version of `made`, which has FILES as its first, and changes of it."""
    changed = done(http.delete(place, params={"path": "a/"}))
    assert (changed["version"], paths(listed(http, place))) == (4, ["b", "big", "c/ü d"])
    done(http.delete(place, params={"path": "big", "keep_version": True}))

    versions = listed(http, f"/collections/{made['id']}/versions", amount=100)
    assert [each["version"] for each in versions] == [4, 1]
    first = {"before": 4, "amount": 1}
    page = done(http.get(f"/collections/{made['id']}/versions", params=first))
    assert [each["version"] for each in page["results"]] == [1]
    assert versions[1]["content_hash"] == content_hash(FILES)
    assert read(http, made, version=1) == FILES
    diff = {"other": made["id"], "version": 1}
    changes = listed(http, f"/collections/{made['id']}/diff", **diff)
    assert [(each["type"], each["path"]) for each in changes] == [
        ("removed", "a/x"),
        ("removed", "a/y"),
        ("changed", "b"),
    ]
    done(http.delete(f"/collections/{made['id']}/versions/1"), 204)
    for answer in (
        http.delete(f"/collections/{made['id']}/versions/1"),
        http.delete(f"/collections/{made['id']}/versions/{10**30}"),
        http.get(place, params={"version": 1}),
        http.get(f"{place}/content", params={"path": "b", "version": 3}),
    ):
        refused(answer, 404, "version_not_found")


def test_an_upload_that_breaks_off_changes_nothing(http: httpx.Client) -> None:
    made = new_collection(http, new_project(http, new_repository(http))["id"])
    place = f"/collections/{made['id']}/files"
    form = b'--x\r\nContent-Disposition: form-data; name="content"\r\n\r\nhalf of it'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = http.put(place, params={"path": "a"}, content=form, headers=headers)
    refused(answer, 400, "upload_broken")
    for path in ("a" * 1025, ""):
        refused(http.put(place, params={"path": path}, content=b"x"), 400, "invalid_path")
    assert done(http.get(f"/collections/{made['id']}")) == made


def test_found_by_path_and_content(http: httpx.Client) -> None:
    repository = new_repository(http, **FILES)
    outer = new_project(http, repository, "outer")["id"]
    inner = new_project(http, repository, "inner", parent_id=outer)["id"]
    made = new_collection(http, inner, from_ref={"ref": "main"})
    new_collection(http, inner, "b")
    by_name = {"project_id": inner, "name": "c"}
    assert done(http.get("/collections", params=by_name))["results"] == [made]
    by_hash = {"repository": repository, "content_hash": made["content_hash"]}
    by_path = {"repository": repository, "path": "outer/inner/c"}
    for params in (by_hash, by_path):
        assert done(http.get("/collections", params=params))["results"] == [made]
    done(http.delete(f"/collections/{made['id']}"), 204)
    for params in (by_hash, by_path):
        error = refused(http.get("/collections", params=params), 404, "collection_not_found")
        assert "restore" in error["message"]
        trashed = http.get("/collections", params={**params, "include_expired": True})
        assert done(trashed)["results"][0]["state"] == "trashed"
    for wrong in (
        {"repository": repository},
        {"repository": repository, "path": "a", "content_hash": "b"},
        {"project_id": outer, "content_hash": "b"},
        {"content_hash": "b"},
    ):
        refused(http.get("/collections", params=wrong), 400, "invalid_argument")


def test_data_that_is_not_kept(http: httpx.Client) -> None:
    """Names, sizes and checksums are there, bytes and locators are not."""
    project = new_project(http, new_repository(http, **FILES))["id"]
    made = new_collection(http, project, from_ref={"ref": "main"}, replication_desired=0)
    other = new_collection(
        http, project, "other", from_ref={"ref": "main", "prefix": "a/x", "into": "a/x"}
    )
    place = f"/collections/{made['id']}/files"
    assert len(listed(http, place)) == 4
    changes = listed(http, f"/collections/{made['id']}/diff", other=other["id"])
    assert paths(changes) == ["a/y", "b", "c/ü d"]
    source = {"name": "n", "project_id": project, "from_collection": {"collection_id": made["id"]}}
    for answer in (
        http.get(f"{place}/content", params={"path": "b"}),
        http.get(place, params={"locators": True}),
        http.post("/collections", json=source),
    ):
        refused(answer, 410, "data_released")
    raised = http.patch(f"/collections/{made['id']}", json={"replication_desired": 2})
    assert done(raised)["replication_desired"] == 2
    assert read(http, made) == FILES


def test_what_is_missing_is_told() -> None:
    error = Gone("commit_expired", "text", run_id="r", missing_count=2, missing=["a", "b"])
    body = bytes(answer_of(error).body)
    assert b'"missing_count":2,"missing":["a","b"]' in body


def test_what_cannot_be_made(http: httpx.Client) -> None:
    repository = new_repository(http, a="1")
    project = new_project(http, repository)["id"]
    taken = new_collection(http, project, "taken")
    place, no_version = f"/collections/{taken['id']}", {"collection_id": taken["id"], "version": 7}
    for asked, status, kind in (
        ({"name": "taken"}, 409, "collection_exists"),
        ({"project_id": "no"}, 404, "project_not_found"),
        ({"replication_desired": -1}, 400, "invalid_argument"),
        ({"replication_desired": 10**30}, 400, "invalid_argument"),
        ({"from_ref": {"ref": "no"}}, 404, "ref_not_found"),
        ({"from_collection": {"collection_id": "no"}}, 404, "collection_not_found"),
        ({"from_collection": no_version}, 404, "version_not_found"),
        ({"locators": {"a": "x"}}, 400, "token_invalid"),
        ({"locators": {"": "x"}}, 400, "invalid_path"),
        ({"locators": ["a"]}, 400, "invalid_argument"),
        ({"from_ref": {"ref": "main", "into": "x" * 1024}}, 400, "invalid_path"),
    ):
        body: dict[str, Any] = {"project_id": project, "name": "n"} | asked
        refused(http.post("/collections", json=body), status, kind)
        if "project_id" not in asked and asked.get("name") != "taken":
            refused(http.patch(place, json=asked), status, kind)
    for removed in ("a", "a/"):
        refused(http.patch(place, json={"removed": [removed]}), 404, "object_not_found")
        answer = http.delete(f"{place}/files", params={"path": removed})
        refused(answer, 404, "object_not_found")
    both = {"removed": ["a"], "replaces": True}
    refused(http.patch(place, json=both), 400, "invalid_argument")
    assert done(http.get("/collections", params={"project_id": project}))["results"] == [taken]
    other = new_project(http, repository, "other")["id"]
    new_collection(http, other, "taken")
    refused(http.patch(place, json={"project_id": other}), 409, "collection_exists")
    moved = http.patch(place, json={"project_id": other, "ensure_unique_name": True})
    assert done(moved)["path"] == "other/taken (2)"


def test_what_is_in_the_trash(timed: httpx.Client, clock: ManualClock) -> None:
    """No signatures are given of it, and only its `expires_at` can be changed."""
    project = new_project(timed, "lake")["id"]
    ends = clock.now + timedelta(minutes=1)
    made = new_collection(timed, project, from_ref={"ref": "main"}, expires_at=ends.isoformat())
    place = f"/collections/{made['id']}"
    signed = done(timed.get(f"{place}/files", params={"locators": True}))["results"]
    assert {each["expires_at"] for each in signed} == {made["expires_at"]}
    clock.now = ends
    for gone in (f"{place}/files", f"{place}/files/content?path=b", f"{place}/versions"):
        refused(timed.get(gone), 404, "collection_not_found")
    with_locators = {"locators": True, "include_expired": True}
    results = done(timed.get(f"{place}/files", params=with_locators))["results"]
    assert len(results) == 4
    assert not any("locator" in each or "url" in each for each in results)
    refused(timed.patch(place, json={"removed": ["b"]}), 409, "trashed")
    refused(timed.put(f"{place}/files?path=a", content=b"x"), 409, "trashed")
    taken = new_collection(timed, project)
    refused(timed.post(f"{place}/restore"), 409, "collection_exists")
    live = refused(timed.post(f"/collections/{taken['id']}/restore"), 409, "collection_exists")
    assert place.endswith(live["ids"][0])
    back = done(timed.post(f"{place}/restore", json={"ensure_unique_name": True}))
    assert (back["name"], back["state"]) == ("c (2)", "persistent")
