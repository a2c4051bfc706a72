"""Deciding for a plan, at the fence, and behind it: against the definitions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ebbtide.arrow import texts
from ebbtide.errors import InvalidInput, Refused
from ebbtide.gc.parts import ADDRESS_SCHEMA, read_rows
from ebbtide.gc.planning.deciding import (
    decide_at_fence,
    decide_behind,
    released_since,
    trees_of,
    write_decision,
)
from ebbtide.gc.planning.gates import check_not_empty
from ebbtide.gc.planning.plan import read_commits
from ebbtide.gc.relations.live import MarkedTrees
from ebbtide.gc.relations.trees import TREES_SCHEMA
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import new_id
from ebbtide.model import Commit
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots, decide
from ebbtide.storage import open_storage
from tests.retention import histories
from tests.support.randomized import randomized


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Of a run."""
    return RunFolder.inside(open_storage(str(tmp_path / "lake")), new_id())


def some_roots(seed: int) -> Roots:
    """A history, refs and a policy; of some commits the tree was given up."""
    rng = random.Random(seed)
    commits, refs, policy = histories.even(seed)
    ids = {commit.commit_id for commit in commits}
    return Roots(
        now=histories.NOW,
        refs=tuple(ref for ref in refs if ref.commit_id in ids),
        commits=tuple(commits),
        stub_ids=frozenset({"gone", *(f"old{n}" for n in range(rng.randrange(3)))}),
        tree_checksums={c.tree_id: f"sum {c.tree_id}" for c in commits if rng.random() < 0.9},
        policy=Policy.parse(policy) if rng.random() < 0.9 else None,
        lenient_trees=frozenset(c.tree_id for c in commits if rng.random() < 0.1),
        companions={c.commit_id: (f"log {c.commit_id}",) for c in commits if rng.random() < 0.3},
    )


def later(roots: Roots, rng: random.Random) -> Roots:
    """The same after a while: some commits closed or forgotten, one made, another policy."""
    forgotten = {c.commit_id for c in roots.commits if rng.random() < 0.1}
    forgotten -= {ref.commit_id for ref in roots.refs}
    kept = [c for c in roots.commits if c.commit_id not in forgotten]
    made = [Commit(f"new{rng.random()}", (), roots.now, f"new tree {rng.random()}")]
    _, _, policy = histories.even(rng.randrange(2**32))
    trees = {c.tree_id for c in [*kept, *made]}
    checksums = {**roots.tree_checksums, made[0].tree_id: "sum of the new"}
    return Roots(
        now=roots.now,
        refs=roots.refs,
        commits=(*kept, *made),
        stub_ids=roots.stub_ids | forgotten,
        tree_checksums={tree: found for tree, found in checksums.items() if tree in trees},
        policy=Policy.parse(policy),
        lenient_trees=roots.lenient_trees,
        companions=roots.companions,
    )


@randomized("decisions")
def test_what_is_written_for_a_plan(folder: RunFolder, seed: int) -> None:
    roots = some_roots(seed)
    read = RunFolder(folder.storage, f"{folder.prefix}{seed}/")
    found = write_decision(read, roots)
    marked = trees_of(roots, decide(roots))
    rows = read_rows(read, found.trees.trees, TREES_SCHEMA).to_pylist()
    assert {row["tree_id"]: row["checksum"] for row in rows} == roots.tree_checksums
    assert {row["tree_id"] for row in rows if row["recorded"]} == marked.recorded
    assert {row["tree_id"] for row in rows if row["data"]} == marked.data
    there = roots.tree_checksums.keys()
    assert {row["tree_id"] for row in rows if not row["required"]} == marked.lenient & there
    companions = read_rows(read, found.trees.companions, ADDRESS_SCHEMA)
    assert set(texts(companions.column("address"))) == marked.companions


@randomized("decisions")
def test_the_fence_and_what_follows(folder: RunFolder, seed: int) -> None:
    """Against the definitions, by sets."""
    rng = random.Random(seed)
    before = some_roots(seed)
    planned = write_decision(folder, before)
    kept = decide(before)
    marked = trees_of(before, kept)
    now = later(before, rng)
    decision = decide(now)
    fenced = decide_at_fence(folder, now, planned.commits, listed_count=0)
    was_expired = {c.commit_id for c in before.commits} - set(kept.active)
    closed = {c.commit_id for c in now.commits if c.tombstoned}
    assert fenced.closed == (was_expired & decision.expired) - closed
    assert fenced.needed == was_expired & set(decision.active)
    assert fenced.forgettable == kept.forgettable & decision.forgettable
    assert fenced.forgotten == kept.forgettable - {c.commit_id for c in now.commits}
    check_unread(fenced.unread.trees, fenced.unread.checksums, marked, now)
    assert fenced.unread.trees.data == trees_of(now, decision).data - marked.data

    last = later(now, rng)
    behind = decide_behind(folder, last, planned.commits, fenced.unread)
    still_open = {
        c.tree_id for c in last.commits if not c.tombstoned and c.tree_id in last.tree_checksums
    }
    assert behind.trees.data >= still_open - marked.data
    assert behind.trees.data >= fenced.unread.trees.data
    assert behind.trees.recorded >= fenced.unread.trees.recorded
    assert behind.checksums.keys() == behind.trees.recorded


def check_unread(trees: MarkedTrees, checksums: object, marked: MarkedTrees, now: Roots) -> None:
    present = trees_of(now, decide(now))
    assert trees.recorded == (present.recorded - marked.recorded) | (present.data - marked.data)
    assert trees.companions == present.companions - marked.companions
    assert checksums == {tree: now.tree_checksums[tree] for tree in trees.recorded}


@randomized("decisions")
def test_what_was_released(folder: RunFolder, seed: int) -> None:
    before = some_roots(seed)
    planned = write_decision(folder, before)
    now = later(before, random.Random(seed))
    other = RunFolder(folder.storage, f"{folder.prefix}{seed}/")
    trees = write_decision(other, now).trees
    held = read_commits(folder, planned.commits)
    found = released_since(other, trees, earlier=(folder, planned.commits))
    data = trees_of(now, decide(now)).data
    made = {tree for tree in now.tree_checksums if tree not in held.trees}
    gone = (held.data_trees | made) - data
    assert dict(found.trees) == {t: s for t, s in now.tree_checksums.items() if t in gone}
    assert found.unknown_count == len(gone - now.tree_checksums.keys())


def test_errors_come_back_as_they_are(folder: RunFolder) -> None:
    """With all that they say, and without anything written."""
    roots = some_roots(1)
    empty = Roots(roots.now, roots.refs, (), frozenset(), {}, None)
    with pytest.raises(Refused) as refused:
        check_not_empty(empty, listed_count=1)
    assert refused.value.kind == "zero_commits"
    twice = Roots(roots.now, (), (*roots.commits, roots.commits[0]), frozenset({"gone"}), {}, None)
    with pytest.raises(InvalidInput) as invalid:
        write_decision(folder, twice)
    assert invalid.value.kind == "invalid_argument"
    with pytest.raises(Refused) as foreign:
        decide_at_fence(folder, roots, None, listed_count=0)
    assert foreign.value.kind == "plan_foreign"
    assert not list(folder.storage.list(folder.prefix))
