"""Protected branches: the rules by which branches take no direct changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from ebbtide.errors import EbbtideError
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import Visit, mendable
from ebbtide.store.access.access_keys import Role

pages = Pages()

BRANCHES_READ: Final = 1_000
"""How many branches are compared with the rules. There can be a million."""
NAMES_SHOWN: Final = 5
_PROTECTION: Final = "/repositories/{repository:segment}/protection"


@dataclass(frozen=True, slots=True)
class ProtectionRow:
    """A rule, the number of branches that match it, and the names of some of them."""

    pattern: str
    count: int
    names: Sequence[str]


@pages.add("GET", _PROTECTION, Role.READER)
def list_rules(visit: Visit) -> Response:
    """Shows the rules, with the branches that each protects now, and the form for a new rule."""
    return _list(visit)


@pages.add("POST", _PROTECTION, Role.ADMIN)
def add_rule(visit: Visit) -> Response:
    """Adds a rule. A rule that exists stays as it is."""
    repository = visit.repository()
    try:
        repository.protection.add(visit.form("pattern").strip())
    except EbbtideError as error:
        return _list(visit, error=error, status=mendable(error))
    return visit.to("repositories", repository.info.name, "protection", notice="rule_added")


@pages.add("POST", _PROTECTION + "/remove", Role.ADMIN)
def remove_rule(visit: Visit) -> Response:
    """Removes a rule."""
    repository = visit.repository()
    try:
        repository.protection.remove(visit.form("pattern"))
    except EbbtideError as error:
        return _list(visit, error=error, status=mendable(error))
    return visit.to("repositories", repository.info.name, "protection", notice="rule_removed")


def _list(visit: Visit, *, error: EbbtideError | None = None, status: int = 200) -> Response:
    repository = visit.repository()
    rules = repository.protection.get()
    branches = repository.branches.page(amount=BRANCHES_READ + 1)
    names = [branch.name for branch in branches[:BRANCHES_READ]]
    rows = []
    for pattern in rules.patterns:
        matched = [name for name in names if rules.matches(pattern, name)]
        rows.append(ProtectionRow(pattern, len(matched), matched[:NAMES_SHOWN]))
    return visit.page(
        "protection.html",
        status=status,
        error=error,
        pattern=visit.form("pattern"),
        rows=rows,
        branches_read=BRANCHES_READ,
        is_part=len(branches) > BRANCHES_READ,
    )
