"""Two refs compared, the lines of small text files that differ, and merging one ref into the other.

Not for: comparing trees (`store.content.diffing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice
from typing import Any, Final, Literal, get_args

from starlette.responses import Response

from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.server.pages.previews import decode_text, read_range
from ebbtide.server.pages.refs import choices_of
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.merges import merge_message
from ebbtide.store.commits.publication import until_published
from ebbtide.store.content.differences import Change, Strategy
from ebbtide.store.content.entries import Entry
from ebbtide.store.page import Page
from ebbtide.store.repository import Repository
from ebbtide.text import shown

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
    repository = visit.repository()
    left, right = visit.given("left") or repository.info.default_branch, visit.given("right")
    mode, diff = visit.query("mode", SINCE_BASE), None
    if right:
        try:
            diff = _compare(visit, repository, left, right, is_since=mode == SINCE_BASE)
        except EbbtideError as problem:
            visit.refuse(visit.error or problem)
    error = visit.error
    return visit.page(
        "compare.html",
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
    )


@pages.add("POST", _COMPARE + "/merge", Role.WRITER, again=compare_refs)
def merge_refs(visit: Visit) -> Response:
    """Merges the right ref into the left one, which is a branch."""
    repository = visit.repository()
    source, destination = visit.form("right"), visit.form("left")
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


TEXT_BYTES_MAX: Final = 32 * 1024
LINES_MAX: Final = 1_000
"""How many lines a file may have. The time of a comparison grows with the square of the lines."""
LINES_SHOWN_MAX: Final = 400
FILES_SHOWN_MAX: Final = 5
"""How many text files a page compares without being asked for one."""
_LINE_KINDS: Final[dict[str, Literal["added", "removed", "place"]]] = {
    "+": "added",
    "-": "removed",
    "@": "place",
}


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a difference. A line of kind `place` says where the next lines are."""

    kind: Literal["added", "removed", "place", "same"]
    text: str


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The lines of a text file that differ. `note` says why there are none, or that they are
    cut."""

    path: str
    lines: tuple[DiffLine, ...]
    note: str = ""


def file_diff(repository: Repository, left: str, right: str, change: Change) -> FileDiff:
    """Returns the lines that differ between the two sides of a change; without lines if a side is
    no small text file, or cannot be read any more."""
    try:
        before = _lines(repository, left, change.left)
        after = _lines(repository, right, change.right)
    except EbbtideError as error:
        repository.tell(error)
        return FileDiff(change.path, (), f"The contents cannot be read: {error.message}.")
    if before is None or after is None:
        return FileDiff(change.path, (), "The file is no text, or too large to compare by lines.")
    found = list(islice(_differing(before, after), LINES_SHOWN_MAX + 1))
    note = f"Only the first {LINES_SHOWN_MAX} lines are shown." if _is_cut(found) else ""
    if not found:
        note = "The lines are the same. The end of the file, its type or its metadata differ."
    return FileDiff(change.path, tuple(found[:LINES_SHOWN_MAX]), note)


def small_diffs(
    repository: Repository, left: str, right: str, changes: Iterable[Change]
) -> list[FileDiff]:
    """Returns the differences of the first small text files among the changes. Others are left
    out."""
    possible = (change for change in changes if _is_small(change.left) and _is_small(change.right))
    found: list[FileDiff] = []
    for change in islice(possible, 2 * FILES_SHOWN_MAX):
        diff = file_diff(repository, left, right, change)
        if diff.lines and len(found) < FILES_SHOWN_MAX:
            found.append(diff)
    return found


def find_change(repository: Repository, left: str, right: str, path: str) -> Change:
    """Returns the change of one path between two commits. Raises NotFound `object_not_found` if the
    path does not differ, and the errors of `Commits.page_of_diff`."""
    page = repository.commits.page_of_diff(left, right, prefix=path, amount=1)
    if not page.entries or page.entries[0].path != path:
        raise NotFound("object_not_found", f"{shown(path)} is the same on both sides")
    return page.entries[0]


def _is_small(entry: Entry | None) -> bool:
    return entry is None or entry.size_bytes <= TEXT_BYTES_MAX


def _lines(repository: Repository, ref: str, entry: Entry | None) -> list[str] | None:
    """Returns the lines of a file, none without a file; None if it is no small text file."""
    if entry is None:
        return []
    if not _is_small(entry):
        return None
    found = repository.objects.open(ref, entry.path)
    text = decode_text(read_range(found, 0, TEXT_BYTES_MAX), is_cut=False)
    if text is None:
        return None
    lines = text.removesuffix("\n").split("\n") if text else []
    return lines if len(lines) <= LINES_MAX else None


def _differing(before: Sequence[str], after: Sequence[str]) -> Iterator[DiffLine]:
    # The first two lines name the files.
    for line in islice(unified_diff(before, after, lineterm=""), 2, None):
        yield DiffLine(_LINE_KINDS.get(line[:1], "same"), line)


def _is_cut(found: Sequence[DiffLine]) -> bool:
    return len(found) > LINES_SHOWN_MAX
