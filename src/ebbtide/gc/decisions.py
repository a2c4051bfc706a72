"""Decisions on refs and commits: for the plan, at the fence, and after the fence.

The commits are the largest data that a run holds in the driver's memory. They are held only until
the decision is made and written. Later steps need only the trees of the commits.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from ebbtide.arrow import texts
from ebbtide.formats.base import RepositoryFormat
from ebbtide.gc.committed import TREES_SCHEMA, KnownTrees, MarkedTrees, write_trees
from ebbtide.gc.gates import SHOWN_MAX, check_not_empty
from ebbtide.gc.keys import rows_of
from ebbtide.gc.parts import Part, read_part, read_rows
from ebbtide.gc.plan import (
    REFS_SCHEMA,
    PlannedCommits,
    read_commits,
    write_commits,
    write_refs,
)
from ebbtide.gc.runs import RunFolder
from ebbtide.retention.decision import Decision, Roots, decide
from ebbtide.text import count_text

TREES_MAX: Final = 1_000
"""The most trees that are read to find the commits that need some absent files."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The roots from which a decision was made, and the decision."""

    roots: Roots
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A plan's decision on refs and commits at `now`.

    `commits` and `refs` are the parts with each commit and ref. `trees` are the trees of all
    commits. `basis` is set for callers that decide again with other policies.
    """

    now: datetime
    policy: dict[str, Any] | None  # as `Policy.to_mapping` returns it
    active_count: int
    expired_count: int
    gone_count: int
    forgettable_count: int
    by_ref: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    commits: Part
    refs: Part
    trees: KnownTrees
    basis: Basis | None = None


def write_decision(folder: RunFolder, roots: Roots, *, keeps_basis: bool = False) -> Decided:
    """Decides, and writes the decision on commits, refs and trees as parts. Raises as `decide`."""
    decision = decide(roots)
    gone_count = sum(commit.tombstoned for commit in roots.commits)
    return Decided(
        now=roots.now,
        policy=None if roots.policy is None else roots.policy.to_mapping(),
        active_count=len(decision.active),
        expired_count=len(decision.expired) - gone_count,
        gone_count=gone_count,
        forgettable_count=len(decision.forgettable),
        by_ref=tuple(asdict(summary) for summary in decision.by_ref),
        warnings=decision.warnings,
        commits=write_commits(folder, roots, decision),
        refs=write_refs(folder, roots),
        trees=write_trees(folder, "", trees_of(roots, decision), roots.tree_checksums),
        basis=Basis(roots, decision) if keeps_basis else None,
    )


def trees_of(roots: Roots, decision: Decision) -> MarkedTrees:
    """Returns the trees that a decision keeps, and the trees whose data it keeps.

    If an operator gave up a commit, there is no checksum of its tree, and the tree is not read.
    """

    def trees(commit_ids: Container[str]) -> frozenset[str]:
        found = {commit.tree_id for commit in roots.commits if commit.commit_id in commit_ids}
        return frozenset(found.intersection(roots.tree_checksums))

    def companions(commit_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(
            address for commit_id in commit_ids for address in roots.companions.get(commit_id, ())
        )

    lenient = {c.commit_id for c in roots.commits if c.tree_id in roots.lenient_trees}
    return MarkedTrees(
        recorded=trees(decision.recorded),
        data=trees(frozenset(decision.active)),
        lenient=roots.lenient_trees,
        companions=companions(decision.recorded),
        required=companions(decision.recorded - lenient),
    )


@dataclass(frozen=True, slots=True)
class Unread:
    """The trees that are kept at `now`, and that the plan's mark did not read deeply enough, or not
    at all. `trees` also has their companions; `checksums` maps tree ids to checksums."""

    now: datetime
    trees: MarkedTrees
    checksums: Mapping[str, str]


def closing(roots: Roots, closed: frozenset[str]) -> Roots:
    """Returns the roots with the commits of `closed` marked as closed, for a repository that closes
    no commit. A commit that the policy keeps by now is open again. Raises as `decide`."""
    if not closed:
        return roots
    gone = closed - decide(roots).active.keys()
    commits = (replace(each, tombstoned=each.commit_id in gone) for each in roots.commits)
    return replace(roots, commits=tuple(commits))


@dataclass(frozen=True, slots=True)
class Fenced:
    """The decision at the fence.

    - `closed`: the commits to close.
    - `needed`: commits that the plan expires, and that are needed after all.
    - `forgettable`: the commits that the sweep forgets.
    - `forgotten`: commits of the plan that an earlier attempt forgot. They are stubs now, or do not
      exist.
    - `unread`: the kept trees that the plan's mark did not read.
    """

    closed: frozenset[str]
    needed: frozenset[str]
    forgettable: frozenset[str]
    forgotten: frozenset[str]
    unread: Unread


def decide_at_fence(
    folder: RunFolder, roots: Roots, part: Part | None, *, listed_count: int
) -> Fenced:
    """Decides at the fence, from the plan's decision on each commit (`part`) and the present roots.
    Raises as `check_not_empty`, `decide` and `read_commits`."""
    planned = read_commits(folder, part)
    check_not_empty(roots, listed_count=listed_count)
    decision = decide(roots)
    expired, forgettable = planned.expired, planned.forgettable
    tombstoned = {commit.commit_id for commit in roots.commits if commit.tombstoned}
    trees = _unread(planned, trees_of(roots, decision))
    return Fenced(
        closed=(expired & decision.expired) - tombstoned,
        needed=expired & frozenset(decision.active),
        forgettable=forgettable & decision.forgettable,
        forgotten=forgettable.difference(commit.commit_id for commit in roots.commits),
        unread=_with_checksums(trees, roots, {}),
    )


def decide_behind(folder: RunFolder, roots: Roots, part: Part | None, fenced: Unread) -> Unread:
    """Returns the trees that are kept at the fence or after it, and that the plan's mark did not
    read. Raises as `decide` and `read_commits`."""
    planned = read_commits(folder, part)
    now = _unread(planned, trees_of(roots, decide(roots)))
    # A commit made since the plan may have expired by now. But the fence closed only commits of the
    # plan. Each commit that is open after the fence can be read, or be the parent of a new commit,
    # so that its data is needed.
    still_open = {
        commit.tree_id
        for commit in roots.commits
        if not commit.tombstoned and commit.tree_id in roots.tree_checksums
    } - planned.data_trees
    data = fenced.trees.data | now.data | still_open
    trees = MarkedTrees(
        recorded=fenced.trees.recorded | now.recorded | data,
        data=data,
        lenient=roots.lenient_trees,
        companions=fenced.trees.companions | now.companions,
    )
    return _with_checksums(trees, roots, fenced.checksums)


def _with_checksums(trees: MarkedTrees, roots: Roots, others: Mapping[str, str]) -> Unread:
    """Returns the trees with their checksums: those of `roots`, or else those of `others`."""
    known = {**others, **roots.tree_checksums}
    return Unread(roots.now, trees, {tree_id: known[tree_id] for tree_id in trees.recorded})


def _unread(planned: PlannedCommits, trees: MarkedTrees) -> MarkedTrees:
    """Returns the trees that the plan's mark did not read, or read less deeply, and the companions
    that the plan did not keep."""
    data = trees.data - planned.data_trees
    return MarkedTrees(
        recorded=(trees.recorded - planned.recorded_trees) | data,
        data=data,
        lenient=trees.lenient,
        companions=trees.companions - planned.companions,
    )


@dataclass(frozen=True, slots=True)
class Released:
    """Trees whose data an earlier plan kept, or that were made since, and whose data is not kept
    now.

    `trees` has the id and checksum of each, and `unknown` the ids of those whose checksum is not
    known any more. `earlier` are all trees of the plan, and `kept` those whose data is kept now.
    """

    trees: list[tuple[str, str]]
    unknown: list[str]
    earlier: frozenset[str]
    kept: frozenset[str]


def released_since(
    folder: RunFolder, known: KnownTrees, *, earlier: tuple[RunFolder, Part | None]
) -> Released:
    """Returns the trees released since the plan of an `earlier` run, given as its folder and its
    commits."""
    before, part = earlier
    planned, now = read_commits(before, part), read_rows(folder, known.trees, TREES_SCHEMA)
    ids = texts(now.column("tree_id"))
    checksums = dict(zip(ids, texts(now.column("checksum")), strict=True))
    data = frozenset(texts(now.column("tree_id").filter(now.column("data"))))
    trees = planned.trees
    released = sorted((planned.data_trees | (checksums.keys() - trees)) - data)
    return Released(
        [(tree_id, checksums[tree_id]) for tree_id in released if tree_id in checksums],
        [tree_id for tree_id in released if tree_id not in checksums],
        trees,
        data,
    )


def absent_warning(
    repository: RepositoryFormat, folder: RunFolder, decided: Decided, absent: list[Part]
) -> str:
    """Returns the warning about absent files. It names up to SHOWN_MAX of them, each with a commit
    that needs it, and the refs that point at the commit."""
    rows: dict[str, str | None] = {}
    for part in absent:
        table = read_part(folder, part.name, part.checksum).slice(0, SHOWN_MAX - len(rows))
        columns = texts(table.column("address")), table.column("node_id").to_pylist()
        rows |= dict(zip(*columns, strict=True))
    holders = _holders(repository, folder, decided, {each for each in rows.values() if each})
    named = ", ".join(f"{name}{holders.get(node or '', '')}" for name, node in rows.items())
    count = rows_of(absent)
    more = f" and {count - len(rows):,} more" if count > len(rows) else ""
    one, several = "file that a kept commit needs is", "files that kept commits need are"
    return (
        f"{count_text(count, one, several)} not at {repository.storage.url}: {named}{more}. "
        "A sweep restores those that are in a quarantine; restore the others from a backup"
    )


def _holders(
    repository: RepositoryFormat, folder: RunFolder, decided: Decided, nodes: set[str]
) -> dict[str, str]:
    """Returns a commit and its refs for each node, as a text. Looks at commits with refs first, and
    at up to TREES_MAX trees."""
    commits = read_commits(folder, decided.commits).table
    commits = commits.filter(commits.column("active")).select(["commit_id", "tree_id"])
    refs = read_part(folder, decided.refs.name, decided.refs.checksum, columns=REFS_SCHEMA.names)
    names: dict[str, str] = {}
    for ref in refs.to_pylist():
        names.setdefault(ref["commit_id"], f", {ref['kind']} {ref['name']}")
    checksums: dict[str, str] = {}
    for part in decided.trees.trees:
        table = read_part(folder, part.name, part.checksum).select(TREES_SCHEMA.names[:2])
        checksums |= dict(zip(*(texts(column) for column in table.columns), strict=True))
    found: dict[str, str] = {}
    rows = sorted(commits.to_pylist(), key=lambda row: row["commit_id"] not in names)
    for row in rows[:TREES_MAX]:
        if nodes <= found.keys():
            break
        commit_id, tree_id = row["commit_id"], row["tree_id"]
        tree = repository.layout.read_tree(repository.storage, tree_id, checksums[tree_id])
        for node_id in nodes.intersection(texts(tree.column("node_id"))) - found.keys():
            found[node_id] = f" (commit {commit_id}{names.get(commit_id, '')})"
    return found
