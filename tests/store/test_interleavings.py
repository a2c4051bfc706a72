"""What happens between the steps of an operation: forced, one interleaving at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone
from ebbtide.store.content.layout import DATA_PREFIX, RANGES_PREFIX, TREES_PREFIX
from ebbtide.store.content.reading import find_entry
from ebbtide.store.database.schema import pending
from ebbtide.store.repository import Repository
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


def test_of_two_commits_the_later_conflicts_and_keeps_what_it_staged(
    repository: Repository,
) -> None:
    repository.objects.put("main", "a", b"1")

    def first_commits() -> None:
        # Staged after the seal, so not part of the commit under way, which loses to this one.
        repository.objects.put("main", "b", b"2")
        repository.commits.commit("main", "the other")

    with raises("branch_moved"):
        meanwhile(repository, first_commits, TREES_PREFIX).commits.commit("main", "")
    assert contents(repository, "main") == {"a": b"1", "b": b"2"}
    assert contents(repository, "main@") == {"a": b"1", "b": b"2"}, "the other took up the seal"


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


def test_a_reset_during_a_commit_stops_it(repository: Repository) -> None:
    resets: list[Callable[[], object]] = [
        lambda: repository.commits.reset("main"),
        lambda: repository.commits.reset_prefix("main", "a"),
        lambda: repository.commits.reset_path("main", "a"),
    ]
    for reset in resets:
        repository.objects.put("main", "a", b"1")
        with raises("branch_moved"):
            meanwhile(repository, reset, TREES_PREFIX).commits.commit("main", "")
        assert contents(repository, "main") == {}
    repository.commits.commit("main", "", allow_empty=True)
    assert contents(repository, "main@") == {}


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
    repository.objects.put("main", "a", b"1")
    looks: list[str] = []

    def find_and_commit(*arguments: object, **options: object) -> object:
        found = find_entry(*arguments, **options)  # type: ignore[arg-type]
        if not looks:
            repository.commits.commit("main", "")
        looks.append("look")
        return found

    monkeypatch.setattr("ebbtide.store.objects.deleting.find_entry", find_and_commit)
    repository.objects.delete("main", "a")
    assert len(looks) == 2
    assert contents(repository, "main") == {}
    assert contents(repository, "main@") == {"a": b"1"}
