"""Projects over HTTP."""

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

DAY = timedelta(days=1)


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """A writer; repositories are an admin's."""
    with server.http() as client:
        yield client


@pytest.fixture(scope="module")
def taken_by_server() -> dict[str, tuple[str, str]]:
    """What `taken` made."""
    return {}


@pytest.fixture
def taken(http: httpx.Client, taken_by_server: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """A repository with the project `taken`, and the id of a project elsewhere. What is refused
    changes neither, so one of each serves all tests on a server."""
    server = str(http.base_url)
    if server not in taken_by_server:
        repository = new_repository(http)
        new_project(http, repository, "taken")
        other = new_project(http, new_repository(http), "other")
        taken_by_server[server] = (repository, other["id"])
    return taken_by_server[server]


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


def test_lists_go_on_behind_a_name_and_an_id(http: httpx.Client) -> None:
    """Several in the trash have the name of one that is there."""
    repository = new_repository(http)
    made = []
    for name in ("b", "a", "b", "b", "ab", "c"):
        made.append(new_project(http, repository, name)["id"])
        if name == "b":
            done(http.delete(f"/projects/{made[-1]}"), 204)
    made.append(new_project(http, repository, "b")["id"])
    place: dict[str, Any] = {"repository": repository}
    assert names(listed(http, "/projects", **place)) == ["a", "ab", "b", "c"]
    for amount in (1, 2, 3, 100):
        found = listed(http, "/projects", **place, include_expired=True, amount=amount)
        assert names(found) == ["a", "ab", "b", "b", "b", "b", "c"]
        assert {each["id"] for each in found} == set(made)
    assert names(listed(http, "/projects", **place, prefix="a")) == ["a", "ab"]
    behind = done(http.get("/projects", params={**place, "after": "b", "include_expired": True}))
    assert names(behind["results"]) == ["c"]
    trashed = listed(http, "/projects", **place, include_expired=True, state="trashed")
    assert names(trashed) == ["b", "b", "b"]
    error = refused(
        http.get("/projects", params={"repository": repository, "path": "no", **place}),
        404,
        "project_not_found",
    )
    assert "restore" not in error["message"]


def test_states_and_dates(http: httpx.Client) -> None:
    repository = new_repository(http)
    new_project(http, repository, "persistent")
    new_project(http, repository, "early", expires_at="2100-01-01T00:00:00+02:00")
    new_project(http, repository, "late", expires_at="9999-12-31T23:59:59.999999Z")
    new_project(http, repository, "past", expires_at="0001-01-01T00:00:00Z")

    def found(**params: Any) -> list[str]:
        return names(listed(http, "/projects", repository=repository, **params))

    assert found() == ["early", "late", "persistent"]
    assert found(include_expired=True) == ["early", "late", "past", "persistent"]
    assert found(state="persistent") == ["persistent"]
    assert found(state="expiring") == ["early", "late"]
    assert found(state="trashed", include_expired=True) == ["past"]
    assert found(state="trashed") == []
    assert found(expires_after="2099-12-31T22:00:00Z") == ["early", "late"]
    assert found(expires_after="2099-12-31T22:00:00.000001Z") == ["late"]
    assert found(expires_before="2099-12-31T22:00:00Z") == []
    assert found(expires_before="2099-12-31T22:00:00.000001Z") == ["early"]
    place = {"repository": repository}
    for wrong, kind in (("2100-01-01", "invalid_date"), ("soon", "invalid_argument")):
        refused(http.get("/projects", params={**place, "expires_after": wrong}), 400, kind)
    refused(http.get("/projects", params={**place, "state": "gone"}), 400, "invalid_argument")


DEEP: Any = 1
for _ in range(40):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("asked", "status", "kind"),
    [
        ({"name": "a/b"}, 400, "invalid_name"),
        ({"name": ".."}, 400, "invalid_name"),
        ({"name": "0" * 32}, 400, "invalid_name"),
        ({"name": "taken"}, 409, "project_exists"),
        ({"name": None}, 400, "invalid_argument"),
        ({"name": "n", "parent_id": "no"}, 404, "project_not_found"),
        ({"name": "n", "parent_id": "{other}"}, 404, "project_not_found"),
        ({"name": "n", "expires_at": "2100-01-01T00:00:00"}, 400, "invalid_date"),
        ({"name": "n", "expires_at": "9999-12-31T23:59:59-05:00"}, 400, "invalid_date"),
        ({"name": "n", "expires_at": "10000-01-01T00:00:00Z"}, 400, "invalid_argument"),
        ({"name": "n", "expires_at": 1e9}, 400, "invalid_argument"),
        ({"name": "n", "description": "x" * 70_000}, 400, "invalid_argument"),
        ({"name": "n", "properties": []}, 400, "invalid_argument"),
        ({"name": "n", "properties": {"a": "x" * 70_000}}, 400, "invalid_argument"),
        ({"name": "n", "properties": {"a": ["\0"]}}, 400, "invalid_argument"),
        ({"name": "n", "properties": {"a": {"\0": 1}}}, 400, "invalid_argument"),
        ({"name": "n", "properties": {"a": DEEP}}, 400, "invalid_argument"),
        ({"name": "n", "repository": "no"}, 404, "repository_not_found"),
    ],
    ids=str,
)
def test_what_cannot_be_made(
    http: httpx.Client,
    taken: tuple[str, str],
    asked: dict[str, Any],
    status: int,
    kind: str,
) -> None:
    repository, other = taken
    if asked.get("parent_id") == "{other}":
        asked = {**asked, "parent_id": other}
    refused(http.post("/projects", json={"repository": repository, **asked}), status, kind)
    assert names(listed(http, "/projects", repository=repository)) == ["taken"]


def test_texts_that_are_no_unicode(http: httpx.Client) -> None:
    """Halves of characters, which JSON can carry and no answer could."""
    repository = new_repository(http)
    for properties in ('{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": [NaN]}', '{"a": 1e999}'):
        body = f'{{"repository": "{repository}", "name": "n", "properties": {properties}}}'
        answer = http.post("/projects", content=body, headers={"Content-Type": "application/json"})
        refused(answer, 400, "invalid_argument")


def test_taken_names(http: httpx.Client) -> None:
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


def test_no_project_lies_in_itself(http: httpx.Client) -> None:
    repository = new_repository(http)
    line = [new_project(http, repository, "p0")]
    for number in range(1, 64):
        line.append(new_project(http, repository, f"p{number}", parent_id=line[-1]["id"]))
    for inner in (line[0], line[1], line[-1]):
        answer = http.patch(f"/projects/{line[0]['id']}", json={"parent_id": inner["id"]})
        refused(answer, 400, "project_cycle")
    deeper = {"repository": repository, "name": "deeper", "parent_id": line[-1]["id"]}
    refused(http.post("/projects", json=deeper), 400, "invalid_argument")
    assert done(http.get(f"/projects/{line[-1]['id']}"))["path"].count("/") == 63


def test_what_is_in_the_trash(timed: httpx.Client, store: Store, clock: ManualClock) -> None:
    """It can be brought back for the trash time, to the microsecond, and not be changed."""
    trash_time = store.settings.trash_time
    expires_at = (clock.now + DAY).isoformat()
    ending = new_project(timed, "lake", "ending", expires_at=expires_at)
    inner = new_project(timed, "lake", "inner", parent_id=ending["id"])
    collection = new_collection(timed, inner["id"])
    place = f"/projects/{ending['id']}"
    assert (ending["state"], inner["state"], inner["ends_at"]) == (
        "expiring",
        "expiring",
        ending["expires_at"],
    )
    clock.advance(DAY)
    refused(timed.get(place), 404, "project_not_found")
    refused(timed.get(f"/collections/{collection['id']}"), 404, "collection_not_found")
    refused(timed.patch(place, json={"name": "other"}), 409, "trashed")
    refused(timed.patch(place, json={"name": "o", "expires_at": None}), 409, "trashed")
    refused(timed.delete(place), 404, "project_not_found")
    for hidden in (f"/projects/{inner['id']}", f"/collections/{collection['id']}"):
        refused(timed.patch(hidden, json={"expires_at": None}), 409, "trashed")
    asked = {"repository": "lake", "name": "n", "parent_id": ending["id"]}
    refused(timed.post("/projects", json=asked), 404, "project_not_found")
    asked = {"project_id": inner["id"], "name": "n"}
    refused(timed.post("/collections", json=asked), 404, "project_not_found")

    clock.advance(trash_time - timedelta(microseconds=1))
    again = (clock.now + DAY).isoformat()
    assert done(timed.patch(place, json={"expires_at": again}))["state"] == "expiring"
    assert done(timed.get(f"/collections/{collection['id']}"))["state"] == "expiring"
    clock.advance(DAY + trash_time)
    for answer in (
        timed.get(place, params={"include_expired": True}),
        timed.patch(place, json={"expires_at": None}),
        timed.post(place + "/restore"),
        timed.delete(place),
    ):
        error = refused(answer, 404, "project_not_found")
        assert "restore" not in error["message"]


def test_names_in_the_trash(http: httpx.Client) -> None:
    """A path means the one that is there; of several in the trash, one is named by its id."""
    repository = new_repository(http)
    place: dict[str, Any] = {"repository": repository, "path": "n", "include_expired": True}
    made = []
    for _ in range(2):
        made.append(new_project(http, repository, "n")["id"])
        done(http.delete(f"/projects/{made[-1]}"), 204)
    error = refused(http.get("/projects", params=place), 400, "ref_ambiguous")
    assert set(error["ids"]) == set(made)
    error = refused(
        http.get("/projects", params={**place, "include_expired": False}), 404, "project_not_found"
    )
    assert "restore" in error["message"]
    there = new_project(http, repository, "n")
    assert done(http.get("/projects", params=place))["results"] == [there]


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
