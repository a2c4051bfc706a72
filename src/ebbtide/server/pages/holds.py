"""Holds: commits that are kept regardless of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from starlette.responses import Response

from ebbtide.errors import InvalidInput, NotFound
from ebbtide.model import Hold
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.repository import Repository

pages = Pages()

HOLDS_MAX: Final = 10**9
_HOLDS: Final = "/repositories/{repository:segment}/holds"


@dataclass(frozen=True, slots=True)
class HoldRow:
    """A hold on a commit. `since` is None for a hold that the policy has. `commit` is None if the
    commit does not exist."""

    commit_id: str
    reason: str
    since: datetime | None
    commit: CommitRecord | None


@pages.add("GET", _HOLDS, Role.READER)
def list_holds(visit: Visit) -> Response:
    """Shows the holds, the oldest first, and the form for a new one."""
    repository = visit.repository()
    found, policy = repository.retention.holds(), repository.retention.get()
    position = visit.number("position", 0, most=HOLDS_MAX)
    # The policy's holds are few: somebody wrote each into it.
    of_policy = {} if policy is None else policy.holds
    return visit.page(
        "holds.html",
        asked={name: visit.form(name) for name in ("commit", "reason")},
        rows=_rows(repository, found[position : position + PAGE_ROWS]),
        of_policy=[
            HoldRow(commit_id, reason, None, _commit(repository, commit_id))
            for commit_id, reason in list(of_policy.items())[:PAGE_ROWS]
        ],
        more_of_policy=max(0, len(of_policy) - PAGE_ROWS),
        next_position=position + PAGE_ROWS if len(found) > position + PAGE_ROWS else None,
    )


@pages.add("POST", _HOLDS, Role.ADMIN, again=list_holds)
def add_hold(visit: Visit) -> Response:
    """Holds the commit that a ref names now. Replaces an earlier hold on this commit."""
    repository, ref = visit.repository(), visit.form("commit").strip()
    reason = visit.form("reason").strip()
    if not reason:
        raise InvalidInput(
            "invalid_argument", "a hold needs a reason: write why the commit is kept"
        )
    repository.retention.hold(ref, reason)
    return visit.to("repositories", repository.info.name, "holds", notice="hold_added")


@pages.add("POST", _HOLDS + "/remove", Role.ADMIN, again=list_holds)
def remove_hold(visit: Visit) -> Response:
    """Removes the hold on a commit. Then the policy decides about it."""
    repository = visit.repository()
    repository.retention.release(visit.form("commit"))
    return visit.to("repositories", repository.info.name, "holds", notice="hold_removed")


def _rows(repository: Repository, found: Sequence[Hold]) -> list[HoldRow]:
    return [
        HoldRow(hold.commit_id, hold.reason, hold.created_at, _commit(repository, hold.commit_id))
        for hold in found
    ]


def _commit(repository: Repository, commit_id: str) -> CommitRecord | None:
    try:
        return repository.commits.get(commit_id)
    except NotFound:
        return None
