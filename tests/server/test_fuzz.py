"""Requests made from the server's own description: none may be answered with a defect."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest
from hypothesis import HealthCheck, given

from ebbtide.ids import new_id
from tests.server.test_roles import ROLES
from tests.support.collected import new_collection, new_project
from tests.support.randomized import examples, randomized
from tests.support.server import API, Server

REQUESTS: Final = "requests from the server's description"
LEFT_OUT: Final = {
    # It starts a process for each request that it understands.
    ("POST", "/repositories/{repository}/gc/runs"),
}
_BRANCH: Final = "/repositories/{repository}/branches/{branch}"
NOT_SUPPORTED: Final = {("POST", f"{_BRANCH}/import"), ("POST", f"{_BRANCH}/objects/copy")}
"""Routes that know a field of lakeFS's and refuse it: the date of an import, a shallow copy."""
pytestmark = pytest.mark.xdist_group("fuzz")  # with a description that is read once

NAMES: Final = dict.fromkeys(("branch", "ref", "left", "source", "destination"), "main") | {
    "right": "main~1"
}


@pytest.fixture(scope="module")
def schema(servers: Any) -> Any:  # schemathesis' own types
    import schemathesis  # takes long, and one process in three comes here

    server: Server = servers("local")
    with server.http("reader") as client:
        return schemathesis.openapi.from_dict(client.get("/openapi.json").json())


ASKED: Final = sorted(set(ROLES) - LEFT_OUT)


@pytest.mark.parametrize(("method", "path"), ASKED, ids=[" ".join(each) for each in ASKED])
@pytest.mark.drawn("routes asked at random")
@pytest.mark.filterwarnings("ignore")
@randomized(REQUESTS)
def test_nothing_is_a_defect(plain: Server, schema: Any, method: str, path: str) -> None:
    lake = plain.repository(f"r-{new_id()}")
    lake.branch("main").object("a").upload("1")
    lake.branch("main").commit("first")
    operation = schema[API + path][method]
    seen: list[int] = []
    with plain.http() as client:
        names = NAMES | {"repository": lake.id} | collected(client, lake.id)

        @examples(REQUESTS, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if len(seen) % 2 == 0 and (method, path) != ("DELETE", "/repositories/{repository}"):
                case.path_parameters = {
                    name: names.get(name, value)
                    for name, value in (case.path_parameters or {}).items()
                }
                for name in set(names) & set(case.query or {}):
                    case.query[name] = names[name]
            seen.append(send(client, case))

        ask()
    assert seen
    expected = {501} if (method, path) in NOT_SUPPORTED else set()
    assert {each for each in seen if each >= 500} <= expected, plain.log[-5000:]


def collected(client: httpx.Client, repository: str) -> dict[str, str]:
    """The ids of a project and of a collection in a repository, and the locator of its file."""
    project = new_project(client, repository)
    collection = new_collection(client, project["id"], from_ref={"ref": "main"})
    place = f"/collections/{collection['id']}"
    assert client.put(f"{place}/files?path=b&keep_version=true", content=b"2").status_code == 200
    signed = client.get(f"{place}/files?locators=true").json()
    return {
        "project_id": project["id"],
        "collection_id": collection["id"],
        "other": collection["id"],
        "version": "1",
        "token": signed["results"][0]["locator"],
    }


def send(client: httpx.Client, case: Any) -> int:
    """Send a request as far as HTTP lets it be sent; the status."""
    made = case.as_transport_kwargs(base_url=str(client.base_url).removesuffix(API + "/"))
    try:
        answer = client.request(
            made["method"],
            made["url"],
            params=made.get("params"),
            json=made.get("json"),
            content=made.get("data") if isinstance(made.get("data"), bytes | str) else None,
            headers={
                name: value
                for name, value in dict(made.get("headers") or {}).items()
                if value is not None
            },
        )
    except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError, ValueError):
        return 0
    return answer.status_code
