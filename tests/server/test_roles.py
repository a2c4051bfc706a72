"""Who may call what: every route, and every kind of caller."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from ebbtide.server.app import create_app, guarded_routes
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.documents import with_whole_items
from tests.support.server import Server

DOCUMENTS: Final = Path(__file__).parents[2] / "docs"
R: Final = "/repositories/{repository}"
ORDER: Final = ("public", "none", "reader", "writer", "admin")


ROUTE: Final = r"`([A-Z]+) (R?)(/?[^\s`]*)`"
ROLE: Final = "public|none|reader|writer|admin"


def table_of(*documents: str) -> dict[tuple[str, str], str]:
    """The role that each route needs by lists in the documentation. An item begins with a route,
    perhaps with lakeFS's name before it, and its role; or with a role and all its routes."""
    text = "".join(with_whole_items(DOCUMENTS / each) for each in documents)
    rows = re.findall(rf"^- (?:`\w+` )?{ROUTE} ({ROLE})\b", text, re.MULTILINE)
    for role, routes in re.findall(rf"^- ({ROLE}): (.+)$", text, re.MULTILINE):
        rows += [(*route, role) for route in re.findall(ROUTE, routes)]
    found = {
        (method, (R if short else "") + path.removeprefix("/ui")): role
        for method, short, path, role in rows
    }
    assert len(rows) == len(found), "a route is listed twice"
    return found


ROLES: Final = table_of("server.md", "lakefs-api.md")


def place_of(path: str) -> str:
    """A path in which nothing is there of all that it names."""
    return path.replace("{", "no-such-").replace("}", "")


@pytest.fixture
def callers(plain: Server) -> Iterator[dict[str, httpx.Client]]:
    with ExitStack() as stack:
        yield {
            role: stack.enter_context(plain.http(None if role == "public" else role))
            for role in ORDER
        }


def test_the_table_in_the_documentation(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store", settings=Settings()) as store:
        found = {
            (method, route.path_format.removeprefix("/api/v1")): route.role
            for route in guarded_routes(create_app(store))
            for method in route.methods or ()
        }
    assert found == ROLES


def test_who_may_call(callers: dict[str, httpx.Client]) -> None:
    """Nothing named in the path is there, so that whoever may call it finds nothing."""
    for (method, path), needed in ROLES.items():
        for role, client in callers.items():
            status = client.request(method, place_of(path)).status_code
            if ORDER.index(role) >= ORDER.index(needed):
                assert status in (200, 204, 400, 404), (method, path, role)
            else:
                assert status == (401 if role == "public" else 403), (method, path, role)


def test_headers_that_name_nobody(plain: Server, callers: dict[str, httpx.Client]) -> None:
    """What is not there is refused alike, and with every method."""
    wrong = f"{plain.keys['admin'].access_key_id}:{plain.keys['reader'].secret}".encode()
    texts = (b"no colon", b"\xff\xfe:x", b"a\0b:x", b":", b"nobody:secret", wrong)
    encoded = ["Basic " + base64.b64encode(text).decode() for text in texts]
    for header in ("", "Basic", "Basic !!!", "Bearer abc", "Digest username=x", *encoded):
        for asked in ("GET /repositories", "GET /nothing", "PATCH /repositories", "GET /../x"):
            headers = {"Authorization": header}
            answer = callers["public"].request(*asked.split(), headers=headers)
            assert answer.status_code == 401, (header, asked)
            assert answer.headers["www-authenticate"].startswith("Basic ")
            assert "/repositories" not in asked or answer.json()["kind"] == "key_invalid", header


def test_a_revoked_key_is_refused_at_once(plain: Server) -> None:
    made = plain.command("key", "create", "--role", "reader", "--json")
    key = httpx.Response(200, text=made.stdout).json()
    auth = (key["access_key_id"], key["secret_access_key"])
    with plain.http(None) as client:
        assert client.get("/repositories", auth=auth).status_code == 200
        assert plain.command("key", "revoke", key["access_key_id"], "--yes").returncode == 0
        assert client.get("/repositories", auth=auth).status_code == 401
    listed = plain.command("key", "list", "--json")
    assert key["secret_access_key"] not in listed.stdout + plain.log
