"""Protected branches, hard resets and metadata, through lakeFS's own client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import httpx
import lakefs
import lakefs_sdk
import pytest
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import (
    ApiException,
    ForbiddenException,
)

from tests.support.server import Server


@pytest.fixture
def sdk(plain: Server) -> LakeFSClient:
    return plain.client().sdk_client


def rules(*patterns: str) -> list[lakefs_sdk.BranchProtectionRule]:
    return [lakefs_sdk.BranchProtectionRule(pattern=each) for each in patterns]


def save(repo: lakefs.Repository, path: str, branch: str = "main") -> str:
    repo.branch(branch).object(path).upload(path)
    return str(repo.branch(branch).commit(path).get_commit().id)


def shown(repo: lakefs.Repository, ref: str = "main") -> set[str]:
    return {each.path for each in repo.ref(ref).objects()}


def failed(status: int, operation: Callable[[], object]) -> ApiException:
    with pytest.raises(ApiException) as caught:
        operation()
    assert caught.value.status == status
    return caught.value


def test_rules(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    api = sdk.repositories_api
    assert api.get_branch_protection_rules(lake.id) == []
    api.set_branch_protection_rules(lake.id, rules("main", "release/*"))
    assert api.get_branch_protection_rules(lake.id) == rules("main", "release/*")
    failed(400, lambda: api.set_branch_protection_rules(lake.id, rules("x" * 256)))
    failed(404, lambda: api.set_branch_protection_rules("nothing-there", rules("a")))
    assert api.get_branch_protection_rules(lake.id) == rules("main", "release/*")


def test_rules_on_condition(http: httpx.Client, lake: lakefs.Repository) -> None:
    place = f"/repositories/{lake.id}/settings/branch_protection"

    def put(pattern: str, etag: str | None) -> int:
        headers = {} if etag is None else {"If-Match": etag}
        return http.put(place, json=[{"pattern": pattern}], headers=headers).status_code

    assert http.get(place).headers["ETag"] == ""
    assert put("main", "") == 204
    first = http.get(place).headers["ETag"]
    assert put("dev", "") == 412
    assert put("dev", f'"{first}"') == 204
    assert put("main", first) == 412
    assert http.get(place).json() == [{"pattern": "dev"}]
    assert put("main", None) == 204


REFUSED: Final[dict[str, Callable[[LakeFSClient, str], object]]] = {
    "upload": lambda sdk, r: sdk.objects_api.upload_object(r, "main", "b", content=b"b"),
    "metadata": lambda sdk, r: sdk.experimental_api.update_object_user_metadata(
        r, "main", "a", lakefs_sdk.UpdateObjectUserMetadata(set={"k": "v"})
    ),
    "commit": lambda sdk, r: sdk.commits_api.commit(
        r, "main", lakefs_sdk.CommitCreation(message="m", allow_empty=True, force=True)
    ),
    "hard reset": lambda sdk, r: sdk.experimental_api.hard_reset_branch(
        r, "main", "main~1", force=True
    ),
}
"""Changes of `main`, by name. The store's tests have all of them; these have a `force` or a way of
their own."""


def test_what_a_protected_branch_refuses(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    head = save(lake, "a")
    protect = sdk.repositories_api.set_branch_protection_rules
    for name, change in REFUSED.items():
        protect(lake.id, rules("m*"))
        error = failed(403, partial(change, sdk, lake.id))
        assert isinstance(error, ForbiddenException), name
        assert '"kind":"write_protected"' in str(error.body), name
        assert "protected branch" in str(error.body), name
        assert shown(lake) == {"a"}, name
        assert lake.branch("main").get_commit().id == head, name
        protect(lake.id, [])
        change(sdk, lake.id)
        sdk.experimental_api.hard_reset_branch(lake.id, "main", head, force=True)
    protect(lake.id, rules("main"))
    answer = sdk.objects_api.delete_objects(lake.id, "main", lakefs_sdk.PathList(paths=["a"]))
    assert [(each.path, each.status_code) for each in answer.errors] == [("a", 403)]


def test_hard_resets(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    api = sdk.experimental_api
    first, second = save(lake, "a"), save(lake, "b")
    for ref, head in (("main~1", first), (second, second)):
        api.hard_reset_branch(lake.id, "main", ref)
        assert lake.branch("main").get_commit().id == head
    lake.branch("main").object("c").upload("c")
    failed(400, lambda: api.hard_reset_branch(lake.id, "main", first))
    assert shown(lake) == {"a", "b", "c"}
    api.hard_reset_branch(lake.id, "main", first, force=True)
    assert shown(lake) == shown(lake, "main@") == {"a"}
    failed(404, lambda: api.hard_reset_branch(lake.id, "main", "nothing"))
    failed(404, lambda: api.hard_reset_branch(lake.id, "nothing", first))


def test_merges_without_changes(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    save(lake, "a")
    lake.branch("dev").create("main")

    def merge(**options: Any) -> lakefs_sdk.MergeResult:
        asked = lakefs_sdk.Merge(**options)
        return sdk.refs_api.merge_into_branch(lake.id, "dev", "main", merge=asked)

    failed(400, merge)
    for option in ("force", "allow_empty"):
        heads = [lake.branch(name).get_commit().id for name in ("main", "dev")]
        made = merge(**{option: True}).reference
        assert lake.commit(made).get_commit().parents == heads


def test_metadata_of_repositories(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    api, of = sdk.internal_api, lakefs_sdk.RepositoryMetadataSet
    api.set_repository_metadata(lake.id, of(metadata={"Owner": "ü", "owner": "b", "c": ""}))
    assert lake.metadata == {"Owner": "ü", "owner": "b", "c": ""}
    api.set_repository_metadata(lake.id, of(metadata={"owner": "d", "e": "f"}))
    dropped = lakefs_sdk.RepositoryMetadataKeys(keys=["c", "nothing"])
    api.delete_repository_metadata(lake.id, dropped)
    big = of(metadata={"k": "v" * 16 * 1024})
    failed(400, lambda: api.set_repository_metadata(lake.id, big))
    failed(404, lambda: api.set_repository_metadata("nothing-there", big))
    assert lake.metadata == {"Owner": "ü", "owner": "d", "e": "f"}


def test_metadata_of_objects(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    save(lake, "a")
    stat, change = sdk.objects_api.stat_object, sdk.experimental_api.update_object_user_metadata
    before = stat(lake.id, "main", "a")
    wanted = lakefs_sdk.UpdateObjectUserMetadata(set={"Key": "v", "key": "w"})
    change(lake.id, "main", "a", wanted)
    after = stat(lake.id, "main", "a")
    assert after.metadata == {"Key": "v", "key": "w"}
    assert (after.physical_address, after.mtime) == (before.physical_address, before.mtime)
    assert stat(lake.id, "main", "a", user_metadata=False).metadata is None
    (changed,) = lake.branch("main").uncommitted()
    assert (changed.path, changed.type) == ("a", "changed")
    failed(404, lambda: change(lake.id, "main", "b", wanted))
