"""Explains why an object or a commit still exists, until when, and why it was deleted."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query

from ebbtide.audit.explain import LIMIT
from ebbtide.errors import InvalidInput
from ebbtide.server.api.base import Segment, Text
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role

routes = Routes("explaining")

LIMIT_MAX: Final = 1000


@routes.add("GET", "/repositories/{repository:segment}/explain", Role.READER)
def explain(
    repository: Segment,
    served: ServedDep,
    address: Annotated[Text | None, Query()] = None,
    commit: Annotated[Text | None, Query()] = None,
    ref: Annotated[Text | None, Query()] = None,
    path: Annotated[Text | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT,
) -> dict[str, Any]:
    """Explains an address, a commit, a ref, or the object of a ref at a path. Give exactly one of
    `address`, `commit` and `ref`. The answer is the output of `ebbtide explain --json`."""
    given = [each for each in (address, commit, ref) if each is not None]
    if len(given) != 1 or (path is not None and ref is None):
        raise InvalidInput(
            "invalid_argument", "give exactly one of address, commit and ref; path needs ref"
        )
    explainer = served.collected(repository).explainer(limit=limit)
    if address is not None:
        return explainer.address(address).to_json()
    if path is not None:
        return explainer.explain(given[0], path).to_json()
    return explainer.commit(given[0]).to_json()
