"""The metadata of an Icechunk repository for the collector: the relations of one state.

Snapshots that an undo restored, or that a slow expiry released, are held (`notes`). The hold
includes files that they share with other snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from ebbtide.formats.base import PROTECTED_SCHEMA
from ebbtide.formats.icechunk.layout import LOGS_PREFIX
from ebbtide.formats.icechunk.repo import BACKUPS_PREFIX
from ebbtide.formats.icechunk.state import State
from ebbtide.model import Commit
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots

BACK: Final = "restored by an undo, or released by an expiry that took long"
_BACKUP: Final = "a backup within the grace, or of the operations log"
_LOOSE: Final = (
    "a log that a snapshot inherited is missing: its list may be damaged, and mean this log"
)


@dataclass(frozen=True, slots=True)
class IcechunkReading:
    """The relations of one state of the repository.

    `back` maps the snapshots that are held, for instance because an undo restored them, to the ends
    of their holds.
    """

    state: State
    now: datetime
    grace: timedelta
    back: Mapping[str, datetime]

    def roots(self) -> Roots:
        """Returns refs and snapshots. All snapshots that refs reach are kept, and held snapshots
        too. A held snapshot stays for a grace, or until the end of its hold in `back`."""
        history = self.state.history
        back = self._back()
        held = self._held()
        ends = {name: (at or self.now) + self.grace for name, at in self.state.held_since.items()}
        ends |= {name: max(end, ends.get(name, end)) for name, end in back.items()}
        reached = history.reached()
        commits = [history.commits[commit_id] for commit_id in reached]
        # Also the unreachable snapshots that are listed or held. Each keeps only itself, and
        # therefore has no parents here.
        commits += [
            replace(
                history.commits.get(commit_id) or Commit(commit_id, (), date, commit_id),
                parent_ids=(),
            )
            for commit_id, date in self.state.unreachable.items()
            if commit_id in history.commits or commit_id in held
        ]
        policy = {"default": "keep", "mode": "rewrite", "holds": dict(held)}
        return Roots(
            now=self.now,
            refs=history.refs,
            commits=tuple(commits),
            stub_ids=frozenset(),
            tree_checksums={commit.tree_id: "" for commit in commits},
            policy=Policy.parse(policy),
            companions=companions(
                self.state, [commit.commit_id for commit in commits], reached | held.keys()
            ),
            lenient_trees=frozenset(self.state.unreachable),
            holds_end=ends,
        )

    def _back(self) -> dict[str, datetime]:
        """Returns the unreachable snapshots of `back`, with the ends of their holds."""
        return {name: end for name, end in self.back.items() if name in self.state.unreachable}

    def _held(self) -> dict[str, str]:
        """Returns the unreachable snapshots that stay, each with the reason."""
        return {**self.state.held, **dict.fromkeys(self._back(), BACK)}

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """Yields the backups that stay: young ones, and those that continue the operations log.
        Also yields all transaction logs, while it is unknown which of them is needed."""
        del among  # they are few
        backups = [f"{BACKUPS_PREFIX}{name}" for name in sorted(self.state.backups)]
        logs = loose_logs(self.state, self.state.history.reached() | self._held().keys())
        count = len(backups) + len(logs)
        columns: list[Any] = [
            backups + logs,
            [_BACKUP] * len(backups) + [_LOOSE] * len(logs),
            [None] * count,
            [None] * count,
        ]
        yield pa.table(columns, schema=PROTECTED_SCHEMA)


def companions(
    state: State, snapshot_ids: Iterable[str], kept: Set[str]
) -> dict[str, tuple[str, ...]]:
    """Returns the addresses of the transaction logs that stay as long as each snapshot stays.

    Icechunk reads a snapshot's own log, and the logs that it inherited from ancestors that are no
    longer in its history. It needs them to show changes (`diff`), to update a session (`rebase`),
    and to amend a commit. Source: Icechunk design document 016; Icechunk 2.3, `ops/gc.rs`.

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
