"""Who may call what: every route, and every kind of caller."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import pytest

from ebbtide.server.app import create_app, guarded_routes
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.server import Server

R = "/repositories/{repository}"
B = R + "/branches/{branch}"
P = "/projects/{project_id}"
C = "/collections/{collection_id}"

ROLES = {
    ("GET", "/healthcheck"): "public",
    ("GET", "/setup_lakefs"): "public",
    ("POST", "/auth/login"): "public",
    ("GET", "/config"): "none",
    ("GET", "/config/version"): "none",
    ("GET", "/config/storage"): "none",
    ("GET", "/config/garbage-collection"): "none",
    ("GET", "/user"): "none",
    ("POST", "/statistics"): "none",
    ("GET", "/metrics"): "reader",
    ("GET", "/openapi.json"): "none",
    ("GET", "/repositories"): "none",
    ("POST", "/repositories"): "admin",
    ("GET", R): "reader",
    ("DELETE", R): "admin",
    ("PATCH", R): "admin",
    ("POST", R + "/undelete"): "admin",
    ("POST", R + "/refs/{branch}/symlink"): "writer",
    ("POST", R + "/dump"): "admin",
    ("GET", R + "/dump"): "admin",
    ("POST", R + "/restore"): "admin",
    ("GET", R + "/restore"): "admin",
    ("PUT", R + "/refs/dump"): "admin",
    ("PUT", R + "/refs/restore"): "admin",
    ("GET", R + "/metadata"): "reader",
    ("POST", R + "/metadata"): "admin",
    ("DELETE", R + "/metadata"): "admin",
    ("GET", R + "/branches"): "reader",
    ("POST", R + "/branches"): "writer",
    ("GET", B): "reader",
    ("PUT", B): "writer",
    ("DELETE", B): "writer",
    ("PATCH", B): "writer",
    ("POST", B + "/restore"): "writer",
    ("PUT", B + "/hard_reset"): "writer",
    ("POST", B + "/commits"): "writer",
    ("POST", B + "/revert"): "writer",
    ("POST", B + "/cherry-pick"): "writer",
    ("GET", B + "/diff"): "reader",
    ("POST", B + "/objects"): "writer",
    ("PUT", B + "/objects"): "writer",
    ("PUT", B + "/objects/stat/user_metadata"): "writer",
    ("DELETE", B + "/objects"): "writer",
    ("POST", B + "/objects/delete"): "writer",
    ("POST", B + "/objects/copy"): "writer",
    ("POST", B + "/objects/move"): "writer",
    ("POST", B + "/import"): "writer",
    ("GET", B + "/import"): "reader",
    ("DELETE", B + "/import"): "writer",
    ("GET", B + "/staging/backing"): "writer",
    ("PUT", B + "/staging/backing"): "writer",
    ("POST", B + "/staging/pmpu"): "writer",
    ("PUT", B + "/staging/pmpu/{uploadId}"): "writer",
    ("DELETE", B + "/staging/pmpu/{uploadId}"): "writer",
    ("PUT", B + "/staging/pmpu/{uploadId}/parts/{partNumber}"): "writer",
    ("PUT", B + "/staging/pmpu/{uploadId}/parts/{partNumber}/copy"): "writer",
    ("GET", R + "/tags"): "reader",
    ("POST", R + "/tags"): "writer",
    ("GET", R + "/tags/{tag}"): "reader",
    ("DELETE", R + "/tags/{tag}"): "writer",
    ("PATCH", R + "/tags/{tag}"): "writer",
    ("POST", R + "/tags/{tag}/restore"): "writer",
    ("GET", R + "/commits/{commit_id}"): "reader",
    ("GET", R + "/refs/{ref}/commits"): "reader",
    ("GET", R + "/refs/{ref}/objects"): "reader",
    ("HEAD", R + "/refs/{ref}/objects"): "reader",
    ("GET", R + "/refs/{ref}/objects/stat"): "reader",
    ("GET", R + "/refs/{ref}/objects/ls"): "reader",
    ("GET", R + "/refs/{left}/diff/{right}"): "reader",
    ("GET", R + "/refs/{source}/merge/{destination}"): "reader",
    ("POST", R + "/refs/{source}/merge/{destination}"): "writer",
    ("GET", "/projects"): "reader",
    ("POST", "/projects"): "writer",
    ("GET", P): "reader",
    ("PATCH", P): "writer",
    ("DELETE", P): "writer",
    ("POST", P + "/restore"): "writer",
    ("GET", "/collections"): "reader",
    ("POST", "/collections"): "writer",
    ("GET", C): "reader",
    ("PATCH", C): "writer",
    ("DELETE", C): "writer",
    ("POST", C + "/restore"): "writer",
    ("GET", C + "/versions"): "reader",
    ("DELETE", C + "/versions/{version}"): "writer",
    ("GET", C + "/files"): "reader",
    ("PUT", C + "/files"): "writer",
    ("DELETE", C + "/files"): "writer",
    ("GET", C + "/files/content"): "reader",
    ("HEAD", C + "/files/content"): "reader",
    ("GET", C + "/diff"): "reader",
    ("POST", R + "/locators"): "reader",
    ("POST", R + "/uploads"): "writer",
    ("GET", "/locators/{token}"): "public",
    ("HEAD", "/locators/{token}"): "public",
    ("POST", "/signing-keys/rotate"): "admin",
    ("GET", R + "/settings/gc_rules"): "reader",
    ("PUT", R + "/settings/gc_rules"): "admin",
    ("DELETE", R + "/settings/gc_rules"): "admin",
    ("GET", R + "/settings/retention"): "reader",
    ("PUT", R + "/settings/retention"): "admin",
    ("DELETE", R + "/settings/retention"): "admin",
    ("GET", "/schedules"): "reader",
    ("GET", R + "/schedule"): "reader",
    ("PUT", R + "/schedule"): "admin",
    ("PATCH", R + "/schedule"): "admin",
    ("DELETE", R + "/schedule"): "admin",
    ("GET", R + "/settings/branch_protection"): "reader",
    ("PUT", R + "/settings/branch_protection"): "admin",
    ("POST", R + "/gc/prepare_commits"): "admin",
    ("POST", R + "/gc/prepare_commits/async"): "admin",
    ("GET", R + "/gc/prepare_commits/status"): "admin",
    ("POST", R + "/gc/prepare_uncommited"): "admin",
    ("POST", R + "/gc/runs"): "admin",
    ("POST", R + "/gc/runs/{run_id}/undo"): "admin",
    ("POST", R + "/gc/runs/{run_id}/purge"): "admin",
    ("GET", R + "/gc/runs"): "reader",
    ("GET", R + "/gc/runs/{run_id}"): "reader",
    ("GET", R + "/explain"): "reader",
    ("POST", R + "/purges"): "admin",
    ("GET", R + "/purges"): "admin",
    ("GET", R + "/purges/{purge_id}"): "admin",
    ("POST", R + "/purges/{purge_id}/resume"): "admin",
    ("GET", R + "/purges/{purge_id}/verify"): "admin",
}
ORDER = ("public", "none", "reader", "writer", "admin")


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def test_every_route_has_its_row(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store", settings=Settings()) as store:
        found = {
            (method, route.path_format.removeprefix("/api/v1")): route.role
            for route in guarded_routes(create_app(store))
            for method in route.methods or ()
        }
    assert found == ROLES


@pytest.mark.parametrize(("method", "path"), ROLES, ids=[" ".join(each) for each in ROLES])
def test_who_may_call(plain: Server, method: str, path: str) -> None:
    """Nothing named in the path is there, so that whoever may call it finds nothing."""
    needed = ORDER.index(ROLES[method, path])
    place = path.replace("{", "no-such-").replace("}", "")
    for number, role in enumerate(ORDER):
        with plain.http(None if role == "public" else role) as client:
            status = client.request(method, place).status_code
        if number >= needed:
            assert status in (200, 204, 400, 404), role
        else:
            assert status == (401 if role == "public" else 403), role


@pytest.mark.parametrize(("method", "path"), ROLES, ids=[" ".join(each) for each in ROLES])
def test_a_wrong_secret_opens_nothing(plain: Server, method: str, path: str) -> None:
    if ROLES[method, path] == "public":
        return
    wrong = basic(f"{plain.keys['admin'].access_key_id}:{plain.keys['reader'].secret}")
    with plain.http(None) as client:
        answer = client.request(method, path, headers=wrong)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
        "Basic " + base64.b64encode(b"a\0b:x").decode(),
        "Basic " + base64.b64encode(b":").decode(),
        "Basic " + base64.b64encode(b"nobody:secret").decode(),
        "Bearer abc",
        "Digest username=x",
    ],
)
def test_headers_that_name_nobody(plain: Server, header: str) -> None:
    with plain.http(None) as client:
        answer = client.get("/repositories", headers={"Authorization": header})
        assert answer.status_code == 401
        assert answer.json()["kind"] == "key_invalid"
        # What is not there is refused alike, and with every method.
        for method, path in (("GET", "/nothing"), ("PATCH", "/repositories"), ("GET", "/../x")):
            answer = client.request(method, path, headers={"Authorization": header})
            assert answer.status_code == 401


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
