"""Collections: names, states, versions, lists, content, and data that is kept or not."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone, NotFound, Refused
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.collections.contents import (
    ContentChange,
    FromCollection,
    FromRef,
    Located,
    Source,
)
from ebbtide.store.collections.queries import COLLECTIONS
from ebbtide.store.database.commit_rows import CommitRecord, find_commits, require_still_intact
from ebbtide.store.database.schema import commits, reflog
from ebbtide.store.lifecycle import ListFilter
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import collect_files, of, of_files, put_collection, raises
from tests.support.lakes import every_file, tombstone

TRASH = timedelta(days=7)
HOUR = timedelta(hours=1)
INSTANT = timedelta(microseconds=1)


def content_id(lake: Repository, collection_id: str) -> str:
    with lake.context.metadata.snapshot() as tx:
        row = COLLECTIONS.by_id(tx, collection_id)
    assert row is not None
    return row.content_id


def remembered(lake: Repository) -> list[str]:
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
    """The upload's token is used up. The holder of the locator can read it all the same."""
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


def test_by_hash_also_from_the_trash(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    """Which of several live ones is found is compared in `tests/simulation`."""
    lake = repository.collections
    first = put_collection(repository, project_id, "first", {"f": b"same"})
    second = put_collection(repository, project_id, "second", {"f": b"same"}).collection_id
    find = partial(lake.by_hash, first.content_hash)
    lake.delete(first.collection_id)
    found = {find().collection_id, find(include_expired=True).collection_id}
    assert found == {second}, "the trashed one hides nothing"
    lake.delete(second)
    with raises("collection_not_found"):
        find()
    assert find(include_expired=True).state is LifecycleState.TRASHED
    clock.advance(TRASH)
    with raises("collection_not_found"):
        find(include_expired=True)


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

    def names(name: str | None = None, **asked: object) -> list[str]:
        listed = ListFilter(**asked)  # type: ignore[arg-type]
        return [each.name for each in lake.page(project_id, name=name, listed=listed)]

    assert names() == ["later", "never", "soon"]
    assert names(name="never") == ["never"]
    assert names(name="never (2)") == []
    assert names(state=LifecycleState.EXPIRING) == ["later", "soon"]
    assert names(expires_after=now + HOUR, expires_before=now + 5 * HOUR) == ["soon"]
    assert names(state=LifecycleState.TRASHED, include_expired=True) == ["never (2)"]
    with raises("invalid_argument"):
        lake.page(project_id, amount=0)
    repository.projects.delete(project_id)
    with raises("project_not_found"):
        names()
    assert len(names(include_expired=True)) == 4


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
    assert collections.files(dropped[1], include_expired=True).entries == ()
    clock.advance(TRASH)
    assert collections.trash() == []
    for call in (
        lambda: collections.versions(dropped[1]),
        lambda: collections.files(dropped[1], include_expired=True),
    ):
        with raises("collection_not_found"):
            call()


FILES = {"a": b"1", "b/c": b"22", "b/d": b"", "ü": b"4444", "z" * 700: b"5"}


def record_of(lake: Repository, collection_id: str) -> CommitRecord:
    repository_id = lake.info.repository_id
    with lake.context.metadata.snapshot() as tx:
        row = COLLECTIONS.by_id(tx, collection_id)
        assert row is not None
        return find_commits(tx, repository_id, [row.content_id])[row.content_id]


def content_count(lake: Repository) -> int:
    with lake.context.metadata.snapshot() as tx:
        counted = sa.select(sa.func.count()).where(commits.c.collection_id.is_not(None))
        found: int = tx.execute(counted).scalar_one()
        return found


def test_content_that_is_let_go_while_it_is_read_is_gone_and_not_damaged(
    repository: Repository, project_id: str
) -> None:
    """A run that forgets it leaves no row behind, and takes its tree."""
    made = put_collection(repository, project_id, "a", FILES)
    record = record_of(repository, made.collection_id)
    with repository.context.metadata.transaction() as tx:
        tx.execute(sa.delete(commits).where(commits.c.commit_id == record.commit_id))
    with raises("commit_expired"), repository.context.reading(record):
        raise Refused("missing_tree", "its tree is not there")
    with (
        raises("commit_expired"),
        repository.context.metadata.snapshot() as tx,
    ):
        require_still_intact(tx, repository.info.repository_id, [record])
    with raises("missing_tree"), repository.context.reading():
        raise Refused("missing_tree", "a tree of something else is not there")


def test_whole_content_of_another_is_that_very_content(
    repository: Repository, project_id: str
) -> None:
    lake = repository.collections
    first = put_collection(repository, project_id, "first", FILES).collection_id
    count, files = content_count(repository), every_file(repository)
    second = lake.create(project_id, "second", of(FromCollection(first))).collection_id
    assert record_of(repository, first) == record_of(repository, second)
    assert content_count(repository) == count
    assert every_file(repository) == files, "nothing is written"
    # What becomes of one of them is nothing to the other.
    lake.update(first, ContentChange(replaces=True))
    assert collect_files(repository, second) == FILES
    assert collect_files(repository, first) == {}


def test_a_whole_commit_gives_its_tree(repository: Repository, project_id: str) -> None:
    repository.objects.put("main", "a", b"1")
    commit = repository.commits.commit("main", "")
    repository.branches.create("clean", "main")
    repository.objects.put("main", "staged", b"2")
    files = every_file(repository)
    lake = repository.collections
    made = lake.create(project_id, "of main", of(FromRef("main"))).collection_id
    record = record_of(repository, made)
    assert (record.tree_id, record.tree_checksum) == (commit.tree_id, commit.tree_checksum)
    assert (record.parent_ids, record.commit_id == commit.commit_id) == ((), False)
    assert every_file(repository) == files
    assert collect_files(repository, made) == {"a": b"1"}, "what is staged is left out"
    # Content is no revision.
    for call in (
        lambda: repository.branches.create("of-content", record.commit_id),
        lambda: repository.tags.create("of-content", record.commit_id),
        lambda: repository.commits.merge(record.commit_id, "clean"),
        lambda: lake.create(project_id, "of content", of(FromRef(record.commit_id))),
        lambda: repository.branches.create("of-content", record.commit_id[:12]),
    ):
        with raises("ref_not_found"):
            call()


def test_sources_are_merged_and_the_later_wins(repository: Repository, project_id: str) -> None:
    lake = repository.collections
    one = put_collection(repository, project_id, "1", {"a": b"1", "d/x": b"1", "d/y": b"1"})
    two = put_collection(repository, project_id, "2", {"a": b"2", "e": b"2"})
    (signed,) = lake.locators(two.collection_id, prefix="e").entries
    sources: list[Source] = [
        FromCollection(one.collection_id),
        FromCollection(two.collection_id),
        of_files({"a": b"3", "new": b"3"}),
        Located({"d/x": signed.locator}),
    ]
    made = lake.create(project_id, "made", of(*sources)).collection_id
    expected = {"a": b"3", "d/x": b"2", "d/y": b"1", "e": b"2", "new": b"3"}
    assert collect_files(repository, made) == expected
    made = lake.create(project_id, "other", of(*reversed(sources))).collection_id
    assert collect_files(repository, made) == {**expected, "a": b"1", "d/x": b"1"}
    # Over what was there before, but for what is removed; what is removed and given anew is there.
    change = ContentChange([of_files({"d/y": b"4"})], removed=["d/", "e"])
    lake.update(made, change)
    assert collect_files(repository, made) == {"a": b"1", "d/y": b"4", "new": b"3"}
    lake.update(made, ContentChange([FromCollection(two.collection_id)], replaces=True))
    assert collect_files(repository, made) == {"a": b"2", "e": b"2"}
    lake.update(made, ContentChange(replaces=True))
    assert collect_files(repository, made) == {}


def test_a_change_that_cannot_be_made_makes_nothing(
    repository: Repository, project_id: str
) -> None:
    lake = repository.collections
    source = put_collection(repository, project_id, "source", {"a": b"1"})
    files, count = every_file(repository), content_count(repository)
    of_source = partial(FromCollection, source.collection_id)
    for asked, kind in (
        (of(of_source(None, "a", "")), "invalid_path"),
        (of(of_source(None, "", "x" * 1024)), "invalid_path"),
        (of(of_files({"": b""})), "invalid_path"),
        (of(Located({"a\0": "x"})), "invalid_path"),
        (of(Located({"a": "x"})), "token_invalid"),
        (of(FromCollection("nobody")), "collection_not_found"),
        (of(of_source(7)), "version_not_found"),
        (of(FromRef("nobody")), "ref_not_found"),
        (ContentChange(removed=["nothing/"]), "object_not_found"),
        (ContentChange(removed=["a\0"]), "invalid_path"),
        (ContentChange(removed=["a"], replaces=True), "invalid_argument"),
    ):
        with raises(kind):
            lake.update(source.collection_id, asked)
        if not asked.removed:
            with raises(kind):
                lake.create(project_id, "new", asked)
    assert lake.get(source.collection_id) == source
    assert [each.name for each in lake.page(project_id)] == ["source"]
    assert (every_file(repository), content_count(repository)) == (files, count)


def test_imported_files_are_known_by_their_place(repository: Repository, project_id: str) -> None:
    """Nobody has read them, so that there is no checksum."""
    for name in ("x", "y"):
        url = f"s3://elsewhere/{name}"
        repository.addresses.stage("main", name, url, size_bytes=3)
    repository.commits.commit("main", "")
    lake = repository.collections
    one = lake.create(project_id, "x", of(FromRef("main", "x", "file")))
    two = lake.create(project_id, "y", of(FromRef("main", "y", "file")))
    again = lake.create(project_id, "x again", of(FromRef("main", "x", "file")))
    assert one.content_hash == again.content_hash != two.content_hash
