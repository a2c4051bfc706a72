"""Groups, owners and links: the store's projects by Arvados's ids."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest

from ebbtide.doors.arvados.store.filters import (
    Filter,
    Ordering,
    parse_filters,
    parse_order,
    parse_select,
)
from ebbtide.doors.arvados.store.groups import ContentsPlace, Group
from ebbtide.doors.arvados.store.lists import ListQuery
from ebbtide.doors.arvados.store.repository import ArvadosRepository
from ebbtide.doors.arvados.store.trashable import Timers
from ebbtide.doors.arvados.store.uuids import (
    COLLECTION,
    GROUP,
    LINK,
    cluster_of,
    first_id,
    kind_of,
    root_uuid,
    user_uuid,
    uuid_of,
)
from ebbtide.ids import new_id
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises

HOUR = timedelta(hours=1)
TRASH = timedelta(days=7)
NEVER = Timers()


@pytest.fixture
def me(repository: Repository) -> str:
    """The id of a user."""
    return user_uuid(cluster_of(repository.context.repository_id), "EBBTME")


def made(lake: Repository, owner: str, name: str) -> Group:
    return ArvadosRepository(lake).groups.create(owner, name, timers=NEVER)


def names(lake: Repository, place: ContentsPlace | None = None, **asked: object) -> list[str]:
    listing = ListQuery(order=(Ordering("name"),), **asked)  # type: ignore[arg-type]
    if place is None:
        return [each.name for each in ArvadosRepository(lake).groups.list(listing).items]
    return [each.name for each in ArvadosRepository(lake).contents.list(listing, place).items]


def test_ids_of_both_forms_sort_alike() -> None:
    ids = [*sorted(new_id() for _ in range(200)), "f" * 32]
    uuids = [uuid_of("abcde", GROUP, each) for each in ids]
    assert uuids == sorted(uuids)
    assert all(kind_of(each) == GROUP for each in uuids)
    for item_id, uuid in zip(ids, uuids, strict=True):
        assert first_id("abcde", GROUP, uuid.__gt__) <= item_id
        assert first_id("abcde", GROUP, uuid.__ge__) > item_id
    assert first_id("abcde", GROUP, lambda each: each < "abcde-j") == "0" * 19
    assert first_id("abcde", GROUP, lambda each: each < "abcde-k") > "f" * 32


def test_a_home_is_made_once_and_is_no_group(repository: Repository, me: str) -> None:
    """Projects at the top belong to root."""
    groups, owners = ArvadosRepository(repository).groups, ArvadosRepository(repository).owners
    outer = made(repository, me, "outer")
    inner = made(repository, outer.uuid, "inner")
    assert (outer.owner_uuid, inner.owner_uuid) == (me, outer.uuid)
    assert [each.name for each in repository.projects.page()] == [me]
    home_id = owners.project_id(me)
    assert home_id is not None
    assert repository.projects.get(home_id).name == me
    with raises("project_not_found"):
        groups.get(uuid_of(owners.cluster, GROUP, home_id))
    assert names(repository) == ["inner", "outer"]
    assert names(repository, ContentsPlace(owner_uuid=me)) == ["outer"]
    assert names(repository, ContentsPlace(owner_uuid=me, is_recursive=True)) == ["inner", "outer"]
    assert names(repository, ContentsPlace(except_of=me)) == ["inner"]
    project_id = repository.projects.create("store's own").project_id
    root, uuid = root_uuid(owners.cluster), uuid_of(owners.cluster, GROUP, project_id)
    assert groups.get(uuid).owner_uuid == root
    assert names(repository, ContentsPlace(owner_uuid=root)) == ["store's own"]
    made(repository, user_uuid(owners.cluster, "EBBTOTHER"), "theirs")
    shared = ArvadosRepository(repository).contents.shared(ListQuery(), except_of=me)
    assert {each.name for each in shared.items} == {"store's own", "theirs"}
    for owner in (me, root):
        assert groups.update(uuid, owner_uuid=owner, timers=NEVER).owner_uuid == owner


def test_owners_that_do_not_exist(store: Store, repository: Repository, me: str) -> None:
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    theirs = made(other, user_uuid(ArvadosRepository(other).owners.cluster, "EBBTME"), "theirs")
    cluster = ArvadosRepository(repository).owners.cluster
    assert names(repository, ContentsPlace(owner_uuid=me)) == []
    for wrong in (theirs.uuid, theirs.owner_uuid, uuid_of(cluster, GROUP, new_id())):
        with raises("project_not_found"):
            made(repository, wrong, "x")
        with raises("project_not_found"):
            names(repository, ContentsPlace(owner_uuid=wrong))
    for wrong in ("", uuid_of(cluster, COLLECTION, new_id())):
        with raises("invalid_argument"):
            made(repository, wrong, "x")


def test_trash_hides_what_is_in_it(repository: Repository, me: str, clock: ManualClock) -> None:
    outer = made(repository, me, "outer")
    inner = made(repository, outer.uuid, "inner")
    trashed = ArvadosRepository(repository).groups.trash(outer.uuid)
    assert (trashed.is_trashed, trashed.trash_at) == (True, clock.now)
    assert trashed.delete_at == clock.now + TRASH
    assert names(repository) == []
    assert names(repository, include_trash=True) == ["inner", "outer"]
    found = ArvadosRepository(repository).groups.get(inner.uuid, include_trash=True)
    assert (found.is_trashed, found.trash_at) == (False, None)
    for uuid in (outer.uuid, inner.uuid):
        with raises("project_not_found"):
            ArvadosRepository(repository).groups.get(uuid)
    made(repository, me, "outer")
    with raises("project_exists"):
        ArvadosRepository(repository).groups.untrash(outer.uuid)
    restored = ArvadosRepository(repository).groups.untrash(outer.uuid, ensure_unique_name=True)
    assert (restored.is_trashed, restored.name == "outer") == (False, False)
    ArvadosRepository(repository).groups.trash(outer.uuid)
    clock.advance(TRASH)
    assert names(repository, include_trash=True) == ["outer"]
    with raises("project_not_found"):
        ArvadosRepository(repository).groups.untrash(outer.uuid)


def test_timers(repository: Repository, me: str, clock: ManualClock) -> None:
    later = clock.now + HOUR
    group = ArvadosRepository(repository).groups.create(me, "a", timers=Timers(trash_at=later))
    assert (group.trash_at, group.delete_at, group.is_trashed) == (later, later + TRASH, False)
    update = ArvadosRepository(repository).groups.update
    same = update(group.uuid, timers=Timers(trash_at=later, delete_at=later + TRASH))
    assert same.trash_at == later
    for wrong in (
        Timers(delete_at=later),
        Timers(trash_at=None, delete_at=later),
        Timers(trash_at=later, delete_at=None),
        Timers(is_trashed=True, delete_at=later),
    ):
        with raises("invalid_date"):
            update(group.uuid, timers=wrong)
    assert update(group.uuid, timers=Timers(is_trashed=False)).trash_at == later
    assert update(group.uuid, timers=Timers(is_trashed=True)).trash_at == clock.now
    clock.advance(HOUR)
    assert update(group.uuid, timers=Timers(is_trashed=True)).trash_at == clock.now - HOUR
    assert update(group.uuid, timers=Timers(is_trashed=False)).trash_at is None
    gone = ArvadosRepository(repository).groups.create(me, "b", timers=Timers(is_trashed=True))
    assert gone.is_trashed


def test_links(repository: Repository, me: str, clock: ManualClock) -> None:
    group = made(repository, me, "a")
    links = ArvadosRepository(repository).links
    star = links.create(me, "star", tail_uuid=me, head_uuid=group.uuid)
    clock.advance(HOUR)
    tag = links.create(me, "tag", name="red", head_uuid=group.uuid, properties={"k": ["v"]})
    assert kind_of(tag.uuid) == LINK
    assert links.get(tag.uuid) == tag

    def found(*filters: object) -> list[str]:
        asked = ListQuery(filters=parse_filters([*filters]), order=(Ordering("created_at"),))
        return [each.link_class for each in links.list(asked).items]

    assert found() == ["star", "tag"]
    assert found(["link_class", "=", "tag"], ["head_uuid", "in", [group.uuid]]) == ["tag"]
    assert found(["tail_uuid", "is_a", "arvados#user"]) == ["star"]
    assert found(["head_uuid", "is_a", ["arvados#collection"]]) == []
    assert found(["tail_uuid", "=", None]) == ["tag"]
    assert found(["properties.k", "contains", "v"]) == ["tag"]
    assert found(["uuid", "=", star.uuid]) == ["star"]
    changed = links.update(tag.uuid, name="blue", properties={})
    assert (changed.name, changed.properties, changed.created_at) == ("blue", {}, clock.now)
    assert links.delete(star.uuid) == star
    for call in (links.get, links.delete, links.update):
        with raises("object_not_found"):
            call(star.uuid)
    for wrong in ({"head_uuid": "x"}, {"name": "n" * 300}, {"properties": {"a": object}}):
        with raises("invalid_argument"):
            links.create(me, "star", **wrong)
    with raises("invalid_argument"):
        links.create(me, "")


FILTERS_THAT_ARE_NONE: Final[tuple[object, ...]] = (
    "x",
    [[1, "=", 1]],
    [["name", "~", "x"]],
    [["name", "=", ["x"]]],
    [["name", "in", "x"]],
    [["name", "=", "a\0"]],
    [["name", "like", "a\\"]],
    [["created_at", ">", "yesterday"]],
    [["delete_at", ">", "0001-01-01T00:00:00Z"]],
    [["is_trashed", "<", True]],
    [["uuid", "like", "a%b"]],
    [["uuid", "is_a", 1]],
    [["properties", "=", "x"]],
    [["properties.k", "=", {}]],
    [["properties.k", "exists", "x"]],
    [["properties.k", "contains", []]],
    [["properties.k\0", "=", 1]],
    [["name", "=", "a"]] * 101,
)


def test_filters_that_are_none(repository: Repository) -> None:
    for wrong in FILTERS_THAT_ARE_NONE:
        with raises("invalid_argument"):
            ArvadosRepository(repository).groups.list(ListQuery(filters=parse_filters(wrong)))
        with raises("invalid_argument"):
            asked = ListQuery(filters=parse_filters(wrong))
            ArvadosRepository(repository).contents.list(asked, ContentsPlace())


def test_orders_and_selections(repository: Repository) -> None:
    descending = Ordering("name", is_descending=True)
    assert parse_order("name desc, uuid") == (descending, Ordering("uuid"))
    assert parse_order(["name ASC"]) == (Ordering("name"),)
    assert parse_order(None) == ()
    assert parse_select(["a", "b"]) == ("a", "b")
    assert parse_filters([["name", "<>", "x"]]) == (Filter("name", "!=", "x"),)
    for order in (["name up"], [1], [""], 3, ["a b c"]):
        with raises("invalid_argument"):
            parse_order(order)
    for select in ("name", [1]):
        with raises("invalid_argument"):
            parse_select(select)
    for wrong in ("properties", "owner_uuid", "nothing"):
        with raises("invalid_argument"):
            ArvadosRepository(repository).groups.list(ListQuery(order=(Ordering(wrong),)))
