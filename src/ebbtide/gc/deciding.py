"""Deciding on a reading of refs and commits in another process than the one that reads it.

Commits are many, and a run decides on all of them three times: for the plan, at the fence, and
behind it. Whoever reads them passes them on some at a time, through a file of this machine; a
worker process holds them, where there is one (`Engine.call`), and answers with what follows. The
reader's transaction is open meanwhile, so that this waits for no cluster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from ebbtide.arrow import rows_in, texts
from ebbtide.errors import Failed
from ebbtide.formats.roots import COMMIT_ROWS_SCHEMA, RootTables
from ebbtide.gc.decided import Decided, decided, trees_of
from ebbtide.gc.engine import Engine
from ebbtide.gc.gates import check_not_empty
from ebbtide.gc.mark import MarkedTrees
from ebbtide.gc.parts import Part, read_rows
from ebbtide.gc.planned_commits import PlannedCommits, read_commits
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.trees import TREES_SCHEMA, KnownTrees
from ebbtide.retention.decision import Roots, decide
from ebbtide.retention.rows import with_commits

SPOOL_FILE: Final = "commits.arrow"


@dataclass(frozen=True, slots=True)
class Spooled:
    """A reading whose commits lie in a file (COMMIT_ROWS_SCHEMA)."""

    head: Roots
    path: Path

    def roots(self) -> Roots:
        """All of it."""
        with pa.OSFile(str(self.path), "rb") as file, pa.ipc.open_stream(file) as stream:
            return with_commits(self.head, (row for batch in stream for row in rows_in(batch)))


@contextmanager
def spooled(tables: RootTables) -> Iterator[Spooled]:
    """Read commits into a file, which is there until the end of the block. Failed `task_failed`
    where there is no room for it."""
    with ExitStack() as until_decided:
        try:
            made = tempfile.TemporaryDirectory(prefix="ebbtide-", ignore_cleanup_errors=True)
            path = Path(until_decided.enter_context(made)) / SPOOL_FILE
            _write(path, tables.tables)
        except OSError as error:
            raise Failed(
                "task_failed",
                f"commits could not be written to a temporary file: {error}. Name a directory "
                "with room in TMPDIR",
            ) from error
        yield Spooled(tables.head, path)


def _write(path: Path, tables: Iterable[pa.Table]) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, COMMIT_ROWS_SCHEMA) as out:
        for table in tables:
            out.write_table(table)


def decide_plan(engine: Engine, folder: RunFolder, read: Spooled, *, listed_count: int) -> Decided:
    """What a plan decides, and writes down. Refused as `check_not_empty` and `decide`."""
    return engine.call(partial(_decide_plan, folder, read, listed_count))


def _decide_plan(folder: RunFolder, read: Spooled, listed_count: int) -> Decided:
    roots = read.roots()
    check_not_empty(roots, listed_count=listed_count)
    return decided(folder, roots)


@dataclass(frozen=True, slots=True)
class Unread:
    """Trees that stay and that the plan's mark did not read, or not as deep, with their checksums,
    and what goes with them; at `now`."""

    now: datetime
    trees: MarkedTrees
    checksums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fenced:
    """What is decided at the fence: the commits to close, those of the plan that are `needed` after
    all, those that the sweep is to forget, those of the plan that an earlier attempt forgot (they
    are stubs by now, or not there at all), and the trees that stay and are `unread`."""

    closed: frozenset[str]
    needed: frozenset[str]
    forgettable: frozenset[str]
    forgotten: frozenset[str]
    unread: Unread


def decide_at_fence(
    engine: Engine,
    folder: RunFolder,
    read: Spooled,
    planned: Part | None,
    *,
    listed_count: int,
) -> Fenced:
    """What follows at the fence from what was `planned` of each commit, and what is there now.
    Raises as `decide_plan`, and as `read_commits`."""
    return engine.call(partial(_decide_at_fence, folder, read, planned, listed_count))


def _decide_at_fence(
    folder: RunFolder, read: Spooled, part: Part | None, listed_count: int
) -> Fenced:
    planned, roots = read_commits(folder, part), read.roots()
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


def decide_behind(
    engine: Engine, folder: RunFolder, read: Spooled, planned: Part | None, fenced: Unread
) -> Unread:
    """Trees that are kept at the fence or behind it. Raises as `decide_at_fence`."""
    return engine.call(partial(_decide_behind, folder, read, planned, fenced))


def _decide_behind(folder: RunFolder, read: Spooled, part: Part | None, fenced: Unread) -> Unread:
    planned, roots = read_commits(folder, part), read.roots()
    now = _unread(planned, trees_of(roots, decide(roots)))
    # A commit made since the plan may be expired by now. The fence closed only what the plan knew:
    # whatever is open behind it can be read and built upon, so that its data is needed too.
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
    """What the roots lack, `others` have."""
    known = {**others, **roots.tree_checksums}
    return Unread(roots.now, trees, {tree_id: known[tree_id] for tree_id in trees.recorded})


def _unread(planned: PlannedCommits, trees: MarkedTrees) -> MarkedTrees:
    """Those that the plan's mark did not read, or not as deep, and what it did not keep with
    them."""
    data = trees.data - planned.data_trees
    return MarkedTrees(
        recorded=(trees.recorded - planned.recorded_trees) | data,
        data=data,
        lenient=trees.lenient,
        companions=trees.companions - planned.companions,
    )


@dataclass(frozen=True, slots=True)
class Released:
    """Trees that an earlier plan kept, or that were made since, and that are not kept now, by their
    checksums; and how many of them nobody knows any more."""

    trees: list[tuple[str, str]]
    unknown_count: int


def released_since(
    engine: Engine,
    folder: RunFolder,
    trees: KnownTrees,
    *,
    earlier: tuple[RunFolder, Part | None],
) -> Released:
    """What was released since the plan of an `earlier` run, given as its folder and its commits."""
    return engine.call(partial(_released_since, folder, trees, *earlier))


def _released_since(
    folder: RunFolder, trees: KnownTrees, before: RunFolder, part: Part | None
) -> Released:
    planned, now = read_commits(before, part), read_rows(folder, trees.trees, TREES_SCHEMA)
    ids = texts(now.column("tree_id"))
    checksums = dict(zip(ids, texts(now.column("checksum")), strict=True))
    data = frozenset(texts(now.column("tree_id").filter(now.column("data"))))
    released = sorted((planned.data_trees | (checksums.keys() - planned.trees)) - data)
    known = [(tree_id, checksums[tree_id]) for tree_id in released if tree_id in checksums]
    return Released(known, len(released) - len(known))
