"""What content is made of, what it is called by, and what is shared."""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa

from ebbtide.errors import Refused
from ebbtide.store.collections.contents import (
    ContentChange,
    FromCollection,
    FromRef,
    Located,
    Source,
)
from ebbtide.store.collections.queries import find_collection
from ebbtide.store.database.commits import CommitRecord, find_commits, require_still_intact
from ebbtide.store.database.schema import commits
from ebbtide.store.repository import Repository
from tests.support.collections import collect_files, of, of_files, put_collection, raises
from tests.support.lakes import every_file

FILES = {"a": b"1", "b/c": b"22", "b/d": b"", "ü": b"4444", "z" * 700: b"5"}


def record_of(lake: Repository, collection_id: str) -> CommitRecord:
    """The content of a collection."""
    repository_id = lake.info.repository_id
    with lake.context.metadata.snapshot() as tx:
        row = find_collection(tx, collection_id)
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
