"""Protected branches: rules by which a branch takes no direct change.

A rule is a glob for names of branches, as in a retention policy. A protected branch refuses writes
and commits, resets and hard resets. It takes merges, reverts and cherry-picks, and can be deleted.
Source: lakeFS (`Set`, `Commit`, `Reset` and `ResetHard` in `pkg/graveler/graveler.go`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.retention.policy import PATTERN_CHARACTERS_MAX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import LockMode, Transaction
from ebbtide.store.names import check_text
from ebbtide.store.refs.ref_rows import BranchRow, lock_branches, require_branch
from ebbtide.store.repositories.repository_rows import read_protected, write_protected
from ebbtide.text import shown

RULES_MAX: Final = 1000

Act = Literal["write to", "commit to", "reset"]


@dataclass(frozen=True, slots=True)
class ProtectionRules:
    """The rules of a repository, in the order in which they were given."""

    patterns: tuple[str, ...]

    @property
    def etag(self) -> str:
        """The version of the rules, for a conditional change. It is "" if there are none."""
        if not self.patterns:
            return ""
        return hashlib.sha256(json.dumps(self.patterns).encode()).hexdigest()

    def protecting(self, branch_name: str) -> str | None:
        """Returns the first pattern that matches the branch, or None."""
        return next((each for each in self.patterns if self.matches(each, branch_name)), None)

    @staticmethod
    def matches(pattern: str, branch_name: str) -> bool:
        """Whether a pattern matches the name of a branch. `*` also matches slashes."""
        return fnmatchcase(branch_name, pattern)


class Protection:
    """The protected branches of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._repository_id = context.repository_id

    def get(self) -> ProtectionRules:
        """Returns the rules."""
        with self._context.metadata.snapshot() as tx:
            return _rules(tx, self._repository_id)

    def set(self, patterns: Iterable[str], *, only_if: str | None = None) -> ProtectionRules:
        """Replaces the rules; repeated patterns count once. With `only_if`, the present rules must
        have this `etag`.

        Raises InvalidInput `invalid_argument`; Conflict `precondition_failed`.
        """
        wanted = tuple(dict.fromkeys(patterns))

        def replaced(present: ProtectionRules) -> tuple[str, ...]:
            if only_if is not None and only_if != present.etag:
                raise Conflict(
                    "precondition_failed",
                    "the rules for protected branches are not those that were read: read them "
                    "again, then decide",
                )
            return wanted

        return self._change(replaced)

    def add(self, pattern: str) -> ProtectionRules:
        """Adds a rule, unless it is there. Raises InvalidInput `invalid_argument`."""
        return self._change(lambda present: tuple(dict.fromkeys((*present.patterns, pattern))))

    def remove(self, pattern: str) -> ProtectionRules:
        """Removes a rule. Raises NotFound `protection_not_found`."""

        def remaining(present: ProtectionRules) -> tuple[str, ...]:
            if pattern not in present.patterns:
                raise NotFound(
                    "protection_not_found", f"there is no rule {shown(pattern)} to remove"
                )
            return tuple(each for each in present.patterns if each != pattern)

        return self._change(remaining)

    def _change(self, change: Callable[[ProtectionRules], tuple[str, ...]]) -> ProtectionRules:
        """Replaces the rules by those that `change` makes of the present ones."""
        with self._context.metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive")
            # Waits for changes that passed the check of `require_writable`. Later changes wait for
            # this transaction, and then see the new rules.
            lock_branches(tx, self._repository_id)
            changed = ProtectionRules(change(_rules(tx, self._repository_id)))
            _check(changed.patterns)
            write_protected(tx, self._repository_id, changed.patterns)
        return changed


def require_writable(
    tx: Transaction,
    repository_id: str,
    name: str,
    *,
    act: Act = "write to",
    lock: LockMode | None = None,
) -> BranchRow:
    """Returns the branch of this name if no rule protects it. With `lock` the answer is final.

    Raises NotFound `branch_not_found`, Conflict `write_protected`.
    """
    branch = require_branch(tx, repository_id, name, lock=lock)
    require_unprotected(tx, repository_id, branch, act=act)
    return branch


def require_unprotected(
    tx: Transaction, repository_id: str, branch: BranchRow, *, act: Act
) -> None:
    """Raises Conflict `write_protected` if a rule protects the branch. The answer is final if the
    caller has locked the branch.

    On PostgreSQL the rules are read in a statement of their own, after the branch was locked:
    a statement sees what was committed before it began.
    """
    pattern = _rules(tx, repository_id).protecting(branch.name)
    if pattern is None:
        return
    # The first words are those of lakeFS: its clients show them.
    raise Conflict(
        "write_protected",
        f"cannot {act} protected branch {shown(branch.name)}: the rule {shown(pattern)} allows no "
        "direct changes; change another branch, and merge it",
    )


def _rules(tx: Transaction, repository_id: str) -> ProtectionRules:
    return ProtectionRules(tuple(read_protected(tx, repository_id)))


def _check(patterns: tuple[str, ...]) -> None:
    """Raises InvalidInput `invalid_argument`."""
    if len(patterns) > RULES_MAX:
        raise InvalidInput("invalid_argument", f"a repository has at most {RULES_MAX:,} rules")
    for pattern in patterns:
        check_text("a pattern", pattern, bytes_max=4 * PATTERN_CHARACTERS_MAX)
        if not pattern or len(pattern) > PATTERN_CHARACTERS_MAX:
            raise InvalidInput(
                "invalid_argument",
                f"{shown(pattern)} is no pattern for branches: write 1 to {PATTERN_CHARACTERS_MAX} "
                "characters, such as main or release/*",
            )
