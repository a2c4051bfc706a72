"""What refs reach through all parents, second ones too: the ancestry that history commands see.

Not for: the main ancestry, along which rules look (`forest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ebbtide.retention.forest import History


def reached_from(
    history: History, starts: Iterable[int], *, new_parents: Mapping[str, tuple[str, ...]]
) -> dict[int, int]:
    """Every commit that a start reaches, mapped to the place of the first start that does.

    `new_parents` stands in for the parents of the commits that it names. A parent that is not
    among the commits ends that line.
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
