"""Projects, collections and files over HTTP. Names, states, lists and races: the store's tests."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import httpx

from tests.support.clock import ManualClock
from tests.support.collected import (
    done,
    listed,
    new_collection,
    new_project,
    new_repository,
    refused,
)
from tests.support.servers import FILES


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
    place = f"/collections/{collection['id']}/files"
    found = listed(http, place, amount=3, **params)
    return {
        path: http.get(f"{place}/content", params={"path": path, **params}).text
        for path in paths(found)
    }


def test_content_from_everywhere(leases: httpx.Client) -> None:
    """Whatever it was made of, equal files are equal content."""
    project = new_project(leases, new_repository(leases, **FILES))["id"]
    empty = new_collection(leases, project, "empty")
    assert (empty["file_count"], empty["content_hash"]) == (0, content_hash({}))
    whole = new_collection(leases, project, "whole", from_ref={"ref": "main"})
    assert (whole["file_count"], whole["size_bytes"], whole["version"]) == (4, 7, 1)
    assert read(leases, whole) == FILES
    source = {"collection_id": whole["id"]}
    copied = new_collection(leases, project, "copied", from_collection=source)
    place = f"/collections/{whole['id']}/files"
    tokens = {each["path"]: each["locator"] for each in listed(leases, place, locators=True)}
    located = new_collection(leases, project, "located", locators=tokens)
    assert {each["content_hash"] for each in (whole, copied, located)} == {content_hash(FILES)}
    # A locator wins over a collection, and that over a commit.
    mixed = new_collection(
        leases,
        project,
        "mixed",
        from_ref={"ref": "main", "prefix": "a/", "into": "n/"},
        from_collection=source | {"prefix": "c/", "into": "n/"},
        locators={"n/x": tokens["a/y"]},
    )
    assert read(leases, mixed) == {"n/x": "y", "n/y": "y", "n/ü d": "text"}
    emptied = leases.patch(f"/collections/{mixed['id']}", json={"replaces": True})
    assert done(emptied)["content_hash"] == content_hash({})


def test_files(leases: httpx.Client) -> None:
    """Listed, read, put, deleted; each change is a version that may be kept."""
    project = new_project(leases, new_repository(leases, **FILES))["id"]
    made = new_collection(leases, project, from_ref={"ref": "main"})
    of_it = f"/collections/{made['id']}"
    place, versions = f"{of_it}/files", f"{of_it}/versions"
    for more in ({}, {"locators": True}):
        assert paths(listed(leases, place, delimiter="/", **more)) == ["a/", "b", "c/"]
    assert paths(listed(leases, place, prefix="a/")) == ["a/x", "a/y"]

    big = bytes(range(256)) * 20_000
    put: dict[str, Any] = {"path": "big", "keep_version": True}
    headers = {"Content-Type": "x/y", "X-Lakefs-Meta-Who": "me"}
    pieces = (big[start : start + 65536] for start in range(0, len(big), 65536))
    changed = done(leases.put(place, params=put, content=pieces, headers=headers))
    assert (changed["version"], changed["file_count"]) == (2, 5)
    content = f"{place}/content?path=big"
    got = leases.get(content)
    assert (got.content, got.headers["content-type"]) == (big, "x/y")
    part = leases.get(content, headers={"Range": "bytes=256-511"})
    assert (part.status_code, part.content) == (206, big[256:512])
    assert leases.head(content).headers["content-length"] == str(len(big))
    etag = {"If-None-Match": got.headers["etag"]}
    assert leases.get(content, headers=etag).status_code == 304
    (entry,) = listed(leases, place, prefix="big")
    assert entry["metadata"] == {"who": "me"}
    assert entry["checksum"] == hashlib.sha256(big).hexdigest()

    form = {"content": ("name", b"in a form", "text/plain")}
    done(leases.put(place, params={"path": "b"}, files=form))
    assert leases.get(f"{place}/content", params={"path": "b"}).text == "in a form"
    changed = done(leases.delete(place, params={"path": "a/"}))
    assert (changed["version"], paths(listed(leases, place))) == (4, ["b", "big", "c/ü d"])
    done(leases.delete(place, params={"path": "big", "keep_version": True}))
    assert [each["version"] for each in listed(leases, versions, amount=100)] == [4, 1]
    page = done(leases.get(versions, params={"before": 4, "amount": 1}))
    assert [each["content_hash"] for each in page["results"]] == [content_hash(FILES)]
    assert read(leases, made, version=1) == FILES
    changes = listed(leases, f"{of_it}/diff", other=made["id"], version=1)
    found = [f"{each['type']} {each['path']}" for each in changes]
    assert found == ["removed a/x", "removed a/y", "changed b"]
    done(leases.delete(f"{versions}/1"), 204)
    for answer in (
        leases.delete(f"{versions}/1"),
        leases.delete(f"{versions}/{10**30}"),
        leases.get(place, params={"version": 1}),
        leases.get(f"{place}/content", params={"path": "b", "version": 3}),
    ):
        refused(answer, 404, "version_not_found")


def test_an_upload_that_breaks_off_changes_nothing(leases: httpx.Client) -> None:
    made = new_collection(leases, new_project(leases, new_repository(leases))["id"])
    place = f"/collections/{made['id']}/files"
    form = b'--x\r\nContent-Disposition: form-data; name="content"\r\n\r\nhalf of it'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = leases.put(place, params={"path": "a"}, content=form, headers=headers)
    refused(answer, 400, "upload_broken")
    for path in ("a" * 1025, ""):
        refused(leases.put(place, params={"path": path}, content=b"x"), 400, "invalid_path")
    assert done(leases.get(f"/collections/{made['id']}")) == made


def test_found_by_path_and_content(leases: httpx.Client) -> None:
    repository = new_repository(leases, **FILES)
    outer = new_project(leases, repository, "outer")["id"]
    inner = new_project(leases, repository, "inner", parent_id=outer)["id"]
    made = new_collection(leases, inner, from_ref={"ref": "main"})
    new_collection(leases, inner, "b")
    by_hash = {"repository": repository, "content_hash": made["content_hash"]}
    by_path = {"repository": repository, "path": "outer/inner/c"}
    by_name = {"project_id": inner, "name": "c"}
    for params in (by_name, by_hash, by_path):
        assert done(leases.get("/collections", params=params))["results"] == [made]
    done(leases.delete(f"/collections/{made['id']}"), 204)
    for params in (by_hash, by_path):
        error = refused(leases.get("/collections", params=params), 404, "collection_not_found")
        assert "restore" in error["message"]
        trashed = leases.get("/collections", params={**params, "include_expired": True})
        assert done(trashed)["results"][0]["state"] == "trashed"
    for wrong in (
        {"repository": repository, "path": "a", "content_hash": "b"},
        {"project_id": outer, "content_hash": "b"},
        {"content_hash": "b"},
    ):
        refused(leases.get("/collections", params=wrong), 400, "invalid_argument")


def test_data_that_is_not_kept(leases: httpx.Client) -> None:
    """Names, sizes and checksums are there, bytes and locators are not."""
    project = new_project(leases, new_repository(leases, **FILES))["id"]
    made = new_collection(leases, project, from_ref={"ref": "main"}, replication_desired=0)
    other = new_collection(leases, project, "other")
    place = f"/collections/{made['id']}/files"
    changes = listed(leases, f"/collections/{made['id']}/diff", other=other["id"])
    assert paths(listed(leases, place)) == paths(changes) == sorted(FILES)
    for gone in (f"{place}/content?path=b", f"{place}?locators=true"):
        refused(leases.get(gone), 410, "data_released")
    raised = leases.patch(f"/collections/{made['id']}", json={"replication_desired": 2})
    assert done(raised)["replication_desired"] == 2
    assert read(leases, made) == FILES


def test_what_cannot_be_made(leases: httpx.Client) -> None:
    repository = new_repository(leases, a="1")
    project = new_project(leases, repository)["id"]
    taken = new_collection(leases, project, "taken")
    place, no_version = f"/collections/{taken['id']}", {"collection_id": taken["id"], "version": 7}
    for asked, status, kind in (
        ({"name": "taken"}, 409, "collection_exists"),
        ({"project_id": "no"}, 404, "project_not_found"),
        ({"replication_desired": 10**30}, 400, "invalid_argument"),
        ({"from_ref": {"ref": "no"}}, 404, "ref_not_found"),
        ({"from_collection": {"collection_id": "no"}}, 404, "collection_not_found"),
        ({"from_collection": no_version}, 404, "version_not_found"),
        ({"locators": {"a": "x"}}, 400, "token_invalid"),
        ({"locators": ["a"]}, 400, "invalid_argument"),
        ({"from_ref": {"ref": "main", "into": "x" * 1024}}, 400, "invalid_path"),
    ):
        body: dict[str, Any] = {"project_id": project, "name": "n"} | asked
        refused(leases.post("/collections", json=body), status, kind)
        if "project_id" not in asked and asked.get("name") != "taken":
            refused(leases.patch(place, json=asked), status, kind)
    refused(leases.patch(place, json={"removed": ["a/"]}), 404, "object_not_found")
    refused(leases.delete(f"{place}/files?path=a"), 404, "object_not_found")
    both = {"removed": ["a"], "replaces": True}
    refused(leases.patch(place, json=both), 400, "invalid_argument")
    assert done(leases.get("/collections", params={"project_id": project}))["results"] == [taken]
    other = new_project(leases, repository, "other")["id"]
    new_collection(leases, other, "taken")
    refused(leases.patch(place, json={"project_id": other}), 409, "collection_exists")
    moved = leases.patch(place, json={"project_id": other, "ensure_unique_name": True})
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


def names(found: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in found]


def test_the_life_of_a_project(leases: httpx.Client) -> None:
    """Made, found, changed, moved, deleted with what is in it, and brought back."""
    repository = new_repository(leases)
    properties = {"who": "me", "n": [1, None, {"ü": 1.5}], "\\u0000": "\\u0000"}
    outer = new_project(leases, repository, "outer", description="öäü\n", properties=properties)
    assert (outer["repository"], outer["properties"]) == (repository, properties)
    assert (outer["description"], outer["state"]) == ("öäü\n", "persistent")
    assert not {"parent_id", "expires_at"} & set(outer)
    inner = new_project(leases, repository, "inner", parent_id=outer["id"])
    at_path: dict[str, Any] = {"repository": repository, "path": "outer/inner"}
    assert done(leases.get("/projects", params=at_path))["results"] == [inner]
    assert done(leases.get(f"/projects/{inner['id']}")) == inner
    assert inner["path"] == "outer/inner"

    changed = done(leases.patch(f"/projects/{inner['id']}", json={"description": "new"}))
    assert changed | {"description": "", "modified_at": inner["modified_at"]} == inner
    moved = done(leases.patch(f"/projects/{inner['id']}", json={"parent_id": None, "name": "x"}))
    assert (moved["path"], moved["description"]) == ("x", "new")
    done(leases.patch(f"/projects/{inner['id']}", json={"parent_id": outer["id"]}))

    done(leases.delete(f"/projects/{outer['id']}"), 204)
    for project in (outer, inner):
        error = refused(leases.get(f"/projects/{project['id']}"), 404, "project_not_found")
        assert "restore" in error["message"]
        shown = done(leases.get(f"/projects/{project['id']}", params={"include_expired": True}))
        assert shown["state"] == "trashed"
    assert listed(leases, "/projects", repository=repository) == []
    place = {"repository": repository, "parent_id": outer["id"]}
    refused(leases.get("/projects", params=place), 404, "project_not_found")
    assert names(listed(leases, "/projects", **place, include_expired=True)) == ["x"]

    taken = new_project(leases, repository, "outer")
    for project in (outer, taken):
        error = refused(leases.post(f"/projects/{project['id']}/restore"), 409, "project_exists")
    assert error["ids"] == [outer["id"]], "the one in the trash that may be meant"
    back = leases.post(f"/projects/{outer['id']}/restore", json={"ensure_unique_name": True})
    assert (done(back)["name"], done(back)["state"]) == ("outer (2)", "persistent")
    assert done(leases.get(f"/projects/{inner['id']}"))["state"] == "persistent"


def test_projects_that_cannot_be_made(leases: httpx.Client) -> None:
    repository = new_repository(leases)
    taken = new_project(leases, repository, "taken")["id"]
    other = new_project(leases, new_repository(leases), "other")["id"]
    deep = json.loads("[" * 40 + "]" * 40)
    for asked, status, kind in (
        ({"name": "taken"}, 409, "project_exists"),
        ({"parent_id": other}, 404, "project_not_found"),
        ({"description": "x" * 70_000}, 400, "invalid_argument"),
        ({"properties": []}, 400, "invalid_argument"),
        ({"properties": {"a": "x" * 70_000}}, 400, "invalid_argument"),
        ({"properties": {"a": [{"\0": 1}]}}, 400, "invalid_argument"),
        ({"properties": {"a": deep}}, 400, "invalid_argument"),
    ):
        body: dict[str, Any] = {"repository": repository, "name": "n"} | asked
        refused(leases.post("/projects", json=body), status, kind)
    # Halves of characters, which JSON can carry and no answer could; and numbers that are none.
    for properties in ('{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": [NaN]}', '{"a": 1e999}'):
        text = f'{{"repository": "{repository}", "name": "n", "properties": {properties}}}'
        answer = leases.post(
            "/projects", content=text, headers={"Content-Type": "application/json"}
        )
        refused(answer, 400, "invalid_argument")
    assert names(listed(leases, "/projects", repository=repository)) == ["taken"]
    cycle = leases.patch(f"/projects/{taken}", json={"parent_id": taken})
    refused(cycle, 400, "project_cycle")


def test_a_repository_in_the_trash_hides_all_of_it(leases: httpx.Client) -> None:
    """Also where another one has its name by now."""
    repository = new_repository(leases, a="abc")
    project = new_project(leases, repository)
    collection = new_collection(leases, project["id"])
    place = f"/repositories/{repository}/locators?ref=main&path=a"
    token = done(leases.post(place), 201)["locator"]
    (trashed,) = [
        each for each in listed(leases, "/repositories", amount=100) if each["id"] == repository
    ]
    done(leases.delete(f"/repositories/{repository}"), 204)
    again = {"name": repository, "storage_namespace": f"local://{repository}-2"}
    done(leases.post("/repositories", json=again), 201)
    refused(leases.get(f"/projects/{project['id']}"), 404, "project_not_found")
    refused(leases.get(f"/collections/{collection['id']}"), 404, "collection_not_found")
    refused(leases.get(f"/locators/{token}"), 404, "repository_not_found")
    asked = {"ensure_unique_name": True}
    done(leases.post(f"/repositories/{trashed['repository_id']}/undelete", json=asked))
    assert done(leases.get(f"/projects/{project['id']}"))["repository"] == f"{repository}-2"
