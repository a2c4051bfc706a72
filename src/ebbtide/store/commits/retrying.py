"""Makes a commit again if another commit of the same branch was first.

Not for: the check itself, which is part of the transaction that moves the branch (`publishing`).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from ebbtide.store.commits.publishing import Overtaken
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord
from ebbtide.store.refs.queries import BRANCH_ATTEMPTS_MAX

_queues: Final = WeakValueDictionary[tuple[str, str], Lock]()
_queues_lock: Final = Lock()


def until_published(
    context: RepositoryContext, branch: str, make: Callable[[str], CommitRecord], ref: str = ""
) -> CommitRecord:
    """Calls `make` with `ref`, and again while other commits of the branch are first, at most ten
    times.

    Each attempt begins at the branch's new commit, so that the result is the same as if the request
    had come later. `ref` can depend on the branch, as `main~1` does. Therefore a later attempt gets
    the id of the commit that `ref` named in the first one.

    In one process, the later attempts for a branch wait for each other. Otherwise many clients
    would overtake each other, and some of them ten times.

    Raises as `make` does. It raises Conflict `branch_moved` after the last attempt, or if the
    branch was reset or replaced: then the result would not mean the same.
    """
    try:
        return make(ref)
    except Overtaken as error:
        ref = error.source_id or ref
    with _queue(context.repository_id, branch):
        for _ in range(BRANCH_ATTEMPTS_MAX - 2):
            try:
                return make(ref)
            except Overtaken as error:
                ref = error.source_id or ref
        return make(ref)


def _queue(repository_id: str, branch: str) -> Lock:
    """Returns the lock of a branch. It is the same one as long as any thread uses it."""
    with _queues_lock:
        return _queues.setdefault((repository_id, branch), Lock())
