"""Holds that users set on commits of a repository outside the store.

They lie in one file beside the repository's policy, and do not depend on it: a hold also keeps its
commit where the repository's own rules apply, and a new policy changes no hold. Not for: holds of
an undo, which end by themselves (`notes`).
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol

from pydantic import AwareDatetime, BaseModel, TypeAdapter

from ebbtide.arrow import rows_in, texts
from ebbtide.errors import Gone, NotFound, Refused
from ebbtide.formats.base import RepositoryFormat, absent_among
from ebbtide.formats.capabilities import WithPaths, WithPolicy
from ebbtide.formats.notes import as_written, rewrite
from ebbtide.model import Hold
from ebbtide.retention.decision import decide
from ebbtide.storage import Storage
from ebbtide.text import shown

ADDRESS: Final = "_ebbtide/holds.json"


class _Noted(BaseModel):
    reason: str
    created_at: AwareDatetime


_HOLDS: Final = TypeAdapter(dict[str, _Noted])
"""The content of the file: holds by the ids of their commits."""


class HoldableRepository(RepositoryFormat, WithPolicy, Protocol):
    """A repository whose runs decide by a policy and by these holds."""


class NotedHolds:
    """The holds on the commits of one repository (`formats.capabilities.WithHolds`)."""

    def __init__(self, repository: HoldableRepository) -> None:
        self._repository = repository
        self._storage = repository.storage

    def holds(self) -> list[Hold]:
        """Returns all holds, the oldest first. Raises Refused `plan_corrupt`."""
        return list_holds(self._storage)

    def hold(self, ref: str, reason: str) -> Hold:
        """Holds the commit that `ref` names, until `release`. Replaces an earlier hold on it.

        Raises NotFound `ref_not_found`, Gone `commit_expired` if files of it are gone, Refused if
        its tree cannot be read, and as `notes.rewrite` and `holds` do.
        """
        hold = Hold(self._commit(ref), reason, self._repository.now())
        self._check_whole(hold.commit_id)

        def change(data: bytes | None) -> bytes:
            kept = (each for each in self._read(data) if each.commit_id != hold.commit_id)
            return _text_of([*kept, hold])

        rewrite(self._storage, ADDRESS, change)
        return hold

    def release(self, ref: str) -> str:
        """Releases the hold on the commit that `ref` names. Returns the commit's id.

        The id of a held commit is enough, also if the commit does not exist any more. Raises
        NotFound `hold_not_found` or `ref_not_found`, and as `notes.rewrite` and `holds` do.
        """
        held = {each.commit_id for each in self.holds()}
        commit_id = ref if ref in held else self._commit(ref)

        def change(data: bytes | None) -> bytes:
            found = self._read(data)
            kept = [each for each in found if each.commit_id != commit_id]
            if len(kept) == len(found):
                raise NotFound("hold_not_found", f"there is no hold on commit {commit_id}")
            return _text_of(kept)

        rewrite(self._storage, ADDRESS, change)
        return commit_id

    def _check_whole(self, commit_id: str) -> None:
        """Raises Gone `commit_expired` if files of an expired commit are gone: a hold promises that
        the commit can be read. Files of kept commits are not looked up."""
        repository = self._repository
        with suppress(Refused):  # without rules, nothing expires
            policy = repository.policy()
            roots = repository.roots(policy)
            if commit_id in decide(roots).expired:
                [tree_id] = [c.tree_id for c in roots.commits if c.commit_id == commit_id]
                gone = next(self._absent(tree_id, roots.tree_checksums[tree_id]), None)
                if gone is not None:
                    raise Gone(
                        "commit_expired",
                        f"commit {commit_id} has expired, and files of it are gone, such as "
                        f"{gone}: undo the run that has them in quarantine, then hold the commit",
                    )

    def _absent(self, tree_id: str, checksum: str) -> Iterator[str]:
        layout = self._repository.layout
        nodes = layout.read_tree(self._storage, tree_id, checksum)
        for batch in nodes.to_batches():
            for node_id, node_checksum, count in rows_in(batch):
                found = layout.read_node(self._storage, node_id, node_checksum, entry_count=count)
                yield from absent_among(self._storage, texts(found))

    def _read(self, data: bytes | None) -> list[Hold]:
        return [] if data is None else _holds_in(self._storage, data)

    def _commit(self, ref: str) -> str:
        """Returns the id of the commit that a ref, an id or an expression names."""
        if isinstance(self._repository, WithPaths):
            return self._repository.resolve(ref)
        roots = self._repository.roots(None)
        if any(each.commit_id == ref for each in roots.commits):
            return ref
        for each in roots.refs:
            if each.name == ref:
                return each.commit_id
        raise NotFound(
            "ref_not_found", f"there is no branch or commit {shown(ref)} at {self._storage.url}"
        )


def list_holds(storage: Storage) -> list[Hold]:
    """Returns the holds beside a repository, the oldest first.

    Raises Refused `plan_corrupt` if the file is not as it was written: then the holds are unknown.
    """
    with suppress(NotFound):
        return _holds_in(storage, storage.get(ADDRESS))
    return []


def reasons_of(storage: Storage) -> Mapping[str, str]:
    """Returns the reason of each held commit. Raises as `list_holds` does."""
    return {each.commit_id: each.reason for each in list_holds(storage)}


def with_restored(
    users: Mapping[str, str], restored: Mapping[str, datetime], known: Container[str]
) -> tuple[dict[str, str], dict[str, datetime]]:
    """Returns the reasons of all held commits, and the ends of holds that end by themselves.

    `users` are the reasons of holds of users, and `restored` the ends of holds of an undo, which
    count for `known` commits.
    """
    ends = {each: end for each, end in restored.items() if each in known and each not in users}
    return {**users, **dict.fromkeys(ends, "restored by an undo")}, ends


def _holds_in(storage: Storage, data: bytes) -> list[Hold]:
    with as_written(storage, ADDRESS, "delete it and hold the commits again"):
        found = _HOLDS.validate_json(data, strict=True)
    holds = (Hold(commit_id, each.reason, each.created_at) for commit_id, each in found.items())
    return sorted(holds, key=lambda hold: (hold.created_at, hold.commit_id))


def _text_of(holds: list[Hold]) -> bytes:
    content = {
        each.commit_id: {"reason": each.reason, "created_at": each.created_at.isoformat()}
        for each in holds
    }
    return json.dumps(content, indent=1).encode()
