"""Deciding for a plan, at the fence, and behind it: against the definitions; which trees may be
missing; what the metadata is asked about; and the subtraction, on relations written by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from ebbtide.arrow import texts
from ebbtide.errors import Refused
from ebbtide.formats.base import PROTECTED_SCHEMA, tree_address
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc import candidates as subtraction
from ebbtide.gc import keys
from ebbtide.gc import uncommitted as protected
from ebbtide.gc.candidates import Subtracted, subtract
from ebbtide.gc.committed import LIVE_SCHEMA, Mark, MarkedTrees, write_trees
from ebbtide.gc.decisions import (
    decide_at_fence,
    decide_behind,
    released_since,
    trees_of,
    write_decision,
)
from ebbtide.gc.engines.base import Batches, Engine, Relation
from ebbtide.gc.parts import ADDRESS_SCHEMA, Count, Part, PartRows, read_part
from ebbtide.gc.plan import read_commits
from ebbtide.gc.runs import RunFolder, TaskFiles
from ebbtide.gc.store import INVENTORY_SCHEMA
from ebbtide.gc.uncommitted import protected_among
from ebbtide.ids import new_id
from ebbtide.model import Commit
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots, decide
from ebbtide.storage import ObjectInfo, Storage, open_storage
from ebbtide.storage.base import sizes_of
from tests.retention import histories
from tests.support.engines import ENGINES, INLINE, on_engines
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
    assert found.unknown == sorted(gone - now.tree_checksums.keys())
    assert (found.earlier, found.kept) == (held.trees, data)


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
        rows = [{"address": each if int(each) % 3 else f"{each}#1"} for each in judged]
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
        return Mark(INLINE, place, known).live().collect().num_rows

    whole = live("whole", lenient=frozenset())
    storage.delete([tree_address(layout, lost)])
    assert 0 < live("lenient", lenient=frozenset({lost})) < whole
    for lenient in (frozenset[str](), trees - {lost}):
        with pytest.raises(Refused) as refused:
            live("strict", lenient=lenient)
        assert refused.value.kind == "missing_tree"


CUTOFF = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
OLD = CUTOFF - timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Objects:
    """A storage that knows rows by their addresses, but for what is gone."""

    rows: Mapping[str, tuple[str, int, datetime, str, str | None, str | None]]
    gone: Set[str]

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        there = [None if name in self.gone else self.rows[name] for name in addresses]
        return sizes_of(addresses, [row and ObjectInfo(*row[:3]) for row in there])


class Relations:
    def __init__(self, directory: Path, engine: Engine = INLINE) -> None:
        self.engine = engine
        self.folder = RunFolder(open_storage(str(directory)), "run/")
        self.rows: list[tuple[str, int, datetime, str, str | None, str | None]] = []
        self.named: set[str] = set()
        """What was listed without size and date."""
        self.gone: set[str] = set()
        """What of it was there no more when it was asked for."""

    def listed(
        self,
        address: str,
        *,
        modified: datetime = OLD,
        kind: str = "object",
    ) -> None:
        self.rows.append((address, len(address), modified, kind, None, None))

    def subtract(
        self,
        *,
        live: list[str],
        protected: list[str],
    ) -> Subtracted:
        rows = [(r[0], None, None, *r[3:]) if r[0] in self.named else r for r in self.rows]
        columns = [list(column) for column in zip(*rows, strict=True)]
        inventory = self.write("inventory", pa.table(columns, schema=INVENTORY_SCHEMA))
        kinds = ("tree", "object", "temporary")
        listed = [row for row in rows if row[3] in kinds]
        sizes = [row[1] for row in listed]
        given = subtraction.Relations(
            folder=self.folder,
            storage=cast("Storage", Objects({row[0]: row for row in self.rows}, self.gone)),
            inventory=inventory,
            listed=Count(len(listed), sum(s or 0 for s in sizes), None not in sizes),
            live=self.keys(live),
            protected=self.write("kept", pa.table([protected], schema=ADDRESS_SCHEMA)),
            kinds=kinds,
            cutoff=CUTOFF,
            now=CUTOFF,
        )
        return subtract(self.engine, given)

    def keys(self, addresses: list[str]) -> Relation:
        def read(some: list[str]) -> Batches:
            found = keys.keys_of(pa.array(some, pa.string()))
            flags = pa.repeat(pa.scalar(True), len(found))
            yield pa.record_batch([pa.array(found), flags], schema=LIVE_SCHEMA)

        return self.engine.rows([addresses[:2], addresses[2:]], read, LIVE_SCHEMA)

    def write(self, name: str, table: pa.Table) -> list[Part]:
        """Two parts, the first rows and the rest."""
        answer = PartRows()
        for number, piece in enumerate((table.slice(0, 2), table.slice(2))):
            answer.wrote(self.folder, f"{name}-{number}.parquet", piece)
        return answer.parts()

    def candidates(self, found: Subtracted) -> dict[str, set[str]]:
        by_kind: dict[str, set[str]] = {}
        for part in found.candidates:
            table = read_part(self.folder, part.name, part.checksum)
            by_kind.setdefault(part.kind, set()).update(texts(table.column("address")))
        return by_kind


both = on_engines("joins", "inline")


@pytest.mark.spark
@randomized("subtractions")
def test_all_engines_find_what_the_definition_says(tmp_path: Path, seed: int) -> None:
    found = [check_subtraction(tmp_path / name, engine, seed) for name, engine in ENGINES.items()]
    assert all(each.counts == found[0].counts for each in found)


@randomized("subtractions in the process")
def test_it_finds_what_the_definition_says(tmp_path: Path, seed: int) -> None:
    check_subtraction(tmp_path, INLINE, seed)


def check_subtraction(directory: Path, engine: Engine, seed: int) -> Subtracted:
    """A time in whole seconds is the whole second. A temporary file stays with its target alone."""
    choices = random.Random(seed)
    names = [f"file {number}" for number in range(40)]
    live, protected = ([n for n in names if choices.random() < 0.4] for _ in range(2))
    relations = Relations(directory, engine)
    expected: dict[str, set[str]] = {}
    classes = Counter[str]()
    for number, key in enumerate(choices.sample(names, 30)):
        kind = choices.choice(["object", "tree", "temporary", "foreign"])
        name = f"{key}#{number}" if kind == "temporary" else key
        seconds = choices.choice([-86400, -1, -0.5, -0.000001, 0, 1])
        modified = CUTOFF + timedelta(seconds=seconds)
        relations.listed(name, modified=modified, kind=kind)
        latest = modified + timedelta(microseconds=0 if modified.microsecond else 999_999)
        if kind == "foreign":
            continue
        if key in live and kind != "temporary":
            classes["live"] += 1
        elif key in protected:
            classes["protected"] += 1
        elif latest >= CUTOFF:
            classes["young"] += 1
        else:
            classes["candidate"] += 1
            expected.setdefault(kind, set()).add(name)
    found = relations.subtract(live=live, protected=protected)
    assert {name: count.objects for name, count in found.counts.items() if count.objects} == classes
    assert relations.candidates(found) == expected
    return found


@on_engines()
@randomized("subtractions")
def test_what_is_asked_for_later_is_judged_alike(tmp_path: Path, engine: Engine, seed: int) -> None:
    """Whichever rows were listed by their names alone; what vanished since counts as young. Of
    those rows `staged` is always one that stays, and `useless` one that goes."""
    choices = random.Random(seed)
    names = [f"file {number}" for number in range(60)]
    live, protected = ([n for n in names if choices.random() < 0.3] for _ in range(2))
    protected.append("staged")
    found: list[Subtracted] = []
    going: list[dict[str, set[str]]] = []
    for share in (0.0, 0.6):
        relations = Relations(tmp_path / f"{share}", engine)
        choices.seed(seed)
        for name in names:
            modified = CUTOFF + timedelta(seconds=choices.choice([-86400, 1]))
            kind = choices.choice(["object", "temporary", "foreign"])
            address = f"{name}#1" if kind == "temporary" else name
            relations.listed(address, modified=modified, kind=kind)
        relations.named = {row[0] for row in relations.rows if choices.random() < share}
        relations.listed("staged")
        relations.listed("useless")
        if share:
            relations.named |= {"staged", "useless"}
        found.append(relations.subtract(live=live, protected=protected))
        going.append(relations.candidates(found[-1]))
    assert going[0] == going[1]
    assert not found[1].counts["protected"].sized
    for name, count in found[0].counts.items():
        other = found[1].counts[name]
        assert other.objects == count.objects
        # Of what goes, or is young, each was asked for.
        assert other.sized or name in ("live", "protected")
        assert other.bytes_total == count.bytes_total or not other.sized
    relations.gone = {"useless", *(name for name in names if choices.random() < 0.5)}
    relations.gone &= relations.named
    after = relations.subtract(live=live, protected=protected)
    vanished = {name for names in going[0].values() for name in names} & relations.gone
    assert "useless" in vanished
    left = {kind: names - vanished for kind, names in going[0].items()}
    assert relations.candidates(after) == {kind: names for kind, names in left.items() if names}
    for name, count in after.counts.items():
        more = {"young": len(vanished), "candidate": -len(vanished)}.get(name, 0)
        assert count.objects == found[0].counts[name].objects + more
