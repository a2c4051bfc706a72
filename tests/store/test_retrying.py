"""Commits that meet on one branch: the later one is made again, and means the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event, Semaphore

import pytest

from ebbtide.store.commits.publishing import Overtaken
from ebbtide.store.commits.retrying import until_published
from ebbtide.store.content.layout import TREES_PREFIX
from ebbtide.store.database.commits import CommitRecord
from ebbtide.store.refs.queries import BRANCH_ATTEMPTS_MAX
from ebbtide.store.repository import Repository
from tests.support.collections import raises
from tests.support.lakes import contents, meanwhile, save

SECONDS_MAX = 60

Make = Callable[[Repository, str], CommitRecord]


def merged(here: Repository, ref: str) -> CommitRecord:
    return here.commits.merge(ref, "main")


def reverted(here: Repository, ref: str) -> CommitRecord:
    return here.commits.revert("main", ref)


def picked(here: Repository, ref: str) -> CommitRecord:
    return here.commits.cherry_pick("main", ref)


def fill(repository: Repository) -> None:
    """A commit for each of three files on main, and one for a file on dev."""
    for path in ("base", "first", "second"):
        save(repository, path)
    repository.branches.create("dev", "main")
    save(repository, "picked", "dev")


@pytest.mark.parametrize(
    ("make", "ref", "left"),
    [
        (merged, "dev", {"base", "first", "second", "picked", "other"}),
        (picked, "dev", {"base", "first", "second", "picked", "other"}),
        # On the branch as it is afterwards, `main~1` is the commit of `second`.
        (reverted, "main~1", {"base", "second", "other"}),
    ],
)
def test_a_commit_that_was_overtaken_is_made_on_the_other(
    repository: Repository, make: Make, ref: str, left: set[str]
) -> None:
    fill(repository)
    late = meanwhile(repository, lambda: save(repository, "other"), TREES_PREFIX)
    made = until_published(late.context, "main", partial(make, late), ref)
    assert contents(repository, "main@").keys() == left
    assert made.commit_id == repository.commits.resolve("main")
    other = repository.commits.get(made.parent_ids[0])
    assert other.message == "other"


def test_a_merge_made_again_has_the_source_of_its_first_attempt(repository: Repository) -> None:
    fill(repository)

    def move_both() -> None:
        save(repository, "other")
        save(repository, "newer", "dev")

    late = meanwhile(repository, move_both, TREES_PREFIX)
    until_published(late.context, "main", partial(merged, late), "dev")
    assert "newer" not in contents(repository, "main@")


def commit_late(repository: Repository, action: Callable[[], object]) -> CommitRecord:
    """A commit, tried again as often as it may be, in the middle of which `action` happens."""
    late = meanwhile(repository, action, TREES_PREFIX)
    return until_published(late.context, "main", lambda _: late.commits.commit("main", "late"))


def test_a_commit_takes_up_what_the_other_left(repository: Repository) -> None:
    """If the other took up its changes, it has nothing to do."""
    repository.objects.put("main", "a", b"1")
    with raises("nothing_to_commit"):
        commit_late(repository, lambda: repository.commits.commit("main", "other"))

    def commit_and_stage() -> None:
        repository.commits.commit("main", "other")
        repository.objects.put("main", "b", b"2")

    repository.objects.put("main", "c", b"3")
    commit_late(repository, commit_and_stage)
    assert contents(repository, "main@") == {"a": b"1", "b": b"2", "c": b"3"}
    assert [each.message for each in repository.commits.log("main")][:2] == ["late", "other"]


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_reset_is_not_tried_again(repository: Repository, is_hard: bool) -> None:
    """Whatever is staged after the reset is not what this commit was asked to commit."""
    first = repository.commits.resolve("main")
    if is_hard:
        save(repository, "a")
    repository.objects.put("main", "b", b"1")

    def reset_and_stage() -> None:
        if is_hard:
            repository.commits.reset_to("main", first, force=True)
        else:
            repository.commits.reset("main")
        repository.objects.put("main", "c", b"2")

    with raises("branch_moved"):
        commit_late(repository, reset_and_stage)
    assert repository.commits.resolve("main") == first
    assert contents(repository, "main") == {"c": b"2"}


def overtaken(source_id: str) -> Overtaken:
    error = Overtaken("branch_moved", "meanwhile")
    error.source_id = source_id
    return error


def test_attempts_have_an_end(repository: Repository) -> None:
    refs: list[str] = []

    def make(ref: str) -> CommitRecord:
        refs.append(ref)
        raise overtaken("id")

    with raises("branch_moved"):
        until_published(repository.context, "main", make, "ref")
    assert refs == ["ref", *["id"] * (BRANCH_ATTEMPTS_MAX - 1)]


def test_later_attempts_wait_for_each_other(repository: Repository) -> None:
    """All clients are overtaken at first; afterwards no two of them are at work at once."""
    clients = 4
    is_first, at_work, have_met = Barrier(clients), Semaphore(1), Event()
    made = repository.commits.get("main")

    def work(_client: int) -> CommitRecord:
        attempts: list[str] = []

        def make(ref: str) -> CommitRecord:
            attempts.append(ref)
            if len(attempts) == 1:
                is_first.wait(SECONDS_MAX)
                raise overtaken("")
            if at_work.acquire(blocking=False):
                have_met.wait(0.1)  # gives the others time to come, if nothing holds them back
                at_work.release()
            else:
                have_met.set()
            return made

        return until_published(repository.context, "main", make)

    with ThreadPoolExecutor(clients) as pool:
        assert list(pool.map(work, range(clients))) == [made] * clients
    assert not have_met.is_set()
