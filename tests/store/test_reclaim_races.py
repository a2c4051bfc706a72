"""The races that a published design for deleting uncommitted data online was given up for, each
forced: one operation happens at every place of another one at which it can.

Source: lakeFS, "Hard Delete Uncommitted Data" (design/rejected/hard-delete.md), the races of its
fifth proposal, and what blocked the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count

import pytest
import sqlalchemy as sa

from ebbtide.errors import EbbtideError
from ebbtide.ids import new_id
from ebbtide.store.collecting.roots import drop_ended
from ebbtide.store.database.schema import released
from ebbtide.store.embedded import Store
from ebbtide.store.reclaim.reclaimer import Reclaimer
from ebbtide.store.repositories.queries import delete_repository
from ebbtide.store.repository import Repository
from tests.support.boundaries import At, stepping
from tests.support.clock import ManualClock
from tests.support.reachable import check_settled, committed, staged_live, stored

pytestmark = pytest.mark.drawn("places of races")

LEASE = timedelta(hours=1)
Operation = Callable[[Repository], object]


class Race:
    """A store in which one operation meets another; each meeting has a repository of its own."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.numbers = count()

    def repository(self, prepare: Operation) -> Repository:
        """A new repository, as `prepare` leaves it; those before are gone."""
        for info in (each.info for each in self.store.catalog.list()):
            with self.store.metadata.transaction() as tx:
                delete_repository(tx, info.repository_id)
        number = next(self.numbers)
        made = self.store.create_repository(f"lake{number}", storage_url=f"memory:{new_id()}")
        prepare(made)
        return made

    def everywhere(self, prepare: Operation, first: Operation, second: Operation) -> int:
        """`second` happens at each place of `first`, one after the other; how many there are."""
        for number in count():
            repository = self.repository(prepare)
            meeting = At(number, partial(quietly, second, repository))
            quietly(first, stepping(repository, meeting))
            if meeting.count <= number:
                return number
            self.check(repository)
        raise AssertionError  # the count has no end

    def check(self, repository: Repository) -> None:
        """What a user sees is there, a reset loses nothing that is committed, and nothing is left
        once nobody needs it."""
        for entry in repository.objects.walk("main"):
            repository.objects.get("main", entry.path)
        repository.commits.reset("main")
        check_settled(self.store, repository, self.clock)
        for entry in repository.objects.walk("main"):
            repository.objects.get("main", entry.path)


def quietly(operation: Operation, repository: Repository) -> None:
    """An operation that may be refused: whoever came first has changed what it is about."""
    with suppress(EbbtideError):
        operation(repository)


@pytest.fixture
def race(store: Store, clock: ManualClock) -> Race:
    return Race(store, clock)


def staged_a(lake: Repository) -> None:
    lake.objects.put("main", "a", b"1")


def committed_a(lake: Repository) -> None:
    lake.objects.put("main", "a", b"1")
    lake.commits.commit("main", "")


def staged_both(lake: Repository) -> None:
    lake.objects.put("main", "a", b"1")
    lake.objects.put("main", "b", b"2")


def sealed_a(lake: Repository) -> None:
    """As a commit that fails leaves it."""
    lake.objects.put("main", "a", b"1")
    with suppress(EbbtideError):
        later = lake.context.clock.host_now() + timedelta(days=1)
        lake.commits.commit("main", "", date=later)


def commit(lake: Repository) -> object:
    return lake.commits.commit("main", "")


def move(lake: Repository) -> object:
    return lake.objects.move("main", "b", "a")


def move_elsewhere(lake: Repository) -> object:
    return lake.objects.move("main", "c", "a")


def move_back(lake: Repository) -> object:
    return lake.objects.move("main", "a", "b")


def copy(lake: Repository) -> object:
    return lake.objects.copy("main", "b", "main", "a")


def delete(lake: Repository) -> None:
    lake.objects.delete("main", "a")


def upload(lake: Repository) -> object:
    return lake.objects.put("main", "a", b"3")


def reset(lake: Repository) -> None:
    lake.commits.reset("main")


def reclaim(race: Race) -> Operation:
    """All that is due once a lease has passed."""

    def reclaim_all(_lake: Repository) -> object:
        race.clock.advance(LEASE)
        return Reclaimer(race.store).once()

    return reclaim_all


def in_turn(*operations: Operation) -> Operation:
    def all_of_them(lake: Repository) -> None:
        for operation in operations:
            quietly(operation, lake)

    return all_of_them


STATES = (staged_a, committed_a, sealed_a)


# The races of the fifth proposal


@pytest.mark.parametrize("state", STATES)
def test_race_1_a_move_at_every_place_of_a_commit(race: Race, state: Operation) -> None:
    """The entry moves while a commit makes an entry of it, and the move's is dropped: the address
    has been committed, and must stay."""
    assert race.everywhere(state, commit, move) > 0
    assert race.everywhere(state, commit, in_turn(move, reset, reclaim(race))) > 0


@pytest.mark.parametrize("state", STATES)
def test_race_1_a_commit_at_every_place_of_a_move(race: Race, state: Operation) -> None:
    assert race.everywhere(state, move, commit) > 1
    assert race.everywhere(state, move, in_turn(commit, reclaim(race))) > 1


@pytest.mark.parametrize("state", STATES)
def test_race_2_a_move_at_every_place_of_a_delete(race: Race, state: Operation) -> None:
    """The delete has looked, the entry moves, then the delete acts: what moved must be there."""
    assert race.everywhere(state, delete, move) > 1
    assert race.everywhere(state, delete, in_turn(move, reclaim(race))) > 1


@pytest.mark.parametrize("state", STATES)
def test_race_2_a_delete_at_every_place_of_a_move(race: Race, state: Operation) -> None:
    assert race.everywhere(state, move, delete) > 1
    assert race.everywhere(state, move, in_turn(delete, reclaim(race))) > 1


@pytest.mark.parametrize("state", [*STATES, staged_both])
@pytest.mark.parametrize("other", [move, move_elsewhere, move_back])
def test_race_3_two_moves(race: Race, state: Operation, other: Operation) -> None:
    assert race.everywhere(state, move, other) > 1
    assert race.everywhere(state, move, in_turn(other, reclaim(race))) > 1


def test_race_3_one_of_two_moves_of_an_entry_is_told_that_it_is_gone(race: Race) -> None:
    repository = race.repository(staged_a)
    source = repository.objects.stat("main", "a")
    meeting = At(1, lambda: move_elsewhere(repository))
    with pytest.raises(EbbtideError, check=lambda error: error.kind == "object_not_found"):
        move(stepping(repository, meeting))
    assert [entry.path for entry in repository.objects.walk("main")] == ["c"]
    assert repository.objects.stat("main", "c").address == source.address


@pytest.mark.parametrize("operation", [move, upload, delete, commit, copy])
@pytest.mark.parametrize("state", STATES)
def test_race_4_nothing_stays_locked_when_an_operation_dies(
    race: Race, state: Operation, operation: Operation
) -> None:
    """There are no locks but those of transactions: whoever comes next finds the path free, and
    what the dead one left behind goes."""

    class Death(BaseException):
        """The process ends here."""

    def die() -> None:
        raise Death

    for number in count():
        repository = race.repository(state)
        dying = At(number, die)
        with suppress(EbbtideError, Death), pytest.MonkeyPatch.context() as patch:
            patch.setattr("ebbtide.store.staging.pending_writes.Writes._abandon", lambda *_: None)
            operation(stepping(repository, dying))
        if dying.count <= number:
            return
        for later in (upload, copy, move, delete):
            later(repository) if later is not delete else quietly(delete, repository)
        race.check(repository)


# What blocked the other proposals


def test_proposal_1_a_write_that_ends_after_the_commit(race: Race) -> None:
    """Its bytes are at an address of their own, which the commit does not have."""
    assert race.everywhere(staged_a, upload, commit) > 1
    repository = race.repository(staged_a)
    upload(stepping(repository, At(2, lambda: commit(repository))))
    assert repository.objects.get("main@", "a") == b"1"
    assert repository.objects.get("main", "a") == b"3"


def test_proposal_2_nothing_is_counted_on_the_storage(race: Race) -> None:
    """No object is written but once, whatever comes to refer to it."""
    repository = race.repository(staged_a)
    puts: list[str] = []
    watched = stepping(repository, lambda step: puts.append(step) if step == "put" else None)
    copy(watched)
    move_elsewhere(watched)
    delete_b = watched.objects.delete
    delete_b("main", "b")
    assert puts == []


@pytest.mark.parametrize("operation", [copy, move])
@pytest.mark.parametrize("state", STATES)
def test_proposal_3_a_new_reference_at_every_place_of_a_reclaim(
    race: Race, state: Operation, operation: Operation
) -> None:
    """`Reclaimer` has transactions of its own; the reference comes before each of them."""
    for number in count():
        repository = race.repository(in_turn(state, copy, delete))
        race.clock.advance(LEASE)
        meeting = At(number, partial(quietly, reversed_of(operation), repository))
        stepped = Store(
            directory=None,
            settings=race.store.settings,
            metadata=stepping(repository, meeting).context.metadata,
            store_id=race.store.store_id,
        )
        Reclaimer(stepped).once()
        assert (committed(repository) | staged_live(repository)) <= stored(repository)
        race.check(repository)
        if meeting.count <= number:
            return


def reversed_of(operation: Operation) -> Operation:
    """The same from `b`, which is what is left."""
    if operation is copy:
        return lambda lake: lake.objects.copy("main", "a", "main", "b")
    return move_back


@pytest.mark.parametrize("state", STATES)
def test_proposal_4_an_override_under_the_same_token(race: Race, state: Operation) -> None:
    assert race.everywhere(state, upload, upload) > 1
    assert race.everywhere(state, upload, in_turn(upload, reclaim(race))) > 1
    assert race.everywhere(state, copy, upload) > 1


@pytest.mark.parametrize("state", STATES)
def test_proposal_4_entries_that_sealed_tokens_hide(race: Race, state: Operation) -> None:
    """A second commit takes over what the first sealed and newer writes hide."""
    assert race.everywhere(in_turn(state, sealed_a), commit, in_turn(upload, commit)) > 1


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("other", [reset, delete, upload])
def test_proposal_4_a_copy_while_its_source_goes(
    race: Race, state: Operation, other: Operation
) -> None:
    assert race.everywhere(state, copy, in_turn(other, reclaim(race))) > 1
    assert race.everywhere(state, other, in_turn(copy, reclaim(race))) > 0


@pytest.mark.parametrize("state", STATES)
def test_proposal_5_a_fence_at_every_place_of_a_move(race: Race, state: Operation) -> None:
    def fence(lake: Repository) -> None:
        with lake.context.metadata.transaction() as tx:
            tx.lock_repository(lake.info.repository_id, "exclusive")
            drop_ended(tx, lake.info.repository_id, lease_ttl=LEASE, trash_time=LEASE)

    assert race.everywhere(state, move, in_turn(fence, reclaim(race))) > 1


def test_a_reset_at_every_place_of_a_commit(race: Race) -> None:
    assert race.everywhere(staged_both, commit, reset) > 1
    assert race.everywhere(staged_both, commit, in_turn(reset, reclaim(race))) > 1


def test_a_reclaim_after_every_operation_leaves_no_row(race: Race) -> None:
    repository = race.repository(staged_both)
    for operation in (copy, move, upload, delete, commit, upload, reset):
        quietly(operation, repository)
        reclaim(race)(repository)
    race.check(repository)
    with repository.context.metadata.snapshot() as tx:
        assert tx.execute(sa.select(released.c.address)).all() == []
