"""Finds the commits that refs reach through all parents: the ancestry that history commands show.

Not for: the main ancestry, to which rules apply (`forest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ebbtide.retention.forest import History


def reached_from(
    history: History, starts: Iterable[int], *, new_parents: Mapping[str, tuple[str, ...]]
) -> dict[int, int]:
    """Returns every commit that a start reaches, mapped to the index of the first start that does.

    `new_parents` replaces the parents of the commits in it. A parent that is not among the commits
    ends its line.
    """
    reached: dict[int, int] = {}
    for which, start in enumerate(starts):
        pending = [start]
        while pending:
            position = pending.pop()
            if position in reached:
                continue
            reached[position] = which
            commit = history.commits[position]
            for parent_id in new_parents.get(commit.commit_id, commit.parent_ids):
                parent = history.index.get(parent_id)
                if parent is not None and parent not in reached:
                    pending.append(parent)
    return reached
