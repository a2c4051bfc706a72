"""Branches and tags, each with its state; the rules by which branches take no direct changes; and
the branches and tags that a field for a ref offers.

Such a field takes any other text, too: a commit id, or `main~3`. Therefore a page need not offer
all refs of a large repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from ebbtide.durations import parse_period
from ebbtide.errors import InvalidInput
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.lifecycle import ListFilter
from ebbtide.store.repository import Repository

pages = Pages()

KINDS: Final = ("branch", "tag")
_REFS: Final = "/repositories/{repository:segment}/refs"
_FIELDS: Final = ("kind", "name", "source", "expires_in")


@pages.add("GET", _REFS, Role.READER)
def list_refs(visit: Visit) -> Response:
    """Shows a page of branches or of tags, with those in the trash, and the form for a new one."""
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


@pages.add("POST", _REFS, Role.WRITER, again=list_refs)
def create_ref(visit: Visit) -> Response:
    """Creates a branch or tag."""
    repository, name = visit.repository(), visit.form("name").strip()
    source = visit.form("source").strip() or repository.info.default_branch
    period = visit.form("expires_in").strip()
    expires_at = visit.now() + parse_period(period) if period else None
    refs = repository.branches if _kind(visit.form("kind")) == "branch" else repository.tags
    refs.create(name, source, expires_at=expires_at)
    return _to(visit, "ref_made")


@pages.add("POST", _REFS + "/delete", Role.WRITER, again=list_refs)
def delete_ref(visit: Visit) -> Response:
    """Moves a branch or tag to the trash."""
    repository = visit.repository()
    is_branch = _kind(visit.form("kind")) == "branch"
    (repository.branches if is_branch else repository.tags).delete(visit.form("name"))
    return _to(visit, "ref_deleted")


def _to(visit: Visit, notice: str) -> Response:
    name = visit.repository().info.name
    return visit.to("repositories", name, "refs", kind=visit.form("kind"), notice=notice)


def _kind(text: str) -> str:
    if text not in KINDS:
        raise InvalidInput("invalid_argument", "kind must be branch or tag: choose one of the two")
    return text


def parse_state(text: str) -> LifecycleState | None:
    """Returns the state of that name; None for an empty text. Raises InvalidInput
    `invalid_argument`."""
    states = {state.value: state for state in LifecycleState if state.is_root}
    if text and text not in states:
        raise InvalidInput("invalid_argument", f"state is one of {', '.join(states)}")
    return states.get(text)


OFFERED_MAX: Final = 200
"""How many branches, and how many tags, a field offers."""


@dataclass(frozen=True, slots=True)
class RefChoice:
    """A branch or tag that a field offers."""

    name: str
    kind: str


def choices_of(repository: Repository) -> list[RefChoice]:
    """Returns the default branch, then the first branches and tags by name."""
    default = repository.info.default_branch
    branches = [each.name for each in repository.branches.page(amount=OFFERED_MAX)]
    others = [name for name in branches if name != default]
    tags = [each.name for each in repository.tags.page(amount=OFFERED_MAX)]
    return [
        *(RefChoice(name, "branch") for name in [default, *others]),
        *(RefChoice(name, "tag") for name in tags),
    ]


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
        pattern=visit.form("pattern"),
        rows=rows,
        branches_read=BRANCHES_READ,
        is_part=len(branches) > BRANCHES_READ,
    )


@pages.add("POST", _PROTECTION, Role.ADMIN, again=list_rules)
def add_rule(visit: Visit) -> Response:
    """Adds a rule. A rule that exists stays as it is."""
    repository = visit.repository()
    repository.protection.add(visit.form("pattern").strip())
    return visit.to("repositories", repository.info.name, "protection", notice="rule_added")


@pages.add("POST", _PROTECTION + "/remove", Role.ADMIN, again=list_rules)
def remove_rule(visit: Visit) -> Response:
    """Removes a rule."""
    repository = visit.repository()
    repository.protection.remove(visit.form("pattern"))
    return visit.to("repositories", repository.info.name, "protection", notice="rule_removed")
