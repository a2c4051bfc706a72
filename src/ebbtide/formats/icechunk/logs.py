"""Finds the transaction logs that stay with a snapshot.

Icechunk reads a snapshot's own log, and the logs that it inherited from ancestors that are no
longer in its history. It needs them to show changes (`diff`), to update a session (`rebase`), and
to amend a commit. Not for: the content of a log.
Source: Icechunk design document 016; Icechunk 2.3, `ops/gc.rs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from ebbtide.formats.icechunk.layout import LOGS_PREFIX
from ebbtide.formats.icechunk.state import State


def companions(
    state: State, snapshot_ids: Iterable[str], kept: Set[str]
) -> dict[str, tuple[str, ...]]:
    """Returns the addresses of the logs that stay as long as each snapshot stays.

    `kept` are all snapshots that stay. A snapshot's own log is always in the result: if it is
    missing, the repository is damaged. Only the first snapshot of all may have none, if the
    repository began as version 1. Inherited logs are in the result if they exist: Icechunk before
    2.1 deletes them.
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
    """Returns the addresses of all logs if a log that a kept snapshot inherited is missing.

    Otherwise returns an empty list. If one is missing, the list of inherited logs can be damaged,
    so that any existing log can be the needed one.
    """
    if all(_inherited(state, snapshot_id, kept) <= state.logs for snapshot_id in kept):
        return []
    return [f"{LOGS_PREFIX}{log}" for log in sorted(state.logs)]


def _inherited(state: State, snapshot_id: str, kept: Set[str]) -> set[str]:
    """Returns the logs that a snapshot inherited, and those that it will inherit.

    In version 2, a collection drops the snapshots that do not stay from the list. A snapshot above
    them gets the nearest parent that stays, and the logs of all snapshots between the two.
    """
    found = set(state.history.logs.get(snapshot_id, ()))
    if state.inherits:
        for ancestor_id in _going_below(state, snapshot_id, kept):
            found |= {ancestor_id, *state.history.logs.get(ancestor_id, ())}
    return found


def _going_below(state: State, snapshot_id: str, kept: Set[str]) -> Iterator[str]:
    """Yields the ancestors of a snapshot, from its parent on, that come before the first kept
    one."""
    commits = state.history.commits
    place = commits[snapshot_id].first_parent_id if snapshot_id in commits else None
    while place is not None and place not in kept:
        yield place
        place = commits[place].first_parent_id
