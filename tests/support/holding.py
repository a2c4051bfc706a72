"""The usage of a repository, worked out the slow way from its definition, in sets of addresses.

It shares the format's reading of refs and commits with the implementation. Trees and nodes are read
by the second reader (`Walk`), and what keeps a commit is the oracle's of retention.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import pyarrow as pa

from ebbtide.arrow import table_of, texts
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import WithUnnamed, walk_of
from ebbtide.gc.curve import Curve
from ebbtide.gc.parts import Count
from ebbtide.gc.uncommitted import SIZED_SCHEMA
from ebbtide.gc.usage import AGES, Usage
from ebbtide.retention.decision import Roots
from ebbtide.storage.local import temporary_targets
from tests.retention import oracle

Figure = tuple[int, int]  # files, bytes


@dataclass(frozen=True)
class File:
    address: str
    size: int
    written: datetime
    kind: str


def files_of(repository: RepositoryFormat) -> list[File]:
    """Every file on the storage that a run can delete."""
    found = []
    for batch in repository.storage.list(""):
        table = pa.Table.from_batches([batch])
        addresses = cast("pa.StringArray", batch.column("address"))
        kinds = texts(repository.layout.classify(addresses))
        for row, kind in zip(table.to_pylist(), kinds, strict=True):
            if kind in repository.layout.delete_order and row["regular"]:
                found.append(File(row["address"], row["size_bytes"], row["last_modified"], kind))
    return found


def needs_of(repository: RepositoryFormat, roots: Roots) -> dict[str, dict[str, set[str]]]:
    """For each address the commits that need it, by what they keep: their data or their record."""
    walk = walk_of(repository)
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: {"data": set(), "record": set()})
    for commit in roots.commits:
        for address in roots.companions.get(commit.commit_id, ()):
            found[address]["record"].add(commit.commit_id)
        if commit.tree_id not in roots.tree_checksums:
            continue
        tree = walk.tree(commit.tree_id)
        found[tree]["record"].add(commit.commit_id)
        nodes: list[str] = []
        with suppress(NotFound):
            nodes = walk.nodes(tree)
        for node in nodes:
            found[node]["record"].add(commit.commit_id)
            with suppress(NotFound):
                for address in walk.content(node):
                    found[address]["data"].add(commit.commit_id)
    return found


def unseen_of(repository: RepositoryFormat, files: Iterable[File]) -> dict[str, str]:
    """The files that clients can read although nothing names them, each with the reason. They count
    where nothing else holds the file."""
    if not isinstance(repository, WithUnnamed):
        return {}
    rows = [(file.address, file.size) for file in files]
    given = table_of(rows, SIZED_SCHEMA)
    found = (row for table in repository.used_unseen([given]) for row in table.to_pylist())
    return {row["address"]: f"protection {row['reason'].split(': ')[0]}" for row in found}


def policy_of(roots: Roots) -> Mapping[str, Any]:
    return {"default": "keep"} if roots.policy is None else roots.policy.to_mapping()


@dataclass(frozen=True)
class Definition:
    """The files and bytes of each set of holders, of files without one, and by period."""

    sets: dict[frozenset[str], Figure]
    deleted: Figure
    young: Figure
    periods: tuple[Figure, ...]
    listed: Figure


def definition(repository: RepositoryFormat, grace: timedelta) -> Definition:
    cutoff = repository.now() - grace
    with repository.reading(cutoff) as reading:
        roots = reading.roots()
        rows = [row for table in reading.protected() for row in table.to_pylist()]
        needs = needs_of(repository, roots)
    data, records = oracle.holders(roots.commits, roots.refs, policy_of(roots), roots.now)
    made = {commit.commit_id: commit.created_at for commit in roots.commits}
    protections = defaultdict[str, set[str]](set)
    for row in rows:
        protections[row["address"]].add(f"protection {row['reason'].split(': ')[0]}")
    sets, unheld, periods = Counts(), Counts(), Counts()
    files = files_of(repository)
    targets = temporary_targets(pa.array([file.address for file in files], pa.string()))
    rest: list[tuple[File, str]] = []
    for file, target in zip(files, targets.to_pylist(), strict=True):
        need = needs.get(file.address, {"data": set(), "record": set()})
        by_data = {each for each in need["data"] if data[each]}
        by_record = {each for each in need["record"] if records[each]}
        holders = {h for each in by_data for h in data[each]}
        holders |= {h for each in by_record for h in records[each]}
        if holders:
            newest = min(roots.now - made[each] for each in by_data | by_record)
            periods.add(sum(newest >= end for end in AGES), file)
        holders |= protections[target or file.address]
        if holders:
            sets.add(frozenset(holders), file)
        else:
            rest.append((file, target or file.address))
    # A format looks at these alone: others may be of commits that it does not know.
    unseen = unseen_of(repository, [file for file, _ in rest if file.written < cutoff])
    with suppress(Refused):  # a plan does not ask about young files, and so is not refused
        unseen |= unseen_of(repository, [file for file, _ in rest if file.written >= cutoff])
    for file, judged in rest:
        if judged in unseen:
            sets.add(frozenset({unseen[judged]}), file)
        else:
            unheld.add("young" if file.written >= cutoff else "deleted", file)
    return Definition(
        sets.found,
        unheld.get("deleted"),
        unheld.get("young"),
        tuple(periods.get(number) for number in range(len(AGES) + 1)),
        (len(files), sum(file.size for file in files)),
    )


class Counts:
    def __init__(self) -> None:
        self.files: Counter[Any] = Counter()
        self.bytes: Counter[Any] = Counter()

    def add(self, name: Any, file: File) -> None:
        self.files[name] += 1
        self.bytes[name] += file.size

    def get(self, name: Any) -> Figure:
        return self.files[name], self.bytes[name]

    @property
    def found(self) -> dict[Any, Figure]:
        return {name: self.get(name) for name in self.files}


def total(figures: Iterable[Figure]) -> Figure:
    found = list(figures)
    return sum(files for files, _ in found), sum(size for _, size in found)


def check_usage(found: Usage, expected: Definition) -> None:
    """The figures are those of the definition, and their sum is the listed files."""

    def figure(count: Any) -> Figure:
        return count.objects, count.bytes_total

    def name(holder: Any) -> str:
        named = holder.kind in ("branch", "tag", "collection", "hold", "protection")
        return f"{holder.kind} {holder.name}" if named else holder.kind

    alone = {name(each.holder): figure(each.alone) for each in found.holders}
    in_all = {name(each.holder): figure(each.in_all) for each in found.holders}
    holders = {each for holders in expected.sets for each in holders}
    assert holders <= alone.keys()
    for each in alone:
        assert alone[each] == expected.sets.get(frozenset([each]), (0, 0)), each
        reached = (count for holders, count in expected.sets.items() if each in holders)
        assert in_all[each] == total(reached), each
    # Counted, not sorted: of two sets of names none may be the smaller one.
    shared = Counter(
        (each.holder_count, figure(each.count), frozenset(map(name, each.named)))
        for each in found.shared
        if each.holder_count <= len(each.named)
    )
    assert shared == Counter(
        (len(holders), count, holders)
        for holders, count in expected.sets.items()
        if 1 < len(holders) <= 5
    )
    assert total(figure(each.count) for each in found.shared) == total(
        count for holders, count in expected.sets.items() if len(holders) > 1
    )
    assert figure(found.deleted) == expected.deleted
    assert figure(found.young) == expected.young
    assert tuple(figure(count) for _, count in found.periods) == expected.periods
    own = [figure(found.system), figure(found.foreign)]
    lines = [*alone.values(), expected.deleted, expected.young, *own]
    lines += [figure(each.count) for each in found.shared]
    assert total(lines) == figure(found.listed)
    assert total([expected.listed, *own]) == figure(found.listed)


def check_curve(found: Curve, repository: RepositoryFormat, grace: timedelta) -> None:
    """The figures of each point are those of its policy by the definition."""
    cutoff = repository.now() - grace
    with repository.reading(cutoff) as reading:
        roots = reading.roots()
        rows = [row for table in reading.protected() for row in table.to_pylist()]
        needs = needs_of(repository, roots)
    protected = {row["address"] for row in rows}
    files = files_of(repository)
    protected |= unseen_of(repository, files).keys()
    known = {commit.commit_id: commit for commit in roots.commits}
    refs = [ref.commit_id for ref in roots.refs]
    present = oracle.active_ids(roots.commits, roots.refs, policy_of(roots), roots.now)
    for point in (found.present, *found.points):
        policy = {"default": "keep"} if point.policy is None else point.policy
        active = oracle.active_ids(roots.commits, roots.refs, policy, roots.now)
        recorded = {each for start in [*refs, *active] for each in oracle.ancestors(start, known)}
        going = [
            file
            for file in files
            if file.written < cutoff
            and (temporary_targets(pa.array([file.address]))[0].as_py() or file.address)
            not in protected
            and not needs.get(file.address, {"data": set()})["data"] & active
            and not needs.get(file.address, {"record": set()})["record"] & recorded
        ]
        size = sum(file.size for file in going)
        shown = (point.reclaimable.objects, point.reclaimable.bytes_total)
        assert shown == (len(going), size), (point.axis, point.label)
        assert point.active_count == len(active)
        assert point.lost_count == len(present - active)
        assert point.regained_count == len(active - present)
        assert sum(point.counts.values(), Count()) == found.listed
    # Also those that a plan need not list: young ones.
    assert found.listed == Count(len(files), sum(file.size for file in files))
