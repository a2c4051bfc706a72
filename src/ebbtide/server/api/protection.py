"""Protected branches: the rules by which branches take no direct changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Response

from ebbtide.server.api.base import Segment, Text, Wire
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role


class ProtectionRule(Wire):
    """A rule: a glob for the names of protected branches."""

    pattern: Text


routes = Routes("protection")

_RULES = "/repositories/{repository:segment}/settings/branch_protection"


@routes.add("GET", _RULES, Role.READER)
def get_branch_protection(
    repository: Segment, served: ServedDep, response: Response
) -> list[ProtectionRule]:
    """Returns the rules. Their version is in the header `ETag`, which is empty without rules."""
    rules = served.repository(repository).protection.get()
    response.headers["ETag"] = rules.etag
    return [ProtectionRule(pattern=pattern) for pattern in rules.patterns]


@routes.add("PUT", _RULES, Role.ADMIN, status=204)
def set_branch_protection(
    repository: Segment,
    asked: list[ProtectionRule],
    served: ServedDep,
    if_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Replaces the rules. With `If-Match`, the present rules must have this `ETag`."""
    served.repository(repository).protection.set(
        [rule.pattern for rule in asked],
        only_if=None if if_match is None else if_match.strip().strip('"'),
    )
    return Response(status_code=204)
