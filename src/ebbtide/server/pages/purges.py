"""Purges: the form for a new purge, which the user confirms with the repository's name, and the
progress of a purge. Only for admins."""

from __future__ import annotations

from typing import Final

from starlette.background import BackgroundTask
from starlette.responses import Response

from ebbtide.errors import NotFound
from ebbtide.purge.plan import PurgeReport
from ebbtide.purge.purger import ENDED, Purges
from ebbtide.purge.request import PathTarget, Request, require_confirmed
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.purge_records import PurgeRow

pages = Pages()

ACTIVE: Final = ("planning", "deleting")
_PURGES: Final = "/repositories/{repository:segment}/purges"
_PURGE: Final = _PURGES + "/{purge_id:segment}"
_CHOICES: Final = ("all_history", "keep_shared", "delete_versions", "repository")
_FIELDS: Final = ("paths", "commits", "collections", "reason", *_CHOICES)


@pages.add("GET", _PURGES, Role.ADMIN)
def list_purges(visit: Visit) -> Response:
    """Shows the purges of a repository, also of one that does not exist any more, and the form for
    a new one."""
    name = visit.segment("repository")
    after = visit.query("after")
    found = [row for row in Purges(visit.store).list(name) if row.purge_id > after]
    page = found[:PAGE_ROWS]
    return visit.page(
        "purges.html",
        name=name,
        rows=page,
        more=page[-1].purge_id if len(found) > PAGE_ROWS else None,
        asked={field: visit.form(field) for field in _FIELDS},
    )


@pages.add("POST", _PURGES, Role.ADMIN, again=list_purges)
def start_purge(visit: Visit) -> Response:
    """Starts a purge, or makes only its plan."""
    purges = Purges(visit.store)
    dry_run = visit.form("action", "plan") != "purge"
    name = visit.repository().info.name
    request = _request(visit)
    if not dry_run:
        require_confirmed(name, visit.form("confirmation").strip())
    row = purges.begin(name, request)
    response = visit.to(
        "repositories",
        name,
        "purges",
        row.purge_id,
        notice="purge_planned" if dry_run else "purge_started",
    )
    response.background = BackgroundTask(purges.carry_out_alone, row.purge_id, dry_run=dry_run)
    return response


@pages.add("GET", _PURGE, Role.ADMIN)
def show_purge(visit: Visit) -> Response:
    """Shows one purge: its progress, or its outcome."""
    row = _find(visit)
    # While a purge is being planned, its files do not exist yet.
    is_awaited = visit.query("notice") == "purge_started" and _is_about_to_go_on(row)
    if not (_is_active(row) or is_awaited):
        visit.without_notice()
    report = Purges(visit.store).show(row.purge_id) if not _is_active(row) else PurgeReport(row)
    return visit.page(
        "purge.html",
        row=row,
        report=report.figures,
        is_active=_is_active(row),
        is_awaited=is_awaited,
        is_open=row.state not in ENDED,
    )


@pages.add("POST", _PURGE + "/resume", Role.ADMIN, again=show_purge)
def resume_purge(visit: Visit) -> Response:
    """Continues a purge that was stopped, that failed in part, or that was only planned."""
    row = _find(visit)
    purges = Purges(visit.store)
    require_confirmed(row.repository_name, visit.form("confirmation").strip())
    purges.require_open(row)
    response = visit.to(
        "repositories", row.repository_name, "purges", row.purge_id, notice="purge_started"
    )
    response.background = BackgroundTask(purges.carry_out_alone, row.purge_id)
    return response


@pages.add("GET", _PURGE + "/progress", Role.ADMIN)
def progress(visit: Visit) -> Response:
    """Returns the progress of a purge for the page that watches it."""
    row = _find(visit)
    ended = not (_is_active(row) or (visit.query("awaited") and _is_about_to_go_on(row)))
    return visit.json({"state": row.state, "ended": ended, "html": None})


def _is_active(row: PurgeRow) -> bool:
    """Whether the purge is in progress, as far as the database knows. A purge that failed has an
    error."""
    return row.state in ACTIVE and row.error is None


def _is_about_to_go_on(row: PurgeRow) -> bool:
    """Whether a purge that was just started or resumed has not begun to delete yet."""
    return row.state == "planned" and row.error is None


def _request(visit: Visit) -> Request:
    """Returns the request of the form: one line for each path, commit and collection. Raises
    InvalidInput."""
    request = Request(
        reason=visit.form("reason").strip(),
        who={"access_key_id": visit.key.access_key_id, "name": visit.key.name},
        paths=tuple(PathTarget.parse(line) for line in _lines(visit.form("paths"))),
        commits=_lines(visit.form("commits")),
        collections=_lines(visit.form("collections")),
        **{choice: visit.form(choice) == "yes" for choice in _CHOICES},
    )
    request.check()
    return request


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _find(visit: Visit) -> PurgeRow:
    """Returns a purge, also of a repository that does not exist any more. Raises NotFound
    `purge_not_found`."""
    row = Purges(visit.store).find(visit.segment("purge_id"))
    if row.repository_name != visit.segment("repository"):
        raise NotFound("purge_not_found", "the repository has no purge with that id")
    return row
