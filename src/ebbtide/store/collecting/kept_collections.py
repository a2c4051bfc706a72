"""The projects and collections of a repository as a collector sees them.

The functions find the data that collections keep, and delete ended collections and projects. A
collection ends at the earliest of its own date and the dates of the projects above it. A locator
that was signed before this end is valid for at most one lease after the end, even if the date was
changed since. Until then the content is promised, although the collection can be gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ebbtide.model import Ref
from ebbtide.retention.lifecycle import earliest
from ebbtide.store.collections.queries import (
    ContentUse,
    ProjectLink,
    delete_collections,
    delete_projects,
    read_content_uses,
    read_project_tree,
)
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches


@dataclass(frozen=True, slots=True)
class ProjectPlace:
    """A project's path, end and depth. The end is the earliest date of the project and of the
    projects above it."""

    path: str
    ends_at: datetime | None
    depth: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything that collections keep.

    `refs` are the collections and versions that are not gone. `promised` maps content to the end of
    the last lease on it, for collections that have an end.
    """

    refs: list[Ref] = field(default_factory=list)
    promised: dict[str, datetime] = field(default_factory=dict)


def read_kept(
    tx: Transaction,
    repository_id: str,
    *,
    now: datetime,
    lease_ttl: timedelta,
    trash_time: timedelta,
) -> Kept:
    """Returns everything that the collections of a repository keep at `now`."""
    kept = Kept()
    places = read_places(tx, repository_id)
    for use in read_content_uses(tx, repository_id):
        place = places[use.project_id]
        ends_at = earliest(use.expires_at, place.ends_at)
        if ends_at is None or now - ends_at < trash_time:
            kept.refs.append(_ref(use, place, ends_at))
        if ends_at is not None and use.replication_desired > 0 and now - ends_at < lease_ttl:
            # A collection that keeps no data signs no locators. The reflog covers earlier ones.
            promised = ends_at + lease_ttl
            kept.promised[use.content_id] = max(
                promised, kept.promised.get(use.content_id, promised)
            )
    return kept


def drop_gone(
    tx: Transaction, repository_id: str, *, lease_ttl: timedelta, trash_time: timedelta
) -> None:
    """Deletes gone collections, with their versions, and gone projects.

    They stay for at least one lease after their end: until then, locators that were signed through
    them are valid.
    """
    now, lasts = tx.now(), max(trash_time, lease_ttl)
    places = read_places(tx, repository_id)

    def is_over(ends_at: datetime | None) -> bool:
        return ends_at is not None and now - ends_at >= lasts

    over = {
        use.collection_id
        for use in read_content_uses(tx, repository_id)
        if is_over(earliest(use.expires_at, places[use.project_id].ends_at))
    }
    for batch in in_batches(sorted(over)):
        delete_collections(tx, batch)
    # The deepest first: a project is deleted after the projects in it.
    gone = [project_id for project_id, place in places.items() if is_over(place.ends_at)]
    for batch in in_batches(sorted(gone, key=lambda project_id: -places[project_id].depth)):
        delete_projects(tx, batch)


def read_places(tx: Transaction, repository_id: str) -> dict[str, ProjectPlace]:
    """Returns the place of every project of a repository, in any state: project id to place."""
    tree = read_project_tree(tx, repository_id)
    places: dict[str, ProjectPlace] = {}
    for project_id in tree:
        _place(project_id, tree, places)
    return places


def _place(
    project_id: str, tree: Mapping[str, ProjectLink], places: dict[str, ProjectPlace]
) -> None:
    """Sets the places of a project and of those above it, the outermost first."""
    line = [project_id]
    while (parent_id := tree[line[-1]].parent_id) is not None and parent_id not in places:
        line.append(parent_id)
    for inner in reversed(line):
        link = tree[inner]
        if link.parent_id is None:
            places[inner] = ProjectPlace(link.name, link.expires_at, 0)
        else:
            above = places[link.parent_id]
            places[inner] = ProjectPlace(
                f"{above.path}/{link.name}",
                earliest(link.expires_at, above.ends_at),
                above.depth + 1,
            )


def _ref(use: ContentUse, place: ProjectPlace, ends_at: datetime | None) -> Ref:
    version = "" if use.version is None else f"@{use.version}"
    return Ref(
        f"{place.path}/{use.name}{version}",
        "collection",
        use.content_id,
        ends_at,
        keeps_data=use.replication_desired > 0,
    )
