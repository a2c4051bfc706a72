"""Reads a repository's view from the database, and compares it with what an operation should do.

Not for: what operations should do (`exact`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ebbtide.errors import EbbtideError
from tests.simulation.exact import Head, Made, Refused, Trash, Value, View, differences, in_order
from tests.simulation.knowledge import Checker, micros
from tests.simulation.scheduler import Violation
from tests.simulation.world import Process

_RUNS = ("run_in_progress", "plan_used", "plan_missing")
"""Errors of runs that come from what others left."""

Row = tuple[Any, ...]


@dataclass(slots=True)
class Look:
    """One reading of a repository."""

    checker: Checker
    repository_id: str
    prefix: str
    commits: dict[str, Made] = field(default_factory=dict)

    def view(self) -> View:
        """The repository, as it is now."""
        self.commits = dict(self._commits())
        layers = self._layers()
        branches, trash = dict[str, Head](), list[tuple[str, Head]]()
        for name, commit_id, staging, sealed, expires_at in self._rows(
            "SELECT name, commit_id, staging_token, sealed_tokens, expires_at FROM branches"
        ):
            tokens = [staging, *sealed.split()]
            head = self._head(commit_id, [layers.get(token, {}) for token in tokens])
            self._sort(name, head, expires_at, branches, trash)
        tags, trashed_tags = dict[str, Head](), list[tuple[str, Head]]()
        for name, commit_id, expires_at in self._rows(
            "SELECT name, commit_id, expires_at FROM tags"
        ):
            self._sort(name, Head(commit_id), expires_at, tags, trashed_tags)
        return View(
            branches=branches,
            tags={name: head.commit_id for name, head in tags.items()},
            trash=_trash(trash),
            trashed_tags=_trash(trashed_tags),
            holds=frozenset(row[0] for row in self._rows("SELECT commit_id FROM holds")),
            commits=self.commits,
        )

    def _rows(self, statement: str) -> list[Row]:
        plain = self.checker.world.database.plain
        where = "AND" if " WHERE " in statement else "WHERE"
        return plain.execute(
            f"{statement} {where} repository_id = ?", (self.repository_id,)
        ).fetchall()

    def _sort(
        self,
        name: str,
        head: Head,
        expires_at: int | None,
        live: dict[str, Head],
        trash: list[tuple[str, Head]],
    ) -> None:
        now = self.checker.world.clock.now
        if expires_at is None or expires_at > micros(now):
            live[name] = head
        elif expires_at > micros(now - self.checker.world.trash):
            trash.append((name, head))

    def _head(self, commit_id: str, layers: list[dict[str, Value | None]]) -> Head:
        """The newest layer comes first. What hides nothing is left out."""
        staged: dict[str, Value | None] = {}
        for layer in reversed(layers):
            staged |= layer
        below = self.commits[commit_id].contents or {}
        changes = {p: each for p, each in staged.items() if each is not None or p in below}
        return Head(commit_id, changes, sum(map(len, layers)))

    def _commits(self) -> Iterable[tuple[str, Made]]:
        for commit_id, parents, created, tree_id, checksum, closed, forgotten in self._rows(
            "SELECT commit_id, parent_ids, created_at, tree_id, tree_checksum, tombstoned_by,"
            " forgotten_by FROM commits WHERE collection_id IS NULL"
        ):
            contents = None
            if forgotten is None:
                contents = self.checker.content(self.prefix, tree_id, checksum).values
            yield commit_id, Made(tuple(parents.split()), contents, created, closed is not None)

    def _layers(self) -> dict[str, dict[str, Value | None]]:
        found: dict[str, dict[str, Value | None]] = {}
        for token, path, address, checksum, metadata in self._rows(
            "SELECT token, path, address, checksum, metadata FROM staged"
        ):
            given = (checksum, frozenset(json.loads(metadata).items()))
            found.setdefault(token, {})[path] = None if address is None else given
        return found


def _trash(found: list[tuple[str, Head]]) -> Trash:
    return in_order(found)


def look(checker: Checker, repository_id: str) -> View:
    return Look(checker, repository_id, checker.prefix_of(repository_id)).view()


def compare(expected: View, found: View) -> None:
    """Raises Violation."""
    wrong = differences(expected, found)
    if wrong:
        raise Violation("answer", "; ".join(wrong))


def require_refused(error: EbbtideError, refused: Refused | None) -> None:
    """Raises Violation where an operation should have been done, or refused for another reason."""
    if error.kind in _RUNS:
        return
    if refused is None or error.kind not in refused.kinds:
        kinds = "nothing" if refused is None else " or ".join(refused.kinds)
        raise Violation("answer", f"{error.kind}: {error.message}; expected {kinds}")


def require_readable(checker: Checker, view: View, ref: str) -> None:
    """A new process reads what a ref shows, byte for byte, and its log. Raises Violation."""
    lake = Process(checker.world, checker.world.database).lake()
    expected = view.shown(ref)
    found: dict[str, Value] = {}
    for entry in lake.objects.walk(ref):
        data = lake.objects.get(ref, entry.path)
        checksum = hashlib.sha256(data).hexdigest() if entry.checksum else ""
        found[entry.path] = checksum, frozenset(entry.metadata.items())
    if found != expected:
        raise Violation("answer", f"{ref} reads as {found}, and should as {expected}")
    log = [each.commit_id for each in lake.commits.log(ref)]
    if log != view.ancestors(view.commit_of(ref)):
        raise Violation("answer", f"the history of {ref} is {log}")
    if ref in view.branches:
        changed = [each.path for each in lake.commits.diff_staged(ref)]
        if changed != view.changed(ref):
            raise Violation("answer", f"{ref} shows the changes {changed}")


def require_all_readable(checker: Checker, repository_id: str) -> None:
    """All refs are listed, and can be read. Raises Violation."""
    view = look(checker, repository_id)
    lake = Process(checker.world, checker.world.database).lake()
    listed = {each.name: each.commit_id for each in lake.branches.list()}
    if listed != {name: head.commit_id for name, head in view.branches.items()}:
        raise Violation("answer", f"the branches are {listed}")
    tags = {each.name: each.commit_id for each in lake.tags.list()}
    if tags != view.tags:
        raise Violation("answer", f"the tags are {tags}")
    for ref in (*view.branches, *view.tags):
        require_readable(checker, view, ref)
