"""Cutting history: which commits get other parents, and which no ref reaches after that.

Only plans; the edits are the caller's, in place and with ids and dates kept. Each plan is made
from the history as it was, so that the order of the refs cannot matter.
Source: Icechunk design document 007, basic expiration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime

from ebbtide.errors import NotFound
from ebbtide.model import Commit, Ref
from ebbtide.retention.dates import to_utc
from ebbtide.retention.forest import NO_PARENT, History, main_ancestries
from ebbtide.retention.reach import reached_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """`new_parents` has the commits to edit, each with all parents that it is to have.

    `released` are the commits that no ref reaches, through any parents, after all edits; a
    commit that a ref points at is never among them.
    """

    new_parents: Mapping[str, tuple[str, ...]]
    released: frozenset[str]


def plan_rewrite(commits: Iterable[Commit], refs: Iterable[Ref], older_than: datetime) -> Rewrite:
    """Cuts from the refs' histories what is older than `older_than`; equal to it is kept.

    For each ref whose own commit is not older, its main ancestry is walked up to the first
    older commit, and the last one passed gets the root of that ancestry as its only parent. Refs
    to older commits keep their history. Raises InvalidInput (`invalid_date`; `invalid_argument`
    for a commit given twice or a circle) and Refused (`commit_not_found`).
    """
    threshold = to_utc(older_than, what="older_than")
    history = History.of(commits)
    starts = [history.index_of(ref) for ref in refs]
    young = [
        to_utc(commit.created_at, what=f"commit {commit.commit_id}") >= threshold
        for commit in history.commits
    ]
    parent = history.parent
    root = _roots(parent)
    new_parents: dict[str, tuple[str, ...]] = {}
    passed = bytearray(len(parent))
    for position in starts:
        while young[position] and not passed[position]:
            passed[position] = True
            above = parent[position]
            if above == NO_PARENT:
                break
            if not young[above] and above != root[position]:
                commit, bottom = history.commits[position], history.commits[root[position]]
                new_parents[commit.commit_id] = (bottom.commit_id,)
            position = above
    return _rewrite(history, starts, new_parents)


def plan_rewrite_keep(commits: Iterable[Commit], refs: Iterable[Ref], keep: Set[str]) -> Rewrite:
    """Cuts from the refs' histories every commit that is not in `keep`.

    The refs' own commits and the roots of their ancestries are kept too. A kept commit whose
    first parent goes gets, as its only parent, the nearest kept commit on its main ancestry; all
    others stay as they are. Raises as `plan_rewrite` does, and NotFound (`commit_not_found`)
    for an id in `keep` that is not given, since it may stand for one that was meant to stay.
    """
    history = History.of(commits)
    starts = [history.index_of(ref) for ref in refs]
    for commit_id in keep:
        if commit_id not in history.index:
            raise NotFound(
                "commit_not_found", f"{commit_id} is to be kept, but is not among the commits"
            )
    parent = history.parent
    kept = [commit.commit_id in keep for commit in history.commits]
    for position in starts:
        kept[position] = True
    on_ancestry = main_ancestries(parent, starts)
    new_parents: dict[str, tuple[str, ...]] = {}
    nearest = [NO_PARENT] * len(parent)  # the nearest kept commit, at or below each position
    for position, above in enumerate(parent):
        if kept[position] or above == NO_PARENT:
            nearest[position] = position
        else:
            nearest[position] = nearest[above]
        if on_ancestry[position] and kept[position] and above not in (NO_PARENT, nearest[above]):
            bottom = history.commits[nearest[above]]
            new_parents[history.commits[position].commit_id] = (bottom.commit_id,)
    return _rewrite(history, starts, new_parents)


def _roots(parent: list[int]) -> list[int]:
    """The last commit of each one's main ancestry."""
    root = list(range(len(parent)))
    for position, above in enumerate(parent):  # a first parent comes before its children
        if above != NO_PARENT:
            root[position] = root[above]
    return root


def _rewrite(
    history: History, starts: list[int], new_parents: dict[str, tuple[str, ...]]
) -> Rewrite:
    reached = reached_from(history, starts, new_parents=new_parents)
    released = frozenset(
        commit.commit_id
        for position, commit in enumerate(history.commits)
        if position not in reached
    )
    return Rewrite(new_parents=new_parents, released=released)
