"""Transaction logs: which of them stay with a snapshot.

Icechunk reads a snapshot's own log, and those that it inherited from ancestors that are not in its
history any more, to tell what changed (`diff`), to bring a session up to date (`rebase`), and to
amend a commit. Not for: what is in a log.
Source: Icechunk design document 016; Icechunk 2.3, `ops/gc.rs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from ebbtide.formats.icechunk.layout import LOGS_PREFIX
from ebbtide.formats.icechunk.state import State


def companions(
    state: State, snapshot_ids: Iterable[str], kept: Set[str]
) -> dict[str, tuple[str, ...]]:
    """The addresses of the logs that stay as long as each snapshot does, where `kept` are all that
    stay.

    The own log of a snapshot is among them whether it is there or not: without it the repository
    is damaged. The others are among them if they are there. The first snapshot of all has no log
    where the repository began as version 1. What is inherited may be gone: Icechunk before 2.1
    deletes it.
    """
    found: dict[str, tuple[str, ...]] = {}
    for snapshot_id in snapshot_ids:
        commit = state.history.commits.get(snapshot_id)
        has_log = commit is None or commit.parent_ids or snapshot_id in state.logs
        own = (snapshot_id,) if has_log else ()
        others = sorted(_inherited(state, snapshot_id, kept) & state.logs)
        found[snapshot_id] = tuple(f"{LOGS_PREFIX}{log}" for log in (*own, *others))
    return found


def loose_logs(state: State, kept: Set[str]) -> list[str]:
    """The addresses of all logs where one that a kept snapshot inherited is not there, else none.

    The list of what is inherited may be damaged, and mean any other of them.
    """
    if all(_inherited(state, snapshot_id, kept) <= state.logs for snapshot_id in kept):
        return []
    return [f"{LOGS_PREFIX}{log}" for log in sorted(state.logs)]


def _inherited(state: State, snapshot_id: str, kept: Set[str]) -> set[str]:
    """The logs that a snapshot inherited, and those that it will.

    A collection drops from the list of version 2 what does not stay. It gives a snapshot above that
    the nearest parent that stays, and the logs of all between them.
    """
    found = set(state.history.logs.get(snapshot_id, ()))
    if state.inherits:
        for ancestor_id in _going_below(state, snapshot_id, kept):
            found |= {ancestor_id, *state.history.logs.get(ancestor_id, ())}
    return found


def _going_below(state: State, snapshot_id: str, kept: Set[str]) -> Iterator[str]:
    """The ancestors of a snapshot from its parent on, up to one that stays."""
    commits = state.history.commits
    place = commits[snapshot_id].first_parent_id if snapshot_id in commits else None
    while place is not None and place not in kept:
        yield place
        place = commits[place].first_parent_id
