"""Plans cuts in the history: commits that get other parents, and commits that no ref reaches then.

It only plans. The caller makes the edits in place, and keeps ids and dates. Each plan starts from
the original history, so that the order of the refs does not matter. Source: Icechunk design
document 007, basic expiration.
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
    """`new_parents` maps each commit to edit to all its new parents.

    `released` are the commits that no ref reaches after all edits, through any parents. A commit
    that a ref points at is never among them.
    """

    new_parents: Mapping[str, tuple[str, ...]]
    released: frozenset[str]


def plan_rewrite(commits: Iterable[Commit], refs: Iterable[Ref], older_than: datetime) -> Rewrite:
    """Plans to cut commits older than `older_than` from the refs' histories. A commit of exactly
    that date is kept.

    For each ref whose own commit is not older, the main ancestry is walked up to the first older
    commit. The last commit before it gets the root of that ancestry as its only parent. Refs on
    older commits keep their history. Raises InvalidInput (`invalid_date`; `invalid_argument` for a
    duplicate commit or a cycle) and Refused `commit_not_found`.
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
    """Plans to cut every commit that is not in `keep` from the refs' histories.

    The refs' own commits and the roots of their ancestries are kept too. If the first parent of a
    kept commit is cut, the commit gets the nearest kept commit on its main ancestry as its only
    parent. All others stay as they are. Raises as `plan_rewrite` does, and NotFound
    `commit_not_found` for an id in `keep` that is not given: it may be a mistyped id of a commit
    that must stay.
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
    nearest = [NO_PARENT] * len(parent)  # the nearest kept commit or root at or above each
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
    """Returns the last commit of each commit's main ancestry."""
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
