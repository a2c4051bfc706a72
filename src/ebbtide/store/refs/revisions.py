"""Expressions that name a commit, such as `main~2`, `v1.0^2` or `4f1d0a`.

    REVISION = NAME [@] { ~[N] | ^[N] }

NAME is a branch, a tag, the id of a commit, or the first digits of an id if no other id has them.
Where objects are read, a plain branch name includes the staged changes. `main@` is the branch's
commit alone. `~N` follows first parents N times, and `^N` takes the N-th parent.

Not for: whether the commit's data is still there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.ids import ID_PATTERN
from ebbtide.store.database.commit_rows import (
    CommitRecord,
    commit_ids_with_prefix,
    find_commits,
    require_commit,
)
from ebbtide.store.database.engine import Transaction
from ebbtide.store.refs.ref_rows import BRANCHES, TAGS, BranchRow
from ebbtide.text import count_text, shown

PREFIX_LENGTH_MIN: Final = 6
STEPS_MAX: Final = 100_000

_REVISION: Final = re.compile(r"([A-Za-z0-9_./-]{1,255})(@?)((?:[~^][0-9]{0,6})*)")
_STEP: Final = re.compile(r"([~^])([0-9]*)")
_FULL_ID: Final = re.compile(ID_PATTERN)
_PREFIX: Final = re.compile(rf"[0-9a-f]{{{PREFIX_LENGTH_MIN},31}}")


@dataclass(frozen=True, slots=True)
class Revision:
    """The commit that an expression names. `branch` is set for a branch's plain name."""

    commit: CommitRecord
    branch: BranchRow | None = None


def resolve(tx: Transaction, repository_id: str, expression: str) -> Revision:
    """Returns the commit, or the stub, that `expression` names.

    Raises InvalidInput `invalid_argument` if it is no such expression; NotFound `ref_not_found`,
    `branch_not_found` or `commit_not_found`; Conflict `ref_ambiguous` if several ids begin with the
    digits.
    """
    match = _REVISION.fullmatch(expression)
    if match is None:
        raise InvalidInput(
            "invalid_argument",
            f"{shown(expression)} names no commit: write a branch, tag or commit id, with ~N or "
            "^N behind it for its ancestors, or @ for a branch without its staged changes",
        )
    name, at, steps = match.groups()
    found = BRANCHES.find_with_commit(tx, repository_id, name)
    branch, commit = found or (None, _commit_of(tx, repository_id, name))
    if branch is not None and not at and not steps:
        return Revision(commit, branch)
    if at and branch is None:
        raise NotFound("branch_not_found", f"there is no branch {shown(name)}: @ is for branches")
    return Revision(_walk(tx, repository_id, commit, steps, expression))


def _commit_of(tx: Transaction, repository_id: str, name: str) -> CommitRecord:
    tagged = TAGS.find_with_commit(tx, repository_id, name)
    if tagged is not None:
        return tagged[1]
    if _FULL_ID.fullmatch(name):
        found = find_commits(tx, repository_id, [name]).get(name)
        # The content of a collection is no revision: it has no history.
        if found is not None and found.collection_id is None:
            return found
    elif _PREFIX.fullmatch(name):
        fitting = commit_ids_with_prefix(tx, repository_id, name)
        if len(fitting) > 1:
            raise Conflict(
                "ref_ambiguous", f"several commits begin with {name}: write more of the id"
            )
        if fitting:
            return require_commit(tx, repository_id, fitting[0])
    raise NotFound("ref_not_found", f"there is no branch, tag or commit {shown(name)}")


def _walk(
    tx: Transaction, repository_id: str, commit: CommitRecord, steps: str, expression: str
) -> CommitRecord:
    moves = []
    for sign, digits in _STEP.findall(steps):
        number = int(digits) if digits else 1
        # `~3` takes the first parent three times, `^3` the third parent once. `^0` takes none.
        moves += [0] * number if sign == "~" else [number - 1] if number else []
        if len(moves) > STEPS_MAX:
            raise InvalidInput("invalid_argument", f"a revision has at most {STEPS_MAX} steps back")
    for parent_index in moves:
        if parent_index >= len(commit.parent_ids):
            raise NotFound(
                "commit_not_found",
                f"{shown(expression)} goes too far: commit {commit.commit_id} has "
                f"{count_text(len(commit.parent_ids), 'parent')}",
            )
        commit = require_commit(tx, repository_id, commit.parent_ids[parent_index])
    return commit
