"""Which refs, holds and protections hold the bytes of a repository, alone and together.

The figures follow the definitions of docs/design/034-usage.md. The relations are those of a plan at
the same time, so that a file without a holder, older than the grace, is a candidate of that plan.
Nothing is changed, and no lease is taken. Not for: the holders of commits (`retention.holders`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import Refused
from ebbtide.formats.base import FOREIGN, RepositoryFormat
from ebbtide.formats.capabilities import WithUnnamed
from ebbtide.gc.candidates import by_part, rows_at
from ebbtide.gc.decisions import Basis
from ebbtide.gc.engines.base import Batches, Engine, Query, Relation, answers_of
from ebbtide.gc.keys import keys_of, rows_of
from ebbtide.gc.labels import LABELLED_SCHEMA, LabelledMark, LabelledTrees
from ebbtide.gc.parts import ANSWERS_SCHEMA, Count, Part, PartRows, read_part, split
from ebbtide.gc.planner import Planner, Surveyed
from ebbtide.gc.quarantine import prefix_of, runs_with_files
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.store import INVENTORY_SCHEMA, judged_by, latest_micros, micros_of, sized
from ebbtide.gc.uncommitted import write_unseen
from ebbtide.retention.decision import KEEP_EVERYTHING
from ebbtide.retention.holders import HeldCommits, Holder, holders_of
from ebbtide.storage import Storage

AGES: Final = tuple(timedelta(days=days) for days in (1, 7, 30, 90, 365, 730))
"""The ends of the periods of history."""
RESTORED: Final = "restored from a quarantine"
"""The name of the protection of files that an undo restored, whose parts give no reason."""
SHOWN_OF_SET: Final = 5
"""The most holders that are named of one set."""
HOLDERS_AT_ONCE: Final = 256

_PLACED: Final = make_schema(
    ("key", pa.int64()),
    ("judged", pa.int64()),
    ("part", pa.int32()),
    ("row", pa.int32()),
    ("size_bytes", pa.int64()),
    ("place", pa.int32()),
    ("storage_class", pa.string()),
)
"""A listed file: `key` and `judged` as in PLACED_SCHEMA, its size, and its `_PLACES`. The size is
null if it is unknown."""
_OLD, _YOUNG, _SYSTEM, _FOREIGN = range(4)
"""Values of `place`: files that a run can delete, older than the grace or not; and others."""

_LABELS: Final = pa.list_(pa.int32())
HELD: Final = Query(
    """
    SELECT s.place, s.storage_class, c.labels, u.labels AS protections,
        CAST(COUNT(*) AS BIGINT) AS objects, CAST(COUNT(s.size_bytes) AS BIGINT) AS sized,
        CAST(coalesce(SUM(s.size_bytes), 0) AS BIGINT) AS bytes_total
    FROM {store} s
    LEFT JOIN (
        SELECT key, array_sort(array_agg(label)) AS labels
        FROM (SELECT DISTINCT key, label FROM {committed}) GROUP BY key
    ) c ON s.key = c.key
    LEFT JOIN (
        SELECT key, array_sort(array_agg(label)) AS labels
        FROM (SELECT DISTINCT key, label FROM {uncommitted}) GROUP BY key
    ) u ON s.judged = u.key
    GROUP BY s.place, s.storage_class, c.labels, u.labels
    """,
    make_schema(
        ("place", pa.int32()),
        ("storage_class", pa.string()),
        ("labels", _LABELS),
        ("protections", _LABELS),
        ("objects", pa.int64()),
        ("sized", pa.int64()),
        ("bytes_total", pa.int64()),
    ),
)
"""The listed files by what holds them."""

UNHELD: Final = Query(
    """
    SELECT /*+ SHUFFLE_HASH(c, u) */ s.part, s.row
    FROM {store} s
    ANTI JOIN {committed} c ON s.key = c.key
    ANTI JOIN {uncommitted} u ON s.judged = u.key
    WHERE s.place IN (0, 1)
    """,
    make_schema(("part", pa.int32()), ("row", pa.int32())),
)
"""The listed files of the kinds that a run can delete, young ones too, that nothing holds."""


class HolderSets:
    """The labels of `usage`: sets of holders, each with the period of the newest commit in it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.values: list[tuple[int, int]] = []

    def label(self, bits: int, period: int) -> int:
        """Returns the label of a set and a period, which is a new one if there is none."""
        found = self._numbers.setdefault((bits, period), len(self.values))
        if found == len(self.values):
            self.values.append((bits, period))
        return found

    def joined(self, labels: Iterable[int]) -> tuple[int, int]:
        """Returns all holders in these labels, and the newest period."""
        bits, period = 0, len(AGES)
        for label in labels:
            own, newest = self.values[label]
            bits |= own
            period = min(period, newest)
        return bits, period

    def merged(self, labels: Sequence[int]) -> int:
        """Returns the label of something that all of these need."""
        return labels[0] if len(labels) == 1 else self.label(*self.joined(labels))


@dataclass(frozen=True, slots=True)
class HolderUsage:
    """The files that a holder holds, alone and in all. `classes` has the bytes alone by storage
    class; unknown classes are ""."""

    holder: Holder
    alone: Count
    in_all: Count
    classes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SharedUsage:
    """The files that these holders hold together, and no other holder. Of many holders only the
    first are named."""

    named: tuple[Holder, ...]
    holder_count: int
    count: Count


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one repository.

    `holders` and `shared` have the largest counts first, and are whole. `deleted`, `young`,
    `system` and `foreign` count the files that nothing holds. `periods` divide the files that
    commits need by the age of the newest such commit: each has the end of its period, and None
    comes last. `classes` has the bytes of all listed files by storage class. Files in quarantine
    are not listed ones.
    """

    repository: str
    now: datetime
    grace_seconds: float
    listed: Count
    holders: tuple[HolderUsage, ...]
    shared: tuple[SharedUsage, ...]
    deleted: Count
    young: Count
    system: Count
    foreign: Count
    periods: tuple[tuple[timedelta | None, Count], ...]
    quarantine: Count
    classes: Mapping[str, int] = field(default_factory=dict)
    deleted_classes: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def usage_of(planner: Planner) -> Usage:
    """Returns the usage. Raises Refused as a plan does, except for missing files of kept commits:
    these have no bytes."""
    engine, repository = planner.engine, planner.repository
    read = planner.survey()
    roots = read.basis.roots
    policy = roots.policy or KEEP_EVERYTHING
    held = holders_of(roots.commits, roots.refs, policy, roots.now)
    sets = HolderSets()
    with planner.steps("mark"):
        needs = _needs(read.basis, held, sets)
        live = LabelledMark(engine, read.files, needs, sets, index=read.index).live()
    with planner.steps("subtract"):
        rows, reasons, unseen_from = _grouped(engine, repository, read, live)
        engine.forget()
    with planner.steps("quarantine"):
        quarantined = in_quarantine(engine, repository.storage)
    holders = (*held.holders, *(Holder("protection", each) for each in reasons))
    table = _Table(holders, len(held.holders), sets, unseen_from=unseen_from)
    table.add(rows)
    found = table.usage(repository.identity.repository_name, roots.now, quarantined)
    return replace(
        found,
        grace_seconds=planner.options.grace.total_seconds(),
        warnings=read.basis.decision.warnings + read.listed.warnings,
    )


def _needs(basis: Basis, held: HeldCommits, sets: HolderSets) -> LabelledTrees:
    """Returns the labels of all trees and companions."""
    roots, decision = basis.roots, basis.decision
    records: dict[str, int] = {}
    data: dict[str, int] = {}
    companions: dict[str, int] = {}

    def add(found: dict[str, int], name: str, bits: int, period: int) -> None:
        label = sets.label(bits, period)
        found[name] = sets.merged([found[name], label]) if name in found else label

    for commit in roots.commits:
        bits = held.records.get(commit.commit_id)
        if bits is None:
            continue
        period = _period(roots.now - commit.created_at)
        for address in roots.companions.get(commit.commit_id, ()):
            add(companions, address, bits, period)
        if commit.tree_id not in roots.tree_checksums:
            continue  # an operator gave the tree up
        add(records, commit.tree_id, bits, period)
        if commit.commit_id in decision.active:
            add(data, commit.tree_id, held.data[commit.commit_id], period)
    return LabelledTrees(records, data, roots.tree_checksums, companions, roots.lenient_trees)


def _period(age: timedelta) -> int:
    return next((number for number, end in enumerate(AGES) if age < end), len(AGES))


def _grouped(
    engine: Engine, repository: RepositoryFormat, read: Surveyed, live: Relation
) -> tuple[pa.Table, list[str], int]:
    """Returns the rows of HELD, and the reasons of protections by their labels. From a label on,
    which comes last, the reasons are those of files that the metadata do not name."""
    folder, protected = read.files.folder, list(read.relations.protected)
    engine.expect(rows_of([*read.listed.parts, *protected]))
    store = _placed(engine, read)
    reasons: dict[str, int] = {}
    named = _protected(engine, folder, protected, reasons)
    unseen_from = len(reasons)
    if isinstance(repository, WithUnnamed):
        live = live.kept()
        query = engine.query(UNHELD, store=store, committed=live, uncommitted=named)
        unheld = _written(engine, read, query)
        old, young = (tuple(e for e in unheld if e.relation == name) for name in ("old", "young"))
        protected += write_unseen(repository, folder, old, name="uncommitted/unseen")
        with suppress(Refused):  # a plan does not ask about young files, and so is not refused
            protected += write_unseen(repository, folder, young, name="uncommitted/unseen-young")
        named = _protected(engine, folder, protected, reasons)
    rows = engine.query(HELD, store=store, committed=live, uncommitted=named).collect()
    return rows, list(reasons), unseen_from


def _placed(engine: Engine, read: Surveyed) -> Relation:
    """Returns the listed files (_PLACED)."""
    given = read.relations
    folder, storage, cutoff = given.folder, given.storage, micros_of(given.cutoff)
    kinds = pa.array(given.kinds, pa.string())

    def place(task: Sequence[tuple[int, Part]]) -> Batches:
        for number, part in task:
            table = read_part(folder, part.name, part.checksum)
            rows = sized(storage, table, np.ones(table.num_rows, np.bool_))
            judged = judged_by(rows)
            keys = keys_of(judged)
            is_temporary = np.asarray(pc.not_equal(judged, rows.column("address")))
            is_young = latest_micros(rows.column("last_modified")) >= cutoff
            is_foreign = np.asarray(pc.equal(rows.column("kind"), pa.scalar(FOREIGN, pa.string())))
            is_collected = np.asarray(pc.is_in(rows.column("kind"), value_set=kinds))
            others = np.where(is_foreign, _FOREIGN, _SYSTEM)
            places = np.where(is_collected, np.where(is_young, _YOUNG, _OLD), others)
            columns: list[Any] = [  # a column for each of _PLACED
                pa.array(keys, mask=is_temporary | ~is_collected),
                pa.array(keys),
                pa.repeat(pa.scalar(number, pa.int32()), len(keys)),
                pa.array(np.arange(len(keys), dtype=np.int32)),
                rows.column("size_bytes").combine_chunks(),
                pa.array(places.astype(np.int32)),
                _classes(rows),
            ]
            yield pa.record_batch(columns, schema=_PLACED)

    parts = list(enumerate(given.inventory))
    tasks = split(parts, tasks=engine.tasks_for(rows_of(given.inventory)))
    return engine.rows(tasks, place, _PLACED)


def _classes(rows: pa.Table) -> pa.Array[Any]:
    if "storage_class" not in rows.column_names:
        return pa.repeat(pa.scalar("", pa.string()), rows.num_rows)
    filled = rows.column("storage_class").fill_null(pa.scalar("", pa.string()))
    classes: pa.Array[Any] = pa.concat_arrays(filled.chunks)
    return classes


def _protected(
    engine: Engine, folder: RunFolder, parts: Sequence[Part], reasons: dict[str, int]
) -> Relation:
    """Returns the protected addresses (LABELLED_SCHEMA). Numbers their reasons."""
    for part in parts:
        for reason in texts(pc.unique(_reasons(folder, part))):
            reasons.setdefault(reason, len(reasons))
    names = pa.array(list(reasons), pa.string())

    def read(part: Part) -> Batches:
        table = read_part(folder, part.name, part.checksum, columns=("address",))
        labels: Any = pc.index_in(_reasons(folder, part), value_set=names)
        keys: Any = pa.array(keys_of(table.column("address")))
        columns: list[Any] = [keys, labels]
        yield from pa.table(columns, schema=LABELLED_SCHEMA).to_batches()

    return engine.rows(list(parts), read, LABELLED_SCHEMA)


def _reasons(folder: RunFolder, part: Part) -> pa.ChunkedArray[Any]:
    """Returns the reason of each row of a part, without details such as the branch."""
    table = read_part(folder, part.name, part.checksum, columns=("address", "reason"))
    if "reason" not in table.column_names:
        return pa.chunked_array([pa.repeat(pa.scalar(RESTORED), table.num_rows)])
    found: pa.ChunkedArray[Any] = pc.replace_substring_regex(table.column("reason"), r": .*\z", "")
    return found


def _written(engine: Engine, read: Surveyed, places: Relation) -> list[Part]:
    """Writes address and size of the files at these places as parts, old and young ones apart."""
    given = read.relations
    folder, storage, inventory = given.folder, given.storage, given.inventory

    def write(batches: Batches) -> Batches:
        answer = PartRows()
        for number, own in by_part(batches):
            rows = rows_at(folder, inventory[number], own, INVENTORY_SCHEMA)
            rows = sized(storage, rows, np.ones(rows.num_rows, np.bool_))
            is_young = latest_micros(rows.column("last_modified")) >= micros_of(given.cutoff)
            for name, chosen in (("old", ~is_young), ("young", is_young)):
                some = rows.filter(pa.array(chosen))
                answer.wrote(folder, f"{name}/part-{number:05d}.parquet", some, relation=name)
        yield answer.batch()

    tasks = engine.tasks_for(rows_of(inventory))
    return answers_of(places.map(write, ANSWERS_SCHEMA, by=("part", "row"), tasks=tasks)).parts


def in_quarantine(engine: Engine, storage: Storage) -> Count:
    """Returns the files of all quarantines."""

    def count(_number: int, run_id: str, answer: PartRows) -> None:
        for batch in storage.list(prefix_of(run_id)):
            sizes = batch.column("size_bytes")
            total = int(pc.sum(sizes).as_py() or 0)
            answer.counted(Count(batch.num_rows, total, not sizes.null_count), of="quarantine")

    answers = engine.run(runs_with_files(storage), count)
    return sum((each.count for each in answers.counts), Count())


class _Table:
    """Adds up the rows of HELD."""

    def __init__(
        self, holders: Sequence[Holder], of_commits: int, sets: HolderSets, *, unseen_from: int
    ) -> None:
        """`of_commits` is the number of holders that hold commits; protections come behind them.
        Protections from `unseen_from` on count only for files that nothing else holds."""
        self._unseen_from = unseen_from
        self._holders = holders
        self._of_commits = of_commits
        self._label_sets = sets
        self._sets: dict[int, Count] = {}
        self._classes: dict[int, dict[str, int]] = {}
        self._places = [Count()] * 4
        self._periods = [Count()] * (len(AGES) + 1)
        self._listed_classes: dict[str, int] = {}

    def add(self, rows: pa.Table) -> None:
        """Adds rows of HELD."""
        figures: dict[tuple[int, int, int | None, str], list[int]] = {}
        for row in rows.to_pylist():
            found = figures.setdefault(self._key(row), [0, 0, 0])
            found[0] += row["objects"]
            found[1] += row["bytes_total"]
            found[2] += row["sized"]
        for (bits, place, period, name), (objects, size, known) in figures.items():
            count = Count(objects, size, known == objects)
            if period is not None:
                self._periods[period] += count
            if bits:
                self._sets[bits] = self._sets.get(bits, Count()) + count
            else:
                self._places[place] += count
            own = bits if place == _OLD or bits else -1
            for classes in (self._classes.setdefault(own, {}), self._listed_classes):
                classes[name] = classes.get(name, 0) + size

    def _key(self, row: Mapping[str, Any]) -> tuple[int, int, int | None, str]:
        """Returns the holders of a row, its place, its period if commits need it, and its class."""
        place, name = row["place"], row["storage_class"]
        if place in (_SYSTEM, _FOREIGN):
            return 0, place, None, name
        bits, period = self._label_sets.joined(row["labels"] or ())
        for protection in row["protections"] or ():
            if bits and protection >= self._unseen_from:
                continue  # formats may or may not tell of such files
            bits |= 1 << (self._of_commits + protection)
        return bits, place, period if row["labels"] else None, name

    def usage(self, name: str, now: datetime, quarantined: Count) -> Usage:
        """Returns the usage."""
        alone = {bits: count for bits, count in self._sets.items() if not bits & (bits - 1)}
        shared = {bits: count for bits, count in self._sets.items() if bits & (bits - 1)}
        pairs = enumerate(zip(self._holders, self._in_all(), strict=True))
        holders = [
            HolderUsage(each, alone.get(1 << bit, Count()), in_all, self._classes.get(1 << bit, {}))
            for bit, (each, in_all) in pairs
        ]
        return Usage(
            repository=name,
            now=now,
            grace_seconds=0.0,
            listed=sum([*self._sets.values(), *self._places], Count()),
            holders=tuple(sorted(holders, key=_largest_holder)),
            shared=tuple(sorted((self._shared(*each) for each in shared.items()), key=_largest)),
            deleted=self._places[_OLD],
            young=self._places[_YOUNG],
            system=self._places[_SYSTEM],
            foreign=self._places[_FOREIGN],
            periods=tuple(zip((*AGES, None), self._periods, strict=True)),
            quarantine=quarantined,
            classes=self._listed_classes,
            deleted_classes=self._classes.get(0, {}),
        )

    def _shared(self, bits: int, count: Count) -> SharedUsage:
        named = tuple(self._holders[number] for number in _bits_of(bits, SHOWN_OF_SET))
        return SharedUsage(named, bits.bit_count(), count)

    def _in_all(self) -> list[Count]:
        """Returns the count of each holder, over all sets that have it."""
        size = len(self._holders)
        totals = np.zeros((3, size), np.int64)
        rows = list(self._sets.items())
        for start in range(0, len(rows), HOLDERS_AT_ONCE):
            some = rows[start : start + HOLDERS_AT_ONCE]
            data = b"".join(bits.to_bytes(-(-size // 8), "little") for bits, _ in some)
            packed = np.frombuffer(data, np.uint8).reshape(len(some), -1)
            has = np.unpackbits(packed, axis=1, bitorder="little")[:, :size].astype(np.int64)
            figures = [(c.objects, c.bytes_total, not c.sized) for _, c in some]
            totals += np.array(figures, np.int64).T @ has
        return [Count(objects, size, not unsized) for objects, size, unsized in totals.T.tolist()]


def _bits_of(bits: int, count: int) -> Iterator[int]:
    """Yields the numbers of the first `count` bits that are set."""
    while bits and count:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
        count -= 1


def _largest_holder(each: HolderUsage) -> tuple[int, int, str, str]:
    name = each.holder.name
    return -each.alone.bytes_total, -each.in_all.bytes_total, each.holder.kind, name


def _largest(each: SharedUsage) -> tuple[int, int, list[tuple[str, str]]]:
    names = [(str(holder.kind), holder.name) for holder in each.named]
    return -each.count.bytes_total, -each.holder_count, names
