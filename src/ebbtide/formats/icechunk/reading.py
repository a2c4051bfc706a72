"""The metadata of an Icechunk repository for the collector: the relations of one state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from ebbtide.formats.base import PROTECTED_SCHEMA, Protector
from ebbtide.formats.icechunk.logs import companions, loose_logs
from ebbtide.formats.icechunk.reopening import BACK
from ebbtide.formats.icechunk.repo import BACKUPS_PREFIX
from ebbtide.formats.icechunk.state import State
from ebbtide.formats.plain import PlainReading
from ebbtide.model import Commit
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots

_BACKUP: Final = "a backup within the grace, or of the operations log"
_LOOSE: Final = (
    "a log that a snapshot inherited is missing: its list may be damaged, and mean this log"
)


@dataclass(frozen=True, slots=True)
class IcechunkReading(PlainReading):
    """The relations of one state of the repository.

    `closed` are the snapshots that a sweep has closed. `back` maps the snapshots that are held,
    for instance because an undo restored them, to the ends of their holds.
    """

    state: State
    now: datetime
    grace: timedelta
    closed: frozenset[str]
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
                tombstoned=commit_id in self.closed and commit_id not in held,
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

    def protectors(self, address: str) -> list[Protector]:
        """Returns the protection of a backup or log, at most one."""
        rows = [row for table in self.protected() for row in table.to_pylist()]
        return [Protector(reason=row["reason"]) for row in rows if row["address"] == address]
