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
    "delete": lambda sdk, r: sdk.objects_api.delete_object(r, "main", "a"),
    "copy": lambda sdk, r: sdk.objects_api.copy_object(
        r, "main", "b", lakefs_sdk.ObjectCopyCreation(src_path="a")
    ),
    "metadata": lambda sdk, r: sdk.experimental_api.update_object_user_metadata(
        r, "main", "a", lakefs_sdk.UpdateObjectUserMetadata(set={"k": "v"})
    ),
    "commit": lambda sdk, r: sdk.commits_api.commit(
        r, "main", lakefs_sdk.CommitCreation(message="m", allow_empty=True, force=True)
    ),
    "reset": lambda sdk, r: sdk.branches_api.reset_branch(
        r, "main", lakefs_sdk.ResetCreation(type="reset", force=True)
    ),
    "hard reset": lambda sdk, r: sdk.experimental_api.hard_reset_branch(
        r, "main", "main~1", force=True
    ),
}
"""Changes of `main`, by name."""


def test_what_a_protected_branch_refuses(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    head = save(lake, "a")
    for name, change in REFUSED.items():
        sdk.repositories_api.set_branch_protection_rules(lake.id, rules("m*"))
        error = failed(403, partial(change, sdk, lake.id))
        assert isinstance(error, ForbiddenException), name
        assert '"kind":"write_protected"' in str(error.body), name
        assert "protected branch" in str(error.body), name
        assert shown(lake) == {"a"}, name
        assert lake.branch("main").get_commit().id == head, name
        sdk.repositories_api.set_branch_protection_rules(lake.id, [])
        change(sdk, lake.id)
        sdk.experimental_api.hard_reset_branch(lake.id, "main", head, force=True)


def test_a_list_of_deletes_names_each_path(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    save(lake, "a")
    sdk.repositories_api.set_branch_protection_rules(lake.id, rules("main"))
    answer = sdk.objects_api.delete_objects(lake.id, "main", lakefs_sdk.PathList(paths=["a"]))
    assert [(each.path, each.status_code) for each in answer.errors] == [("a", 403)]


def test_what_a_protected_branch_takes(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    first = save(lake, "a")
    lake.branch("dev").create("main")
    save(lake, "b", "dev")
    sdk.repositories_api.set_branch_protection_rules(lake.id, rules("*"))
    lake.branch("dev").merge_into("main")
    assert shown(lake) == {"a", "b"}
    lake.branch("main").revert(first)
    assert shown(lake) == {"b"}
    lake.branch("main").cherry_pick(first)
    assert shown(lake) == {"a", "b"}
    lake.branch("dev").delete()


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


def test_metadata_of_merges_and_picks(lake: lakefs.Repository) -> None:
    lake.branch("dev").create("main")
    picked = save(lake, "a", "dev")
    made = lake.branch("main").cherry_pick(picked)
    committer = lake.commit(picked).get_commit().committer
    assert made.metadata == {
        "cherry-pick-origin": picked,
        "cherry-pick-committer": committer,
    }
    key = ".lakefs.merge.strategy"
    merged = lake.branch("dev").merge_into("main", metadata={"m": "1", key: "mine"})
    assert lake.commit(merged).get_commit().metadata == {"m": "1", key: "default"}
    for strategy, winner in (("source-wins", b"dev"), ("dest-wins", b"main")):
        for branch in ("main", "dev"):
            lake.branch(branch).object("both").upload(f"{branch} {strategy}")
            lake.branch(branch).commit("both")
        merged = lake.branch("dev").merge_into("main", strategy=strategy)
        assert lake.commit(merged).get_commit().metadata == {key: strategy}
        assert lake.branch("main").object("both").reader().read().startswith(winner)


@pytest.mark.parametrize("option", ["force", "allow_empty"])
def test_merges_without_changes(sdk: LakeFSClient, lake: lakefs.Repository, option: str) -> None:
    head = save(lake, "a")
    lake.branch("dev").create("main")

    def merge(**options: Any) -> lakefs_sdk.MergeResult:
        asked = lakefs_sdk.Merge(**options)
        return sdk.refs_api.merge_into_branch(lake.id, "dev", "main", merge=asked)

    failed(400, merge)
    made = merge(**{option: True}).reference
    assert lake.commit(made).get_commit().parents == [head, head]


def test_metadata_of_repositories(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    api = sdk.internal_api
    api.set_repository_metadata(
        lake.id, lakefs_sdk.RepositoryMetadataSet(metadata={"Owner": "ü", "owner": "b", "c": ""})
    )
    assert lake.metadata == {"Owner": "ü", "owner": "b", "c": ""}
    api.set_repository_metadata(
        lake.id, lakefs_sdk.RepositoryMetadataSet(metadata={"owner": "d", "e": "f"})
    )
    api.delete_repository_metadata(
        lake.id, lakefs_sdk.RepositoryMetadataKeys(keys=["c", "nothing"])
    )
    assert lake.metadata == {"Owner": "ü", "owner": "d", "e": "f"}
    big = lakefs_sdk.RepositoryMetadataSet(metadata={"k": "v" * 16 * 1024})
    failed(400, lambda: api.set_repository_metadata(lake.id, big))
    failed(404, lambda: api.set_repository_metadata("nothing-there", big))
    assert lake.metadata == {"Owner": "ü", "owner": "d", "e": "f"}


def test_metadata_of_objects(sdk: LakeFSClient, lake: lakefs.Repository) -> None:
    save(lake, "a")
    before = sdk.objects_api.stat_object(lake.id, "main", "a")
    changed = lakefs_sdk.UpdateObjectUserMetadata(set={"Key": "v", "key": "w"})
    sdk.experimental_api.update_object_user_metadata(lake.id, "main", "a", changed)
    after = sdk.objects_api.stat_object(lake.id, "main", "a")
    assert after.metadata == {"Key": "v", "key": "w"}
    assert (after.physical_address, after.mtime) == (before.physical_address, before.mtime)
    plain = sdk.objects_api.stat_object(lake.id, "main", "a", user_metadata=False)
    assert plain.metadata is None
    (change,) = lake.branch("main").uncommitted()
    assert (change.path, change.type) == ("a", "changed")
    lake.branch("main").commit("metadata")
    assert sdk.objects_api.stat_object(lake.id, "main@", "a").metadata == after.metadata
    failed(
        404,
        lambda: sdk.experimental_api.update_object_user_metadata(lake.id, "main", "b", changed),
    )
