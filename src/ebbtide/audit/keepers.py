"""The protections and commits that keep one address, nearest first, and when they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from ebbtide.audit.answers import Keeper, PastHolder
from ebbtide.audit.history import Surroundings
from ebbtide.audit.holders import Holders
from ebbtide.formats.base import Protector
from ebbtide.model import Commit
from ebbtide.retention.outlook import outlook


@dataclass(frozen=True)
class AddressKeepers:
    """The protections of an address, and the trees that hold it."""

    around: Surroundings
    protectors: Sequence[Protector]
    held: Holders
    address: str

    @cached_property
    def _data(self) -> list[Commit]:
        """The commits that refer to the address."""
        return self._with_trees(self.held.data)

    @cached_property
    def _records(self) -> list[Commit]:
        """The commits that have the address as a file of their records: as the tree, as a node or
        as a companion."""
        companions = self.around.roots.companions
        commits = self.around.roots.commits
        beside = [c for c in commits if self.address in companions.get(c.commit_id, ())]
        known = {commit.commit_id for commit in beside}
        return beside + [c for c in self._with_trees(self.held.files) if c.commit_id not in known]

    def _with_trees(self, trees: frozenset[str]) -> list[Commit]:
        """Returns the commits with one of these trees. Leaves out commits that an operator gave up,
        because their trees are not read."""
        roots = self.around.roots
        there = trees & roots.tree_checksums.keys()
        return [commit for commit in roots.commits if commit.tree_id in there]

    @cached_property
    def _keeping(self) -> list[tuple[Commit, bool]]:
        """The commits that keep the address, nearest first. The flag is true if a commit keeps it
        by its data, and false if by its record."""
        decision, refs_at = self.around.decision, self.around.refs_at
        found = [(c, True) for c in self._data if c.commit_id in decision.active]
        found += [(c, False) for c in self._records if c.commit_id in decision.recorded]
        found.sort(key=lambda each: each[0].commit_id)
        found.sort(key=lambda each: each[0].created_at, reverse=True)
        found.sort(key=lambda each: not refs_at(each[0].commit_id))
        return found

    @property
    def keeper_count(self) -> int:
        """The number of protections and commits that keep the address."""
        return len(self.protectors) + len(self._keeping)

    def keepers(self, limit: int) -> tuple[Keeper, ...]:
        """Returns the nearest keepers, at most `limit`."""
        protecting = [
            Keeper(
                by="protected",
                reason=each.reason,
                where=each.where,
                since=each.since,
                until=each.until,
            )
            for each in self.protectors[:limit]
        ]
        commits = self._keeping[: limit - len(protecting)]
        return (*protecting, *(self._keeper(commit, data=data) for commit, data in commits))

    def _keeper(self, commit: Commit, *, data: bool) -> Keeper:
        around, lease = self.around, commit.leased_until
        policy = around.roots.policy
        commit_id = commit.commit_id
        return Keeper(
            by="data" if data else "record",
            reason=around.decision.active[commit_id] if data else around.why_recorded(commit_id),
            commit_id=commit_id,
            created_at=commit.created_at,
            refs=around.refs_at(commit_id),
            leased_until=lease if lease is not None and lease > around.roots.now else None,
            hold=None if policy is None else policy.holds.get(commit_id),
        )

    def past_holders(self) -> list[PastHolder]:
        """Returns the commits that were found to hold the address and do not keep it, newest
        first."""
        keeping = {commit.commit_id for commit, _ in self._keeping}
        found = {c.commit_id: c for c in (*self._data, *self._records)}
        past = [commit for commit_id, commit in found.items() if commit_id not in keeping]
        past.sort(key=lambda commit: (commit.created_at, commit.commit_id), reverse=True)
        return [
            PastHolder(
                commit_id=commit.commit_id,
                created_at=commit.created_at,
                refs=self.around.refs_at(commit.commit_id),
            )
            for commit in past
        ]

    def ends_at(self) -> tuple[datetime | None, str | None]:
        """Returns the instant from which on nothing keeps the address, if nothing changes. Returns
        None and a reason if there is no such instant."""
        for each in self.protectors:
            if each.until is None:
                return None, each.reason if each.where is None else f"{each.reason}: {each.where}"
        roots = self.around.roots
        # Nearest first, so that `outlook` names the nearest commit that has no end.
        near = dict.fromkeys(c.commit_id for c, data in self._keeping if data)
        found = outlook(
            roots,
            data=[*near, *(c.commit_id for c in self._data if c.commit_id not in near)],
            records=[commit.commit_id for commit in self._records],
        )
        if found.ends_at is None:
            return None, found.reason
        untils = [each.until for each in self.protectors if each.until is not None]
        return max(found.ends_at, *untils, roots.now), None
