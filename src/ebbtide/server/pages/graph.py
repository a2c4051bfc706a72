"""A commit graph as rows with lanes: the lane of each commit, and the lines that pass it.

Pure. Lanes are assigned from the newest commit on, so that a window is drawn as in the whole
history. The time is proportional to the number of commits, however many branches there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ebbtide.model import Commit

LANES_MAX: Final = 10
"""How many lanes are drawn. Commits and lines of further lanes are drawn in the last lane."""


@dataclass(frozen=True, slots=True)
class Row:
    """One commit. Each line enters the row at the top, in a lane. Lines in `above` end at the
    commit, and lines in `past` go on to the bottom. `below` has the lanes at the bottom to which
    the commit's own lines lead."""

    commit: Commit
    lane: int
    above: tuple[int, ...]
    past: tuple[int, ...]
    below: tuple[int, ...]


def newest_first(commits: Sequence[Commit]) -> list[Commit]:
    """Sorts commits by date, the newest first; commits of one date by id, descending."""
    return sorted(commits, key=lambda commit: (commit.created_at, commit.commit_id), reverse=True)


def rows(
    commits: Sequence[Commit], *, start: int, stop: int, first_lane: str | None = None
) -> list[Row]:
    """Returns the rows [start, stop) of `commits`, which are sorted newest first. The history of
    commit `first_lane` gets the first lane."""
    lanes = _Lanes({commit.commit_id for commit in commits}, first_lane)
    drawn = []
    for number, commit in enumerate(commits[:stop]):
        row = lanes.place(commit, drawn=number >= start)
        if row is not None:
            drawn.append(row)
    return drawn


class _Lanes:
    """The commit that each lane leads to next."""

    def __init__(self, known: set[str], first_lane: str | None) -> None:
        self._known = known
        self._passed: set[str] = set()
        self._next: dict[int, str] = {}
        self._waiting: dict[str, list[int]] = {}
        self._free: list[int] = []
        self._count = 0
        self._reserved = first_lane if first_lane in known else None
        if self._reserved is not None:
            self._count = 1

    def place(self, commit: Commit, *, drawn: bool) -> Row | None:
        """Assigns lanes to a commit and its parents. Returns the commit's row if it is drawn."""
        above = sorted(self._waiting.pop(commit.commit_id, []))
        if commit.commit_id == self._reserved:
            lane, self._reserved = 0, None
        else:
            lane = above[0] if above else self._take()
        for each in above:
            self._leave(each, keep=each == lane)
        self._next.pop(lane, None)
        past = _shown(self._next) if drawn else ()
        self._passed.add(commit.commit_id)
        below = self._lead_on(commit, lane)
        if not below or lane not in below:
            self._release(lane)
        if not drawn:
            return None
        return Row(commit, min(lane, LANES_MAX - 1), _shown(above), past, _shown(below))

    def _lead_on(self, commit: Commit, lane: int) -> list[int]:
        below: list[int] = []
        for parent_id in commit.parent_ids:
            if parent_id not in self._known or parent_id in self._passed:
                continue
            waiting = self._waiting.get(parent_id)
            if parent_id == self._reserved:
                chosen = 0
            elif not below and lane not in self._next:
                chosen = lane
            else:
                chosen = waiting[0] if waiting else self._take()
            if chosen not in self._next:
                self._next[chosen] = parent_id
                self._waiting.setdefault(parent_id, []).append(chosen)
            if parent_id == self._reserved:
                self._reserved = None
            below.append(chosen)
        return below

    def _leave(self, lane: int, *, keep: bool) -> None:
        self._next.pop(lane, None)
        if not keep:
            self._release(lane)

    def _take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        return self._count - 1

    def _release(self, lane: int) -> None:
        heapq.heappush(self._free, lane)


def _shown(lanes: Sequence[int] | dict[int, str]) -> tuple[int, ...]:
    return tuple(sorted({min(lane, LANES_MAX - 1) for lane in lanes}))
