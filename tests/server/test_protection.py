"""Protected branches, resets and metadata, through lakeFS's own client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import httpx
import lakefs
import lakefs_sdk
import pytest
from lakefs_sdk.client import LakeFSClient

from tests.server.test_client import failed
from tests.support.server import Server


@pytest.fixture
def sdk(plain: Server) -> LakeFSClient:
    return plain.client().sdk_client


def save(repo: lakefs.Repository, path: str) -> str:
    repo.branch("main").object(path).upload(path)
    return str(repo.branch("main").commit(path).get_commit().id)


def shown(repo: lakefs.Repository) -> set[str]:
    return {each.path for each in repo.ref("main").objects()}


def rules(*patterns: str) -> list[lakefs_sdk.BranchProtectionRule]:
    return [lakefs_sdk.BranchProtectionRule(pattern=each) for each in patterns]


def test_rules(sdk: LakeFSClient, lake: lakefs.Repository, http: httpx.Client) -> None:
    """Those that are there can be a condition."""
    api, place = sdk.repositories_api, f"/repositories/{lake.id}/settings/branch_protection"
    assert api.get_branch_protection_rules(lake.id) == []
    assert http.get(place).headers["ETag"] == ""
    api.set_branch_protection_rules(lake.id, rules("main", "release/*"))
    failed(400, lambda: api.set_branch_protection_rules(lake.id, rules("x" * 256)))
    failed(404, lambda: api.set_branch_protection_rules("nothing-there", rules("a")))
    assert api.get_branch_protection_rules(lake.id) == rules("main", "release/*")
    etag = http.get(place).headers["ETag"]
    for only_if, status in (("", 412), (f'"{etag}"', 204), (etag, 412)):
        answer = http.put(place, json=[{"pattern": "dev"}], headers={"If-Match": only_if})
        assert answer.status_code == status
    assert api.get_branch_protection_rules(lake.id) == rules("dev")


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
"""Changes of `main`, by name, with a `force` or a way of their own. The store tests all."""


def test_what_a_protected_branch_refuses(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    head = save(lake, "a")
    protect = sdk.repositories_api.set_branch_protection_rules
    for name, change in REFUSED.items():
        protect(lake.id, rules("m*"))
        failed(403, partial(change, sdk, lake.id), "write_protected")
        assert shown(lake) == {"a"}, name
        assert lake.branch("main").get_commit().id == head, name
        protect(lake.id, [])
        change(sdk, lake.id)
        reset = partial(sdk.experimental_api.hard_reset_branch, lake.id, "main")
        lake.branch("main").object("c").upload("c")
        failed(400, partial(reset, head))
        failed(404, partial(reset, "nothing", force=True))
        reset(head, force=True)
        assert shown(lake) == {"a"}, name
    protect(lake.id, rules("main"))
    answer = sdk.objects_api.delete_objects(lake.id, "main", lakefs_sdk.PathList(paths=["a"]))
    assert [(each.path, each.status_code) for each in answer.errors] == [("a", 403)]


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
