"""Finds the refs that point at a commit, and the refs that have it in their history."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ebbtide.audit.answers import ReachingRef
from ebbtide.model import Commit, Ref
from ebbtide.retention.decision import Decision, Roots

_KINDS: Final = ("branch", "tag", "collection")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The roots of one reading, with indexes by commit. Made by `of`."""

    roots: Roots
    decision: Decision
    commits: dict[str, Commit] = field(default_factory=dict)
    _refs: dict[str, list[Ref]] = field(default_factory=dict)
    _children: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, roots: Roots, decision: Decision) -> Surroundings:
        """Builds the indexes for roots and the decision about them."""
        made = cls(roots, decision, {commit.commit_id: commit for commit in roots.commits})
        for ref in roots.refs:
            made._refs.setdefault(ref.commit_id, []).append(ref)
        for commit in roots.commits:
            for parent_id in commit.parent_ids:
                made._children.setdefault(parent_id, []).append(commit.commit_id)
        return made

    def named(self, name: str) -> str | None:
        """Returns the commit of the ref with this name, or None. A branch comes before a tag, and a
        tag before a collection. A ref in the trash is used only if there is no other."""
        found = [ref for ref in self.roots.refs if ref.name == name]
        now = self.roots.now
        found.sort(
            key=lambda ref: (
                ref.expires_at is not None and ref.expires_at <= now,
                _KINDS.index(ref.kind),
            )
        )
        return found[0].commit_id if found else None

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
        reason = self.decision.active.get(commit_id)
        if reason is not None:
            return reason
        reaching = self.reaching(commit_id)
        if reaching:
            return f"in the history of {reaching[0].kind} {reaching[0].name}"
        kept = (i for i in self._distances(commit_id) if i in self.decision.active)
        return f"in the history of commit {next(kept)}, which is kept"

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
