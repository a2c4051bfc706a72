"""What users do while a run is under way: each on one line, with what must be readable after it.

The first four are the races that lakeFS issue 1932 names ("Race Conditions").
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ebbtide.retention import Policy
from tests.gc.lines import Contents, Line, Operation

POLICY: dict[str, Any] = {"default": "7d", "branches": {"short-*": "3d"}}


def revert_of_the_deletion(line: Line) -> dict[str, Contents]:
    """The file comes back in a new commit; the commit that had it stays expired."""
    made = line.lake.commits.revert(line.name, line.deleting)
    contents = line.known_of(line.head) | line.held("lost")
    line.known.note(made.commit_id, contents)
    return {line.name: contents, made.commit_id: contents}


def branch_from_an_old_commit(line: Line) -> dict[str, Contents]:
    """One that was not the head of any branch."""
    line.lake.branches.create(f"again-{line.name}", line.old)
    return {f"again-{line.name}": line.known_of(line.old), line.old: line.known_of(line.old)}


def longer_period(line: Line) -> dict[str, Contents]:
    """The branch gets a period under which all of it is active."""
    _set_rule(line, "60d")
    return {commit: line.known_of(commit) for commit in (line.old, line.deleting, line.young)}


def branch_with_a_shorter_period(line: Line) -> dict[str, Contents]:
    """Made from a living branch: what its rule lets go, the other branch keeps."""
    line.lake.branches.create(f"short-{line.name}", line.name)
    return _active(line) | {f"short-{line.name}": line.known_of(line.head)}


def shorter_period(line: Line) -> dict[str, Contents]:
    """What is expired only now, this run's plan has read as live: it stays for the next run."""
    _set_rule(line, "1d")
    return _active(line)


def tag_on_an_old_commit(line: Line) -> dict[str, Contents]:
    line.lake.tags.create(f"tag-{line.name}", line.old)
    return {f"tag-{line.name}": line.known_of(line.old)}


def hold_on_an_old_commit(line: Line) -> dict[str, Contents]:
    line.lake.retention.hold(line.old, "an audit")
    return {line.old: line.known_of(line.old)}


def branch_from_a_dangling_commit(line: Line) -> dict[str, Contents]:
    """One whose record, tree and ranges were to go too."""
    line.lake.branches.create(f"again-{line.name}", line.dangling)
    return {f"again-{line.name}": line.known_of(line.dangling)}


def merge_of_a_dangling_commit(line: Line) -> dict[str, Contents]:
    """Its file comes into a new commit; the commit itself stays expired."""
    made = line.lake.commits.merge(line.dangling, line.name)
    contents = line.known_of(line.head) | line.held("side")
    line.known.note(made.commit_id, contents)
    return {line.name: contents}


def copy_from_an_old_commit(line: Line) -> dict[str, Contents]:
    """The bytes are copied to an address of their own, and staged."""
    line.lake.objects.copy(line.name, line.path("copy"), line.old, line.path("lost"))
    copied = {line.path("copy"): line.path("lost").encode()}
    return {line.name: line.known_of(line.head) | copied}


def old_commit_in_a_chain(line: Line) -> dict[str, Contents]:
    """A commit is made on an old one, is expired itself at once, and its branch goes. Whoever has
    its id may still make a branch from it, unless it is closed."""
    return _dropped(line, line.old)


def dangling_commit_in_a_chain(line: Line) -> dict[str, Contents]:
    """As before, on one whose tree and ranges go: the new tree shares ranges with it."""
    return _dropped(line, line.dangling)


def merge_into_a_branch_that_goes(line: Line) -> dict[str, Contents]:
    """Entries of an expired commit live on in a new one that is expired too."""
    branch = f"gone-{line.name}"
    line.lake.branches.create(branch, line.fresh)
    date = line.world.now - timedelta(days=10)
    made = line.lake.commits.merge(line.dangling, branch, date=date)
    line.known.note(made.commit_id, line.known_of(line.fresh) | line.held("side"))
    line.lake.branches.delete(branch)
    return {}


def hard_reset_to_a_dangling_commit(line: Line) -> dict[str, Contents]:
    """The branch goes to a commit that was not in its history; what is staged is dropped."""
    line.lake.objects.put(line.name, line.path("staged"), b"")
    line.lake.commits.reset_to(line.name, line.dangling, force=True)
    return {ref: line.known_of(line.dangling) for ref in (line.name, line.dangling)}


def other_metadata(line: Line) -> dict[str, Contents]:
    """An object that an expired commit has too is staged again, at the same address."""
    line.lake.objects.set_metadata(line.name, line.path("kept"), {"Key": "value"})
    return _active(line) | {line.name: line.known_of(line.head)}


NEEDS_EXPIRED: tuple[Operation, ...] = (
    revert_of_the_deletion,
    branch_from_an_old_commit,
    tag_on_an_old_commit,
    hold_on_an_old_commit,
    branch_from_a_dangling_commit,
    merge_of_a_dangling_commit,
    copy_from_an_old_commit,
    old_commit_in_a_chain,
    dangling_commit_in_a_chain,
    merge_into_a_branch_that_goes,
    hard_reset_to_a_dangling_commit,
)
"""Allowed before the fence, HTTP 410 behind it."""

OPERATIONS: tuple[Operation, ...] = (
    *NEEDS_EXPIRED,
    branch_with_a_shorter_period,
    shorter_period,
    other_metadata,
    longer_period,
)


def _active(line: Line) -> dict[str, Contents]:
    return {commit: line.known_of(commit) for commit in (line.head, line.young, line.fresh)}


def _set_rule(line: Line, rule: str) -> None:
    policy = line.lake.retention.get()
    assert policy is not None
    written = policy.to_mapping()
    branches = written["branches"]
    assert isinstance(branches, dict)
    line.lake.retention.set(Policy.parse(written | {"branches": branches | {line.name: rule}}))


def _dropped(line: Line, parent_id: str) -> dict[str, Contents]:
    branch = f"gone-{line.name}"
    line.lake.branches.create(branch, parent_id)
    line.save(branch, 10, put=["zz-more"])
    line.lake.branches.delete(branch)
    return {}
