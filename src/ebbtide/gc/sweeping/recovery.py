"""Restores files in quarantine that are needed again.

A format without a fence cannot prevent that a client uses an expired commit again, after its files
went to quarantine. Before a quarantine ends, its files are therefore compared with all files that
are needed now. Files that commits need, and that are not on the storage, are looked for in every
quarantine. Restored files are copies: the files in quarantine stay until it ends. Not for: undoing
a run (`undoing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts
from ebbtide.formats.base import Guard, RepositoryFormat
from ebbtide.formats.capabilities import guard_of
from ebbtide.gc import quarantine
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_part, read_tables, split
from ebbtide.gc.planning.absent import exists, without_purged
from ebbtide.gc.planning.deciding import trees_of
from ebbtide.gc.planning.gates import SHOWN_MAX
from ebbtide.gc.planning.subtract import needed_of
from ebbtide.gc.quarantine import Share
from ebbtide.gc.relations.index import Index
from ebbtide.gc.relations.inventory import POINTERS, judged_by
from ebbtide.gc.relations.keys import KeyArray, KeySet, keys_in_parts, keys_of, rows_of
from ebbtide.gc.relations.live import Mark, write_trees
from ebbtide.gc.relations.protected import protected_among, write_protected, write_unseen
from ebbtide.gc.runs import RunFolder, TaskFiles
from ebbtide.retention.decision import decide
from ebbtide.text import count_text

_HELD_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("kind", pa.string()),
    ("target", pa.string()),
)
_RESTORED: Final = "restored"
_LOST: Final = "lost"
_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Recovered:
    """The numbers of needed files that were absent: those that were `restored` from a quarantine,
    and those that are `lost`, because no quarantine has them. Each with up to SHOWN_MAX names."""

    restored: int = 0
    lost: int = 0
    restored_names: tuple[str, ...] = ()
    lost_names: tuple[str, ...] = ()

    def __add__(self, other: Recovered) -> Recovered:
        return Recovered(
            self.restored + other.restored,
            self.lost + other.lost,
            (*self.restored_names, *other.restored_names)[:SHOWN_MAX],
            (*self.lost_names, *other.lost_names)[:SHOWN_MAX],
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the report's field `recovered`."""
        return {
            "restored": self.restored,
            "lost": self.lost,
            "restored_names": list(self.restored_names),
            "lost_names": list(self.lost_names),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> Recovered:
        """Returns what `to_json` wrote; without content, nothing."""
        if content is None:
            return cls()
        restored, lost = content["restored_names"], content["lost_names"]
        return cls(content["restored"], content["lost"], tuple(restored), tuple(lost))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings for the run's report."""
        found = []
        if self.restored:
            files = count_text(self.restored, "file that is", "files that are")
            found.append(
                f"{files} needed again had gone to quarantine, and this run has restored "
                f"{_named(self.restored, self.restored_names)}: a client used an expired commit "
                "again"
            )
        if self.lost:
            files = count_text(self.lost, "file that is", "files that are")
            found.append(
                f"{files} needed cannot be found, in no quarantine either: "
                f"{_named(self.lost, self.lost_names)}: restore them from a backup"
            )
        return tuple(found)


def _named(count: int, names: Sequence[str]) -> str:
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    return ", ".join(names) + more


def restore(
    engine: Engine, repository: RepositoryFormat, folder: RunFolder, parts: Sequence[Part]
) -> Recovered:
    """Restores the absent files among those in `parts` (a column `address`) from any quarantine.
    Raises Failed `storage_error`."""
    if not parts:
        return Recovered()
    storage = repository.storage
    runs = quarantine.runs_with_files(storage)

    def work(_number: int, part: Part, answer: PartRows) -> None:
        table = read_part(folder, part.name, part.checksum, columns=ADDRESS_SCHEMA.names)
        restored, lost = list[str](), list[str]()
        for start in range(0, table.num_rows, _AT_ONCE):
            some = table.slice(start, _AT_ONCE).column("address")
            left = texts(some.filter(pc.invert(exists(storage, texts(some)))))
            for run_id in runs if left else ():
                copied = quarantine.copy_back(storage, run_id, left)
                restored += copied
                left = [each for each in left if each not in set(copied)]
            lost += left
        stem = f"recovered/{part.name.removesuffix('.parquet').replace('/', '-')}"
        for relation, names in ((_RESTORED, restored), (_LOST, lost)):
            rows = pa.table([pa.array(names, pa.string())], schema=ADDRESS_SCHEMA)
            answer.wrote(folder, f"{stem}-{relation}.parquet", rows, relation=relation)

    found = engine.run(list(parts), work).parts
    by_relation = {
        relation: [part for part in found if part.relation == relation]
        for relation in (_RESTORED, _LOST)
    }
    names = {relation: _first(folder, of) for relation, of in by_relation.items()}
    counts = {relation: rows_of(of) for relation, of in by_relation.items()}
    return Recovered(counts[_RESTORED], counts[_LOST], names[_RESTORED], names[_LOST])


def _first(folder: RunFolder, parts: Sequence[Part]) -> tuple[str, ...]:
    """Returns the first SHOWN_MAX addresses in parts."""
    found: list[str] = []
    for table in read_tables(folder, parts, ADDRESS_SCHEMA):
        found += texts(table.column("address").slice(0, SHOWN_MAX - len(found)))
        if len(found) >= SHOWN_MAX:
            break
    return tuple(found)


def chosen(
    engine: Engine, folder: RunFolder, parts: Sequence[Part], keys: KeyArray, *, name: str
) -> list[Part]:
    """Writes the addresses in `parts` that are judged by one of the `keys`. Returns their parts
    (ADDRESS_SCHEMA)."""

    def work(number: int, part: Part, answer: PartRows) -> None:
        columns = ("address", "target")
        table = read_part(folder, part.name, part.checksum, columns=columns)
        rows = table.filter(pa.array(KeySet(keys).has(keys_of(judged_by(table)))))
        answer.wrote(folder, f"{name}/needed-{number:05d}.parquet", rows.select(["address"]))

    return engine.run(list(parts), work).parts


@dataclass(frozen=True, slots=True)
class QuarantineEnd:
    """The end of a run's quarantine. Writes its own files to `folder`, whose plan's listing tells
    which trees and nodes the index knows."""

    engine: Engine
    repository: RepositoryFormat
    options: RunOptions
    run_id: str
    folder: RunFolder

    @property
    def _name(self) -> str:
        return f"ending/{self.run_id}"

    def needed(self) -> tuple[list[Part], Guard]:
        """Returns the files in quarantine that are needed now (parts of ADDRESS_SCHEMA), and the
        check to make before each batch of deletes. Reads refs and commits anew."""
        repository, folder, name = self.repository, self.folder, self._name
        held = self._held()
        cutoff = repository.now() - self.options.grace
        with repository.reading(cutoff) as reading:
            roots = reading.roots()
            decision = decide(roots)
            protected = write_protected(
                folder, protected_among(reading, folder, held), name=f"{name}/kept"
            )
        protected += write_unseen(repository, folder, held, name=f"{name}/unseen")
        guard = guard_of(repository, decision.active.keys())
        if not held:
            return [], guard
        place = TaskFiles(repository.storage, repository.layout, folder, name)
        prefix, marked = place.prefixed("known"), trees_of(roots, decision)
        trees = write_trees(folder, prefix, marked, roots.tree_checksums)
        asked = keys_in_parts(folder, held) if self.engine.holds(held) else None
        live = Mark(self.engine, place, trees, index=self._index()).live(asked)
        keys = needed_of(self.engine, folder, held, live=live, protected=protected)
        found = chosen(self.engine, folder, held, keys, name=name)
        return without_purged(repository, folder, found), guard

    def _held(self) -> list[Part]:
        """Lists the quarantine. Returns parts of _HELD_SCHEMA."""
        storage, layout = self.repository.storage, self.repository.layout
        folder, run_id, name = self.folder, self.run_id, self._name

        def work(number: int, task: Sequence[Share], answer: PartRows) -> None:
            tables = (
                table for share in task for table in quarantine.listed(storage, run_id, share)
            )
            for place, table in enumerate(tables):
                addresses: Any = table.column("address").combine_chunks()
                sizes = table.column("size_bytes")
                columns = [addresses, sizes, layout.classify(addresses), layout.targets(addresses)]
                rows = pa.table(columns, schema=_HELD_SCHEMA)
                answer.wrote(folder, f"{name}/held-{number:05d}-{place:05d}.parquet", rows)

        shares = quarantine.shares(storage, run_id)
        return self.engine.run(split(shares, tasks=self.engine.task_count), work).parts

    def _index(self) -> Index | None:
        """Opens the index with the trees and nodes that the folder's plan has listed. Adds nothing
        to it."""
        names = self.folder.names("inventory")
        pointers = [
            Part(name, 0, 0, None, relation=POINTERS)
            for name in names
            if name.endswith(f"-{POINTERS}.parquet")
        ]
        if not pointers:
            return None
        now = self.repository.now()
        return Index.open(
            self.repository.storage, self.folder, pointers, read_at=now, writable=False
        )


def kept_keys(folder: RunFolder, parts: Sequence[Part]) -> KeyArray:
    """Returns the keys of needed files (parts of ADDRESS_SCHEMA)."""
    return keys_in_parts(folder, parts) if parts else np.empty(0, np.int64)
