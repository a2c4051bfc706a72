"""Projects, lists, links and users over HTTP, as Arvados's clients send their requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from ebbtide.doors.arvados.server.door import arvados_routes
from ebbtide.errors import NotFound
from ebbtide.server.app import create_app
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.doors.arvados.server.conftest import ArvadosServer

API = "/arvados/v1"


class Caller:
    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def get(self, path: str, status: int = 200, **parameters: Any) -> Any:
        """Parameters that are no text are sent as JSON, as clients do."""
        sent = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in parameters.items()
        }
        answer = self.http.get(API + path, params=sent or None)
        assert answer.status_code == status, answer.text
        return answer.json()

    def send(self, method: str, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.http.request(method, API + path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def names(self, path: str, **parameters: Any) -> list[str]:
        return [item["name"] for item in self.get(path, order=["name"], **parameters)["items"]]


Callers = Callable[[Role], Caller]


@pytest.fixture
def callers(arvados: ArvadosServer) -> Iterator[Callers]:
    with ExitStack() as stack:
        yield lambda role: Caller(stack.enter_context(arvados.http(role)))


@pytest.fixture
def writer(callers: Callers) -> Caller:
    return callers(Role.WRITER)


def test_a_repository_that_does_not_exist(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store, pytest.raises(NotFound, match="nowhere"):
        create_app(store, settings=Settings(arvados_repository="nowhere"))


def test_who_may_call(arvados: ArvadosServer, callers: Callers) -> None:
    """Every route: without a token, with a wrong one, and with a role that is too low."""
    wrong = arvados.server.keys["admin"].access_key_id
    reader = callers(Role.READER)
    with arvados.http(None) as stranger:
        for route in arvados_routes():
            path = route.path.replace("{locator:segment}", "0" * 32)
            path = path.replace("{uuid:segment}", "x")
            if route.role is None:
                continue
            for token in (None, "Bearer x", f"Bearer v2/{wrong}/x", f"Basic v2/{wrong}/x"):
                headers = {} if token is None else {"Authorization": token}
                answer = stranger.request(route.method, path, headers=headers)
                assert answer.status_code == 401, (route.path, token)
            if route.role is Role.WRITER:
                assert reader.http.request(route.method, path).status_code == 403, route.path


def test_a_role_in_this_repository_counts(arvados: ArvadosServer, callers: Callers) -> None:
    """And one in another repository does not."""
    server = arvados.server
    found: dict[str, Caller] = {}
    with ExitStack() as stack:
        with Store.open(server.directory, settings=server.settings) as store:
            store.create_repository("pond")
            for repository in ("lake", "pond"):
                made = store.keys.create(Role.NONE, name=repository)
                store.grants.add(made.key.access_key_id, repository, Role.WRITER)
                http = stack.enter_context(arvados.http(None))
                token = f"v2/{made.key.access_key_id}/{made.secret}"
                http.headers["Authorization"] = f"Bearer {token}"
                found[repository] = Caller(http)
        user = found["lake"].get("/users/current")
        assert (user["can_write"], user["is_admin"]) == (True, False)
        made = found["lake"].send("POST", "/groups", group={"name": "g", "group_class": "project"})
        assert made["can_write"] is True
        for caller in (found["pond"], callers(Role.NONE)):
            for path in ("/users/current", "/collections", f"/groups/{made['uuid']}"):
                assert caller.get(path, 403)["kind"] == "role_missing"


def test_errors_have_one_shape(writer: Caller) -> None:
    for path, status, kind in (
        ("/nothing", 404, "route_not_found"),
        ("/users/x", 404, "key_not_found"),
        ("/groups?filters=[", 422, "invalid_argument"),
        ("/groups/contents?include_old_versions=true", 422, "invalid_argument"),
        ("/groups?include_trash=maybe", 422, "invalid_argument"),
    ):
        answer = writer.get(path, status)
        assert answer["kind"] == kind
        assert [type(text) for text in answer["errors"]] == [str]
    assert writer.send("POST", "/users/current", 405)["kind"] == "route_not_found"
    for body in (b"[1]", b"{", b'{"group": 1}', b'{"group": {"group_class": "role"}}'):
        assert writer.http.post(f"{API}/groups", content=body).status_code == 422


def test_users(arvados: ArvadosServer, callers: Callers, writer: Caller) -> None:
    me = writer.get("/users/current")
    assert (me["full_name"], me["is_admin"], me["can_write"]) == ("writer", False, True)
    assert writer.get(f"/users/{me['uuid']}") == me
    users = writer.get("/users")["items"]
    assert users[0]["full_name"] == "root"
    admin = callers(Role.ADMIN).get("/users/current")
    assert (admin["is_admin"], admin in users) == (True, True)
    assert callers(Role.READER).get("/users/current")["can_write"] is False
    config = writer.get("/config")
    assert me["uuid"].startswith(config["ClusterID"])
    (service,) = writer.get("/keep_services/accessible")["items"]
    assert f"https://{service['service_host']}:{service['service_port']}" == arvados.server.url


def test_projects(writer: Caller) -> None:
    me = writer.get("/users/current")["uuid"]
    outer = writer.send("POST", "/groups", group={"name": "outer", "group_class": "project"})
    assert (outer["owner_uuid"], outer["can_write"], outer["trash_at"]) == (me, True, None)
    writer.send("POST", "/groups", name="inner", owner_uuid=outer["uuid"])
    assert writer.names(f"/groups/{outer['uuid']}/contents") == ["inner"]
    assert "inner" in writer.names("/groups/contents", uuid=me, recursive=True)
    filters = [["uuid", "is_a", "arvados#group"], ["groups.group_class", "in", ["project"]]]
    of_mine = writer.names("/groups/contents", uuid=me, filters=filters)
    assert ("outer" in of_mine, "inner" in of_mine) == (True, False)
    again = writer.send("POST", "/groups?ensure_unique_name=true", group={"name": "outer"})
    assert again["name"] != "outer"
    path = f"/groups/{outer['uuid']}"
    changed = writer.send("PUT", path, group={"description": "d", "properties": {"a": 1}})
    assert (changed["description"], changed["properties"]) == ("d", {"a": 1})
    assert writer.send("POST", f"{path}/trash")["is_trashed"] is True
    restored = writer.send("PUT", f"{path}?include_trash=true", group={"is_trashed": False})
    assert restored["trash_at"] is None
    writer.send("PUT", path, 422, delete_at="2099-01-01T00:00:00.000000000Z")


def test_lists_and_links(callers: Callers, writer: Caller) -> None:
    box = writer.send("POST", "/groups", name="box")["uuid"]
    for number in range(5):
        writer.send("POST", "/groups", name=f"n{number}", owner_uuid=box)
    mine = [["owner_uuid", "=", box]]
    page = writer.get("/groups", filters=mine, limit=2, offset=1, order=["name desc"])
    assert [item["name"] for item in page["items"]] == ["n3", "n2"]
    assert (page["items_available"], page["limit"], page["offset"]) == (5, 2, 1)
    page = writer.get("/groups", filters=mine, limit=0, count="none", select=["name"])
    assert (page["items"], "items_available" in page) == ([], False)
    page = writer.get("/groups", filters=mine, distinct=True, select=["owner_uuid"])
    assert page["items"] == [{"kind": "arvados#group", "owner_uuid": box}]
    made = writer.send("POST", "/links", link={"link_class": "star", "head_uuid": box})
    path = f"/links/{made['uuid']}"
    assert (writer.get(path), made["head_kind"]) == (made, "arvados#group")
    assert writer.send("PUT", path, link={"name": "n"})["name"] == "n"
    assert writer.names("/links", filters=[["head_uuid", "=", box]]) == ["n"]
    writer.send("DELETE", path)
    writer.get(path, 404)
    # Clients send a long query as the body of a POST.
    query = {"filters": json.dumps(mine), "limit": "1"}
    headers = {"X-Http-Method-Override": "GET"}
    answer = writer.http.post(f"{API}/groups", data=query, headers=headers)
    assert answer.json()["items_available"] == 5
    other = callers(Role.ADMIN)
    shared = other.get("/groups/shared", include="owner_uuid", filters=[["name", "=", "box"]])
    assert [item["uuid"] for item in shared["items"]] == [box]
    assert [user["full_name"] for user in shared["included"]] == ["writer"]
    admin = other.get("/users/current")["uuid"]
    assert other.names("/groups/contents", uuid=admin, filters=[["name", "=", "box"]]) == []
