"""Projects: made, found, listed, moved, trashed and brought back, with what they hold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from ebbtide.errors import NotFound
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.collections.project_queries import (
    DEPTH_MAX,
)
from ebbtide.store.database.schema import collections, projects
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import put_collection, raises

TRASH = timedelta(days=7)
HOUR = timedelta(hours=1)
INSTANT = timedelta(microseconds=1)


def rows(repository: Repository) -> list[object]:
    """Every project and collection, as it is stored."""
    with repository.context.metadata.snapshot() as tx:
        return [
            tuple(row)
            for table, key in (
                (projects, projects.c.project_id),
                (collections, collections.c.collection_id),
            )
            for row in tx.execute(sa.select(table).order_by(key))
        ]


def test_a_project_is_found_by_id_and_path(repository: Repository, clock: ManualClock) -> None:
    outer = repository.projects.create("genomes", description="All", properties={"a": [1, None]})
    inner = repository.projects.create("2026", parent_id=outer.project_id)
    assert inner.path == "genomes/2026"
    assert (outer.description, outer.properties) == ("All", {"a": [1, None]})
    assert (outer.created_at, outer.modified_at) == (clock.now, clock.now)
    assert (outer.state, outer.expires_at, outer.ends_at) == (LifecycleState.PERSISTENT, None, None)
    assert repository.projects.get(inner.project_id) == inner
    assert repository.projects.find(inner.project_id) == inner
    assert repository.projects.find("genomes/2026") == inner
    for wrong in ("2026", "genomes/2027", "genomes/2026/x", "", "genomes/", "/genomes"):
        with raises("project_not_found"):
            repository.projects.find(wrong)


def test_another_repository_knows_nothing_of_it(store: Store, repository: Repository) -> None:
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    mine = repository.projects.create("mine")
    for call in other.projects.get, other.projects.find, other.projects.delete:
        with raises("project_not_found"):
            call(mine.project_id)
    with raises("project_not_found"):
        other.projects.create("inner", parent_id=mine.project_id)
    with raises("project_not_found"):
        other.projects.update(mine.project_id, name="theirs")
    assert other.projects.page() == []
    assert other.projects.create("mine").name == "mine"


def test_names_and_dates_that_are_none(repository: Repository) -> None:
    project_id = repository.projects.create("there").project_id
    for name in ("", " x", "x ", "a/b", ".", "..", "a\0", "a\n", "f" * 32, "ü" * 600):
        with raises("invalid_name"):
            repository.projects.create(name)
        with raises("invalid_name"):
            repository.projects.update(project_id, name=name)
        with raises("invalid_name"):
            repository.collections.create(project_id, name)
    for bad in (datetime(2031, 1, 1), datetime(1, 1, 1)):
        with raises("invalid_date"):
            repository.projects.create("a", expires_at=bad)
        with raises("invalid_date"):
            repository.projects.update(project_id, expires_at=bad)


def test_names_are_unique_among_what_is_not_trashed(
    repository: Repository, clock: ManualClock
) -> None:
    lake = repository.projects
    first = lake.create("a")
    with raises("project_exists"):
        lake.create("a")
    assert lake.create("a", ensure_unique_name=True).name == "a (2)"
    assert lake.create("a", ensure_unique_name=True).name == "a (3)"
    assert lake.create("a", parent_id=first.project_id).path == "a/a", "another place"
    lake.delete(first.project_id)
    second = lake.create("a")
    with raises("project_exists"):
        lake.restore(first.project_id)
    assert lake.restore(first.project_id, ensure_unique_name=True).name == "a (4)"
    with raises("project_exists"):
        lake.update(first.project_id, name="a")
    # Its own name is in nobody's way.
    assert lake.update(first.project_id, name="a", ensure_unique_name=True).name == "a (4)"
    # What expires by itself frees its name at that instant.
    lake.update(second.project_id, expires_at=clock.now + HOUR)
    clock.advance(HOUR - INSTANT)
    with raises("project_exists"):
        lake.create("a")
    clock.advance(INSTANT)
    assert lake.create("a").name == "a"


def test_a_name_in_the_trash_means_the_one_that_is_there(
    repository: Repository, clock: ManualClock
) -> None:
    lake = repository.projects
    old = lake.create("a")
    lake.delete(old.project_id)
    with raises("project_not_found"):
        lake.find("a")
    assert lake.find("a", include_expired=True).project_id == old.project_id
    new = lake.create("a")
    assert lake.find("a", include_expired=True).project_id == new.project_id
    lake.delete(new.project_id)
    with raises("ref_ambiguous"):
        lake.find("a", include_expired=True)
    assert lake.find(old.project_id, include_expired=True).project_id == old.project_id
    clock.advance(TRASH)
    with raises("project_not_found"):
        lake.find("a", include_expired=True)


def test_states_at_their_instants(repository: Repository, clock: ManualClock) -> None:
    ends_at = clock.now + HOUR
    project_id = repository.projects.create("a", expires_at=ends_at).project_id

    def state(*, include_expired: bool) -> str:
        try:
            found = repository.projects.get(project_id, include_expired=include_expired)
        except NotFound as error:
            assert error.kind == "project_not_found"
            return "-"
        assert found.expires_at == found.ends_at == ends_at
        return found.state.value

    for instant, plain, expired in (
        (ends_at - INSTANT, "expiring", "expiring"),
        (ends_at, "-", "trashed"),
        (ends_at + TRASH - INSTANT, "-", "trashed"),
        (ends_at + TRASH, "-", "-"),
    ):
        clock.now = instant
        assert state(include_expired=False) == plain
        assert state(include_expired=True) == expired
    gone: list[Callable[[], object]] = [
        lambda: repository.projects.update(project_id, expires_at=None),
        lambda: repository.projects.restore(project_id),
        lambda: repository.projects.delete(project_id),
    ]
    for call in gone:
        with raises("project_not_found"):
            call()


def test_of_a_trashed_one_only_its_end_can_be_changed(
    repository: Repository, clock: ManualClock
) -> None:
    lake = repository.projects
    project_id = lake.create("a").project_id
    other_id = lake.create("b").project_id
    lake.delete(project_id)
    refused: list[Callable[[], object]] = [
        lambda: lake.update(project_id, name="c"),
        lambda: lake.update(project_id, description="c"),
        lambda: lake.update(project_id, properties={}),
        lambda: lake.update(project_id, parent_id=other_id),
        lambda: lake.update(project_id, expires_at=None, name="c"),
    ]
    for call in refused:
        with raises("trashed"):
            call()
    with raises("project_not_found"):
        lake.delete(project_id)
    assert lake.update(project_id, expires_at=clock.now + HOUR).state is LifecycleState.EXPIRING
    with raises("project_exists"):  # nothing to bring back
        lake.restore(project_id)
    assert lake.get(project_id).expires_at == clock.now + HOUR
    assert lake.update(project_id, expires_at=clock.now - HOUR).expires_at == clock.now


def test_what_is_nested_ends_with_the_first_above_it(
    repository: Repository, clock: ManualClock
) -> None:
    lake, now = repository.projects, clock.now
    outer = lake.create("a", expires_at=now + 2 * HOUR).project_id
    middle = lake.create("b", parent_id=outer, expires_at=now + 3 * HOUR).project_id
    inner = lake.create("c", parent_id=middle).project_id
    made = put_collection(repository, inner, "set")
    assert lake.get(middle).ends_at == lake.get(inner).ends_at == made.ends_at == now + 2 * HOUR
    assert (lake.get(inner).expires_at, made.expires_at) == (None, None)
    own = repository.collections.update(made.collection_id, expires_at=now + HOUR)
    assert own.ends_at == now + HOUR
    clock.advance(2 * HOUR)
    found = repository.collections.get(made.collection_id, include_expired=True)
    assert (found.state, found.ends_at) == (LifecycleState.TRASHED, now + HOUR)
    # Moved out of what ends, it ends later.
    lake.update(outer, expires_at=None)
    repository.collections.update(made.collection_id, expires_at=None)
    assert repository.collections.get(made.collection_id).ends_at == now + 3 * HOUR
    lake.update(inner, parent_id=None)
    assert repository.collections.get(made.collection_id).ends_at is None
    assert repository.collections.get(made.collection_id).path == "c/set"


def test_what_lies_in_the_trash_cannot_be_touched(repository: Repository) -> None:
    lake = repository.projects
    outer, free = lake.create("a").project_id, lake.create("free").project_id
    inner = lake.create("b", parent_id=outer).project_id
    made = put_collection(repository, inner, "set").collection_id
    trashed = put_collection(repository, inner, "gone").collection_id
    repository.collections.delete(trashed)
    lake.delete(outer)
    refused: list[Callable[[], object]] = [
        lambda: lake.update(inner, name="c"),
        lambda: lake.update(inner, parent_id=free),
        lambda: lake.update(inner, expires_at=None),
        lambda: lake.restore(inner),
        lambda: repository.collections.update(made, name="c"),
        lambda: repository.collections.update(made, project_id=free),
        lambda: repository.collections.update(made, expires_at=None),
        lambda: repository.collections.restore(made),
        lambda: repository.collections.restore(trashed),
    ]
    for call in refused:
        with raises("trashed"):
            call()
    with raises("project_not_found"):
        repository.collections.create(inner, "new")
    with raises("project_not_found"):
        lake.create("new", parent_id=inner)
    for call in (
        lambda: lake.delete(inner),
        lambda: lake.page(parent_id=outer),
        lambda: repository.collections.page(inner),
    ):
        with raises("project_not_found"):
            call()
    with raises("collection_not_found"):
        repository.collections.delete(made)
    assert [each.name for each in lake.page(parent_id=outer, include_expired=True)] == ["b"]
    listed = repository.collections.page(inner, include_expired=True)
    assert [(each.name, each.state) for each in listed] == [
        ("gone", LifecycleState.TRASHED),
        ("set", LifecycleState.TRASHED),
    ]


def test_moves(repository: Repository) -> None:
    lake = repository.projects
    top = lake.create("top").project_id
    inner = lake.create("inner", parent_id=top).project_id
    deep = lake.create("deep", parent_id=inner).project_id
    for parent_id in (top, inner, deep):
        with raises("project_cycle"):
            lake.update(top, parent_id=parent_id)
    with raises("project_not_found"):
        lake.update(top, parent_id="nobody")
    assert lake.update(deep, parent_id=top).path == "top/deep"
    assert lake.update(top, parent_id=None).parent_id is None
    lake.create("deep", parent_id=inner)
    with raises("project_exists"):
        lake.update(deep, parent_id=inner)
    moved = lake.update(deep, parent_id=inner, ensure_unique_name=True)
    assert moved.path == "top/inner/deep (2)"
    lake.delete(inner)
    with raises("project_not_found"):
        lake.update(top, parent_id=inner)


def test_depth(repository: Repository) -> None:
    lake = repository.projects
    line = [lake.create("0").project_id]
    for number in range(1, DEPTH_MAX):
        line.append(lake.create(str(number), parent_id=line[-1]).project_id)
    with raises("invalid_argument"):
        lake.create("more", parent_id=line[-1])
    other = lake.create("other").project_id
    lake.create("child", parent_id=other)
    with raises("invalid_argument"):
        lake.update(other, parent_id=line[-2])
    assert lake.update(other, parent_id=line[-3]).path.count("/") == DEPTH_MAX - 2
    assert lake.find("/".join(map(str, range(DEPTH_MAX)))).project_id == line[-1]


def test_what_it_holds_goes_and_comes_back_untouched(
    repository: Repository, clock: ManualClock
) -> None:
    top = repository.projects.create("top").project_id
    made = [put_collection(repository, top, f"{number}").collection_id for number in range(3)]
    for number in range(3):
        repository.projects.create(f"{number}", parent_id=top)
    before = rows(repository)
    for act in (repository.projects.delete, repository.projects.restore):
        clock.advance(HOUR)
        act(top)
        changed = [row for row in rows(repository) if row not in before]
        assert len(changed) == 1, "one row"
    repository.projects.delete(top)
    with raises("collection_not_found"):
        repository.collections.get(made[0])
    found = repository.collections.get(made[0], include_expired=True)
    assert (found.state, found.ends_at) == (LifecycleState.TRASHED, clock.now)
    clock.advance(TRASH)
    with raises("collection_not_found"):
        repository.collections.get(made[0], include_expired=True)


@pytest.mark.twins
def test_lists_by_state_and_date(repository: Repository, clock: ManualClock) -> None:
    lake, now = repository.projects, clock.now
    lake.create("never")
    for name, hours in (("soon", 1), ("later", 5)):
        lake.create(name, expires_at=now + hours * HOUR)
    lake.create("over", expires_at=now + HOUR / 2)
    clock.advance(HOUR / 2)

    def names(**asked: object) -> list[str]:
        return [each.name for each in lake.page(**asked)]  # type: ignore[arg-type]

    assert names() == ["later", "never", "soon"]
    assert names(include_expired=True) == ["later", "never", "over", "soon"]
    assert names(state=LifecycleState.PERSISTENT) == ["never"]
    assert names(state=LifecycleState.EXPIRING) == ["later", "soon"]
    assert names(state=LifecycleState.TRASHED) == []
    assert names(state=LifecycleState.TRASHED, include_expired=True) == ["over"]
    assert names(state=LifecycleState.GONE, include_expired=True) == []
    assert names(from_date=now + HOUR) == ["later", "soon"]
    assert names(to_date=now + HOUR, include_expired=True) == ["over"]
    assert names(from_date=now + HOUR, to_date=now + 5 * HOUR) == ["soon"]
    clock.advance(TRASH)
    assert names(include_expired=True) == ["later", "never", "soon"], "the other is gone"


@pytest.mark.twins
def test_pages_while_things_change(repository: Repository) -> None:
    lake = repository.projects
    made = [lake.create(f"{number:02}").project_id for number in range(10)]
    seen: list[str] = []
    after = ("", "")
    while page := lake.page(after=after, amount=3):
        seen += [each.project_id for each in page]
        after = (page[-1].name, page[-1].project_id)
        if len(seen) == 3:
            lake.delete(made[0])
            lake.delete(made[5])
            lake.create("02 and a half")
            lake.create("00 too late")
    stayed = [each for each in made if each not in (made[0], made[5])]
    assert [each for each in seen if each in stayed] == stayed, "what stays is met once"
    assert len(seen) == len(set(seen)) == 10
    for amount in (0, -1, 1_000_000):
        with raises("invalid_argument"):
            lake.page(amount=amount)
