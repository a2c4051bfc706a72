"""Policies, holds, and what an expired commit still allows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Final

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone
from ebbtide.retention.policy import Policy
from ebbtide.retention.rules import Rule
from ebbtide.store.database.schema import commits
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import save

WAIT_SECONDS: Final = 60
RULE: Final = Rule(keep_within=timedelta(days=1))


def expired() -> pytest.RaisesExc[Gone]:
    return pytest.raises(
        Gone,
        check=lambda error: (
            error.kind == "commit_expired"
            and error.details["run_id"] == "run7"
            and "run7" in error.message
        ),
    )


def mark(repository: Repository, commit_id: str, **values: object) -> None:
    with repository.context.metadata.transaction() as tx:
        tx.execute(sa.update(commits).where(commits.c.commit_id == commit_id).values(**values))


def test_two_changes_of_the_policy_at_once(repository: Repository) -> None:
    """The second begins while the first is between its reading and its writing. Both rules are
    there afterwards."""
    retention = repository.retention
    retention.set({"default": "7d"})
    read, asked = Event(), Event()

    def first(before: Policy) -> Policy:
        read.set()
        assert asked.wait(WAIT_SECONDS)
        return replace(before, branches={**before.branches, "main": RULE})

    def begin() -> tuple[Policy, tuple[str, ...]]:
        assert read.wait(WAIT_SECONDS)
        asked.set()
        return retention.change(lambda old: replace(old, branches={**old.branches, "dev": RULE}))

    with ThreadPoolExecutor(2) as threads:
        earlier, later = threads.submit(retention.change, first), threads.submit(begin)
        assert earlier.result(WAIT_SECONDS)[1] == ()
        both, unmatched = later.result(WAIT_SECONDS)
    assert both == Policy.parse({"default": "7d", "branches": {"main": "1d", "dev": "1d"}})
    assert (retention.get(), unmatched) == (both, ("dev",))


def test_policies(repository: Repository, clock: ManualClock) -> None:
    """Patterns are held against branches that are not gone."""
    retention = repository.retention
    assert retention.get() is None
    repository.branches.create("user-1", "main")
    repository.branches.delete("user-1")
    written = {"default": "7d", "branches": {"main": "20d", "user-*": "3d", "mian": "1d"}}
    assert retention.set(written) == ("mian",)
    clock.advance(timedelta(days=7))
    assert retention.set(written) == ("mian", "user-*")
    assert retention.get() == Policy.parse(written)
    assert retention.set(Policy.parse({"default": "1d"})) == ()
    for kind, bad in (("invalid_policy", {}), ("invalid_duration", {"default": "7"})):
        with raises(kind):
            retention.set(bad)
    assert retention.get() == Policy.parse({"default": "1d"})
    retention.unset()
    assert retention.get() is None


def test_holds(repository: Repository, clock: ManualClock) -> None:
    first = save(repository, "a")
    second = save(repository, "b")
    retention = repository.retention
    retention.hold(first[:8], "audit")
    clock.advance(timedelta(seconds=1))
    retention.hold("main", "release")
    retention.hold(second, "another reason")
    assert [(hold.commit_id, hold.reason) for hold in retention.holds()] == [
        (first, "audit"),
        (second, "another reason"),
    ]
    retention.release(first)
    with raises("hold_not_found"):
        retention.release(first)
    with raises("ref_not_found"):
        retention.hold("nowhere", "")


def test_what_an_expired_commit_refuses_and_allows(repository: Repository) -> None:
    save(repository, "a")
    doomed = save(repository, "b")
    head = save(repository, "c")
    repository.branches.create("dev", "main")
    repository.branches.create("side", doomed)
    save(repository, "d", "side")
    repository.branches.create("old", doomed)
    repository.tags.create("v1", doomed)
    repository.branches.delete("old")
    repository.tags.delete("v1")
    mark(repository, doomed, tombstoned_by="run7")
    objects, versions = repository.objects, repository.commits
    for refused in (
        lambda: repository.branches.create("x", "main~1"),
        lambda: repository.branches.restore("old"),
        lambda: repository.tags.create("x", doomed),
        lambda: repository.tags.restore("v1"),
        lambda: repository.retention.hold(doomed, ""),
        lambda: objects.get(doomed, "a"),
        lambda: objects.stream(doomed, "b", start=1),
        lambda: objects.copy("dev", "z", doomed, "a"),
        lambda: versions.merge(doomed, "dev"),
        lambda: versions.revert("dev", doomed),
        lambda: versions.revert("dev", head),
    ):
        with expired():
            refused()
    assert objects.stat(doomed, "b").size_bytes == 1
    assert [entry.path for entry in objects.walk(doomed)] == ["a", "b"]
    assert [each.path for each in versions.diff(doomed, "main")] == ["c"]
    assert doomed in [commit.commit_id for commit in versions.log("main")]
    assert versions.get(doomed).tombstoned_by == "run7"
    assert objects.get("main", "b") == b"b", "what the head holds is there"
    merged = versions.merge("side", "main")
    assert [entry.path for entry in objects.walk(merged.commit_id)] == ["a", "b", "c", "d"]


def test_a_forgotten_commit_is_gone_for_everything_but_the_log(repository: Repository) -> None:
    base = save(repository, "a")
    repository.branches.create("dev", "main")
    save(repository, "b", "dev")
    save(repository, "c")
    mark(repository, base, tombstoned_by="run6", forgotten_by="run7", tree_id=None)
    versions = repository.commits
    for refused in (
        lambda: list(repository.objects.walk(base)),
        lambda: repository.objects.stat(base, "a"),
        lambda: list(versions.diff(base, "main")),
        lambda: repository.tags.create("x", base),
        lambda: versions.merge("dev", "main"),
    ):
        with expired():
            refused()
    assert versions.get(base).forgotten_by == "run7"
    assert base in [commit.commit_id for commit in versions.log("main")]


def test_giving_up(repository: Repository, clock: ManualClock) -> None:
    lost = save(repository, "a")
    with raises("commit_in_use"):
        repository.give_up(lost, "disk failure")
    save(repository, "b")
    repository.tags.create("v1", lost)
    with raises("commit_in_use"):
        repository.give_up(lost, "disk failure")
    repository.tags.delete("v1")
    with raises("commit_in_use"):
        repository.give_up(lost, "a trashed tag may come back")
    clock.advance(timedelta(days=7))
    repository.retention.hold(lost, "")
    with raises("commit_in_use"):
        repository.give_up(lost, "held")
    repository.retention.release(lost)
    record = repository.give_up(lost, "disk failure")
    assert record.given_up_reason == "disk failure"
    assert not record.is_intact
    with pytest.raises(Gone, match="given up as damaged: disk failure"):
        repository.branches.create("x", lost)
    with raises("commit_not_found"):
        repository.give_up("0" * 32, "")
