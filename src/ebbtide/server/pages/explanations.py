"""Explains why an object or a commit still exists, until when, or which run deleted it."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.audit.answers import (
    ADDRESS_STATES,
    ExplainedAddress,
    ExplainedCommit,
)
from ebbtide.errors import EbbtideError
from ebbtide.quarantined import Fate
from ebbtide.server.errors import STATUS
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import Visit, restorable_by
from ebbtide.store.access.access_keys import Role

pages = Pages()

LIMIT: Final = 50
_PATH: Final = "/repositories/{repository:segment}/explain"


@pages.add("GET", _PATH, Role.READER)
def explain(visit: Visit) -> Response:
    """Shows the form, and the answer if the request names an object or a commit."""
    here = visit.collected
    what, path = visit.query("what").strip(), visit.query("path").strip()
    found: ExplainedAddress | ExplainedCommit | None = None
    problem: EbbtideError | None = None
    if what:
        try:
            found = here.explainer(limit=LIMIT).explain(what, path or None)
        except EbbtideError as error:
            problem = error
    fate = _fate(found)
    return visit.page(
        "explain.html",
        restorable=None if fate is None else restorable_by(fate),
        status=200 if problem is None else STATUS[problem.kind],
        what=what,
        path=path,
        error=problem,
        address=found if isinstance(found, ExplainedAddress) else None,
        commit=found if isinstance(found, ExplainedCommit) else None,
        address_states=ADDRESS_STATES,
    )


def _fate(found: ExplainedAddress | ExplainedCommit | None) -> Fate | None:
    """Returns what became of the data that a run took, if a run did."""
    if isinstance(found, ExplainedAddress):
        return None if found.went is None else found.went.fate
    return None if found is None else found.fate
