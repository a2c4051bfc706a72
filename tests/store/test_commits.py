"""Commits: made from what is staged, dated, merged, reverted, compared, listed; and resets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import InvalidInput
from ebbtide.store.database.schema import pending, reflog, staged
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import contents, count, save_files

MICROSECOND = timedelta(microseconds=1)


def test_a_commit(repository: Repository, clock: ManualClock) -> None:
    initial = repository.commits.resolve("main")
    repository.objects.put("main", "a", b"1")
    commit = repository.commits.commit("main", "first", committer="me", metadata={"ticket": "7"})
    assert commit.parent_ids == (initial,)
    assert (commit.created_at, commit.written_at) == (clock.now, clock.now)
    assert (commit.message, commit.committer) == ("first", "me")
    assert commit.metadata == {"ticket": "7"}
    assert commit.is_intact
    assert repository.commits.get("main") == commit
    assert [count(repository, table) for table in (pending, staged, reflog)] == [0, 0, 1]
    with repository.context.metadata.snapshot() as tx:
        left = tx.execute(sa.select(reflog.c.commit_id, reflog.c.left_at)).one()
    assert tuple(left) == (initial, clock.now)


def test_a_commit_without_changes(repository: Repository) -> None:
    save_files(repository, a=b"1")
    parent = repository.commits.get("main")
    repository.objects.put("main", "b", b"")
    repository.objects.delete("main", "b")
    repository.objects.delete("main", "a")
    repository.objects.copy("main", "a", "main~0", "a")
    assert list(repository.commits.diff_staged("main")) == [], "the same bytes, elsewhere"
    repository.commits.reset("main")
    with raises("nothing_to_commit"):
        repository.commits.commit("main", "nothing")
    empty = repository.commits.commit("main", "on purpose", allow_empty=True)
    assert empty.parent_ids == (parent.commit_id,)
    assert (empty.tree_id, empty.tree_checksum) == (parent.tree_id, parent.tree_checksum)
    for values in ({"message": "x" * 70_000}, {"committer": "x" * 300}, {"metadata": {"a": "\0"}}):
        with raises("invalid_argument"):
            repository.commits.commit("main", **{"message": "", **values})  # type: ignore[arg-type]


def test_dates(repository: Repository, clock: ManualClock) -> None:
    first = clock.now - timedelta(days=9)
    zone = timezone(timedelta(hours=2))
    commits = repository.commits

    def commit(date: datetime | None) -> datetime:
        return commits.commit("main", "", date=date, allow_empty=True).created_at

    assert commit(first.astimezone(zone)) == first
    assert commits.get("main").created_at.tzinfo is UTC
    assert commits.get("main").written_at == clock.now
    assert commit(first) == first + MICROSECOND, "equal to the parent's"
    ends = (
        datetime.min.replace(tzinfo=zone),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    )
    for bad in (first, clock.now + MICROSECOND, clock.now.replace(tzinfo=None), *ends):
        with raises("invalid_date"):
            commit(bad)
    assert commit(clock.now) == clock.now
    assert commit(None) == clock.now + MICROSECOND
    clock.advance(timedelta(hours=-1))
    assert commit(None) > clock.now, "a database clock that went back makes no older child"


def test_a_storage_with_another_time_is_refused(repository: Repository, clock: ManualClock) -> None:
    repository.objects.put("main", "a", b"1")
    before = repository.commits.get("main")
    for minutes in (-6, 6):
        clock.storage_offset = timedelta(minutes=minutes)
        with raises("clock_skew"):
            repository.commits.commit("main", "")
    assert repository.commits.get("main") == before
    clock.storage_offset = timedelta(minutes=5)
    repository.commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"1"}


def test_merges(repository: Repository, clock: ManualClock) -> None:
    save_files(repository, a=b"1", b=b"1", same=b"1", d=b"1")
    repository.branches.create("dev", "main")
    source = save_files(repository, "dev", a=b"2", b=None, same=b"9", e=b"2")
    clock.advance(timedelta(seconds=1))
    head = save_files(repository, a=b"3", b=b"3", same=b"9", d=None)
    with raises("merge_conflict") as caught:
        repository.commits.merge("dev", "main")
    assert caught.value.details == {"paths": ["a", "b"], "conflict_count": 2}
    with raises("invalid_argument"):
        repository.commits.merge("dev", "main", strategy="ours")  # type: ignore[arg-type]
    repository.branches.create("other", "main")
    merged = repository.commits.merge("dev", "main", message="both", strategy="source-wins")
    assert (merged.parent_ids, merged.message) == ((head, source), "both")
    assert contents(repository, "main") == {"a": b"2", "same": b"9", "e": b"2"}
    repository.commits.merge("dev", "other", strategy="dest-wins")
    assert contents(repository, "other") == {"a": b"3", "b": b"3", "same": b"9", "e": b"2"}
    back = repository.commits.merge("main", "dev")
    assert back.parent_ids == (source, merged.commit_id), "never a silent fast-forward"
    assert contents(repository, "dev") == contents(repository, "main")


def test_reverts(repository: Repository) -> None:
    initial = repository.commits.resolve("main")
    save_files(repository, a=b"1")
    undone = save_files(repository, a=b"2")
    head = save_files(repository, a=b"3")
    with raises("merge_conflict") as caught:
        repository.commits.revert("main", undone)
    assert caught.value.details["paths"] == ["a"]
    reverted = repository.commits.revert("main", head, message="no")
    assert (reverted.parent_ids, reverted.message) == ((head,), "no")
    repository.commits.revert("main", reverted.commit_id)
    for ref, number in ((undone, 2), (undone, 0), (initial, 1)):
        with raises("invalid_argument"):
            repository.commits.revert("main", ref, parent_number=number)
    repository.branches.create("dev", undone)
    save_files(repository, "dev", b=b"dev")
    merged = repository.commits.merge("dev", "main").commit_id
    for number, left in ((1, {"a": b"3"}), (2, {"a": b"2", "b": b"dev"})):
        repository.branches.create(f"{number}", merged)
        repository.commits.revert(f"{number}", merged, parent_number=number)
        assert contents(repository, f"{number}") == left


@pytest.mark.twins
def test_logs(repository: Repository, clock: ManualClock) -> None:
    initial = repository.commits.resolve("main")
    first = save_files(repository, a=b"1")
    repository.branches.create("dev", "main")
    ids = [first]
    for number in range(4):
        clock.advance(timedelta(seconds=1))
        ids.append(save_files(repository, "dev" if number % 2 else "main", **{f"{number}": b""}))
    merged = repository.commits.merge("dev", "main").commit_id
    log = [commit.commit_id for commit in repository.commits.log("main")]
    assert log == [merged, *reversed(ids), initial]
    first_parents = [
        commit.commit_id for commit in repository.commits.log("main", first_parent=True)
    ]
    assert first_parents == [merged, ids[3], ids[1], first, initial]
    for only_first, expected in ((False, log), (True, first_parents)):
        paged: list[str] = []
        while part := repository.commits.log(
            "main", first_parent=only_first, after=paged[-1] if paged else None, amount=2
        ):
            assert len(part) <= 2
            paged += [commit.commit_id for commit in part]
        assert paged == expected
    with pytest.raises(InvalidInput):
        repository.commits.log("main", amount=0)


def test_a_log_goes_on_only_behind_a_commit_that_it_has(
    repository: Repository, clock: ManualClock
) -> None:
    """An empty rest would read as the end of the log."""
    root = repository.commits.resolve("main")
    repository.branches.create("dev", "main")
    first = save_files(repository, a=b"1")
    clock.advance(timedelta(seconds=1))
    second = save_files(repository, a=b"2")
    elsewhere = save_files(repository, "dev", b=b"1")

    def behind(after: str, **wanted: Any) -> list[str]:
        return [each.commit_id for each in repository.commits.log("main", after=after, **wanted)]

    assert behind(second) == behind(second[:12]) == behind("main") == [first, root]
    assert behind(root) == []
    assert behind(second, paths=["nothing"]) == []
    with raises("ref_not_found"):
        behind("f" * 40)
    for only_first in (False, True):
        with raises("invalid_argument"):
            behind(elsewhere, first_parent=only_first)
    with raises("invalid_argument"):
        behind(first, stop_at=second)
