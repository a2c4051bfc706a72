"""The part of versions: single operations on branches, commits and what is staged, each compared
with its rule, and reading back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.simulation.acting import Act
from tests.simulation.choosing import named
from tests.simulation.exact import value
from tests.simulation.looking import look, require_readable
from tests.simulation.scheduler import Violation

PATHS: Final = ("a", "a/b", "b", "dir/x", "é")
"""Few, so that commits of two branches come into conflict."""
DATA: Final = (b"", b"one", b"two")
"""Few, so that different uploads are the same to a merge."""
NAMES: Final = ("one", "short-1")
PREFIXES: Final = ("", "a", "a/", "dir/", "zzz")
PERIODS: Final = ("1h", "2h", "4h", "9h")


def put(act: Act) -> object:
    lake, branch = act.process.lake(), act.pick(act.known.branches, 0)
    path, data = act.pick(PATHS, 1), act.pick(DATA, 2)
    act.expects(lake, lambda view: view.put(branch, path, value(data)))
    return lake.objects.put(branch, path, data)


def delete(act: Act) -> object:
    """Stage a delete of any path."""
    lake, branch, path = act.process.lake(), act.pick(act.known.branches, 0), act.pick(PATHS, 1)
    act.expects(lake, lambda view: view.delete(branch, path))
    lake.objects.delete(branch, path)
    return None


def copy(act: Act) -> object:
    """Copy from any branch or commit."""
    lake, branch = act.process.lake(), act.pick(act.known.branches, 0)
    source = act.pick([*act.known.branches, *act.known.commits], 3)
    path, target = act.pick(PATHS, 1), act.pick(PATHS, 2)
    act.expects(lake, lambda view: view.copy(branch, target, source, path))
    return lake.objects.copy(branch, target, source, path)


def commit(act: Act) -> object:
    """Commit what is staged, if anything is."""
    lake, branch = act.process.lake(), act.pick(act.known.branches, 0)
    name = f"branch {branch}"
    act.moving(name)
    act.expects(lake, lambda view: view.commit(branch))
    made = lake.commits.commit(branch, "")
    return act.points_at(lake, name, made.commit_id)


def reset_part(act: Act) -> object:
    """Drop what is staged below a prefix."""
    lake, branch, prefix = (
        act.process.lake(),
        act.pick(act.known.branches, 0),
        act.pick(PREFIXES, 1),
    )
    act.expects(lake, lambda view: view.reset(branch, prefix))
    if prefix:
        return lake.commits.reset_prefix(branch, prefix)
    lake.commits.reset(branch)
    return None


def merge_plainly(act: Act) -> object:
    """Merge a branch or a commit, without a strategy for conflicts."""
    lake, branch = act.process.lake(), act.pick(act.known.branches, 0)
    source = act.pick([*act.known.branches, *act.known.commits], 1)
    name = f"branch {branch}"
    act.moving(name)
    act.expects(lake, lambda view: view.merge(source, branch, source_wins=False))
    made = lake.commits.merge(source, branch)
    return act.points_at(lake, name, made.commit_id)


def reset_if_clean(act: Act) -> object:
    """Move a branch to any commit, if nothing is staged."""
    lake, branch = act.process.lake(), act.pick(act.known.branches, 0)
    target = act.newest(act.known.commits, 1)
    name = f"branch {branch}"
    act.moving(name)
    act.expects(lake, lambda view: view.hard_reset(branch, target, force=False))
    found = lake.commits.reset_to(branch, target)
    return act.points_at(lake, name, found.commit_id)


def name_branch(act: Act) -> object:
    """Make a branch of a name that may be taken, or was."""
    # What had the name is in the trash, or the operation is refused.
    return act.make_branch(act.pick(NAMES, 1))


def rules(act: Act) -> object:
    lake = act.process.lake()
    given: dict[str, Any] = {"default": act.pick(PERIODS, 0)}
    if act.numbers[1] % 2:
        given["branches"] = {"short-*": act.pick(PERIODS, 2), "main": act.pick(PERIODS, 3)}
    return lake.retention.set(given)


def read(act: Act) -> object:
    """Read all that a branch, tag or commit shows, and compare two commits."""
    lake = act.process.lake()
    refs = [*act.known.branches, *act.known.tags, *act.known.commits]
    ref, other = act.pick(refs, 0), act.pick(refs, 1)
    if not act.is_exact:
        return None
    view = look(act.checker, lake.info.repository_id)
    if not all(view.can_be_read(each) for each in (ref, other)):
        return None
    try:
        require_readable(act.checker, view, ref)
        expected = view.compared(ref, other)
        ids = view.commit_of(ref), view.commit_of(other)
        found = [each.path for each in lake.commits.diff(*ids)]
        if found != expected:
            raise Violation("answer", f"{ref} and {other} differ in {expected}, it says {found}")
    except Violation:
        # Who slept between two of these readings may have seen two states.
        if act.is_exact:
            raise
    return ref


OPERATIONS: Final[Mapping[str, Callable[[Act], object]]] = named(
    *(put, delete, copy, commit, reset_part),
    *(merge_plainly, reset_if_clean, name_branch, rules, read),
)

PART: Final[Mapping[str, int]] = {
    "put": 8,
    "delete": 3,
    "copy": 3,
    "commit": 6,
    "save": 3,
    "describe": 1,
    "stage": 1,
    "reset part": 2,
    "merge plainly": 5,
    "merge": 3,
    "reset if clean": 1,
    "hard reset": 1,
    "name branch": 3,
    "branch": 1,
    "delete branch": 2,
    "restore branch": 2,
    "tag": 2,
    "hold": 2,
    "rules": 2,
    "read": 3,
}
