"""Projects over HTTP. Names, states, moves and lists are the store's, and are tested there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from ebbtide.ids import new_id
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


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """A writer; repositories are an admin's."""
    with server.http() as client:
        yield client


@pytest.fixture
def timed(store: Store) -> Iterator[httpx.Client]:
    """The server of a store with a clock that the test sets, and a repository `lake` in it."""
    store.create_repository("lake", storage_url=f"memory:{new_id()}")
    with serving(store) as client:
        yield client


def names(found: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in found]


def test_a_life(http: httpx.Client) -> None:
    """Made, found, changed, moved, deleted with what is in it, and brought back."""
    repository = new_repository(http)
    properties = {"who": "me", "n": [1, None, {"ü": 1.5}], "\\u0000": "\\u0000"}
    outer = new_project(http, repository, "outer", description="öäü\n", properties=properties)
    assert outer["repository"] == repository
    assert (outer["properties"], outer["description"]) == (properties, "öäü\n")
    assert (outer["state"], "parent_id" in outer, "expires_at" in outer) == (
        "persistent",
        False,
        False,
    )
    inner = new_project(http, repository, "inner", parent_id=outer["id"])
    assert inner["path"] == "outer/inner"
    at_path = http.get("/projects", params={"repository": repository, "path": "outer/inner"})
    assert done(at_path)["results"] == [inner]
    assert done(http.get(f"/projects/{inner['id']}")) == inner

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
    assert "expires_at" not in shown
    assert listed(http, "/projects", repository=repository) == []
    place = {"repository": repository, "parent_id": outer["id"]}
    refused(http.get("/projects", params=place), 404, "project_not_found")
    assert names(listed(http, "/projects", **place, include_expired=True)) == ["x"]

    back = done(http.post(f"/projects/{outer['id']}/restore"))
    assert (back["state"], "expires_at" in back) == ("persistent", False)
    assert done(http.get(f"/projects/{inner['id']}"))["state"] == "persistent"


def test_lists(http: httpx.Client) -> None:
    """By name, state and date, and in pages: several in the trash have the name of one that is
    there."""
    repository = new_repository(http)
    for name in ("b", "a", "b"):
        made = new_project(http, repository, name)["id"]
        if name == "b":
            done(http.delete(f"/projects/{made}"), 204)
    new_project(http, repository, "b", expires_at="2100-01-01T00:00:00+02:00")
    new_project(http, repository, "past", expires_at="0001-01-01T00:00:00Z")

    def found(**params: Any) -> list[str]:
        return names(listed(http, "/projects", repository=repository, **params))

    assert found() == ["a", "b"]
    for amount in (1, 2, 100):
        everything = found(include_expired=True, amount=amount)
        assert everything == ["a", "b", "b", "b", "past"]
    assert found(prefix="a") == ["a"]
    assert found(state="trashed", include_expired=True) == ["b", "b", "past"]
    assert found(expires_after="2099-12-31T22:00:00Z") == ["b"]
    assert found(expires_after="2099-12-31T22:00:00.000001Z") == []
    assert found(expires_before="2099-12-31T22:00:00.000001Z") == ["b"]
    place = {"repository": repository}
    behind = done(http.get("/projects", params={**place, "after": "b", "include_expired": True}))
    assert names(behind["results"]) == ["past"]
    for wrong, kind in (
        ({"expires_after": "2100-01-01"}, "invalid_date"),
        ({"expires_after": "soon"}, "invalid_argument"),
        ({"state": "gone"}, "invalid_argument"),
    ):
        refused(http.get("/projects", params={**place, **wrong}), 400, kind)


DAY = timedelta(days=1)
DEEP: Any = 1
for _ in range(40):
    DEEP = [DEEP]


def test_what_cannot_be_made(http: httpx.Client) -> None:
    repository = new_repository(http)
    taken = new_project(http, repository, "taken")["id"]
    other = new_project(http, new_repository(http), "other")["id"]
    for asked, status, kind in (
        ({"name": "a/b"}, 400, "invalid_name"),
        ({"name": "taken"}, 409, "project_exists"),
        ({"name": None}, 400, "invalid_argument"),
        ({"parent_id": "no"}, 404, "project_not_found"),
        ({"parent_id": other}, 404, "project_not_found"),
        ({"expires_at": "2100-01-01T00:00:00"}, 400, "invalid_date"),
        ({"expires_at": "9999-12-31T23:59:59-05:00"}, 400, "invalid_date"),
        ({"expires_at": "10000-01-01T00:00:00Z"}, 400, "invalid_argument"),
        ({"expires_at": 1e9}, 400, "invalid_argument"),
        ({"description": "x" * 70_000}, 400, "invalid_argument"),
        ({"properties": []}, 400, "invalid_argument"),
        ({"properties": {"a": "x" * 70_000}}, 400, "invalid_argument"),
        ({"properties": {"a": ["\0"]}}, 400, "invalid_argument"),
        ({"properties": {"a": {"\0": 1}}}, 400, "invalid_argument"),
        ({"properties": {"a": DEEP}}, 400, "invalid_argument"),
        ({"repository": "no"}, 404, "repository_not_found"),
    ):
        body: dict[str, Any] = {"repository": repository, "name": "n"} | asked
        refused(http.post("/projects", json=body), status, kind)
    assert names(listed(http, "/projects", repository=repository)) == ["taken"]
    cycle = http.patch(f"/projects/{taken}", json={"parent_id": taken})
    refused(cycle, 400, "project_cycle")


def test_texts_that_are_no_unicode(http: httpx.Client) -> None:
    """Halves of characters, which JSON can carry and no answer could."""
    repository = new_repository(http)
    for properties in ('{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": [NaN]}', '{"a": 1e999}'):
        body = f'{{"repository": "{repository}", "name": "n", "properties": {properties}}}'
        answer = http.post("/projects", content=body, headers={"Content-Type": "application/json"})
        refused(answer, 400, "invalid_argument")


def test_taken_names(http: httpx.Client) -> None:
    """A path means the one that is there; of several in the trash, one is named by its id."""
    repository = new_repository(http)
    first = new_project(http, repository, "n")
    second = new_project(http, repository, "n", ensure_unique_name=True)
    assert second["name"] == "n (2)"
    place = f"/projects/{second['id']}"
    refused(http.patch(place, json={"name": "n"}), 409, "project_exists")
    done(http.delete(f"/projects/{first['id']}"), 204)
    assert done(http.patch(place, json={"name": "n"}))["name"] == "n"
    refused(http.post(f"/projects/{first['id']}/restore"), 409, "project_exists")
    live = refused(http.post(f"{place}/restore"), 409, "project_exists")
    assert live["ids"] == [first["id"]]
    assert first["id"] in live["message"]
    back = http.post(f"/projects/{first['id']}/restore", json={"ensure_unique_name": True})
    assert done(back)["name"] == "n (2)"
    for each in (first, second):
        done(http.delete(f"/projects/{each['id']}"), 204)
    third = new_project(http, repository, "n")
    by_path: dict[str, Any] = {"repository": repository, "path": "n", "include_expired": True}
    assert done(http.get("/projects", params=by_path))["results"] == [third]
    done(http.delete(f"/projects/{third['id']}"), 204)
    error = refused(http.get("/projects", params=by_path), 400, "ref_ambiguous")
    assert set(error["ids"]) == {second["id"], third["id"]}
    error = refused(
        http.get("/projects", params={**by_path, "include_expired": False}),
        404,
        "project_not_found",
    )
    assert "restore" in error["message"]


def test_what_ends_with_its_project(timed: httpx.Client, store: Store, clock: ManualClock) -> None:
    trash_time = store.settings.trash_time
    ending = new_project(timed, "lake", "ending", expires_at=(clock.now + DAY).isoformat())
    inner = new_project(timed, "lake", "inner", parent_id=ending["id"])
    collection = new_collection(timed, inner["id"])
    place, inside = f"/projects/{ending['id']}", f"/collections/{collection['id']}"
    assert (inner["state"], inner["ends_at"]) == ("expiring", ending["expires_at"])
    clock.advance(DAY)
    refused(timed.get(inside), 404, "collection_not_found")
    refused(timed.patch(place, json={"name": "o", "expires_at": None}), 409, "trashed")
    refused(timed.patch(inside, json={"expires_at": None}), 409, "trashed")
    asked = {"project_id": inner["id"], "name": "n"}
    refused(timed.post("/collections", json=asked), 404, "project_not_found")
    clock.advance(trash_time - timedelta(microseconds=1))
    done(timed.post(place + "/restore"))
    assert done(timed.get(inside))["state"] == "persistent"
    done(timed.delete(place), 204)
    clock.advance(trash_time)
    error = refused(timed.post(place + "/restore"), 404, "project_not_found")
    assert "restore" not in error["message"]


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
