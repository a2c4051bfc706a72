"""Deciding for a plan, at the fence, and behind it: against the definitions; which trees may be
missing; and what the metadata is asked about."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.arrow import texts
from ebbtide.errors import Refused
from ebbtide.formats.base import PROTECTED_SCHEMA
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc.parts import PartRows
from ebbtide.gc.planning.deciding import (
    decide_at_fence,
    decide_behind,
    released_since,
    trees_of,
    write_decision,
)
from ebbtide.gc.planning.plan import read_commits
from ebbtide.gc.relations import protected
from ebbtide.gc.relations.inventory import INVENTORY_SCHEMA
from ebbtide.gc.relations.live import Mark, MarkedTrees, write_trees
from ebbtide.gc.relations.protected import protected_among
from ebbtide.gc.runs import RunFolder, TaskFiles
from ebbtide.ids import new_id
from ebbtide.model import Commit
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots, decide
from ebbtide.storage import open_storage
from tests.retention import histories
from tests.support.engines import INLINE
from tests.support.randomized import randomized
from tests.support.world import World


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
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
    return replace(
        roots,
        commits=(*kept, *made),
        stub_ids=roots.stub_ids | forgotten,
        tree_checksums={tree: found for tree, found in checksums.items() if tree in trees},
        policy=Policy.parse(policy),
    )


@randomized("decisions")
def test_the_fence_and_what_follows(folder: RunFolder, seed: int) -> None:
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


class _Reading:
    """Of metadata by which every other address is protected."""

    def __init__(self) -> None:
        self.asked: list[Sequence[str]] = []

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        assert among is not None
        for batch in among:
            self.asked.append(batch)
            rows = [{"address": each, "reason": "staged"} for each in batch if int(each) % 2]
            yield pa.Table.from_pylist(rows, schema=PROTECTED_SCHEMA)


@pytest.mark.parametrize("sizes", [[], [0], [1], [3, 4, 0, 9], [6]])
def test_all_are_asked_for_some_at_a_time(
    sizes: list[int], folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protected, "ASKED_AT_ONCE", 3)
    wanted = [str(number) for number in range(sum(sizes))]
    numbers = iter(wanted)
    answer = PartRows()
    for number, size in enumerate(sizes):
        # Every third is judged by another.
        judged = [next(numbers) for _ in range(size)]
        rows = [
            {"address": "tmp", "target": each} if int(each) % 3 == 0 else {"address": each}
            for each in judged
        ]
        table = pa.Table.from_pylist(rows, schema=INVENTORY_SCHEMA)
        answer.wrote(folder, f"part-{number}.parquet", table)
    reading: Any = _Reading()
    tables = list(protected_among(reading, folder, answer.parts()))
    assert [address for part in reading.asked for address in part] == wanted
    assert all(0 < len(part) <= 3 for part in reading.asked)
    found = [address for table in tables for address in texts(table.column("address"))]
    assert found == wanted[1::2]


def test_trees_that_may_be_missing(world: World) -> None:
    """Those are passed over, with all that they alone name; others are not."""
    world.save("main", days_ago=2, put=["a"])
    lost_commit = world.save("main", days_ago=1, put=["b"])
    with world.format().reading() as reading:
        roots = reading.roots()
    (lost,) = (each.tree_id for each in roots.commits if each.commit_id == lost_commit)
    storage, layout = world.lake.storage, EmbeddedLayout()
    trees = frozenset(each.tree_id for each in roots.commits)

    def live(name: str, *, lenient: frozenset[str]) -> int:
        place = TaskFiles(storage, layout, RunFolder.inside(storage, "0" * 32), name)
        marked = MarkedTrees(recorded=trees, data=trees, lenient=lenient)
        known = write_trees(place.folder, place.prefixed("known"), marked, roots.tree_checksums)
        return Mark.of(INLINE, place, known).live().collect().num_rows

    whole = live("whole", lenient=frozenset())
    storage.delete([layout.tree_address(lost)])
    assert 0 < live("lenient", lenient=frozenset({lost})) < whole
    for lenient in (frozenset[str](), trees - {lost}):
        with pytest.raises(Refused) as refused:
            live("strict", lenient=lenient)
        assert refused.value.kind == "missing_tree"
