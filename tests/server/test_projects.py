"""Projects over HTTP. Names, states, moves and lists are the store's, and are tested there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.collected import (
    done,
    listed,
    new_collection,
    new_project,
    new_repository,
    refused,
)
from tests.support.server import Server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """A writer; repositories are an admin's."""
    with server.http() as client:
        yield client


def names(found: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in found]


def test_a_life(http: httpx.Client) -> None:
    """Made, found, changed, moved, deleted with what is in it, and brought back."""
    repository = new_repository(http)
    properties = {"who": "me", "n": [1, None, {"ü": 1.5}], "\\u0000": "\\u0000"}
    outer = new_project(http, repository, "outer", description="öäü\n", properties=properties)
    assert (outer["repository"], outer["properties"]) == (repository, properties)
    assert (outer["description"], outer["state"]) == ("öäü\n", "persistent")
    assert not {"parent_id", "expires_at"} & set(outer)
    inner = new_project(http, repository, "inner", parent_id=outer["id"])
    at_path: dict[str, Any] = {"repository": repository, "path": "outer/inner"}
    assert done(http.get("/projects", params=at_path))["results"] == [inner]
    assert done(http.get(f"/projects/{inner['id']}")) == inner
    assert inner["path"] == "outer/inner"

    changed = done(http.patch(f"/projects/{inner['id']}", json={"description": "new"}))
    assert changed | {"description": "", "modified_at": inner["modified_at"]} == inner
    moved = done(http.patch(f"/projects/{inner['id']}", json={"parent_id": None, "name": "x"}))
    assert (moved["path"], moved["description"]) == ("x", "new")
    done(http.patch(f"/projects/{inner['id']}", json={"parent_id": outer["id"]}))

    done(http.delete(f"/projects/{outer['id']}"), 204)
    for project in (outer, inner):
        error = refused(http.get(f"/projects/{project['id']}"), 404, "project_not_found")
        assert "restore" in error["message"]
        shown = done(http.get(f"/projects/{project['id']}", params={"include_expired": True}))
        assert shown["state"] == "trashed"
    assert listed(http, "/projects", repository=repository) == []
    place = {"repository": repository, "parent_id": outer["id"]}
    refused(http.get("/projects", params=place), 404, "project_not_found")
    assert names(listed(http, "/projects", **place, include_expired=True)) == ["x"]

    taken = new_project(http, repository, "outer")
    for project in (outer, taken):
        error = refused(http.post(f"/projects/{project['id']}/restore"), 409, "project_exists")
    assert error["ids"] == [outer["id"]], "the one in the trash that may be meant"
    back = http.post(f"/projects/{outer['id']}/restore", json={"ensure_unique_name": True})
    assert (done(back)["name"], done(back)["state"]) == ("outer (2)", "persistent")
    assert done(http.get(f"/projects/{inner['id']}"))["state"] == "persistent"


def test_what_cannot_be_made(http: httpx.Client) -> None:
    repository = new_repository(http)
    taken = new_project(http, repository, "taken")["id"]
    other = new_project(http, new_repository(http), "other")["id"]
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
        refused(http.post("/projects", json=body), status, kind)
    # Halves of characters, which JSON can carry and no answer could; and numbers that are none.
    for properties in ('{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": [NaN]}', '{"a": 1e999}'):
        text = f'{{"repository": "{repository}", "name": "n", "properties": {properties}}}'
        answer = http.post("/projects", content=text, headers={"Content-Type": "application/json"})
        refused(answer, 400, "invalid_argument")
    assert names(listed(http, "/projects", repository=repository)) == ["taken"]
    cycle = http.patch(f"/projects/{taken}", json={"parent_id": taken})
    refused(cycle, 400, "project_cycle")


def test_a_repository_in_the_trash_hides_all_of_it(http: httpx.Client) -> None:
    """Also where another one has its name by now."""
    repository = new_repository(http, a="abc")
    project = new_project(http, repository)
    collection = new_collection(http, project["id"])
    place = f"/repositories/{repository}/locators?ref=main&path=a"
    token = done(http.post(place), 201)["locator"]
    (trashed,) = [
        each for each in listed(http, "/repositories", amount=100) if each["id"] == repository
    ]
    done(http.delete(f"/repositories/{repository}"), 204)
    again = {"name": repository, "storage_namespace": f"local://{repository}-2"}
    done(http.post("/repositories", json=again), 201)
    refused(http.get(f"/projects/{project['id']}"), 404, "project_not_found")
    refused(http.get(f"/collections/{collection['id']}"), 404, "collection_not_found")
    refused(http.get(f"/locators/{token}"), 404, "repository_not_found")
    asked = {"ensure_unique_name": True}
    done(http.post(f"/repositories/{trashed['repository_id']}/undelete", json=asked))
    assert done(http.get(f"/projects/{project['id']}"))["repository"] == f"{repository}-2"
