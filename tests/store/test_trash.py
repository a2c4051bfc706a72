"""The trash of a repository's projects and collections, wherever they lie."""

from __future__ import annotations

from datetime import timedelta

from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock


def test_what_is_in_the_trash(repository: Repository, clock: ManualClock) -> None:
    projects, collections = repository.projects, repository.collections
    outer = projects.create("outer")
    inner = projects.create("inner", parent_id=outer.project_id)
    kept = collections.create(inner.project_id, "kept")
    gone = collections.create(inner.project_id, "gone", expires_at=clock.now + timedelta(hours=1))
    dropped = [collections.create(outer.project_id, name) for name in ("b", "a")]
    assert projects.trash() == [] == collections.trash()
    clock.advance(timedelta(days=8))
    for each in dropped:
        collections.delete(each.collection_id)
    projects.delete(inner.project_id)

    assert [each.path for each in projects.trash()] == ["outer/inner"]
    assert [each.path for each in collections.trash()] == ["outer/a", "outer/b"]
    first = collections.trash(amount=1)[0]
    assert [each.name for each in collections.trash(after=(first.name, first.collection_id))] == [
        "b"
    ]
    assert kept.collection_id != gone.collection_id
    projects.restore(inner.project_id)
    collections.restore(dropped[0].collection_id)
    assert projects.trash() == []
    assert [each.name for each in collections.trash()] == ["a"]
    clock.advance(timedelta(days=7))
    assert collections.trash() == []
