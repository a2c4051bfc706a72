"""Commits that meet on one branch: the later one is made again, and means the same; and what
happens between the steps of an operation: forced, one interleaving at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Barrier, Event, Semaphore

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone
from ebbtide.store.commits.publication import Overtaken, until_published
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import DATA_PREFIX, RANGES_PREFIX, TREES_PREFIX
from ebbtide.store.content.trees import find_entry
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.database.schema import pending
from ebbtide.store.refs.ref_rows import BRANCH_ATTEMPTS_MAX
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import OnlyIf
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.faulty import FaultyStorage, with_storage
from tests.support.lakes import (
    contents,
    every_file,
    meanwhile,
    pending_addresses,
    save,
    seal,
    tombstone,
)

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


RESETS: tuple[Callable[[Repository, str], object], ...] = (
    lambda lake, _: lake.commits.reset("main"),
    lambda lake, _: lake.commits.reset_prefix("main", "b"),
    lambda lake, _: lake.commits.reset_path("main", "b"),
    lambda lake, first: lake.commits.reset_to("main", first, force=True),
)


@pytest.mark.parametrize("reset", RESETS)
def test_a_reset_is_not_tried_again(
    repository: Repository, reset: Callable[[Repository, str], object]
) -> None:
    """Whatever is staged after the reset is not what this commit was asked to commit."""
    first = repository.commits.resolve("main")
    if reset is RESETS[-1]:
        save(repository, "a")
    repository.objects.put("main", "b", b"1")

    def reset_and_stage() -> None:
        reset(repository, first)
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


MOMENT = timedelta(microseconds=1)


def test_addresses_are_registered_before_their_first_byte(repository: Repository) -> None:
    seen: list[str] = []

    def look(method: str, address: str) -> None:
        if method == "put":
            assert address in pending_addresses(repository)
            seen.append(address)

    watched = with_storage(repository, FaultyStorage(repository.storage, before=look))
    watched.objects.put("main", "a", b"1")
    watched.commits.commit("main", "")
    prefixes = (DATA_PREFIX, RANGES_PREFIX, TREES_PREFIX)
    assert [next(each for each in prefixes if name.startswith(each)) for name in seen] == [
        *prefixes
    ]
    assert pending_addresses(repository) == []


def test_what_is_staged_during_a_commit_stays_staged(repository: Repository) -> None:
    """Also if it is sealed by another commit, which fails."""
    repository.objects.put("main", "a", b"1")
    repository.objects.put("main", "b", b"1")

    def write() -> None:
        repository.objects.put("main", "a", b"2")
        repository.objects.put("main", "c", b"2")
        repository.objects.delete("main", "b")
        seal(repository)

    meanwhile(repository, write, TREES_PREFIX).commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"1", "b": b"1"}
    assert contents(repository, "main") == {"a": b"2", "c": b"2"}
    repository.commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"2", "c": b"2"}


def test_a_branch_that_is_deleted_or_made_anew_during_a_commit(repository: Repository) -> None:
    def replace() -> None:
        repository.branches.delete("dev")
        repository.branches.create("dev", "main")

    repository.branches.create("dev", "main")
    repository.objects.put("dev", "a", b"1")
    before = every_file(repository)
    for action, at, kind in (
        (lambda: repository.branches.delete("dev"), TREES_PREFIX, "branch_not_found"),
        (replace, TREES_PREFIX, "branch_moved"),
    ):
        with raises(kind):
            meanwhile(repository, action, at).commits.commit("dev", "")
        assert every_file(repository) == before
        if kind == "branch_not_found":
            repository.branches.restore("dev")
            assert contents(repository, "dev") == {"a": b"1"}
    late = meanwhile(repository, lambda: repository.branches.delete("dev"), DATA_PREFIX)
    with raises("branch_not_found"):
        late.objects.put("dev", "a", b"1")
    assert every_file(repository) == before


FENCED: dict[str, tuple[str, str, Callable[[Repository], object]]] = {
    "the parent, before the ranges": (
        "main",
        RANGES_PREFIX,
        lambda it: it.commits.commit("dev", ""),
    ),
    "the parent": ("main", TREES_PREFIX, lambda it: it.commits.commit("dev", "")),
    "the source of a merge": ("main", TREES_PREFIX, lambda it: it.commits.merge("main", "other")),
    "the reverted one": ("main~1", TREES_PREFIX, lambda it: it.commits.revert("main", "main~1")),
    "its parent": ("main~2", TREES_PREFIX, lambda it: it.commits.revert("main", "main~1")),
    "the source of a copy": (
        "main~1",
        DATA_PREFIX,
        lambda it: it.objects.copy("other", "z", "main~1", "a"),
    ),
}


@pytest.mark.parametrize("what", FENCED)
def test_a_fence_before_the_publishing(repository: Repository, what: str) -> None:
    """It closes a commit of which something is made: nothing is published, and no file stays."""
    repository.branches.create("other", "main")
    for path in "abc":
        save(repository, path)
    repository.branches.create("dev", "main")
    repository.objects.put("dev", "d", b"d")
    ref, at, work = FENCED[what]
    doomed = repository.commits.resolve(ref)
    before = {each.name: each.commit_id for each in repository.branches.list()}
    with pytest.raises(Gone) as caught:
        work(meanwhile(repository, lambda: tombstone(repository, doomed), at))
    assert caught.value.details == {"commit_id": doomed, "run_id": "run7"}
    assert {each.name: each.commit_id for each in repository.branches.list()} == before
    assert contents(repository, "other") == {}
    assert pending_addresses(repository) == []


def test_a_fence_before_a_read_of_lost_bytes(repository: Repository) -> None:
    old = save(repository, "a")
    entry = repository.objects.stat(old, "a")

    def sweep(method: str, address: str) -> None:
        if (method, address) == ("stream", entry.address):
            tombstone(repository, old)
            repository.storage.delete([address])

    watched = with_storage(repository, FaultyStorage(repository.storage, before=sweep))
    with pytest.raises(Gone):
        watched.objects.get(old, "a")


def test_registrations_that_have_ended(repository: Repository, clock: ManualClock) -> None:
    ttl = repository.context.settings.write_ttl

    def end() -> None:
        clock.advance(ttl)

    def drop() -> None:
        end()
        with repository.context.metadata.transaction() as tx:
            tx.execute(sa.delete(pending))

    for action in (end, drop):
        with raises("write_expired"):
            meanwhile(repository, action, DATA_PREFIX).objects.put("main", "a", b"1")
        assert contents(repository, "main") == {}
        assert pending_addresses(repository) == []
    in_time = meanwhile(repository, lambda: clock.advance(ttl - MOMENT), DATA_PREFIX)
    in_time.objects.put("main", "a", b"1")
    before = repository.commits.resolve("main")
    with raises("write_expired"):
        meanwhile(repository, end, TREES_PREFIX).commits.commit("main", "")
    assert repository.commits.resolve("main") == before
    repository.commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"1"}


def test_a_delete_during_which_the_branch_moves(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is only staged when the delete looks, and committed when it acts."""
    looks = 0

    def find_and_commit(*arguments: object, **options: object) -> object:
        nonlocal looks
        found = find_entry(*arguments, **options)  # type: ignore[arg-type]
        looks += 1
        if looks % 2:
            repository.commits.commit("main", "")
        return found

    monkeypatch.setattr("ebbtide.store.objects.changes.find_entry", find_and_commit)
    deletes: tuple[Callable[[Entry], object], ...] = (
        lambda _: repository.objects.delete("main", "a"),
        lambda entry: repository.objects.delete_if("main", "a", OnlyIf(entry.checksum)),
    )
    for number, delete in enumerate(deletes, 1):
        data = b"%d" % number
        delete(repository.objects.put("main", "a", data))
        assert looks == 2 * number
        assert contents(repository, "main") == {}
        assert contents(repository, "main@") == {"a": data}
