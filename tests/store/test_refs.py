"""Branches and tags: made, trashed, brought back; and what revisions mean."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.errors import EbbtideError, NotFound
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock

WEEK = timedelta(days=7)
"""The default `trash_time`."""


def raises(kind: str) -> pytest.RaisesExc[EbbtideError]:
    return pytest.raises(EbbtideError, check=lambda error: error.kind == kind)


def commit(repository: Repository, path: str, branch: str = "main") -> str:
    repository.objects.put(branch, path, path.encode())
    return repository.commits.commit(branch, f"put {path}").commit_id


def test_a_branch_begins_at_a_commit_without_what_is_staged(repository: Repository) -> None:
    first = commit(repository, "a")
    repository.objects.put("main", "b", b"b")
    branch = repository.branches.create("dev", "main")
    assert (branch.commit_id, branch.state) == (first, LifecycleState.PERSISTENT)
    assert [entry.path for entry in repository.objects.walk("dev")] == ["a"]
    assert repository.branches.get("dev") == branch
    assert [each.name for each in repository.branches.list()] == ["dev", "main"]


def test_names_of_branches_and_tags_are_shared(repository: Repository) -> None:
    repository.branches.create("dev", "main")
    repository.tags.create("v1", "main")
    with raises("branch_exists"):
        repository.branches.create("dev", "main")
    with raises("branch_exists"):
        repository.tags.create("dev", "main")
    with raises("tag_exists"):
        repository.branches.create("v1", "main")
    with raises("tag_exists"):
        repository.tags.create("v1", "main")
    with raises("invalid_name"):
        repository.branches.create("a..b", "main")
    with raises("ref_not_found"):
        repository.branches.create("x", "nowhere")


def test_life_of_a_branch(repository: Repository, clock: ManualClock) -> None:
    branches = repository.branches
    branches.create("dev", "main")
    repository.objects.put("dev", "staged", b"still here")
    deleted = branches.delete("dev")
    assert (deleted.state, deleted.expires_at) == (LifecycleState.TRASHED, clock.now)
    with raises("branch_not_found"):
        branches.get("dev")
    with raises("branch_not_found"):
        repository.objects.put("dev", "x", b"")
    with pytest.raises(NotFound, match="restore"):
        branches.delete("dev")
    assert [each.name for each in branches.list()] == ["main"]
    assert [each.name for each in branches.list(include_expired=True)] == ["dev", "main"]
    assert branches.get("dev", include_expired=True) == deleted
    clock.advance(WEEK - timedelta(microseconds=1))
    restored = branches.restore("dev")
    assert (restored.branch_id, restored.expires_at) == (deleted.branch_id, None)
    assert repository.objects.get("dev", "staged") == b"still here"
    branches.delete("dev")
    clock.advance(WEEK)
    with raises("branch_not_found"):
        branches.restore("dev")
    assert [each.name for each in branches.list(include_expired=True)] == ["main"]


def test_a_name_is_free_at_once_and_restoring_into_a_taken_one_conflicts(
    repository: Repository, clock: ManualClock
) -> None:
    first = repository.branches.create("dev", "main")
    repository.branches.delete("dev")
    clock.advance(timedelta(seconds=1))
    second = repository.branches.create("dev", "main")
    with raises("branch_exists"):
        repository.branches.restore("dev")
    clock.advance(timedelta(seconds=1))
    repository.branches.delete("dev")
    listed = repository.branches.list(include_expired=True)
    assert [each.branch_id for each in listed if each.name == "dev"] == [
        first.branch_id,
        second.branch_id,
    ]
    assert repository.branches.restore("dev").branch_id == second.branch_id, "the last one"
    repository.branches.delete("dev")
    repository.tags.create("dev", "main")
    with raises("tag_exists"):
        repository.branches.restore("dev")


def test_expiry_by_itself(repository: Repository, clock: ManualClock) -> None:
    repository.branches.create("dev", "main")
    soon = clock.now + timedelta(hours=1)
    assert repository.branches.set_expiry("dev", soon).state is LifecycleState.EXPIRING
    repository.objects.put("dev", "a", b"a")
    assert repository.branches.set_expiry("dev", None).state is LifecycleState.PERSISTENT
    repository.branches.set_expiry("dev", soon)
    clock.advance(timedelta(hours=1))
    with raises("branch_not_found"):
        repository.objects.put("dev", "b", b"b")
    repository.branches.restore("dev")
    past = repository.branches.set_expiry("dev", clock.now - timedelta(days=1))
    assert past.expires_at == clock.now, "a time in the past becomes now"
    with raises("invalid_date"):
        repository.branches.set_expiry("main", clock.now.replace(tzinfo=None))


def test_the_default_branch_is_protected(repository: Repository, clock: ManualClock) -> None:
    with raises("branch_protected"):
        repository.branches.delete("main")
    with raises("branch_protected"):
        repository.branches.set_expiry("main", clock.now + WEEK)


def test_life_of_a_tag(repository: Repository, clock: ManualClock) -> None:
    first = commit(repository, "a")
    tags = repository.tags
    tag = tags.create("v1", "main")
    assert (tag.commit_id, tag.state) == (first, LifecycleState.PERSISTENT)
    assert tags.get("v1") == tag
    tags.delete("v1")
    with pytest.raises(NotFound, match="restore"):
        tags.get("v1")
    with raises("tag_not_found"):
        tags.delete("v1")
    assert tags.list() == []
    assert [each.name for each in tags.list(include_expired=True)] == ["v1"]
    clock.advance(timedelta(days=1))
    assert tags.restore("v1").tag_id == tag.tag_id
    tags.set_expiry("v1", clock.now + timedelta(hours=1))
    assert tags.get("v1").state is LifecycleState.EXPIRING
    clock.advance(timedelta(hours=1) + WEEK)
    with raises("tag_not_found"):
        tags.restore("v1")
    assert tags.create("v1", "main").tag_id != tag.tag_id


def test_revisions(repository: Repository) -> None:
    first = commit(repository, "a")
    second = commit(repository, "b")
    repository.branches.create("dev", first)
    third = commit(repository, "c", "dev")
    merged = repository.commits.merge("dev", "main").commit_id
    repository.tags.create("v1", "main")
    for expression, expected in {
        "main": merged,
        "main@": merged,
        "v1": merged,
        merged: merged,
        merged[:8]: merged,
        "main~0": merged,
        "main^0": merged,
        "main~": second,
        "main^": second,
        "main^1": second,
        "main^2": third,
        "main@~2": first,
        "main^2~1": first,
        f"{merged[:12]}^2^": first,
    }.items():
        assert repository.commits.resolve(expression) == expected, expression


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("nowhere", "ref_not_found"),
        ("0123456", "ref_not_found"),
        ("0" * 32, "ref_not_found"),
        ("v1@", "branch_not_found"),
        ("main~7", "commit_not_found"),
        ("main^2", "commit_not_found"),
        ("", "invalid_argument"),
        ("main~-1", "invalid_argument"),
        ("a b", "invalid_argument"),
        ("main~" * 100_000, "invalid_argument"),
        ("main" + "~999999" * 3, "invalid_argument"),
    ],
)
def test_revisions_that_mean_nothing(repository: Repository, expression: str, kind: str) -> None:
    repository.tags.create("v1", "main")
    with pytest.raises(EbbtideError) as caught:
        repository.commits.resolve(expression)
    assert caught.value.kind == kind
    assert len(caught.value.message) < 400


def test_prefixes(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the id of the commit is drawn here: an unchanged tree is shared, and has none.
    for commit_id in ("abcdef00" + "0" * 24, "abcdef01" + "0" * 24):
        with monkeypatch.context() as patch:
            patch.setattr("ebbtide.store.publishing.new_id", lambda drawn=commit_id: drawn)
            repository.commits.commit("main", "", allow_empty=True)
    with raises("ref_ambiguous"):
        repository.commits.resolve("abcdef")
    assert repository.commits.resolve("abcdef00") == "abcdef00" + "0" * 24
    with raises("ref_not_found"):
        repository.commits.resolve("abcde")
    repository.branches.create("abcdef", "main~1")
    assert repository.commits.resolve("abcdef") == "abcdef00" + "0" * 24, "names win"
