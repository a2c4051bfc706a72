"""Collections while others are at them, and on a storage that fails: nothing is half made."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import EbbtideError
from ebbtide.store.collections.contents import ContentChange, FromCollection, FromRef, Located
from ebbtide.store.collections.queries import COLLECTIONS
from ebbtide.store.database.schema import (
    collection_versions,
    collections,
    commits,
    pending,
    projects,
    reflog,
)
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import collect_files, of, of_files, put_collection, raises
from tests.support.lakes import each_failure, every_file, meanwhile, tombstone
from tests.support.lakes import rows as rows_of
from tests.support.locks import waits_for_a_lock

HOUR = timedelta(hours=1)
FILES = {f"{number}": b"%d" % number for number in range(6)}


def rows(lake: Repository) -> dict[str, list[tuple[Any, ...]]]:
    tables = (projects, collections, collection_versions, commits, reflog, pending)
    return {table.name: rows_of(lake, table) for table in tables}


def unchanged(lake: Repository) -> Callable[[], None]:
    before = rows(lake)

    def check() -> None:
        assert rows(lake) == before, "nothing is half made"

    return check


def test_failing_storage_while_one_is_made(repository: Repository, project_id: str) -> None:
    source = put_collection(repository, project_id, "source", {"s/1": b"1", "s/2": b"2"})
    (signed, *_) = repository.collections.locators(source.collection_id).entries

    def create(lake: Repository) -> None:
        change = of(
            of_files(FILES),
            FromCollection(source.collection_id, None, "s/2", "t"),
            Located({"located": signed.locator}),
        )
        lake.collections.create(project_id, "made", change)

    assert each_failure(repository, create, unchanged(repository)) >= len(FILES) + 4, (
        "objects, ranges, tree, date"
    )
    made = repository.collections.find("project/made")
    expected = {**FILES, "t": b"2", "located": b"1"}
    assert collect_files(repository, made.collection_id) == expected


def test_failing_storage_while_one_is_changed(repository: Repository, project_id: str) -> None:
    made = put_collection(repository, project_id, "made", FILES).collection_id

    def update(lake: Repository) -> None:
        change = ContentChange([of_files({"2": b"new", "9": b"9"})], removed=["0"])
        lake.collections.update(made, change, keep_version=True, name="changed")

    assert each_failure(repository, update, unchanged(repository)) >= 5
    expected = {**FILES, "2": b"new", "9": b"9"}
    del expected["0"]
    assert collect_files(repository, made) == expected
    assert collect_files(repository, made, 1) == FILES


@pytest.mark.twins
def test_names_stay_unique_whoever_asks(repository: Repository, project_id: str) -> None:
    lake = repository.collections
    other = repository.projects.create("other").project_id
    trashed = lake.create(project_id, "x").collection_id
    lake.delete(trashed)
    moving = lake.create(other, "x").collection_id
    renamed = lake.create(project_id, "y").collection_id
    calls: list[Callable[[], object]] = [
        lambda: lake.create(project_id, "x"),
        lambda: put_collection(repository, project_id, "x", {"f": b"1"}),
        lambda: lake.restore(trashed),
        lambda: lake.update(moving, project_id=project_id),
        lambda: lake.update(renamed, name="x"),
    ]
    assert sorted(outcomes(calls)) == ["", *["collection_exists"] * 4]
    calls = [lambda: lake.create(project_id, "x", ensure_unique_name=True)] * 6
    assert outcomes(calls) == [""] * 6
    names = [each.name for each in lake.page(project_id)]
    assert len(names) == len(set(names))
    kinds = outcomes([lambda: repository.projects.create("one") for _ in range(4)])
    assert sorted(kinds) == ["", *["project_exists"] * 3]


@pytest.mark.parametrize("what", ["a source", "a commit", "a locator", "a registration"])
def test_what_content_is_made_of_ends_meanwhile(
    repository: Repository, project_id: str, clock: ManualClock, what: str
) -> None:
    """It is refused, and leaves nothing."""
    made = put_collection(repository, project_id, "source", {"f": b"1"}).collection_id
    repository.objects.put("main", "f", b"1")
    commit_id = repository.commits.commit("main", "").commit_id
    with repository.context.metadata.snapshot() as tx:
        row = COLLECTIONS.by_id(tx, made)
    assert row is not None
    closed = row.content_id if what == "a source" else commit_id

    def change() -> ContentChange:
        with repository.context.metadata.transaction() as tx:
            # The fence closes it only behind the first look.
            mine = commits.c.commit_id == closed
            tx.execute(sa.update(commits).where(mine).values(tombstoned_by=None))
        (signed,) = repository.collections.locators(made).entries
        return {
            "a source": of(FromCollection(made, None, "", "x/")),
            "a commit": of(FromRef("main", "", "x/")),
            "a locator": of(Located({"f": signed.locator})),
            "a registration": of(of_files({"f": b"1"})),
        }[what]

    # The storage's clock moves with the database's, so that nothing else is wrong.
    action, kind = {
        "a locator": (lambda: clock.advance(HOUR), "token_expired"),
        "a registration": (lambda: clock.advance(24 * HOUR), "write_expired"),
    }.get(what, (lambda: tombstone(repository, closed), "commit_expired"))
    target = put_collection(repository, project_id, "target", {"mine": b"1"})
    files = every_file(repository)
    with raises(kind):
        meanwhile(repository, action).collections.create(project_id, "new", change())
    with raises(kind):
        meanwhile(repository, action).collections.update(target.collection_id, change())
    assert every_file(repository) == files
    assert rows(repository)["pending"] == []
    with raises("collection_not_found"):
        repository.collections.find("project/new")
    assert repository.collections.get(target.collection_id) == target


def test_the_project_is_trashed_or_the_name_is_taken_meanwhile(
    repository: Repository, project_id: str
) -> None:
    lake = meanwhile(repository, lambda: repository.collections.create(project_id, "a"), "data/")
    with raises("collection_exists"):
        put_collection(lake, project_id, "a", {"f": b"1"})
    lake = meanwhile(repository, lambda: repository.collections.create(project_id, "b"), "data/")
    change = of(of_files({"f": b"1"}))
    made = lake.collections.create(project_id, "b", change, ensure_unique_name=True)
    assert made.name == "b (2)"
    lake = meanwhile(repository, lambda: repository.projects.delete(project_id))
    with raises("project_not_found"):
        put_collection(lake, project_id, "c", {"f": b"1"})


def test_the_collection_is_changed_meanwhile(repository: Repository, project_id: str) -> None:
    """A change of its content or its end refuses another one; a new name does not."""
    lake, project = repository.collections, repository.projects.create("p").project_id
    actions: list[tuple[Callable[[str], object], str]] = [
        (lambda it: lake.update(it, of(of_files({"g": b"2"}))), "collection_changed"),
        (lake.delete, "trashed"),
        (lambda _: repository.projects.delete(project), "trashed"),
    ]
    for number, (action, kind) in enumerate(actions):
        made = put_collection(repository, project, f"{number}", {"f": b"1"}).collection_id
        late = meanwhile(repository, partial(action, made))
        files = len(every_file(repository))
        with raises(kind):
            late.collections.update(made, of(of_files({"h": b"3"})))
        assert len(every_file(repository)) - files in (0, 3), "at most what the other has written"
        assert rows(repository)["pending"] == []
    made = put_collection(repository, project_id, "a", {"f": b"1"}).collection_id
    late = meanwhile(repository, lambda: lake.update(made, name="b"))
    found = late.collections.update(made, of(of_files({"g": b"2"})), description="both")
    assert (found.name, found.description, found.version) == ("b", "both", 2)
    assert collect_files(repository, made) == {"f": b"1", "g": b"2"}


def kind_of(call: Callable[[], object]) -> str:
    try:
        call()
    except EbbtideError as error:
        return error.kind
    return ""


def outcomes(calls: list[Callable[[], object]]) -> list[str]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(kind_of, calls))


@pytest.mark.twins
def test_of_many_updates_at_once_none_is_lost(repository: Repository, project_id: str) -> None:
    lake, made = repository.collections, put_collection(repository, project_id, "a").collection_id

    def update(number: int) -> None:
        change = of(of_files({f"{number}": b"%d" % number}))
        lake.update(made, change, keep_version=number % 2 == 0)

    kinds = outcomes([partial(update, number) for number in range(12)])
    assert set(kinds) <= {"", "collection_changed"}
    done = {f"{number}": b"%d" % number for number, kind in enumerate(kinds) if not kind}
    assert done
    assert collect_files(repository, made) == done
    assert lake.get(made).version == 1 + len(done)


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_nobody_waits_for_ever(repository: Repository, project_id: str) -> None:
    """Moves against each other, with updates and deletes of what is moved."""
    lake = repository
    ids = [lake.projects.create(f"p{number}").project_id for number in range(2)]
    made = [put_collection(lake, ids[n], "a", {"f": b"1"}).collection_id for n in range(2)]
    calls: list[Callable[[], object]] = []
    for _ in range(4):
        calls += [
            lambda: lake.projects.update(ids[0], parent_id=ids[1]),
            lambda: lake.projects.update(ids[1], parent_id=ids[0]),
            lambda: lake.collections.update(made[0], project_id=ids[1], ensure_unique_name=True),
            lambda: lake.collections.update(made[1], of(FromCollection(made[0]))),
            lambda: lake.collections.update(made[0], of(FromCollection(made[1]))),
            lambda: lake.collections.update(made[0], replication_desired=1),
        ]
    kinds = outcomes(calls)
    assert set(kinds) <= {"", "project_cycle", "collection_changed"}
    first, second = (lake.projects.get(each) for each in ids)
    assert (first.parent_id, second.parent_id) != (ids[1], ids[0]), "no circle"
    del project_id


@pytest.mark.twins
def test_content_waits_for_the_fence(repository: Repository, project_id: str) -> None:
    made = put_collection(repository, project_id, "a", {"f": b"1"}).collection_id
    repository.collections.update(made, replication_desired=0)
    context = repository.context
    with ThreadPoolExecutor(1) as pool:
        with context.metadata.transaction() as tx:
            tx.lock_repository(context.repository_id, "exclusive")
            done = pool.submit(repository.collections.update, made, replication_desired=1)
            assert waits_for_a_lock(context.metadata, done)
            row = COLLECTIONS.by_id(tx, made)
            assert row is not None
            mine = commits.c.commit_id == row.content_id
            tx.execute(sa.update(commits).where(mine).values(tombstoned_by="run7"))
        with raises("commit_expired"):
            done.result(timeout=20)
