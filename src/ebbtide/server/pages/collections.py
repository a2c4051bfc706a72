"""Projects and collections: one page for each project, with its content."""

from __future__ import annotations

from starlette.responses import Response

from ebbtide.server.api.paging import item_place
from ebbtide.server.pages.refs import parse_state
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.keys import Role
from ebbtide.store.collections.projects import Project
from ebbtide.store.repository import Repository

pages = Pages()


@pages.add("GET", "/repositories/{repository:segment}/collections", Role.READER)
def list_collections(visit: Visit) -> Response:
    """Shows the projects and collections in a project, or the outermost projects. The trash is
    included."""
    repository = visit.repository()
    project_id = visit.query("project") or None
    state = parse_state(visit.query("state"))
    projects = repository.projects.page(
        parent_id=project_id,
        include_expired=True,
        state=state,
        after=place_of(visit.query("projects_after")),
        amount=PAGE_ROWS + 1,
    )
    collections = (
        repository.collections.page(
            project_id,
            include_expired=True,
            state=state,
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
