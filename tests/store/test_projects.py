"""Projects: made, found, listed, moved, trashed and brought back, with what they hold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from ebbtide.errors import NotFound
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.collections.queries import DEPTH_MAX
from ebbtide.store.embedded import Store
from ebbtide.store.lifecycle import ListFilter
from ebbtide.store.names import ITEM_BYTES_MAX
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises

TRASH = timedelta(days=7)
HOUR = timedelta(hours=1)
INSTANT = timedelta(microseconds=1)


def test_a_project_is_found_by_id_and_path(repository: Repository, clock: ManualClock) -> None:
    lake = repository.projects
    outer = lake.create("genomes", description="All", properties={"a": [1, None]})
    inner = lake.create("2026", parent_id=outer.project_id)
    assert (outer.description, outer.properties) == ("All", {"a": [1, None]})
    assert (outer.created_at, outer.modified_at) == (clock.now, clock.now)
    assert lake.find(inner.project_id) == lake.find("genomes/2026") == inner
    for wrong in ("2026", "genomes/2027", "genomes/2026/x", "", "genomes/", "/genomes"):
        with raises("project_not_found"):
            lake.find(wrong)
    lake.delete(inner.project_id)
    with raises("project_not_found"):
        lake.find("genomes/2026")
    assert lake.find("genomes/2026", include_expired=True).project_id == inner.project_id
    new = lake.create("2026", parent_id=outer.project_id)
    assert lake.find("genomes/2026", include_expired=True).project_id == new.project_id
    lake.delete(new.project_id)
    with raises("ref_ambiguous"):
        lake.find("genomes/2026", include_expired=True)
    clock.advance(TRASH)
    with raises("project_not_found"):
        lake.find("genomes/2026", include_expired=True)


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


def test_a_derived_name_is_a_name(repository: Repository) -> None:
    """A client that changes other fields sends the name again."""
    lake = repository.projects
    for name in ("x" * ITEM_BYTES_MAX, "ä" * (ITEM_BYTES_MAX // 2)):
        lake.create(name)
        derived = lake.create(name, ensure_unique_name=True)
        assert derived.name.endswith(" (2)") and derived.name[:-4] in name
        assert lake.update(derived.project_id, name=derived.name) == derived


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
        if plain == "expiring":
            with raises("project_exists"):
                repository.projects.create("a")
        assert state(include_expired=False) == plain
        assert state(include_expired=True) == expired
    assert repository.projects.create("a").name == "a", "its name is free"
    gone: list[Callable[[], object]] = [
        lambda: repository.projects.update(project_id, expires_at=None),
        lambda: repository.projects.restore(project_id),
        lambda: repository.projects.delete(project_id),
    ]
    for call in gone:
        with raises("project_not_found"):
            call()


def test_depth(repository: Repository) -> None:
    lake = repository.projects
    line = [lake.create("0").project_id]
    for number in range(1, DEPTH_MAX):
        line.append(lake.create(str(number), parent_id=line[-1]).project_id)
    with raises("invalid_argument"):
        lake.create("more", parent_id=line[-1])
    with raises("project_cycle"):
        lake.update(line[0], parent_id=line[1])
    other = lake.create("other").project_id
    lake.create("child", parent_id=other)
    with raises("invalid_argument"):
        lake.update(other, parent_id=line[-2])
    assert lake.update(other, parent_id=line[-3]).path.count("/") == DEPTH_MAX - 2
    assert lake.find("/".join(map(str, range(DEPTH_MAX)))).project_id == line[-1]


@pytest.mark.twins
def test_lists_by_state_and_date(repository: Repository, clock: ManualClock) -> None:
    lake, now = repository.projects, clock.now
    lake.create("never")
    for name, hours in (("soon", 1), ("later", 5)):
        lake.create(name, expires_at=now + hours * HOUR)
    lake.create("over", expires_at=now + HOUR / 2)
    clock.advance(HOUR / 2)

    def names(**asked: object) -> list[str]:
        listed = ListFilter(**asked)  # type: ignore[arg-type]
        return [each.name for each in lake.page(listed=listed)]

    assert names() == ["later", "never", "soon"]
    assert names(include_expired=True) == ["later", "never", "over", "soon"]
    assert names(state=LifecycleState.PERSISTENT) == ["never"]
    assert names(state=LifecycleState.EXPIRING) == ["later", "soon"]
    assert names(state=LifecycleState.TRASHED) == []
    assert names(state=LifecycleState.TRASHED, include_expired=True) == ["over"]
    assert names(state=LifecycleState.GONE, include_expired=True) == []
    assert names(expires_after=now + HOUR) == ["later", "soon"]
    assert names(expires_before=now + HOUR, include_expired=True) == ["over"]
    assert names(expires_after=now + HOUR, expires_before=now + 5 * HOUR) == ["soon"]
    clock.advance(TRASH)
    assert names(include_expired=True) == ["later", "never", "soon"], "the other is gone"
    for amount in (0, -1, 1_000_000):
        with raises("invalid_argument"):
            lake.page(amount=amount)
