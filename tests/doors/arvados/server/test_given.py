"""What a request says is done, refused, or known to change nothing: parameters and fields of every
route, and lists of records that are in no table."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import httpx
import pytest

from ebbtide.doors.arvados.server.discovery import RESOURCES
from ebbtide.doors.arvados.server.door import arvados_routes
from ebbtide.doors.arvados.server.routes import PREFIX, SILENT
from ebbtide.ids import new_id
from tests.doors.arvados.server.test_keep import API, create, put, refused, unsigned
from tests.doors.arvados.server.test_projects import Caller
from tests.support.arvados import manifest_of

ROUTES = [each for each in arvados_routes() if not each.streamed]
KNOWN = frozenset(
    """
    alt bypass_federation cluster_id count description distinct ensure_unique_name
    exclude_home_project filters forwarded_for include include_old_versions include_trash limit
    no_forward offset order properties reader_tokens recursive replace_files replace_segments search
    select uuid where
    """.split()  # noqa: SIM905
)
"""Parameters of Arvados's routes."""


def test_every_route_refuses_parameters_that_it_does_not_have(http: httpx.Client) -> None:
    for number, route in enumerate(ROUTES):
        path = route.path.replace("{uuid:segment}", new_id())
        unknown = sorted(KNOWN - route.parameters - SILENT)
        # All routes read parameters by the same code: each is asked for some of them.
        for name in (*unknown[number % 5 :: 5], "nothing"):
            answer = http.request(route.method, path, params={name: "x"})
            refused(answer, 422, "invalid_argument")
            assert f"parameter '{name}'" in answer.text, route
        answer = http.request(route.method, path, params={"alt": "json"})
        assert "parameter" not in answer.text or answer.status_code == 200, route


def test_the_discovery_document_has_the_parameters_of_the_routes() -> None:
    """Clients offer what it lists, and the routes take it."""
    taken = {(each.method, re.sub(r":\w+", "", each.path)): each for each in ROUTES}
    for resource in RESOURCES:
        for method in resource.methods:
            route = taken[method.http_method, f"{PREFIX}/{method.path}"]
            assert set(method.parameters) == route.parameters, route
            assert (route.record is not None) == method.has_body, route


@pytest.fixture
def made(http: httpx.Client) -> dict[str, Any]:
    return create(http, manifest_of(put(http, new_id().encode())))


def test_unknown_fields_are_refused(http: httpx.Client) -> None:
    for resource in ("collections", "groups", "links"):
        record = resource.removesuffix("s")
        fields = {"name": new_id()[:8]} | ({"link_class": "x"} if record == "link" else {})
        found = http.post(f"{PREFIX}/{resource}", json={record: fields}).json()
        url = f"{PREFIX}/{resource}/{found['uuid']}"
        for name, value in (("nothing", 1), ("uuid", "x"), ("nothing", None)):
            for body in ({record: {name: value}}, {name: value}):
                refused(http.put(url, json=body), 422, "invalid_argument")
            refused(http.patch(url, json=body), 422, "invalid_argument")
            body = {record: fields | {"name": new_id()[:8], name: value}}
            refused(http.post(f"{PREFIX}/{resource}", json=body), 422, "invalid_argument")
        # A whole record that was read can be sent back.
        back = {name: value for name, value in found.items() if not name.endswith("manifest_text")}
        again = http.put(url, json={record: back})
        assert again.status_code == 200, again.text
        assert again.json()["name"] == found["name"]


def test_fields_of_collections_that_cannot_be_set(http: httpx.Client, made: dict[str, Any]) -> None:
    url = f"{API}/{made['uuid']}"
    unsettable: tuple[dict[str, Any], ...] = (
        {"file_count": 7},
        {"current_version_uuid": "x"},
        {"storage_classes_desired": ["archive"]},
        *({"replication_desired": wrong} for wrong in (0, True, "2")),
        *(
            {name: None}
            for name in ("owner_uuid", "manifest_text", "is_trashed", "preserve_version")
        ),
        {"unsigned_manifest_text": ""},
        {"properties": []},
        {"name": 7},
    )
    for fields in unsettable:
        refused(http.put(url, json=fields), 422, "invalid_argument")
    assert http.get(url).json()["version"] == made["version"]
    assert made["replication_desired"] is None
    for copies in (2, None):
        assert http.put(url, json={"replication_desired": copies}).status_code == 200
        assert http.get(url).json()["replication_desired"] == copies
    assert create(http, "", replication_desired=3)["replication_desired"] == 3


def test_the_hash_must_be_that_of_the_manifest(http: httpx.Client, made: dict[str, Any]) -> None:
    portable, text = made["portable_data_hash"], made["manifest_text"]
    assert create(http, text, portable_data_hash=portable)["portable_data_hash"] == portable
    other = f"{'0' * 32}+9"
    body = {"collection": {"manifest_text": text, "portable_data_hash": other}}
    refused(http.post(API, json=body), 422, "checksum_mismatch")
    url = f"{API}/{made['uuid']}"
    refused(http.put(url, json={"portable_data_hash": other}), 422, "checksum_mismatch")
    assert http.put(url, json={"portable_data_hash": portable}).status_code == 200


def test_a_collection_without_a_name(http: httpx.Client, made: dict[str, Any]) -> None:
    """A name that is taken away is replaced, as at the beginning. It does not stay in silence."""
    for name in (None, ""):
        http.put(f"{API}/{made['uuid']}", json={"name": new_id()[:8]}).raise_for_status()
        changed = http.put(f"{API}/{made['uuid']}", json={"name": name}).json()
        assert changed["name"].startswith("New collection")
        assert unsigned(changed) == unsigned(http.get(f"{API}/{made['uuid']}").json())
    assert create(http, "", name=None)["name"].startswith("New collection")


def test_fields_that_no_record_has_cannot_be_selected(http: httpx.Client) -> None:
    for path in ("collections", "groups", "links", "users", "keep_services", "groups/contents"):
        parameters: dict[str, str | int] = {"select": json.dumps(["uuid", "nothing"]), "limit": 0}
        answer = http.get(f"{PREFIX}/{path}", params=parameters)
        refused(answer, 422, "invalid_argument")
        answer = http.get(f"{PREFIX}/{path}", params={"select": '["uuid"]'})
        assert all(set(item) <= {"uuid", "kind"} for item in answer.json()["items"]), answer.text
    one = http.get(f"{PREFIX}/users/current", params={"select": '["username"]'}).json()
    assert set(one) == {"kind", "username"}


def test_lists_of_users(http: httpx.Client) -> None:
    listed = partial(Caller(http).get, "/users")

    def names(**parameters: Any) -> list[str]:
        return [each["full_name"] for each in listed(**parameters)["items"]]

    everybody = sorted(names())
    assert {"admin", "reader", "root", "writer"} <= set(everybody)
    assert names(order=["full_name desc"], limit=2, offset=1) == everybody[::-1][1:3]
    chosen = [["full_name", "in", ["admin", "root"]]]
    assert names(filters=chosen, order="full_name") == ["admin", "root"]
    assert names(filters=[*chosen, ["full_name", ">", "admin"]]) == ["root"]
    assert names(filters=[["is_admin", "=", True], ["full_name", "not in", ["root"]]]) == ["admin"]
    assert listed(limit=1)["items_available"] == len(everybody)
    assert "items_available" not in listed(count="none")
    assert len(listed(select=["is_active"], distinct=True)["items"]) == 1
    for bad in (
        {"filters": '[["nothing", "=", 1]]'},
        {"filters": '[["full_name", "like", "a%"]]'},
        {"filters": '[["is_admin", ">", 1]]'},
        {"order": "nothing"},
        {"count": "about"},
    ):
        refused(http.get(f"{PREFIX}/users", params=bad), 422, "invalid_argument")


def test_contents_with_their_owners(http: httpx.Client, made: dict[str, Any]) -> None:
    group = http.post(f"{PREFIX}/groups", json={"name": new_id()[:8]}).json()
    inner = create(http, "", owner_uuid=group["uuid"])
    url, asked = f"{PREFIX}/groups/contents", {"include": "container_uuid"}
    refused(http.get(url, params=asked), 422, "invalid_argument")
    asked["filters"] = json.dumps([["uuid", "in", [inner["uuid"], made["uuid"]]]])
    for include in ("owner_uuid", '["owner_uuid"]'):
        found = http.get(url, params=asked | {"include": include}).json()
        assert {each["uuid"] for each in found["included"]} == {group["uuid"], made["owner_uuid"]}
