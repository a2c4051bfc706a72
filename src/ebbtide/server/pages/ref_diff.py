"""Two refs compared, and merging one into the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from starlette.responses import Response

from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.server.pages.changes import FileDiff, file_diff, find_change
from ebbtide.server.pages.ref_choices import choices_of
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit, mendable
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.merges import merge_message
from ebbtide.store.commits.publication import until_published
from ebbtide.store.content.differences import Change, Strategy
from ebbtide.store.content.entries import Entry
from ebbtide.store.page import Page
from ebbtide.store.repository import Repository

pages = Pages()

CONFLICTS_LISTED: Final = 50
SINCE_BASE: Final = "since"
_COMPARE: Final = "/repositories/{repository:segment}/compare"


@dataclass(frozen=True, slots=True)
class ConflictRow:
    """A path that both sides changed differently, with the entry of each side. None means that the
    side deleted the path."""

    path: str
    destination: Entry | None
    source: Entry | None


@dataclass(frozen=True, slots=True)
class RefDiff:
    """Two commits compared. `base_id` is their newest common commit, or None if all differences are
    shown. `file` is set if one path was asked for."""

    left_id: str
    right_id: str
    base_id: str | None
    page: Page[Change]
    file: FileDiff | None


@pages.add("GET", _COMPARE, Role.READER)
def compare_refs(visit: Visit) -> Response:
    """Shows what differs between two refs (`left`, `right`). With `mode=since`, only what the right
    one changed since their common commit. With `path`, also the lines of this file."""
    return _page(visit, visit.query("left"), visit.query("right"))


@pages.add("POST", _COMPARE + "/merge", Role.WRITER)
def merge_refs(visit: Visit) -> Response:
    """Merges the right ref into the left one, which is a branch."""
    repository = visit.repository()
    source, destination = visit.form("right"), visit.form("left")
    try:
        strategy = _strategy(visit.form("strategy"))
        until_published(
            repository.context,
            destination,
            lambda ref: repository.commits.merge(
                ref,
                destination,
                message=visit.form("message").strip() or merge_message(source, destination),
                strategy=strategy,
                committer=visit.served.committer,
                squash=visit.form("squash") == "yes",
            ),
            source,
        )
    except EbbtideError as error:
        return _page(visit, destination, source, error=error)
    return visit.to(
        "repositories", repository.info.name, "commits", at=destination, notice="merged"
    )


def _strategy(text: str) -> Strategy | None:
    for strategy in get_args(Strategy):
        if text == strategy:
            found: Strategy = strategy
            return found
    if text:
        raise InvalidInput("invalid_argument", "choose what happens to paths in conflict")
    return None


def _page(visit: Visit, left: str, right: str, *, error: EbbtideError | None = None) -> Response:
    repository = visit.repository()
    left = left or repository.info.default_branch
    mode = visit.query("mode", SINCE_BASE)
    diff, status = None, 200
    if right:
        try:
            diff = _compare(visit, repository, left, right, is_since=mode == SINCE_BASE)
        except EbbtideError as problem:
            error = error or problem
    if error is not None:
        status = mendable(error)
    return visit.page(
        "compare.html",
        status=status,
        name=repository.info.name,
        left=left,
        right=right,
        mode=mode,
        path=visit.query("path"),
        diff=diff,
        conflicts=() if diff is None else _conflicts(repository, diff, error),
        conflict_count=0 if error is None else error.details.get("conflict_count", 0),
        is_branch=_is_branch(repository, left),
        asked={name: visit.form(name) for name in ("message", "strategy", "squash")},
        choices=choices_of(repository),
        error=error,
    )


def _compare(
    visit: Visit, repository: Repository, left: str, right: str, *, is_since: bool
) -> RefDiff:
    """Compares two refs. Raises as `Commits.page_of_diff` and `find_change` do."""
    commits, path = repository.commits, visit.query("path")
    left_id, right_id = commits.resolve(left), commits.resolve(right)
    base_id = commits.merge_base(left_id, right_id)[2] if is_since else None
    page = commits.page_of_diff(
        left_id, right_id, three_dot=is_since, after=visit.query("after"), amount=PAGE_ROWS
    )
    file = None
    if path:
        change = find_change(repository, left_id, right_id, path)
        file = file_diff(repository, left_id, right_id, change)
    return RefDiff(left_id, right_id, base_id, page, file)


def _conflicts(
    repository: Repository, diff: RefDiff, error: EbbtideError | None
) -> Sequence[ConflictRow]:
    """Returns the conflicts that a merge found, or those on the page."""
    if error is not None and error.kind == "merge_conflict":
        paths: Sequence[Any] = error.details.get("paths", ())
        return [
            ConflictRow(
                path, _find(repository, diff.left_id, path), _find(repository, diff.right_id, path)
            )
            for path in paths[:CONFLICTS_LISTED]
        ]
    return [
        ConflictRow(change.path, change.left, change.right)
        for change in diff.page.entries
        if change.conflicts
    ]


def _find(repository: Repository, commit_id: str, path: str) -> Entry | None:
    try:
        return repository.objects.stat(commit_id, path)
    except NotFound:
        return None


def _is_branch(repository: Repository, name: str) -> bool:
    try:
        return repository.branches.get(name).name == name
    except NotFound:
        return False
