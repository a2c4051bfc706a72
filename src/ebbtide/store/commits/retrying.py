"""Makes a commit again if another commit of the same branch was first.

Not for: the check itself, which is part of the transaction that moves the branch (`publishing`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ebbtide.store.commits.publishing import Overtaken
from ebbtide.store.database.commits import CommitRecord

ATTEMPTS_MAX: Final = 10
"""Source: lakeFS, which tries an update of a branch ten times."""


def until_published(make: Callable[[str], CommitRecord], ref: str = "") -> CommitRecord:
    """Calls `make` with `ref`, and again while other commits are first, at most ten times.

    Each attempt begins at the branch's new commit, so that the result is the same as if the request
    had come later. `ref` can depend on the branch, as `main~1` does. Therefore a later attempt gets
    the id of the commit that `ref` named in the first one.

    Raises as `make` does. It raises Conflict `branch_moved` after the last attempt, or if the
    branch was reset or replaced: then the result would not mean the same.
    """
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return make(ref)
        except Overtaken as error:
            ref = error.source_id or ref
    return make(ref)
