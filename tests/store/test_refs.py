"""Branches and tags: made, trashed, brought back; and what revisions mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ebbtide.errors import NotFound
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.lifecycle import ListFilter
from ebbtide.store.refs.refs import Branches, Tags
from ebbtide.store.repository import Repository
from tests.conftest import START
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import reflog_of, save

WEEK = timedelta(days=7)
"""The default `trash_time`."""


def test_life_of_a_branch(repository: Repository, clock: ManualClock) -> None:
    branches = repository.branches
    save(repository, "a")
    repository.objects.put("main", "b", b"b")
    branch = branches.create("dev", "main")
    assert [entry.path for entry in repository.objects.walk("dev")] == ["a"]
    assert branches.get("dev") == branch
    deleted = branches.delete("dev")
    assert (deleted.state, deleted.expires_at) == (LifecycleState.TRASHED, clock.now)
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
    soon = clock.now + timedelta(hours=1)
    assert branches.set_expiry("dev", soon).state is LifecycleState.EXPIRING
    clock.advance(timedelta(hours=1))
    with raises("branch_not_found"):
        repository.objects.put("dev", "b", b"b")
    clock.advance(WEEK)
    with raises("branch_not_found"):
        branches.restore("dev")
    assert [each.name for each in branches.list(include_expired=True)] == ["main"]
    with raises("branch_protected"):
        branches.delete("main")
    with raises("branch_protected"):
        branches.set_expiry("main", soon)


def test_a_date_in_the_past_is_now(repository: Repository, clock: ManualClock) -> None:
    made = repository.branches.create("dev", "main", expires_at=clock.now - WEEK)
    assert (made.expires_at, made.state) == (clock.now, LifecycleState.TRASHED)
    assert repository.branches.restore("dev").state is LifecycleState.PERSISTENT
    past = repository.branches.set_expiry("dev", clock.now - timedelta(days=1))
    assert past.expires_at == clock.now
    local = clock.now.replace(tzinfo=None)
    with raises("invalid_date"):
        repository.tags.create("v1", "main", expires_at=local)
    with raises("invalid_date"):
        repository.branches.set_expiry("main", local)


def test_names_of_branches_and_tags_are_shared(repository: Repository) -> None:
    repository.branches.create("dev", "main")
    repository.tags.create("v1", "main")
    for refs in (repository.branches, repository.tags):
        for name, ref, kind in (
            ("dev", "main", "branch_exists"),
            ("v1", "main", "tag_exists"),
            ("a..b", "main", "invalid_name"),
            ("x", "nowhere", "ref_not_found"),
        ):
            with raises(kind):
                refs.create(name, ref)


def test_names_that_come_more_than_once_in_the_trash(
    repository: Repository, clock: ManualClock
) -> None:
    branches = repository.branches
    first = branches.create("dev", "main")
    branches.delete("dev")
    clock.advance(timedelta(seconds=1))
    second = branches.create("dev", "main")
    with raises("branch_exists"):
        branches.restore("dev")
    clock.advance(timedelta(seconds=1))
    branches.delete("dev")
    listed = [each for each in branches.list(include_expired=True) if each.name == "dev"]
    assert [each.branch_id for each in listed] == [first.branch_id, second.branch_id]
    for ask in (branches.restore, lambda name: branches.set_expiry(name, None)):
        with raises("ref_ambiguous") as caught:
            ask("dev")
        assert caught.value.details["ids"] == [second.branch_id, first.branch_id], "the last first"
    with raises("ref_ambiguous"):
        branches.get("dev", include_expired=True)
    assert branches.get(first.branch_id, include_expired=True).branch_id == first.branch_id
    clock.advance(WEEK - timedelta(seconds=1))
    assert branches.restore("dev").branch_id == second.branch_id, "the other is gone"
    with raises("branch_exists"):
        branches.restore(second.branch_id)


def test_a_unique_name_is_made_up(repository: Repository) -> None:
    branches, tags = repository.branches, repository.tags
    for name in ("dev", "x" * 255):
        first = branches.create(name, "main")
        branches.delete(name)
        again = tags.create(name, "main")
        with raises("tag_exists"):
            branches.restore(name)
        back = branches.restore(first.branch_id, ensure_unique_name=True)
        assert back.name == name[:247] + "-2"
        tags.delete(name)
        with raises("tag_not_found"):
            tags.delete(name)
        assert tags.restore(name, ensure_unique_name=True).name == name, "it is free"
        tags.delete(name)
        branches.create(name, "main")
        found = tags.set_expiry(again.tag_id, None, ensure_unique_name=True)
        assert found.name == name[:247] + "-3"


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_what_ends_a_ref_earlier_leaves_its_commit_a_root_for_a_lease(
    repository: Repository, clock: ManualClock, kind: str
) -> None:
    """What was signed until then may outlast the new date; what ends it later outlasts nothing."""
    refs: Branches | Tags = repository.branches if kind == "branch" else repository.tags
    made = refs.create("x", "main")
    entry = (kind, "x", made.commit_id)
    day = timedelta(days=1)
    for expires_at, earlier in (
        (clock.now + 9 * day, True),
        (clock.now + 9 * day, False),
        (clock.now + 20 * day, False),
        (None, False),
        (clock.now + 5 * day, True),
        (clock.now + 5 * day - timedelta(microseconds=1), True),
        (clock.now - day, True),
        (clock.now - day, False),
        (None, False),
    ):
        before = len(reflog_of(repository))
        refs.set_expiry("x", expires_at)
        assert reflog_of(repository)[before:] == [entry] * earlier, expires_at


def test_an_expiry_beyond_every_date(repository: Repository) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    repository.branches.create("dev", "main", expires_at=last)
    repository.tags.create("v1", "main", expires_at=last)
    assert repository.branches.get("dev").state is LifecycleState.EXPIRING
    assert repository.branches.set_expiry("dev", last).expires_at == last
    policy = {"default": "7d", "tags": {"keep_within": "7d"}}
    repository.retention.set(policy)
    seen = EmbeddedRepository(repository.context, store_id="x")
    with seen.reading() as reading:
        assert {ref.name for ref in reading.roots().refs} == {"main", "dev", "v1"}


@pytest.mark.twins
def test_pages_of_what_is_in_the_trash(repository: Repository, clock: ManualClock) -> None:
    """Names come more than once there, and each is met once, whatever the size of the pages."""
    made = []
    for number in range(6):
        name = "dev" if number % 2 else "old"
        hours = timedelta(hours=number + 1)
        made.append(repository.tags.create(name, "main", expires_at=clock.now + hours))
        clock.advance(hours)
    repository.tags.create("dev", "main")
    shown = ListFilter(include_expired=True)
    expected = sorted((tag.name, tag.tag_id) for tag in repository.tags.list(include_expired=True))
    assert len(expected) == 7
    for amount in (1, 3, 10):
        found: list[tuple[str, str]] = []
        after = ""
        while page := repository.tags.page(after=after, amount=amount, listed=shown):
            found += [(tag.name, tag.tag_id) for tag in page]
            after = " ".join(found[-1])
        assert found == expected
    third = made[2]
    later = (third.expires_at or START) + timedelta(microseconds=1)
    dates = ListFilter(include_expired=True, expires_after=third.expires_at, expires_before=later)
    assert [tag.tag_id for tag in repository.tags.page(listed=dates)] == [third.tag_id]
    assert repository.tags.page(listed=ListFilter(state=LifecycleState.EXPIRING)) == []


def test_revisions(repository: Repository) -> None:
    first = save(repository, "a")
    second = save(repository, "b")
    repository.branches.create("dev", first)
    third = save(repository, "c", "dev")
    merged = repository.commits.merge("dev", "main").commit_id
    repository.tags.create("v1", "main")
    for expression, expected in {
        "main@": merged,
        "v1": merged,
        merged[:8]: merged,
        "main~0": merged,
        "main^0": merged,
        "main~": second,
        "main^1": second,
        "main^2": third,
        "main@~2": first,
        "main^2~1": first,
        f"{merged[:12]}^2^": first,
    }.items():
        assert repository.commits.resolve(expression) == expected, expression
    for expression, kind in (
        ("nowhere", "ref_not_found"),
        ("0" * 32, "ref_not_found"),
        ("v1@", "branch_not_found"),
        ("main~7", "commit_not_found"),
        ("main^3", "commit_not_found"),
        ("", "invalid_argument"),
        ("main~-1", "invalid_argument"),
        ("main~" * 100_000, "invalid_argument"),
        ("main" + "~999999" * 3, "invalid_argument"),
    ):
        with raises(kind) as caught:
            repository.commits.resolve(expression)
        assert len(caught.value.message) < 400


@pytest.mark.twins
def test_prefixes(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the id of the commit is drawn here: an unchanged tree is shared, and has none.
    for commit_id in ("abcdef00" + "0" * 24, "abcdef01" + "0" * 24):
        with monkeypatch.context() as patch:
            patch.setattr("ebbtide.store.commits.publication.new_id", lambda drawn=commit_id: drawn)
            repository.commits.commit("main", "", allow_empty=True)
    with raises("ref_ambiguous"):
        repository.commits.resolve("abcdef")
    assert repository.commits.resolve("abcdef00") == "abcdef00" + "0" * 24
    with raises("ref_not_found"):
        repository.commits.resolve("abcde")
    repository.branches.create("abcdef", "main~1")
    assert repository.commits.resolve("abcdef") == "abcdef00" + "0" * 24, "names win"
