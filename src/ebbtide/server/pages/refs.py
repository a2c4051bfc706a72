"""Branches and tags, each with its state."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.durations import parse_period
from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.pages.ref_choices import choices_of
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit, mendable
from ebbtide.store.access.access_keys import Role
from ebbtide.store.lifecycle import ListFilter

pages = Pages()

KINDS: Final = ("branch", "tag")
_REFS: Final = "/repositories/{repository:segment}/refs"
_FIELDS: Final = ("kind", "name", "source", "expires_in")


@pages.add("GET", _REFS, Role.READER)
def list_refs(visit: Visit) -> Response:
    """Shows a page of branches or of tags, with those in the trash, and the form for a new one."""
    return _list(visit)


@pages.add("POST", _REFS, Role.WRITER)
def create_ref(visit: Visit) -> Response:
    """Creates a branch or tag."""
    repository, name = visit.repository(), visit.form("name").strip()
    source = visit.form("source").strip() or repository.info.default_branch
    period = visit.form("expires_in").strip()
    try:
        expires_at = visit.now() + parse_period(period) if period else None
        if _kind(visit.form("kind")) == "branch":
            repository.branches.create(name, source, expires_at=expires_at)
        else:
            repository.tags.create(name, source, expires_at=expires_at)
    except EbbtideError as error:
        return _list(visit, error=error, status=mendable(error))
    return _to(visit, "ref_made")


@pages.add("POST", _REFS + "/delete", Role.WRITER)
def delete_ref(visit: Visit) -> Response:
    """Moves a branch or tag to the trash."""
    repository = visit.repository()
    try:
        is_branch = _kind(visit.form("kind")) == "branch"
        (repository.branches if is_branch else repository.tags).delete(visit.form("name"))
    except EbbtideError as error:
        return _list(visit, error=error, status=mendable(error))
    return _to(visit, "ref_deleted")


def _to(visit: Visit, notice: str) -> Response:
    name = visit.repository().info.name
    return visit.to("repositories", name, "refs", kind=visit.form("kind"), notice=notice)


def _kind(text: str) -> str:
    if text not in KINDS:
        raise InvalidInput("invalid_argument", "kind must be branch or tag: choose one of the two")
    return text


def _list(visit: Visit, *, error: EbbtideError | None = None, status: int = 200) -> Response:
    repository = visit.repository()
    kind = _kind(visit.query("kind", "branch"))
    state, prefix = visit.query("state"), visit.query("prefix")
    refs = repository.branches if kind == "branch" else repository.tags
    found = refs.page(
        prefix=prefix,
        after=visit.query("after"),
        amount=PAGE_ROWS + 1,
        listed=ListFilter(include_expired=True, state=parse_state(state)),
    )
    page = found[:PAGE_ROWS]
    more = f"{page[-1].name} {page[-1].ref_id}" if len(found) > PAGE_ROWS else None
    return visit.page(
        "refs.html",
        status=status,
        error=error,
        asked={field: visit.form(field) for field in _FIELDS},
        kind=kind,
        rows=page,
        more=more,
        state=state,
        prefix=prefix,
        default_branch=repository.info.default_branch,
        choices=choices_of(repository),
        now=visit.now(),
        trash_time=visit.served.settings.trash_time,
    )


def parse_state(text: str) -> LifecycleState | None:
    """Returns the state of that name; None for an empty text. Raises InvalidInput
    `invalid_argument`."""
    states = {state.value: state for state in LifecycleState if state.is_root}
    if text and text not in states:
        raise InvalidInput("invalid_argument", f"state is one of {', '.join(states)}")
    return states.get(text)
