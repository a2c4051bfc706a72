"""Keys whose roles are for single repositories: what they open over HTTP, and what stays closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from ebbtide.ids import new_id
from tests.server.s3.conftest import Client
from tests.server.test_roles import ORDER, ROLES
from tests.support.server import Key, Server

IN_A_REPOSITORY = {
    (method, path): role
    for (method, path), role in ROLES.items()
    if path.startswith("/repositories/")
}


def starts_run(method: str, path: str) -> bool:
    """Whether a request without a body begins work that lasts."""
    return method == "POST" and "/gc/" in path


@dataclass(frozen=True)
class Lakes:
    """Two repositories with an object each on branch `main`, and keys without a role in the whole
    store: `keys` have a role in `mine`, by its name."""

    server: Server
    mine: str
    other: str
    keys: dict[str, Key]

    @contextmanager
    def http(self, role: str) -> Iterator[httpx.Client]:
        """Requests with the key that has this role in `mine`."""
        with self.server.http(None) as client:
            client.auth = httpx.BasicAuth(*self.keys[role].pair)
            yield client

    def s3(self, role: str) -> Client:
        """boto3's client with that key."""
        key = self.keys[role]
        return boto3.client(
            "s3",
            endpoint_url=self.server.url,
            aws_access_key_id=key.access_key_id,
            aws_secret_access_key=key.secret,
            region_name="us-east-1",
            config=Config(
                signature_version="s3v4",
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )


def new_key(server: Server, *arguments: str) -> Key:
    """A key that the command line makes."""
    done = server.command("key", "create", "--json", *arguments)
    made = httpx.Response(200, text=done.stdout).json()
    return Key(made["access_key_id"], made["secret_access_key"])


@pytest.fixture
def lakes(plain: Server) -> Lakes:
    mine, other = (f"r-{new_id()}" for _ in range(2))
    for name in (mine, other):
        branch = plain.repository(name).branch("main")
        branch.object("a").upload(data=name.encode())
    keys = {
        role: new_key(plain, "--role", "none", "--repository", f"{mine}={role}")
        for role in ("reader", "writer", "admin")
    }
    return Lakes(plain, mine, other, keys)


@pytest.fixture(scope="module")
def stranger() -> dict[str, Key]:
    """The key of `test_a_role_elsewhere_opens_no_route`, made once."""
    return {}


@pytest.mark.parametrize(
    ("method", "path"),
    IN_A_REPOSITORY,
    ids=[" ".join(each) for each in IN_A_REPOSITORY],
)
def test_a_role_elsewhere_opens_no_route(
    plain: Server, stranger: dict[str, Key], method: str, path: str
) -> None:
    """An admin of one repository gets the same answer in another one, and in none."""
    if not stranger:
        own, other = f"r-{new_id()}", f"r-{new_id()}"
        for name in (own, other):
            plain.repository(name)
        stranger[own] = new_key(plain, "--role", "none", "--repository", f"{own}=admin")
        stranger[other] = plain.keys["none"]
    (own, key), (other, nobody) = stranger.items()
    place = path.replace("{repository}", "<>").replace("{", "no-such-").replace("}", "")
    with plain.http(None) as client:
        closed = [
            client.request(method, place.replace("<>", name), auth=each.pair)
            for name in (other, "no-such-repository")
            for each in (key, nobody)
        ]
        opened = (
            None
            if starts_run(method, path)
            else client.request(method, place.replace("<>", own), auth=key.pair)
        )
    assert {answer.status_code for answer in closed} == {403}
    if method != "HEAD":
        assert {answer.json()["kind"] for answer in closed} == {"role_missing"}
        assert closed[0].json() == closed[2].json()
    if (method, path) == ("DELETE", "/repositories/{repository}"):
        assert opened is not None and opened.status_code == 204
        stranger.clear()
    elif opened is not None:
        assert opened.status_code not in (401, 403)


def test_each_role_opens_what_is_its_own(lakes: Lakes) -> None:
    """The routes of the repository, for keys with each role in it."""
    for (method, path), needed in IN_A_REPOSITORY.items():
        if (method, path) == ("DELETE", "/repositories/{repository}") or starts_run(method, path):
            continue
        place = path.replace("{repository}", lakes.mine).replace("{", "no-such-").replace("}", "")
        for role in lakes.keys:
            with lakes.http(role) as client:
                status = client.request(method, place).status_code
            assert (status == 403) == (ORDER.index(role) < ORDER.index(needed)), (role, place)


def test_lists_show_what_may_be_read(lakes: Lakes) -> None:
    with lakes.http("reader") as client:
        found = client.get("/repositories").json()["results"]
        assert [each["id"] for each in found] == [lakes.mine]
        assert client.get("/repositories", params={"prefix": lakes.other}).json()["results"] == []
        assert client.get("/user").json()["user"]["id"] == lakes.keys["reader"].access_key_id
        assert client.get("/metrics").status_code == 403
        made = {"name": f"r-{new_id()}", "storage_namespace": "local://never"}
        assert client.post("/repositories", json=made).status_code == 403
    buckets = lakes.s3("reader").list_buckets()["Buckets"]
    assert [each["Name"] for each in buckets] == [lakes.mine]
    with lakes.server.http("reader") as client:
        names = {each["id"] for each in client.get("/repositories?amount=1000").json()["results"]}
    assert {lakes.mine, lakes.other} <= names


def refused(error: pytest.ExceptionInfo[ClientError]) -> bool:
    return bool(error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403)


OPERATIONS: Final[dict[str, dict[str, Any]]] = {
    "put_object": {"Key": "main/b", "Body": b"b"},
    "get_object": {"Key": "main/a"},
    "list_objects_v2": {},
    "head_bucket": {},
    "delete_object": {"Key": "main/a"},
    "create_multipart_upload": {"Key": "main/c"},
}
"""Some operations of boto3, with their arguments but for the bucket."""


def test_the_gateway(lakes: Lakes) -> None:
    s3 = lakes.s3("writer")
    s3.put_object(Bucket=lakes.mine, Key="main/b", Body=b"b")
    assert s3.get_object(Bucket=lakes.mine, Key="main/b")["Body"].read() == b"b"
    for bucket in (lakes.other, "no-such-bucket"):
        for operation, more in OPERATIONS.items():
            with pytest.raises(ClientError) as caught:
                getattr(s3, operation)(Bucket=bucket, **more)
            assert refused(caught)
    with pytest.raises(ClientError) as caught:
        lakes.s3("reader").put_object(Bucket=lakes.mine, Key="main/c", Body=b"c")
    assert refused(caught)


def test_presigned_urls_are_checked_when_they_are_used(lakes: Lakes) -> None:
    sign = lakes.s3("reader").generate_presigned_url
    mine, other = (
        sign("get_object", Params={"Bucket": name, "Key": "main/a"})
        for name in (lakes.mine, lakes.other)
    )
    assert httpx.get(mine).content == lakes.mine.encode()
    assert httpx.get(other).status_code == 403
    key = lakes.keys["reader"].access_key_id
    assert lakes.server.command("key", "revoke-grant", key, lakes.mine).returncode == 0
    assert httpx.get(mine).status_code == 403


def test_a_copy_needs_a_role_on_both_sides(lakes: Lakes) -> None:
    s3 = lakes.s3("writer")
    source = {"Bucket": lakes.other, "Key": "main/a"}
    upload = s3.create_multipart_upload(Bucket=lakes.mine, Key="main/big")["UploadId"]
    part = {"Bucket": lakes.mine, "Key": "main/big", "UploadId": upload, "PartNumber": 1}
    with pytest.raises(ClientError) as caught:
        s3.copy_object(Bucket=lakes.mine, Key="main/copy", CopySource=source)
    assert refused(caught)
    with pytest.raises(ClientError) as caught:
        s3.upload_part_copy(**part, CopySource=source)
    assert refused(caught)
    with pytest.raises(ClientError) as caught:
        mine = {"Bucket": lakes.mine, "Key": "main/a"}
        s3.copy_object(Bucket=lakes.other, Key="main/copy", CopySource=mine)
    assert refused(caught)
    key = lakes.keys["writer"].access_key_id
    assert lakes.server.command("key", "grant", key, f"{lakes.other}=reader").returncode == 0
    s3.copy_object(Bucket=lakes.mine, Key="main/copy", CopySource=source)
    s3.upload_part_copy(**part, CopySource=source)
    copied = s3.get_object(Bucket=lakes.mine, Key="main/copy")["Body"].read()
    assert copied == lakes.other.encode()


def test_projects_and_collections(lakes: Lakes) -> None:
    """They are named by ids of their own, and are of one repository."""
    with lakes.server.http("admin") as admin:
        ids = {}
        for name in (lakes.mine, lakes.other):
            project = admin.post("/projects", json={"repository": name, "name": "p"}).json()["id"]
            asked = {"project_id": project, "name": "c"}
            ids[name] = project, admin.post("/collections", json=asked).json()["id"]
    (project, collection), (foreign, hidden) = ids[lakes.mine], ids[lakes.other]
    with lakes.http("writer") as client:
        for closed in (
            client.get(f"/projects/{foreign}"),
            client.get("/projects/no-such-project"),
            client.get(f"/collections/{hidden}"),
            client.get(f"/collections/{hidden}/files"),
            client.delete(f"/collections/{hidden}"),
            client.get("/projects", params={"repository": lakes.other}),
            client.get("/collections", params={"project_id": foreign}),
            client.get("/collections", params={"repository": lakes.other, "path": "p/c"}),
            client.post("/projects", json={"repository": lakes.other, "name": "q"}),
            client.post("/collections", json={"project_id": foreign, "name": "d"}),
        ):
            assert (closed.status_code, closed.json()["kind"]) == (403, "role_missing")
        source = {"from_collection": {"collection_id": hidden}}
        asked = {"project_id": project, "name": "d", **source}
        assert client.post("/collections", json=asked).status_code == 404
        for opened in (
            client.get(f"/projects/{project}"),
            client.get(f"/collections/{collection}/files"),
            client.get("/projects", params={"repository": lakes.mine}),
            client.get("/collections", params={"project_id": project}),
            client.post("/projects", json={"repository": lakes.mine, "name": "q"}),
            client.post("/collections", json={"project_id": project, "name": "d"}),
        ):
            assert opened.status_code in (200, 201), opened.text
    with lakes.http("reader") as client:
        asked = {"repository": lakes.mine, "name": "z"}
        assert client.post("/projects", json=asked).status_code == 403
        assert client.delete(f"/collections/{collection}").status_code == 403
        assert client.get(f"/collections/{collection}").status_code == 200


def test_the_pages(lakes: Lakes) -> None:
    key = lakes.keys["reader"]
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


def test_a_new_repository_of_the_name_is_closed(lakes: Lakes) -> None:
    """An admin of a repository may delete it, and has no role in the next one."""
    with lakes.http("admin") as client:
        assert client.get(f"/repositories/{lakes.mine}/branches").status_code == 200
        assert client.delete(f"/repositories/{lakes.mine}").status_code == 204
        lakes.server.command("repo", "create", lakes.mine)
        assert client.get(f"/repositories/{lakes.mine}/branches").status_code == 403
        assert client.get("/repositories").json()["results"] == []
