"""What an operation on versions does to a repository, exactly: a view before it, and one after it.

A rule computes the view after an operation from the one before it, or raises `Refused` with the
kinds of error that it may end with. Rules are written from the documents, and share no code with
the store. They hold for operations that nothing happened beside. Not for: what stays while other
operations are under way (`knowledge`), or which commits a policy keeps (`definition`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

_Item = TypeVar("_Item")

NEW: Final = "new"
"""The id of a commit that is yet to be made."""
MAIN: Final = "main"

Value = tuple[str, frozenset[tuple[str, str]]]
"""Of an object the SHA-256 and the metadata: what people see of it."""
Contents = Mapping[str, Value]


def value(data: bytes) -> Value:
    """Of an object without metadata."""
    return hashlib.sha256(data).hexdigest(), frozenset()


@dataclass(frozen=True, slots=True)
class Made:
    """A commit; of one that was forgotten, `contents` is None."""

    parent_ids: tuple[str, ...]
    contents: Contents | None
    created: int = field(default=0, compare=False)
    is_closed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Head:
    """A branch. `staged` is what lies over its commit; None hides a path."""

    commit_id: str
    staged: Mapping[str, Value | None] = field(default_factory=dict)
    rows: int = field(default=0, compare=False)
    """How many changes there are, also those that change nothing."""


Trash = tuple[tuple[str, Head], ...]
"""Names, and what was there, in the order of names and commits."""


class Refused(Exception):
    """The operation is refused with an error of one of these kinds, and leaves that view."""

    def __init__(self, view: View, *kinds: str) -> None:
        super().__init__(*kinds)
        self.view = view
        self.kinds = kinds


@dataclass(frozen=True, slots=True)
class View:
    """A repository between two operations."""

    branches: Mapping[str, Head]
    tags: Mapping[str, str]
    trash: Trash
    trashed_tags: Trash
    holds: frozenset[str]
    commits: Mapping[str, Made]

    # What it shows

    def committed(self, ref: str) -> Contents:
        """What the commit of a ref has."""
        contents = self.commits[self.commit_of(ref)].contents
        if contents is None:
            raise Refused(self, "commit_expired")
        return contents

    def commit_of(self, ref: str) -> str:
        name = ref.rstrip("@")
        if name in self.branches:
            return self.branches[name].commit_id
        if name in self.tags or name in self.commits:
            return self.tags.get(name, name)
        raise Refused(self, "ref_not_found", "branch_not_found")

    def open_commit(self, ref: str) -> str:
        """The commit that a ref names, from which new ones can be made."""
        commit_id = self.commit_of(ref)
        made = self.commits[commit_id]
        if made.is_closed or made.contents is None:
            raise Refused(self, "commit_expired")
        return commit_id

    def head(self, branch: str) -> Head:
        if branch not in self.branches:
            raise Refused(self, "branch_not_found", "ref_not_found")
        return self.branches[branch]

    def shown(self, ref: str) -> dict[str, Value]:
        """What a ref shows: of a branch what is staged over what is committed."""
        over: dict[str, Value | None] = {**self.committed(ref)}
        if ref in self.branches:
            over |= self.branches[ref].staged
        return {path: each for path, each in over.items() if each is not None}

    def can_be_read(self, ref: str) -> bool:
        """Whether all that a ref shows is there."""
        try:
            self.open_commit(ref)
        except Refused:
            return False
        return True

    def compared(self, left: str, right: str) -> list[str]:
        """The paths at which two commits differ."""
        old, new = self.committed(left), self.committed(right)
        return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))

    def changed(self, branch: str) -> list[str]:
        """The paths whose staged content differs from what is committed."""
        old = self.committed(branch)
        return sorted(
            path for path, each in self.head(branch).staged.items() if old.get(path) != each
        )

    def ancestors(self, commit_id: str) -> list[str]:
        """It and all that it was made from, the newest first."""
        found: set[str] = set()
        waiting = [commit_id]
        while waiting:
            each = waiting.pop()
            if each in self.commits and each not in found:
                found.add(each)
                waiting += self.commits[each].parent_ids
        return sorted(found, key=lambda each: -self.commits[each].created)

    # What changes it

    def with_head(self, branch: str, head: Head) -> View:
        return replace(self, branches={**self.branches, branch: head})

    def put(self, branch: str, path: str, given: Value) -> View:
        head = self.head(branch)
        staged = {**head.staged, path: given}
        return self.with_head(branch, replace(head, staged=staged, rows=head.rows + 1))

    def delete(self, branch: str, path: str) -> View:
        """A path is staged as deleted, or what was staged at a new path is dropped."""
        head = self.head(branch)
        if path not in self.shown(branch):
            raise Refused(self, "object_not_found")
        staged = {each: found for each, found in head.staged.items() if each != path}
        if path in self.committed(branch):
            staged[path] = None
        rows = len(staged)
        return self.with_head(branch, replace(head, staged=staged, rows=rows))

    def move(self, branch: str, target: str, source: str) -> View:
        if target == source:
            raise Refused(self, "invalid_argument")
        found = self.object_at(branch, source)
        return self.put(branch, target, found).delete(branch, source)

    def copy(self, branch: str, target: str, ref: str, source: str) -> View:
        """An object of a ref is staged at a path."""
        self.head(branch)
        found = self.object_at(ref, source)
        if ref in self.branches and source in self.branches[ref].staged:
            return self.put(branch, target, found)
        self.open_commit(ref)
        return self.put(branch, target, found)

    def object_at(self, ref: str, path: str) -> Value:
        shown = self.shown(ref)
        if path not in shown:
            raise Refused(self, "object_not_found")
        return shown[path]

    def describe(self, branch: str, path: str, metadata: Mapping[str, str]) -> View:
        """The same object is staged with other metadata."""
        checksum, _ = self.object_at(branch, path)
        return self.put(branch, path, (checksum, frozenset(metadata.items())))

    def reset(self, branch: str, prefix: str = "") -> View:
        """What is staged below a prefix is dropped."""
        head = self.head(branch)
        staged = {path: each for path, each in head.staged.items() if not path.startswith(prefix)}
        return self.with_head(branch, replace(head, staged=staged, rows=len(staged)))

    def _made(self, branch: str, made: Made) -> View:
        found = self.with_head(branch, Head(NEW))
        return replace(found, commits={**self.commits, NEW: made})

    def commit(self, branch: str) -> View:
        """What is staged becomes a commit."""
        head = self.head(branch)
        if not head.rows:
            raise Refused(self, "nothing_to_commit")
        self.open_commit(branch)
        return self._made(branch, Made((head.commit_id,), self.shown(branch)))

    def merge(self, source: str, branch: str, *, source_wins: bool) -> View:
        """Three ways, path by path."""
        head = self._clean(branch)
        theirs = self.open_commit(source)
        line = self.ancestors(theirs)
        base = next((each for each in self.ancestors(head.commit_id) if each in line), None)
        if base in (None, theirs):
            raise Refused(self, "nothing_to_merge")
        if self.commits[base].contents is None:
            raise Refused(self, "commit_expired")
        self.open_commit(branch)
        merged = self._merged(base, theirs, head.commit_id, source_wins=source_wins)
        return self._made(branch, Made((head.commit_id, theirs), merged))

    def revert(self, branch: str, commit_id: str) -> View:
        """A commit's changes are taken back."""
        head = self._clean(branch)
        self.open_commit(commit_id)
        parent_ids = self.commits[commit_id].parent_ids
        if not parent_ids:
            raise Refused(self, "invalid_argument", "no_parent", "parent_required")
        self.open_commit(parent_ids[0])
        found = self._merged(commit_id, parent_ids[0], head.commit_id, source_wins=False)
        if found == self.committed(branch):
            raise Refused(self, "nothing_to_commit", "nothing_to_revert", "nothing_to_merge")
        return self._made(branch, Made((head.commit_id,), found))

    def _clean(self, branch: str) -> Head:
        head = self.head(branch)
        if head.rows:
            raise Refused(self, "branch_dirty")
        return head

    def _merged(self, base: str, source: str, target: str, *, source_wins: bool) -> Contents:
        before, theirs, ours = map(self.committed, (base, source, target))
        result = {**ours}
        for path in before.keys() | theirs.keys():
            old, new, own = before.get(path), theirs.get(path), ours.get(path)
            if new in (old, own):
                continue
            if own != old and not source_wins:
                raise Refused(self, "merge_conflict")
            if new is None:
                del result[path]
            else:
                result[path] = new
        return result

    def hard_reset(self, branch: str, ref: str, *, force: bool) -> View:
        """A branch moves, and what is staged is dropped."""
        if self.head(branch).rows and not force:
            raise Refused(self, "branch_dirty", "ref_not_found", "commit_expired")
        return self.with_head(branch, Head(self.open_commit(ref)))

    def branch(self, name: str, source: str) -> View:
        if name in self.branches:
            raise Refused(self, "branch_exists", "commit_expired")
        return self.with_head(name, Head(self.open_commit(source)))

    def delete_branch(self, name: str) -> View:
        """A branch goes to the trash."""
        head = self.head(name)
        if name == MAIN:
            raise Refused(self, "branch_protected")
        trash = in_order([*self.trash, (name, head)])
        return replace(self, branches=_without(self.branches, name), trash=trash)

    def restore_branch(self, name: str) -> View:
        """The branch of a name comes back from the trash, with what was staged on it."""
        found = [each for each in self.trash if each[0] == name]
        kinds = ["branch_not_found", "ref_not_found"] if not found else []
        kinds += ["ref_ambiguous"] if len(found) > 1 else []
        kinds += ["branch_exists", "ref_exists"] if name in self.branches else []
        if kinds:
            raise Refused(self, *kinds)
        trash = tuple(each for each in self.trash if each is not found[0])
        return replace(self, trash=trash).with_head(name, found[0][1])

    def tag(self, name: str, ref: str) -> View:
        return replace(self, tags={**self.tags, name: self.open_commit(ref)})

    def delete_tag(self, name: str) -> View:
        """A tag goes to the trash."""
        if name not in self.tags:
            raise Refused(self, "tag_not_found", "ref_not_found")
        trash = in_order([*self.trashed_tags, (name, Head(self.tags[name]))])
        return replace(self, tags=_without(self.tags, name), trashed_tags=trash)

    def hold(self, commit_id: str) -> View:
        return replace(self, holds=self.holds | {self.open_commit(commit_id)})

    def release(self, commit_id: str) -> View:
        return replace(self, holds=self.holds - {commit_id})


def in_order(trash: Iterable[tuple[str, Head]]) -> Trash:
    return tuple(sorted(trash, key=lambda each: (each[0], each[1].commit_id)))


def _without(found: Mapping[str, _Item], name: str) -> dict[str, _Item]:
    return {key: each for key, each in found.items() if key != name}


def differences(expected: View, found: View) -> list[str]:
    """What is not as it should be. A commit that is new has the id `NEW` in `expected`."""
    new = [each for each in found.commits if each not in expected.commits]
    if NEW in expected.commits and len(new) == 1:
        expected = _named(expected, new[0])
    return [
        f"{name}: expected {ours}, found {theirs}"
        for name, ours, theirs in _parts(expected, found)
        if ours != theirs
    ]


def _named(view: View, commit_id: str) -> View:
    branches = {
        name: replace(head, commit_id=commit_id) if head.commit_id == NEW else head
        for name, head in view.branches.items()
    }
    commits = {commit_id if each == NEW else each: made for each, made in view.commits.items()}
    return replace(view, branches=branches, commits=commits)


def _parts(ours: View, theirs: View) -> Iterable[tuple[str, object, object]]:
    yield "tags", ours.tags, theirs.tags
    yield "branches in the trash", ours.trash, theirs.trash
    yield "tags in the trash", ours.trashed_tags, theirs.trashed_tags
    yield "holds", ours.holds, theirs.holds
    for kind, left, right in (
        ("branch", ours.branches, theirs.branches),
        ("commit", ours.commits, theirs.commits),
    ):
        for name in sorted(left.keys() | right.keys()):
            yield f"{kind} {name}", left.get(name), right.get(name)
