"""Projects and collections: one page for each project, with its content, and the forms that make
and delete them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.durations import parse_duration
from ebbtide.errors import InvalidInput
from ebbtide.server.api.lists import item_place
from ebbtide.server.pages.refs import choices_of, parse_state
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.collections.contents import ContentChange, FromRef
from ebbtide.store.collections.projects import Project
from ebbtide.store.lifecycle import ListFilter
from ebbtide.store.repository import Repository

pages = Pages()

KINDS: Final = ("project", "collection")
_COLLECTIONS: Final = "/repositories/{repository:segment}/collections"
_FIELDS: Final = ("kind", "name", "ref", "prefix", "expires_in")


@pages.add("GET", _COLLECTIONS, Role.READER)
def list_collections(visit: Visit) -> Response:
    """Shows the projects and collections in a project, or the outermost projects. The trash is
    included."""
    repository = visit.repository()
    project_id = visit.given("project") or None
    listed = ListFilter(include_expired=True, state=parse_state(visit.query("state")))
    projects = repository.projects.page(
        parent_id=project_id,
        listed=listed,
        after=place_of(visit.query("projects_after")),
        amount=PAGE_ROWS + 1,
    )
    collections = (
        repository.collections.page(
            project_id,
            listed=listed,
            after=place_of(visit.query("after")),
            amount=PAGE_ROWS + 1,
        )
        if project_id
        else []
    )
    shown_projects, shown = projects[:PAGE_ROWS], collections[:PAGE_ROWS]
    last_project = shown_projects[-1] if len(projects) > PAGE_ROWS else None
    last = shown[-1] if len(collections) > PAGE_ROWS else None
    return visit.page(
        "collections.html",
        asked={field: visit.form(field) for field in _FIELDS},
        choices=choices_of(repository),
        project_id=project_id,
        above=_above(repository, project_id),
        projects=shown_projects,
        collections=shown,
        more_projects=last_project and item_place(last_project.name, last_project.project_id),
        more=last and item_place(last.name, last.collection_id),
        state=visit.query("state"),
        now=visit.now(),
        trash_time=visit.served.settings.trash_time,
    )


@pages.add("POST", _COLLECTIONS, Role.WRITER, again=list_collections)
def create_item(visit: Visit) -> Response:
    """Creates a project, or a collection with the files of a ref below a prefix."""
    repository, project_id = visit.repository(), visit.form("project") or None
    name, period = visit.form("name").strip(), visit.form("expires_in").strip()
    kind = _kind(visit.form("kind"))
    expires_at = visit.now() + parse_duration(period) if period else None
    if kind == "project":
        repository.projects.create(name, parent_id=project_id, expires_at=expires_at)
    elif project_id is None:
        raise InvalidInput(
            "invalid_argument", "a collection is inside a project: open or make one first"
        )
    else:
        repository.collections.create(project_id, name, _content(visit), expires_at=expires_at)
    return _to(visit, f"{kind}_made")


@pages.add("POST", _COLLECTIONS + "/delete", Role.WRITER, again=list_collections)
def delete_item(visit: Visit) -> Response:
    """Moves a project or a collection to the trash."""
    repository, item_id = visit.repository(), visit.form("item_id")
    is_project = _kind(visit.form("kind")) == "project"
    (repository.projects if is_project else repository.collections).delete(item_id)
    return _to(visit, "item_deleted")


def _kind(text: str) -> str:
    if text not in KINDS:
        raise InvalidInput("invalid_argument", "kind is project or collection")
    return text


def _content(visit: Visit) -> ContentChange | None:
    """Returns the files of a new collection; None for an empty one."""
    ref, prefix = visit.form("ref").strip(), visit.form("prefix").strip()
    if not ref:
        return None
    directory = f"{prefix.removesuffix('/')}/" if prefix else ""
    return ContentChange([FromRef(ref, directory, directory)])


def _to(visit: Visit, notice: str) -> Response:
    name, project = visit.repository().info.name, visit.form("project")
    return visit.to("repositories", name, "collections", project=project, notice=notice)


def _above(repository: Repository, project_id: str | None) -> list[Project]:
    """Returns the project and all projects above it, the outermost first."""
    found: list[Project] = []
    while project_id is not None:
        found.append(repository.projects.get(project_id, include_expired=True))
        project_id = found[-1].parent_id
    return found[::-1]


def place_of(text: str) -> tuple[str, str]:
    """Returns the name and id after which a list continues, from the text that `item_place`
    wrote."""
    name, _, item_id = text.rpartition("/")
    return name, item_id
