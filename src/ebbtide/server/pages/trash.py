"""The trash of a repository: branches, tags, projects and collections, and how to restore them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from ebbtide.errors import NotFound
from ebbtide.server.api.lists import item_place
from ebbtide.server.pages.collections import place_of
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.lifecycle import TRASH, Lifecycle
from ebbtide.store.refs.refs import NamedCommit
from ebbtide.store.repository import Repository
from ebbtide.text import shown

pages = Pages()

_PATH: Final = "/repositories/{repository:segment}/trash"


@dataclass(frozen=True, slots=True)
class Trashed:
    """One item in the trash. It was moved there at `since`, and is gone `trash_time` later."""

    item_id: str
    name: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of item in the trash.

    `read` returns at most the given number of items after a place, each with its own place.
    `items` restores them.
    """

    name: str
    title: str
    read: Callable[[Repository, str, int], list[tuple[Trashed, str]]]
    items: Callable[[Repository], Lifecycle[Any, Any]]


@dataclass(frozen=True, slots=True)
class Shown:
    """One page of the items of a kind. `more` is the place where the list continues."""

    kind: Kind
    rows: Sequence[Trashed]
    more: str | None


def _named(found: Sequence[NamedCommit]) -> list[tuple[Trashed, str]]:
    return [
        (Trashed(each.ref_id, each.name, each.expires_at), f"{each.name} {each.ref_id}")
        for each in found
        if each.expires_at is not None
    ]


def _branches(repository: Repository, after: str, amount: int) -> list[tuple[Trashed, str]]:
    return _named(repository.branches.page(after=after, amount=amount, listed=TRASH))


def _tags(repository: Repository, after: str, amount: int) -> list[tuple[Trashed, str]]:
    return _named(repository.tags.page(after=after, amount=amount, listed=TRASH))


def _projects(repository: Repository, after: str, amount: int) -> list[tuple[Trashed, str]]:
    return [
        (
            Trashed(each.project_id, each.path, each.expires_at),
            item_place(each.name, each.project_id),
        )
        for each in repository.projects.trash(after=place_of(after), amount=amount)
        if each.expires_at is not None
    ]


def _collections(repository: Repository, after: str, amount: int) -> list[tuple[Trashed, str]]:
    return [
        (
            Trashed(each.collection_id, each.path, each.expires_at),
            item_place(each.name, each.collection_id),
        )
        for each in repository.collections.trash(after=place_of(after), amount=amount)
        if each.expires_at is not None
    ]


KINDS: Final = (
    Kind("branch", "Branches", _branches, lambda found: found.branches),
    Kind("tag", "Tags", _tags, lambda found: found.tags),
    Kind("project", "Projects", _projects, lambda found: found.projects),
    Kind("collection", "Collections", _collections, lambda found: found.collections),
)


@pages.add("GET", _PATH, Role.READER)
def show_trash(visit: Visit) -> Response:
    """Shows all kinds, or one kind from a place on."""
    repository = visit.repository()
    wanted = visit.query("kind")
    after = visit.query("after") if wanted else ""
    kinds = [_kind(wanted)] if wanted else KINDS
    return visit.page(
        "trash.html",
        parts=[_part(repository, kind, after) for kind in kinds],
        is_part=bool(wanted),
        now=visit.now(),
        trash_time=visit.served.settings.trash_time,
    )


@pages.add("POST", _PATH + "/{kind:segment}/{item_id:segment}/restore", Role.WRITER)
def restore(visit: Visit) -> Response:
    """Restores one item, by its id."""
    repository = visit.repository()
    kind = _kind(visit.segment("kind"))
    is_unique = visit.form("unique") == "yes"
    kind.items(repository).restore(visit.segment("item_id"), ensure_unique_name=is_unique)
    return visit.to("repositories", repository.info.name, "trash", notice="restored")


def _part(repository: Repository, kind: Kind, after: str) -> Shown:
    found = kind.read(repository, after, PAGE_ROWS + 1)
    page = found[:PAGE_ROWS]
    return Shown(kind, [row for row, _ in page], page[-1][1] if len(found) > PAGE_ROWS else None)


def _kind(name: str) -> Kind:
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise NotFound("route_not_found", f"the trash has no items of the kind {shown(name)}")
