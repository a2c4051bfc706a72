"""Branches and tags, each with its state."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.errors import InvalidInput
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.keys import Role
from ebbtide.store.lifecycle import Listed

pages = Pages()

KINDS: Final = ("branch", "tag")


@pages.add("GET", "/repositories/{repository:segment}/refs", Role.READER)
def list_refs(visit: Visit) -> Response:
    """A page of branches or of tags, those in the trash too."""
    repository = visit.repository()
    kind = visit.query("kind", "branch")
    if kind not in KINDS:
        raise InvalidInput("invalid_argument", "kind is branch or tag")
    state, prefix = visit.query("state"), visit.query("prefix")
    refs = repository.branches if kind == "branch" else repository.tags
    found = refs.page(
        prefix=prefix,
        after=visit.query("after"),
        amount=PAGE_ROWS + 1,
        listed=Listed(include_expired=True, state=parse_state(state)),
    )
    page = found[:PAGE_ROWS]
    more = f"{page[-1].name} {page[-1].ref_id}" if len(found) > PAGE_ROWS else None
    return visit.page(
        "refs.html",
        kind=kind,
        rows=page,
        more=more,
        state=state,
        prefix=prefix,
        default_branch=repository.info.default_branch,
        now=visit.now(),
        trash_time=visit.served.settings.trash_time,
    )


def parse_state(text: str) -> LifecycleState | None:
    """A state by its name, none for nothing. Raises InvalidInput `invalid_argument`."""
    states = {state.value: state for state in LifecycleState if state.is_root}
    if text and text not in states:
        raise InvalidInput("invalid_argument", f"state is one of {', '.join(states)}")
    return states.get(text)
