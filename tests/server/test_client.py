"""The clients themselves: what they do on a server of ours."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Barrier
from typing import Any

import lakefs
import lakefs_sdk
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakefs.exceptions import (
    BadRequestException,
    ConflictException,
    NotFoundException,
    ObjectExistsException,
)
from lakefs_sdk.client import LakeFSClient

from ebbtide.ids import new_id
from tests.support.server import Server, place_of


def sdk(server: Server) -> LakeFSClient:
    return server.client().sdk_client


def put(repo: lakefs.Repository, branch: str = "main", **files: str) -> str:
    """Upload and commit; the commit's id."""
    for name, text in files.items():
        repo.branch(branch).object(name).upload(text)
    return str(repo.branch(branch).commit("change").get_commit().id)


def shown(repo: lakefs.Repository, ref: str = "main") -> dict[str, bytes]:
    found = repo.ref(ref)
    return {each.path: found.object(each.path).reader().read() for each in found.objects()}


def failed(status: int, operation: Callable[[], object], kind: str = "") -> None:
    with pytest.raises(lakefs_sdk.ApiException) as caught:
        operation()
    assert caught.value.status == status
    assert f'"kind":"{kind}' in caught.value.body


def test_sample_data(server: Server) -> None:
    """At the paths that tutorials and tests of lakeFS's clients read."""
    name = f"r-{new_id()}"
    made = lakefs.Repository(name, client=server.client())
    made.create(storage_namespace=f"local://{name}", include_samples=True)
    found = shown(made)
    assert found.keys() == {"README.md", "data/lakes.source.md", "images/lake.svg", "lakes.parquet"}
    table = pq.read_table(pa.BufferReader(found["lakes.parquet"]))
    assert table.num_rows > 1 and "Baikal" in table.column("name").to_pylist()
    assert not list(made.branch("main").uncommitted())
    assert next(each.message for each in made.branch("main").log()) == "Add sample data"


def test_repositories(server: Server, repo: lakefs.Repository) -> None:
    client = server.client()
    assert repo.properties.id == repo.id
    assert repo.properties.default_branch == "main"
    assert repo.id in {each.id for each in lakefs.repositories(client=client)}
    again = lakefs.Repository(repo.id, client=client)
    assert again.create("local://other", exist_ok=True).properties.id == repo.id
    assert repo.metadata == {}
    repo.delete()
    with pytest.raises(ConflictException):  # its files are there still
        server.repository(repo.id)
    # A storage namespace is told as it was given. Web tools make one of the configured prefix.
    prefix = sdk(server).config_api.get_config().storage_config.default_namespace_prefix
    for form in ("local://{}/deep/er", "local://{}/", f"{prefix}/{{}}"):
        name = f"r-{new_id()}"
        namespace = form.format(name)
        made = lakefs.Repository(name, client=client).create(storage_namespace=namespace)
        assert made.properties.storage_namespace == namespace
        put(made, a="1")
        assert shown(made) == {"a": b"1"}
        (listed,) = lakefs.repositories(client=client, prefix=name)
        assert listed.properties.storage_namespace == namespace


def test_objects(repo: lakefs.Repository) -> None:
    branch = repo.branch("main")
    made = branch.object("a/ü b").upload("text", content_type="text/x", metadata={"k": "v"})
    stat = made.stat()
    assert (stat.path, stat.size_bytes, stat.content_type) == ("a/ü b", 4, "text/x")
    assert stat.metadata == {"k": "v"}
    assert abs(stat.mtime - datetime.now(UTC).timestamp()) < 600
    with made.reader(mode="r") as reader:
        assert (reader.read(2), reader.read(), reader.read()) == ("te", "xt", "")
        reader.seek(-3, os.SEEK_END)
        assert reader.read() == "ext"
    assert made.exists()
    with pytest.raises(ObjectExistsException):
        branch.object("a/ü b").upload("again", mode="x")
    copied = made.copy("main", "copy")
    assert (copied.reader().read(), copied.stat().metadata) == (b"text", {"k": "v"})
    for _ in range(2):  # again: no error
        made.delete()
    assert not made.exists()
    empty = branch.object("empty").upload(b"")
    assert (empty.reader().read(), empty.reader().read(10)) == (b"", b"")


def test_an_upload_as_a_form(server: Server, repo: lakefs.Repository) -> None:
    """As the low-level client sends it; two megabytes take the way of large ones."""
    for data in (b"small", b"\r\n--x" * 400_000):
        stat = sdk(server).objects_api.upload_object(repo.id, "main", "form", content=data)
        assert stat.size_bytes == len(data)
        assert repo.branch("main").object("form").reader().read() == data


def test_listing(repo: lakefs.Repository) -> None:
    branch = repo.branch("main")
    names = [f"d{number % 3}/{number:02}" for number in range(12)] + ["top"]
    for name in names:
        branch.object(name).upload(name)

    def listed(**asked: object) -> list[str]:
        return [each.path for each in branch.objects(**asked)]

    assert listed() == sorted(names)
    for page_size in (1, 100):
        assert listed(prefix="d1/", amount=page_size) == [f"d1/{n:02}" for n in (1, 4, 7, 10)]
        assert listed(delimiter="/", amount=page_size) == ["d0/", "d1/", "d2/", "top"]
    assert listed(after="d2/08") == ["d2/11", "top"]
    branch.delete_objects([*(name for name in names if name != "top"), "never there"])
    assert listed() == ["top"]


def test_branches(server: Server, repo: lakefs.Repository) -> None:
    for name in ("dev", "dev-deep", "zeta"):
        repo.branch(name).create("main")
    hidden = repo.branch("secret").create("main", hidden=True)
    assert [each.id for each in repo.branches()] == ["dev", "dev-deep", "main", "zeta"]
    assert "secret" in [each.id for each in repo.branches(show_hidden=True, amount=1)]
    assert [each.id for each in repo.branches(prefix="dev", amount=1)] == ["dev", "dev-deep"]
    head = repo.branch("main").head.id
    assert hidden.head.id == repo.branch("dev-deep").head.id == head
    repo.branch("dev").create("main", exist_ok=True)
    repo.branch("dev-deep").delete()
    with pytest.raises(NotFoundException):
        _ = repo.branch("dev-deep").head
    plain = lakefs_sdk.BranchCreation(name="plain", source="main")
    assert sdk(server).branches_api.create_branch(repo.id, plain) == head


def test_tags(repo: lakefs.Repository) -> None:
    first = put(repo, a="1")
    tag = repo.tag("v1").create("main")
    put(repo, a="2")
    assert tag.get_commit().id == first
    assert shown(repo, "v1") == {"a": b"1"}
    assert [each.id for each in repo.tags()] == ["v1"]
    tag.delete()
    with pytest.raises(NotFoundException):
        tag.delete()


def test_commits_and_log(server: Server, repo: lakefs.Repository) -> None:
    first = put(repo, a="1")
    repo.branch("main").object("b/x").upload("2")
    date = int(datetime.now(UTC).timestamp())
    second = repo.branch("main").commit("second", metadata={"k": "v"}, date=date).get_commit()
    assert (second.message, second.metadata, second.parents) == ("second", {"k": "v"}, [first])
    assert second.creation_date == date
    log = [each.id for each in repo.ref("main").log(amount=1)]
    assert (log[:2], len(log)) == ([second.id, first], 3)

    def logged(**asked: object) -> list[str]:
        found = sdk(server).refs_api.log_commits(repo.id, "main", **asked)
        return [each.id for each in found.results]

    assert logged(objects=["a"]) == [first]
    assert logged(prefixes=["b/"]) == [second.id]
    assert logged(stop_at=first, first_parent=True) == [second.id, first]
    assert logged(since=datetime(2020, 1, 1, tzinfo=UTC)) == [second.id, first]
    limited = sdk(server).refs_api.log_commits(repo.id, "main", amount=1, limit=True)
    assert not limited.pagination.has_more
    assert repo.branch("main").commit("empty", allow_empty=True).get_commit().message == "empty"


def test_differences(server: Server, repo: lakefs.Repository) -> None:
    put(repo, a="1", b="1", both="1")
    dev = repo.branch("dev").create("main")
    put(repo, "dev", a="2", c="1", both="dev")
    put(repo, b="main", both="main")

    def types(changes: Iterable[Any]) -> dict[str, str]:
        return {each.path: each.type for each in changes}

    kinds = types(repo.ref("main").diff("dev"))
    assert kinds == {"a": "changed", "c": "added", "both": "conflict"}
    plain = types(repo.ref("main").diff("dev", type="two_dot"))
    assert plain == {"a": "changed", "b": "changed", "both": "changed", "c": "added"}
    dev.object("d/1").upload("x")
    dev.object("d/2").upload("x")
    dev.object("a").delete()
    assert all((each.size_bytes == 0) == (each.type == "removed") for each in dev.uncommitted())
    assert types(dev.uncommitted()) == {"a": "removed", "d/1": "added", "d/2": "added"}
    assert types(dev.uncommitted(prefix="d/", after="d/1")) == {"d/2": "added"}
    grouped = sdk(server).branches_api.diff_branch(repo.id, "dev", delimiter="/").results
    assert types(grouped) == {"a": "removed", "d/": "prefix_changed"}
    stats = sdk(server).refs_api.diff_refs(repo.id, "main", "dev", include_right_stats=True)
    assert all(each.right.checksum for each in stats.results)


def test_merges(server: Server, repo: lakefs.Repository) -> None:
    put(repo, a="1")
    dev = repo.branch("dev").create("main")
    put(repo, "dev", a="dev", b="dev")
    base = sdk(server).refs_api.find_merge_base(repo.id, "dev", "main").base_commit_id
    assert base == repo.branch("main").head.id
    key = ".lakefs.merge.strategy"
    merged = dev.merge_into("main", message="merge", metadata={"m": "1", key: "mine"})
    assert repo.commit(merged).get_commit().metadata == {"m": "1", key: "default"}
    assert shown(repo) == {"a": b"dev", "b": b"dev"}
    put(repo, a="mine")
    put(repo, "dev", a="theirs")
    with pytest.raises(ConflictException):
        dev.merge_into("main")
    merged = dev.merge_into("main", strategy="source-wins", squash_merge=True)
    commit = repo.commit(merged).get_commit()
    assert (commit.metadata, len(commit.parents)) == ({key: "source-wins"}, 1)
    assert shown(repo)["a"] == b"theirs"


def test_resets(repo: lakefs.Repository) -> None:
    branch = repo.branch("main")
    put(repo, kept="1")
    for name in ("kept", "p/1", "p/2", "q"):
        branch.object(name).upload("new")
    for arguments, left in (
        (("object", "kept"), {"p/1", "p/2", "q"}),
        (("common_prefix", "p/"), {"q"}),
        ((), set()),
    ):
        branch.reset_changes(*arguments)
        assert {each.path for each in branch.uncommitted()} == left
    assert shown(repo) == {"kept": b"1"}


@pytest.mark.twins
def test_transactions(repo: lakefs.Repository) -> None:
    """Of clients that commit and merge to one branch at the same time, each succeeds."""
    start = Barrier(8)

    def work(client: int) -> None:
        start.wait()
        for time in range(2):
            with repo.branch("main").transact(commit_message=f"{client}/{time}") as branch:
                branch.object(f"{client}/{time}").upload("x")

    with ThreadPoolExecutor(start.parties) as pool:
        list(pool.map(work, range(start.parties)))
    wanted = {f"{each}/{time}" for each in range(start.parties) for time in range(2)}
    assert shown(repo).keys() == wanted


def test_reverts_and_picks(repo: lakefs.Repository) -> None:
    put(repo, a="1")
    second = put(repo, a="2", b="2")
    repo.branch("old").create("main~1")
    reverted = repo.branch("main").revert("main")
    assert reverted.message
    assert shown(repo) == {"a": b"1"}
    picked = repo.branch("old").cherry_pick(second)
    committer = repo.commit(second).get_commit().committer
    origin = {"cherry-pick-origin": second, "cherry-pick-committer": committer}
    assert (picked.message, picked.metadata) == ("change", origin)
    assert shown(repo, "old") == {"a": b"2", "b": b"2"}
    with pytest.raises(BadRequestException):  # there is nothing left to pick
        repo.branch("old").cherry_pick(second)


@pytest.mark.twins
def test_uploads_past_the_server(server: Server, repo: lakefs.Repository) -> None:
    link = partial(sdk(server).staging_api.link_physical_address, repo.id, "main")
    given = sdk(server).staging_api.get_physical_address(repo.id, "main", "direct")
    storage, name = place_of(given.physical_address)
    storage.put(name, b"straight")
    metadata = lakefs_sdk.StagingMetadata(
        staging=given, checksum="an-etag", size_bytes=8, content_type="text/x"
    )
    failed(400, partial(link, "other", metadata))
    linked = link("direct", metadata)
    assert (linked.size_bytes, linked.content_type) == (8, "text/x")
    assert shown(repo) == {"direct": b"straight"}
    # The server cannot tell what the ETag is of.
    failed(409, partial(link, "direct", metadata))


def test_a_link_that_is_repeated(server: Server, repo: lakefs.Repository) -> None:
    """As by a client that lost the answer."""
    api, branch = sdk(server).staging_api, repo.branch("main")
    link = partial(api.link_physical_address, repo.id, "main")
    md5 = hashlib.md5(b"straight", usedforsecurity=False).hexdigest()
    for name, checksum in (("md5", md5), ("sha", hashlib.sha256(b"straight").hexdigest())):
        given = api.get_physical_address(repo.id, "main", name)
        storage, place = place_of(given.physical_address)
        storage.put(place, b"straight")
        metadata = lakefs_sdk.StagingMetadata(
            staging=given, checksum=checksum, size_bytes=8, mtime=1_600_000_000
        )
        linked = link(name, metadata)
        assert linked.mtime == branch.object(name).stat().mtime == 1_600_000_000
        branch.commit("it is no longer staged")
        assert link(name, metadata) == linked
        others: tuple[dict[str, Any], ...] = ({"size_bytes": 7}, {"content_type": "text/x"}, {})
        for changed in others:
            if not changed:
                branch.object(name).upload("STRAIGHT")
            failed(409, partial(link, name, metadata.copy(update=changed)))


@pytest.mark.filterwarnings("ignore:PUT .* is deprecated:DeprecationWarning")
def test_objects_that_stay_outside(server: Server, repo: lakefs.Repository) -> None:
    api = sdk(server).internal_api
    outside = lakefs_sdk.ObjectStageCreation(
        physical_address="s3://elsewhere/key", checksum="c", size_bytes=5, mtime=1_600_000_000
    )
    staged = api.stage_object(repo.id, "main", "linked", outside)
    assert (staged.physical_address, staged.mtime) == ("s3://elsewhere/key", 1_600_000_000)
    other = outside.copy(update={"physical_address": "s3://another/key"})
    failed(403, partial(api.stage_object, repo.id, "main", "linked", other))


def test_configuration(server: Server) -> None:
    client = server.client("reader")
    assert client.version == "1.88.0"
    storage_url = server.environment.get("EBBTIDE_STORAGE_URL", "file:")
    kind = {"file": "local", "s3": "s3"}[storage_url.partition(":")[0]]
    assert client.storage_config.blockstore_type == kind
    assert not client.storage_config.pre_sign_support
    sdk_client = client.sdk_client
    assert sdk_client.internal_api.get_setup_state().state == "initialized"
    assert sdk_client.internal_api.get_garbage_collection_config().grace_period == 86_400
    assert sdk_client.auth_api.get_current_user().user.friendly_name == "reader"
    sdk_client.health_check_api.health_check()


def test_metadata_of_other_clients(server: Server, repo: lakefs.Repository) -> None:
    """Command-line clients send some of it under a name of their own."""
    headers = {
        b"X-Lakefs-Meta-Colour": "grün".encode(),
        b"x-lakefs-internal-client-mtime": b"1",
        b"x-lakefs-meta-": b"no name",
    }
    with server.http("writer") as http:
        place = f"/repositories/{repo.id}/branches/main/objects?path=x"
        answer = http.post(place, content=b"", headers=headers)
    assert answer.json()["metadata"] == {"colour": "grün", "::lakefs::client-mtime": "1"}
