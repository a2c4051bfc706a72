"""Keys with roles for single repositories: what they open over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from ebbtide.ids import new_id
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.doors.s3.conftest import Client, s3_client
from tests.server.test_roles import ORDER, ROLES, R, place_of
from tests.support.collected import new_collection, new_project
from tests.support.server import Key, Server

IN_A_REPOSITORY = {
    (method, path): role
    for (method, path), role in ROLES.items()
    if path.startswith("/repositories/")
}


@dataclass(frozen=True)
class Lakes:
    """Two repositories with an object each on branch `main`. `server` has the keys of the whole
    store; `here` is the same server with keys that have a role in `mine` alone, by its name."""

    server: Server
    here: Server
    mine: str
    other: str

    def s3(self, role: str) -> Client:
        return s3_client(self.here, role, signature_version="s3v4")


@pytest.fixture
def lakes(plain: Server) -> Lakes:
    mine, other = (f"r-{new_id()}" for _ in range(2))
    for name in (mine, other):
        plain.repository(name).branch("main").object("a").upload(data=name.encode())
    keys: dict[str, Key] = {}
    with Store.open(plain.directory, settings=plain.settings) as store:
        for role in (Role.READER, Role.WRITER, Role.ADMIN):
            pair = store.keys.create(Role.NONE)
            keys[role] = Key(pair.key.access_key_id, pair.secret)
            store.grants.add(keys[role].access_key_id, mine, role)
    return Lakes(plain, replace(plain, keys=keys), mine, other)


def test_a_role_elsewhere_opens_no_route(lakes: Lakes) -> None:
    """Each role opens the routes of its repository that are its own. In another repository, an
    admin of the first gets the same answer as in none, which is also that of a key without roles.
    """
    with ExitStack() as stack:
        clients = {role: stack.enter_context(lakes.here.http(role)) for role in lakes.here.keys}
        nobody = stack.enter_context(lakes.server.http("none"))
        for (method, path), needed in IN_A_REPOSITORY.items():
            closed = [
                client.request(method, place_of(path.replace("{repository}", name)))
                for name in (lakes.other, "no-such-repository")
                for client in (clients["admin"], nobody)
            ]
            assert {answer.status_code for answer in closed} == {403}, path
            if method != "HEAD":
                assert {answer.json()["kind"] for answer in closed} == {"role_missing"}, path
                assert closed[0].json() == closed[2].json(), path
            # A request without a body would delete the repository, or begin work that lasts.
            if (method, path) == ("DELETE", R) or (method == "POST" and "/gc/" in path):
                continue
            for role, client in clients.items():
                place = place_of(path.replace("{repository}", lakes.mine))
                status = client.request(method, place).status_code
                is_closed = ORDER.index(role) < ORDER.index(needed)
                assert status != 401 and (status == 403) == is_closed, (role, method, path)


def test_lists_show_what_may_be_read(lakes: Lakes) -> None:
    with lakes.here.http("reader") as client:
        found = client.get("/repositories").json()["results"]
        assert [each["id"] for each in found] == [lakes.mine]
        assert client.get("/repositories", params={"prefix": lakes.other}).json()["results"] == []
        assert client.get("/user").json()["user"]["id"] == lakes.here.keys["reader"].access_key_id
        assert client.get("/metrics").status_code == 403
        made = {"name": f"r-{new_id()}", "storage_namespace": "local://never"}
        assert client.post("/repositories", json=made).status_code == 403
    buckets = lakes.s3("reader").list_buckets()["Buckets"]
    assert [each["Name"] for each in buckets] == [lakes.mine]
    with lakes.server.http("reader") as client:
        names = {each["id"] for each in client.get("/repositories?amount=1000").json()["results"]}
    assert {lakes.mine, lakes.other} <= names


def refused(operation: Callable[..., object], **asked: Any) -> None:
    with pytest.raises(ClientError) as caught:
        operation(**asked)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, asked


def test_the_gateway(lakes: Lakes) -> None:
    """Signed URLs are checked when they are used, and a copy needs a role on both sides."""
    s3, mine = lakes.s3("writer"), {"Bucket": lakes.mine}
    s3.put_object(**mine, Key="main/b", Body=b"b")
    assert s3.get_object(**mine, Key="main/b")["Body"].read() == b"b"
    for bucket in (lakes.other, "no-such-bucket"):
        for operation, asked in (
            (s3.put_object, {"Key": "main/b", "Body": b"b"}),
            (s3.get_object, {"Key": "main/a"}),
            (s3.list_objects_v2, {}),
            (s3.head_bucket, {}),
            (s3.delete_object, {"Key": "main/a"}),
            (s3.create_multipart_upload, {"Key": "main/c"}),
        ):
            refused(operation, Bucket=bucket, **asked)
    refused(lakes.s3("reader").put_object, **mine, Key="main/c", Body=b"c")

    source = {"Bucket": lakes.other, "Key": "main/a"}
    upload = s3.create_multipart_upload(**mine, Key="main/big")["UploadId"]
    part = {**mine, "Key": "main/big", "UploadId": upload, "PartNumber": 1}
    refused(s3.copy_object, **mine, Key="main/copy", CopySource=source)
    refused(s3.upload_part_copy, **part, CopySource=source)
    own = {**mine, "Key": "main/a"}
    refused(s3.copy_object, Bucket=lakes.other, Key="main/copy", CopySource=own)
    writer = lakes.here.keys["writer"].access_key_id
    lakes.server.command("key", "grant", writer, f"{lakes.other}=reader").check_returncode()
    s3.copy_object(**mine, Key="main/copy", CopySource=source)
    s3.upload_part_copy(**part, CopySource=source)
    assert s3.get_object(**mine, Key="main/copy")["Body"].read() == lakes.other.encode()

    sign = lakes.s3("reader").generate_presigned_url
    urls = [sign("get_object", Params=each) for each in (own, source)]
    assert httpx.get(urls[0]).content == lakes.mine.encode()
    assert httpx.get(urls[1]).status_code == 403
    reader = lakes.here.keys["reader"].access_key_id
    lakes.server.command("key", "revoke-grant", reader, lakes.mine).check_returncode()
    assert httpx.get(urls[0]).status_code == 403


def test_projects_and_collections(lakes: Lakes) -> None:
    """They are named by ids of their own, and are of one repository."""
    with lakes.server.http("admin") as admin:
        ids = {}
        for name in (lakes.mine, lakes.other):
            project = new_project(admin, name)["id"]
            ids[name] = project, new_collection(admin, project)["id"]
    (project, collection), (foreign, hidden) = ids[lakes.mine], ids[lakes.other]
    with lakes.here.http("writer") as client:

        def asked(name: str, project: str, collection: str) -> list[httpx.Response]:
            return [
                client.get(f"/projects/{project}"),
                client.get(f"/collections/{collection}/files"),
                client.get("/projects", params={"repository": name}),
                client.get("/collections", params={"project_id": project}),
                client.get("/collections", params={"repository": name, "path": "p/c"}),
                client.post("/projects", json={"repository": name, "name": "q"}),
                client.post("/collections", json={"project_id": project, "name": "d"}),
            ]

        for closed in (
            *asked(lakes.other, foreign, hidden),
            client.get("/projects/no-such-project"),
            client.delete(f"/collections/{hidden}"),
        ):
            assert (closed.status_code, closed.json()["kind"]) == (403, "role_missing")
        for opened in asked(lakes.mine, project, collection):
            assert opened.status_code in (200, 201), opened.text
        source = {"from_collection": {"collection_id": hidden}}
        body = {"project_id": project, "name": "e", **source}
        assert client.post("/collections", json=body).status_code == 404
    with lakes.here.http("reader") as client:
        body = {"repository": lakes.mine, "name": "z"}
        assert client.post("/projects", json=body).status_code == 403
        assert client.delete(f"/collections/{collection}").status_code == 403
        assert client.get(f"/collections/{collection}").status_code == 200


def test_the_pages(lakes: Lakes) -> None:
    key = lakes.here.keys["reader"]
    with httpx.Client(base_url=lakes.server.url, timeout=60) as browser:
        data = {"access_key_id": key.access_key_id, "secret": key.secret}
        browser.post("/ui/login", data=data, headers={"Origin": lakes.server.url})
        listed = browser.get("/ui").text
        assert lakes.mine in listed and lakes.other not in listed
        files = browser.get(f"/ui/repositories/{lakes.mine}/files")
        assert files.status_code == 200 and '<span class="role">reader</span>' in files.text
        for name in (lakes.other, "no-such-repository"):
            assert browser.get(f"/ui/repositories/{name}/files").status_code == 403
        assert browser.get("/ui/trash").status_code == 403
        assert browser.get(f"/ui/repositories/{lakes.mine}/purges").status_code == 403
