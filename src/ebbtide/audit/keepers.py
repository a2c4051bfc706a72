"""What keeps a commit or an address, and until when: refs, kept commits, and protections."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from ebbtide.audit.answers import Keeper, PastHolder, ReachingRef
from ebbtide.audit.search import Holders
from ebbtide.formats.base import Protector
from ebbtide.model import Commit, Ref
from ebbtide.retention.decision import Roots, decide
from ebbtide.retention.outlook import Outlook, outlook

_KINDS: Final = ("branch", "tag", "collection")


class Surroundings:
    """The roots of one reading, the decision that a run would make from them, and both by
    commit."""

    def __init__(self, roots: Roots) -> None:
        """Raises as `decide`."""
        self.roots = roots
        self.decision = decide(roots)
        self.commits = {commit.commit_id: commit for commit in roots.commits}
        self._refs: defaultdict[str, list[Ref]] = defaultdict(list)
        self._children: defaultdict[str, list[str]] = defaultdict(list)
        for ref in roots.refs:
            self._refs[ref.commit_id].append(ref)
        for commit in roots.commits:
            for parent_id in commit.parent_ids:
                self._children[parent_id].append(commit.commit_id)

    def named(self, name: str) -> str | None:
        """Returns the commit of the ref with this name, or None. A branch comes before a tag, and a
        tag before a collection. A ref in the trash is used only if there is no other."""
        found = [ref for ref in self.roots.refs if ref.name == name]

        def rank(ref: Ref) -> tuple[bool, int]:
            is_in_trash = ref.expires_at is not None and ref.expires_at <= self.roots.now
            return is_in_trash, _KINDS.index(ref.kind)

        return min(found, key=rank).commit_id if found else None

    def facts(self, commit: Commit) -> dict[str, Any]:
        """Returns the fields that `Keeper` and `ExplainedCommit` share: id, date, lease, hold."""
        policy, lease = self.roots.policy, commit.leased_until
        return {
            "commit_id": commit.commit_id,
            "created_at": commit.created_at,
            "leased_until": lease if lease is not None and lease > self.roots.now else None,
            "hold": None if policy is None else policy.holds.get(commit.commit_id),
        }

    def refs_at(self, commit_id: str) -> tuple[str, ...]:
        """Returns the refs that point at a commit, in words."""
        return tuple(f"{ref.kind} {ref.name}" for ref in self._refs.get(commit_id, ()))

    def reaching(self, commit_id: str) -> list[ReachingRef]:
        """Returns the refs that have a commit in their history, nearest first."""
        found = [
            ReachingRef(
                kind=ref.kind,
                name=ref.name,
                distance=distance,
                expires_at=ref.expires_at,
                keeps_data=ref.keeps_data,
            )
            for descendant, distance in self._distances(commit_id).items()
            for ref in self._refs.get(descendant, ())
        ]
        return sorted(found, key=lambda ref: (ref.distance, _KINDS.index(ref.kind), ref.name))

    def why_recorded(self, commit_id: str) -> str:
        """Returns the reason why the record of a commit stays, in words."""
        active = self.decision.active
        if commit_id in active:
            return active[commit_id]
        reaching = self.reaching(commit_id)
        if reaching:
            return f"in the history of {reaching[0].kind} {reaching[0].name}"
        kept = next(each for each in self._distances(commit_id) if each in active)
        return f"in the history of commit {kept}, which is kept"

    def _distances(self, commit_id: str) -> dict[str, int]:
        """Returns the distance of a commit and of each of its descendants, nearest first."""
        found = {commit_id: 0}
        waiting = deque([commit_id])
        while waiting:
            place = waiting.popleft()
            for child in self._children.get(place, ()):
                if child not in found:
                    found[child] = found[place] + 1
                    waiting.append(child)
        return found


class AddressKeepers:
    """The protections and commits that keep one address, nearest first, and other commits that
    hold it."""

    def __init__(
        self, around: Surroundings, protectors: Sequence[Protector], held: Holders, address: str
    ) -> None:
        roots, decision = around.roots, around.decision
        self._around = around
        self._protectors = protectors
        # If an operator gave up a commit, its tree has no checksum and is not read.
        data, files = (trees & roots.tree_checksums.keys() for trees in (held.data, held.files))
        self._data = [commit for commit in roots.commits if commit.tree_id in data]
        self._records = [
            commit
            for commit in roots.commits
            if commit.tree_id in files or address in roots.companions.get(commit.commit_id, ())
        ]
        found = [(each, True) for each in self._data if each.commit_id in decision.active]
        found += [(each, False) for each in self._records if each.commit_id in decision.recorded]
        # Commits that a ref points at come first, and then newest first.
        self._keeping = sorted(
            found,
            key=lambda each: (
                not around.refs_at(each[0].commit_id),
                roots.now - each[0].created_at,
                each[0].commit_id,
            ),
        )
        """The commits that keep the address: by their data, or else by their records."""

    @property
    def count(self) -> int:
        """The number of protections and commits that keep the address."""
        return len(self._protectors) + len(self._keeping)

    def nearest(self, limit: int) -> tuple[Keeper, ...]:
        """Returns the nearest keepers, at most `limit`."""
        around = self._around
        found = [Keeper(by="protected", **asdict(each)) for each in self._protectors[:limit]]
        for commit, is_data in self._keeping[: limit - len(found)]:
            commit_id = commit.commit_id
            active = around.decision.active
            found.append(
                Keeper(
                    by="data" if is_data else "record",
                    reason=active[commit_id] if is_data else around.why_recorded(commit_id),
                    refs=around.refs_at(commit_id),
                    **around.facts(commit),
                )
            )
        return tuple(found)

    def past_holders(self) -> list[PastHolder]:
        """Returns the commits that were found to hold the address and do not keep it, newest
        first."""
        past = {each.commit_id: each.created_at for each in (*self._data, *self._records)}
        for commit, _ in self._keeping:
            past.pop(commit.commit_id, None)
        return [
            PastHolder(commit_id=commit_id, created_at=date, refs=self._around.refs_at(commit_id))
            for date, commit_id in sorted(zip(past.values(), past, strict=True), reverse=True)
        ]

    def outlook(self, old_at: datetime) -> Outlook:
        """Returns the instant from which on nothing keeps the address, if nothing changes. The
        file is too young for a run before `old_at`."""
        for each in self._protectors:
            if each.until is None:
                where = "" if each.where is None else f": {each.where}"
                return Outlook(None, f"{each.reason}{where}")
        roots = self._around.roots
        # Nearest first, so that the nearest commit that has no end is named.
        near = [commit.commit_id for commit, is_data in self._keeping if is_data]
        found = outlook(
            roots,
            data=dict.fromkeys([*near, *(commit.commit_id for commit in self._data)]),
            records=[commit.commit_id for commit in self._records],
        )
        if found.ends_at is None:
            return found
        untils = [each.until for each in self._protectors if each.until is not None]
        return Outlook(max(found.ends_at, *untils, roots.now, old_at))
