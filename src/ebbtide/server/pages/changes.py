"""Differences between two commits as pages show them: rows of paths, and the lines of small text
files.

Not for: comparing trees (`store.content.diffing`), or HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice
from typing import Final, Literal

from ebbtide.errors import EbbtideError, NotFound
from ebbtide.server.pages.previewing import decode_text, read_range
from ebbtide.store.content.differences import Change
from ebbtide.store.content.entries import Entry
from ebbtide.store.repository import Repository
from ebbtide.text import shown

TEXT_BYTES_MAX: Final = 32 * 1024
LINES_MAX: Final = 1_000
"""How many lines a file may have. The time of a comparison grows with the square of the lines."""
LINES_SHOWN_MAX: Final = 400
FILES_SHOWN_MAX: Final = 5
"""How many text files a page compares without being asked for one."""
_KINDS: Final[dict[str, Literal["added", "removed", "place"]]] = {
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
        yield DiffLine(_KINDS.get(line[:1], "same"), line)


def _is_cut(found: Sequence[DiffLine]) -> bool:
    return len(found) > LINES_SHOWN_MAX
