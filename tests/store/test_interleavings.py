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
from tests.support.lakes import contents, every_file, meanwhile, pending_addresses, save, tombstone


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
    second_staged: list[bool] = []

    def first_commits() -> None:
        # Staged after the seal, so not part of the commit under way, which loses to this one.
        repository.objects.put("main", "b", b"2")
        repository.commits.commit("main", "the other")
        second_staged.append(True)

    with raises("branch_moved"):
        meanwhile(repository, first_commits, TREES_PREFIX).commits.commit("main", "")
    assert second_staged
    assert contents(repository, "main") == {"a": b"1", "b": b"2"}
    assert contents(repository, "main@") == {"a": b"1", "b": b"2"}, "the other took up the seal"


def test_what_is_staged_during_a_commit_stays_staged(repository: Repository) -> None:
    repository.objects.put("main", "a", b"1")
    repository.objects.put("main", "b", b"1")

    def write() -> None:
        repository.objects.put("main", "a", b"2")
        repository.objects.put("main", "c", b"2")
        repository.objects.delete("main", "b")

    meanwhile(repository, write, TREES_PREFIX).commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"1", "b": b"1"}
    assert contents(repository, "main") == {"a": b"2", "c": b"2"}
    repository.commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"2", "c": b"2"}


def test_a_seal_during_a_commit_does_not_stop_it(repository: Repository) -> None:
    """The second commit seals, then fails for want of a storage; the first goes on."""
    repository.objects.put("main", "a", b"1")

    def seal_and_fail() -> None:
        repository.objects.put("main", "b", b"2")
        with raises("invalid_date"):
            repository.commits.commit(
                "main", "", date=repository.context.clock.host_now() + timedelta(days=1)
            )

    meanwhile(repository, seal_and_fail, TREES_PREFIX).commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"1"}
    assert contents(repository, "main") == {"a": b"1", "b": b"2"}
    repository.commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("kind", ["reset", "reset_prefix", "reset_path"])
def test_a_reset_during_a_commit_stops_it(repository: Repository, kind: str) -> None:
    repository.objects.put("main", "a", b"1")
    repository.objects.put("main", "b", b"1")
    resets: dict[str, Callable[[], object]] = {
        "reset": lambda: repository.commits.reset("main"),
        "reset_prefix": lambda: repository.commits.reset_prefix("main", "a"),
        "reset_path": lambda: repository.commits.reset_path("main", "a"),
    }
    with raises("branch_moved"):
        meanwhile(repository, resets[kind], TREES_PREFIX).commits.commit("main", "")
    left = {} if kind == "reset" else {"b": b"1"}
    assert contents(repository, "main") == left
    repository.commits.commit("main", "", allow_empty=True)
    assert contents(repository, "main@") == left


def test_a_branch_that_is_deleted_during_a_commit(repository: Repository) -> None:
    repository.branches.create("dev", "main")
    repository.objects.put("dev", "a", b"1")
    before = every_file(repository)
    with raises("branch_not_found"):
        meanwhile(
            repository, lambda: repository.branches.delete("dev"), TREES_PREFIX
        ).commits.commit("dev", "")
    repository.branches.restore("dev")
    assert contents(repository, "dev") == {"a": b"1"}
    assert every_file(repository) == before


def test_a_branch_that_is_made_anew_during_a_commit(repository: Repository) -> None:
    repository.branches.create("dev", "main")

    def replace() -> None:
        repository.branches.delete("dev")
        repository.branches.create("dev", "main")

    repository.objects.put("dev", "a", b"1")
    with raises("branch_moved"):
        meanwhile(repository, replace, TREES_PREFIX).commits.commit("dev", "")
    assert contents(repository, "dev") == {}


@pytest.mark.parametrize("at", [RANGES_PREFIX, TREES_PREFIX])
def test_a_fence_over_the_parent_between_seal_and_publishing(
    repository: Repository, at: str
) -> None:
    head = save(repository, "a")
    repository.objects.put("main", "b", b"b")
    with pytest.raises(Gone) as caught:
        meanwhile(repository, lambda: tombstone(repository, head), at).commits.commit("main", "")
    assert caught.value.details == {"commit_id": head, "run_id": "run7"}
    assert repository.commits.resolve("main") == head
    assert pending_addresses(repository) == []


def test_a_fence_over_the_source_of_a_merge(repository: Repository) -> None:
    repository.branches.create("dev", "main")
    source = save(repository, "a", "dev")
    save(repository, "b", "dev")
    head = repository.commits.resolve("main")
    with pytest.raises(Gone):
        meanwhile(repository, lambda: tombstone(repository, source), TREES_PREFIX).commits.merge(
            source, "main"
        )
    assert repository.commits.resolve("main") == head


@pytest.mark.parametrize("which", ["reverted", "its parent"])
def test_a_fence_over_what_a_revert_brings_back(repository: Repository, which: str) -> None:
    parent = save(repository, "a")
    reverted = save(repository, "b")
    head = save(repository, "c")
    doomed = reverted if which == "reverted" else parent
    with pytest.raises(Gone):
        meanwhile(repository, lambda: tombstone(repository, doomed), TREES_PREFIX).commits.revert(
            "main", reverted
        )
    assert repository.commits.resolve("main") == head


def test_a_fence_over_the_source_of_a_copy(repository: Repository) -> None:
    old = save(repository, "a")
    save(repository, "b")
    before = every_file(repository)
    with pytest.raises(Gone):
        meanwhile(repository, lambda: tombstone(repository, old), DATA_PREFIX).objects.copy(
            "main", "c", old, "a"
        )
    assert contents(repository, "main") == {"a": b"a", "b": b"b"}
    assert (every_file(repository), pending_addresses(repository)) == (before, [])


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


@pytest.mark.parametrize("ends", ["exactly", "dropped"])
def test_a_put_whose_registration_has_ended(
    repository: Repository, clock: ManualClock, ends: str
) -> None:
    def end() -> None:
        clock.advance(timedelta(hours=24))
        if ends == "dropped":
            with repository.context.metadata.transaction() as tx:
                tx.execute(sa.delete(pending))

    with raises("write_expired"):
        meanwhile(repository, end, DATA_PREFIX).objects.put("main", "a", b"1")
    assert contents(repository, "main") == {}
    assert pending_addresses(repository) == []


def test_a_put_just_in_time(repository: Repository, clock: ManualClock) -> None:
    def wait() -> None:
        clock.advance(timedelta(hours=24) - timedelta(microseconds=1))

    meanwhile(repository, wait, DATA_PREFIX).objects.put("main", "a", b"1")
    assert contents(repository, "main") == {"a": b"1"}


def test_a_commit_whose_registrations_have_ended(
    repository: Repository, clock: ManualClock
) -> None:
    repository.objects.put("main", "a", b"1")
    before = repository.commits.resolve("main")
    late = meanwhile(repository, lambda: clock.advance(timedelta(hours=24)), TREES_PREFIX)
    with raises("write_expired"):
        late.commits.commit("main", "")
    assert repository.commits.resolve("main") == before
    repository.commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"1"}


def test_a_put_to_a_branch_that_is_deleted_meanwhile(repository: Repository) -> None:
    repository.branches.create("dev", "main")
    before = every_file(repository)
    late = meanwhile(repository, lambda: repository.branches.delete("dev"), DATA_PREFIX)
    with raises("branch_not_found"):
        late.objects.put("dev", "a", b"1")
    assert every_file(repository) == before


def test_a_put_during_which_the_branch_is_sealed_lands_above_the_seal(
    repository: Repository,
) -> None:
    repository.objects.put("main", "a", b"1")
    late = meanwhile(repository, lambda: repository.commits.commit("main", ""), DATA_PREFIX)
    late.objects.put("main", "a", b"2")
    assert contents(repository, "main@") == {"a": b"1"}
    assert contents(repository, "main") == {"a": b"2"}


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


def test_a_delete_above_a_seal_hides_what_is_sealed(repository: Repository) -> None:
    repository.objects.put("main", "a", b"1")
    late = meanwhile(repository, lambda: repository.objects.delete("main", "a"), TREES_PREFIX)
    late.commits.commit("main", "")
    assert contents(repository, "main@") == {"a": b"1"}
    assert contents(repository, "main") == {}


def test_a_merge_into_a_branch_that_moves(repository: Repository) -> None:
    repository.branches.create("dev", "main")
    save(repository, "a", "dev")
    late = meanwhile(repository, lambda: save(repository, "b"), TREES_PREFIX)
    with raises("branch_moved"):
        late.commits.merge("dev", "main")
    assert contents(repository, "main@") == {"b": b"b"}
    repository.commits.merge("dev", "main")
    assert contents(repository, "main@") == {"a": b"a", "b": b"b"}
