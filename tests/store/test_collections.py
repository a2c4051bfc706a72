"""Collections: their names, states, versions, lists, and data that is kept or not."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone, NotFound
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.collections.contents import ContentChange, FromCollection, Located
from ebbtide.store.collections.queries import find_collection
from ebbtide.store.database.schema import commits, reflog
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import collect_files, of, of_files, put_collection, raises
from tests.support.lakes import tombstone

TRASH = timedelta(days=7)
HOUR = timedelta(hours=1)
INSTANT = timedelta(microseconds=1)


def content_id(lake: Repository, collection_id: str) -> str:
    with lake.context.metadata.snapshot() as tx:
        row = find_collection(tx, collection_id)
    assert row is not None
    return row.content_id


def remembered(lake: Repository) -> list[str]:
    """The content that the reflog names, the oldest first."""
    with lake.context.metadata.snapshot() as tx:
        query = sa.select(reflog.c.commit_id).where(reflog.c.kind == "collection")
        return list(tx.execute(query.order_by(reflog.c.left_at)).scalars())


def test_what_expires_by_itself_frees_its_name(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    lake = repository.collections
    old = lake.create(project_id, "a", expires_at=clock.now + HOUR).collection_id
    clock.advance(HOUR - INSTANT)
    with raises("collection_exists"):
        lake.create(project_id, "a")
    clock.advance(INSTANT)
    new = lake.create(project_id, "a").collection_id
    assert lake.find("project/a").collection_id == new
    assert lake.find("project/a", include_expired=True).collection_id == new
    lake.delete(new)
    with raises("ref_ambiguous"):
        lake.find("project/a", include_expired=True)
    with raises("collection_not_found"):
        lake.find("project/a")
    assert lake.find(old, include_expired=True).collection_id == old
    for wrong in ("a", "nobody/a", "project/", "/a"):
        with pytest.raises(NotFound):
            lake.find(wrong)


def test_states_at_their_instants(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    lake = repository.collections
    made = put_collection(repository, project_id, "a", {"f": b"1"}).collection_id
    ends_at = clock.now + HOUR
    lake.update(made, expires_at=ends_at)
    clock.now = ends_at - INSTANT
    assert lake.open(made, "f").entry.path == "f"
    clock.now = ends_at
    with raises("collection_not_found"):
        lake.files(made)
    assert [each.path for each in lake.files(made, include_expired=True).entries] == ["f"]
    changes: list[dict[str, Any]] = [
        {"properties": {}},
        {"content": ContentChange(replaces=True)},
        {"expires_at": None, "keep_version": True},
        {"expires_at": None, "description": "b"},
    ]
    for asked in changes:
        with raises("trashed"):
            lake.update(made, **asked)
    clock.now = ends_at + TRASH - INSTANT
    assert lake.get(made, include_expired=True).state is LifecycleState.TRASHED
    clock.advance(INSTANT)
    for call in (
        lambda: lake.get(made, include_expired=True),
        lambda: lake.restore(made),
        lambda: lake.versions(made),
        lambda: lake.files(made, include_expired=True),
    ):
        with raises("collection_not_found"):
            call()


def test_versions(repository: Repository, project_id: str) -> None:
    lake = repository.collections
    made = put_collection(repository, project_id, "a", {"f": b"1"}).collection_id
    lake.update(made, of(of_files({"g": b"2"})), keep_version=True, description="two")
    lake.update(made, ContentChange(removed=["f"]))
    found = lake.update(made, name="b", keep_version=True)
    assert (found.version, found.name) == (4, "b")
    assert lake.update(made) == found
    assert [(each.version, each.name, each.description) for each in lake.versions(made)] == [
        (3, "a", "two"),
        (1, "a", ""),
    ]
    for call in (
        lambda: lake.files(made, version=2),
        lambda: lake.locators(made, version=2),
        lambda: lake.open(made, "f", version=9),
        lambda: lake.drop_version(made, 4),
    ):
        with raises("version_not_found"):
            call()
    of_version = lake.create(project_id, "c", of(FromCollection(made, 1))).collection_id
    kept = {each.version: each.content_id for each in lake.versions(made)}
    lake.drop_version(made, 1)
    assert remembered(repository)[-1] == kept[1]
    assert collect_files(repository, of_version) == {"f": b"1"}


def test_what_is_replaced_is_remembered(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    lake = repository.collections
    made = put_collection(repository, project_id, "a", {"f": b"1"}).collection_id
    contents = [content_id(repository, made)]
    for data in (b"2", b"3"):
        clock.advance(HOUR)
        lake.update(made, of(of_files({"f": data})), keep_version=data == b"2")
        assert remembered(repository) == contents
        contents.append(content_id(repository, made))
    lake.update(made, description="no other content")
    assert remembered(repository) == contents[:-1]
    clock.advance(HOUR)
    lake.update(made, replication_desired=0)
    assert remembered(repository)[:2] == contents[:2]
    # What was signed of the version is promised as well as what was signed of the newest.
    assert sorted(remembered(repository)[2:]) == sorted([contents[0], contents[2]])


def test_what_was_promised_and_goes_into_data_that_is_not_kept(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    """The token that kept an upload is used up; whoever has the locator can still read it, whatever
    becomes of the collection."""
    lake = repository.collections

    def located() -> Located:
        clock.advance(HOUR / 10)
        signed = repository.locators.upload(b"1")
        ends.append(signed.expires_at)
        return Located({f"{len(ends)}": signed.locator})

    def leased_until(collection_id: str) -> object:
        mine = commits.c.commit_id == content_id(repository, collection_id)
        with repository.context.metadata.snapshot() as tx:
            return tx.execute(sa.select(commits.c.leased_until).where(mine)).scalar_one()

    ends: list[datetime] = []
    made = lake.create(project_id, "a", of(located()), replication_desired=0).collection_id
    assert leased_until(made) == ends[0]
    lake.update(made, of(located(), located()))
    assert leased_until(made) == ends[2], "the last of them"
    kept = lake.create(project_id, "b", of(located())).collection_id
    assert leased_until(kept) == ends[3]
    unsigned = put_collection(repository, project_id, "c", {"f": b"1"}).collection_id
    assert leased_until(unsigned) is None


def test_data_that_is_not_kept_and_is_kept_again(repository: Repository, project_id: str) -> None:
    lake = repository.collections
    files = {"f": b"1", "g/h": b"22"}
    made = put_collection(repository, project_id, "a", files).collection_id
    other = put_collection(repository, project_id, "b", {"f": b"1"}).collection_id
    lake.update(made, replication_desired=0)
    tombstone(repository, content_id(repository, made))
    addresses = {entry.path: entry.address for entry in lake.walk(made)}
    repository.storage.delete([addresses["f"]])
    with pytest.raises(Gone, match="1 of 2 files are missing") as caught:
        lake.update(made, replication_desired=1)
    details = {"run_id": "run7", "missing_count": 1, "missing": ["f"], "looked_for": 2}
    assert details.items() <= caught.value.details.items()
    assert lake.get(made).replication_desired == 0
    # What is not data is all there.
    assert [(each.path, each.kind) for each in lake.diff(made, other)] == [("g/h", "removed")]
    assert lake.get(made).size_bytes == 3
    # Given its files anew, it is kept again.
    change = ContentChange([of_files(files)], replaces=True)
    again = lake.update(made, change, replication_desired=1)
    assert again.content_hash == lake.get(made).content_hash
    assert collect_files(repository, made) == files
    for number in (-1, 101):
        with raises("invalid_argument"):
            lake.update(made, replication_desired=number)


def test_by_hash_follows_the_table(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    lake = repository.collections
    place = repository.projects.create("other").project_id

    def make(name: str, project: str = project_id) -> str:
        return put_collection(repository, project, name, {"f": b"same"}).collection_id

    first = make("first")
    wanted = lake.get(first).content_hash

    def found(*, include_expired: bool = False) -> str:
        return lake.by_hash(wanted, include_expired=include_expired).collection_id

    assert found() == first
    with raises("collection_not_found"):
        lake.by_hash("0" * 64)
    second = make("second", place)
    lake.delete(first)
    assert found() == found(include_expired=True) == second, "the trashed one hides nothing"
    # The project's end counts: what is in it is expiring, then trashed, whatever it says itself.
    repository.projects.update(place, expires_at=clock.now + HOUR)
    third = make("third")
    assert found() == third, "persistent before expiring"
    lake.update(third, expires_at=clock.now + 2 * HOUR)
    clock.advance(HOUR)
    assert found() == third
    clock.advance(HOUR)
    with raises("collection_not_found"):
        found()
    assert lake.by_hash(wanted, include_expired=True).state is LifecycleState.TRASHED
    clock.advance(TRASH)
    with raises("collection_not_found"):
        found(include_expired=True)


@pytest.mark.twins
def test_lists_by_name_state_and_date(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    lake, now = repository.collections, clock.now
    for name, hours in (("never", None), ("soon", 1), ("later", 5)):
        expires_at = None if hours is None else now + hours * HOUR
        lake.create(project_id, name, expires_at=expires_at)
    lake.create(repository.projects.create("other").project_id, "elsewhere")
    lake.delete(lake.create(project_id, "never (2)").collection_id)

    def names(**asked: object) -> list[str]:
        return [each.name for each in lake.page(project_id, **asked)]  # type: ignore[arg-type]

    trashed = {"state": LifecycleState.TRASHED, "include_expired": True}
    assert names() == ["later", "never", "soon"]
    assert names(name="never") == ["never"]
    assert names(name="never (2)") == []
    assert names(state=LifecycleState.EXPIRING) == ["later", "soon"]
    assert names(**trashed) == ["never (2)"]
    assert names(from_date=now + HOUR, to_date=now + 5 * HOUR) == ["soon"]
    assert names(to_date=now + INSTANT, include_expired=True) == ["never (2)"]
    with raises("invalid_argument"):
        names(amount=0)
    repository.projects.delete(project_id)
    with raises("project_not_found"):
        names()
    assert len(names(include_expired=True)) == 4


@pytest.mark.twins
def test_pages_while_things_change(repository: Repository, project_id: str) -> None:
    lake = repository.collections
    made = [lake.create(project_id, f"{number:02}").collection_id for number in range(9)]
    seen: list[str] = []
    after = ("", "")
    while page := lake.page(project_id, after=after, amount=2):
        seen += [each.collection_id for each in page]
        after = (page[-1].name, page[-1].collection_id)
        if len(seen) == 2:
            lake.delete(made[4])
            lake.update(made[0], name="05 behind")
            lake.create(project_id, "00 before")
    assert [each for each in seen if each not in (made[0], made[4])] == [
        each for each in made if each not in (made[0], made[4])
    ]
    assert seen.count(made[0]) == 2, "its name has moved on"


def test_files_in_pages(repository: Repository, project_id: str) -> None:
    files = dict.fromkeys(("a", "b/c", "b/d", "e/f/g", "h"), b"1")
    made = put_collection(repository, project_id, "a", files).collection_id
    page = repository.collections.files(made, delimiter="/", amount=2)
    assert ([each.path for each in page.entries], page.common_prefixes) == (["a"], ("b/",))
    page = repository.collections.files(made, delimiter="/", after=page.next_after or "")
    assert ([each.path for each in page.entries], page.common_prefixes) == (["h"], ("e/",))
    assert page.next_after is None
    with raises("object_not_found"):
        repository.collections.open(made, "b")


def test_what_is_in_the_trash(repository: Repository, clock: ManualClock) -> None:
    """What went with its project is in the trash as the project alone."""
    projects, collections = repository.projects, repository.collections
    outer = projects.create("outer").project_id
    inner = projects.create("inner", parent_id=outer).project_id
    collections.create(inner, "kept")
    collections.create(inner, "gone", expires_at=clock.now + HOUR)
    dropped = [collections.create(outer, name).collection_id for name in ("b", "a")]
    assert projects.trash() == [] == collections.trash()
    clock.advance(timedelta(days=8))
    for each in dropped:
        collections.delete(each)
    projects.delete(inner)
    assert [each.path for each in projects.trash()] == ["outer/inner"]
    assert [each.path for each in collections.trash()] == ["outer/a", "outer/b"]
    first = collections.trash(amount=1)[0]
    page = collections.trash(after=(first.name, first.collection_id))
    assert [each.name for each in page] == ["b"]
    projects.restore(inner)
    collections.restore(dropped[0])
    assert projects.trash() == []
    assert [each.name for each in collections.trash()] == ["a"]
    clock.advance(TRASH)
    assert collections.trash() == []
