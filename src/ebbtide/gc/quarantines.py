"""The quarantines of one repository: their ends, and the files in them that are needed again.

A format without a fence cannot prevent that a client uses an expired commit again, after its files
went to quarantine. Before a quarantine ends, its files are therefore compared with all files that
are needed now. Files that commits need, and that are not on the storage, are looked for in every
quarantine. Restored files are copies: the files in quarantine stay until it ends. Not for: undoing
a run (`undo`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, texts
from ebbtide.errors import Conflict, Incomplete, NotFound, Refused
from ebbtide.formats.base import AMONG_MAX, Guard, RepositoryFormat
from ebbtide.formats.capabilities import batch_max_of, guard_of
from ebbtide.gc import quarantine
from ebbtide.gc.candidates import exists, needed_of, without_purged
from ebbtide.gc.committed import Mark, write_trees
from ebbtide.gc.decisions import trees_of
from ebbtide.gc.deletes import open_batches
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.gates import SHOWN_MAX
from ebbtide.gc.index import Index
from ebbtide.gc.keys import KeyArray, KeySet, keys_in_parts, keys_of, rows_of
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_part, read_tables
from ebbtide.gc.plan import Plan
from ebbtide.gc.quarantine import Quarantine
from ebbtide.gc.runs import RunFolder, RunFolders, TaskFiles
from ebbtide.gc.steps import Steps
from ebbtide.gc.store import POINTERS, judged_by
from ebbtide.gc.uncommitted import protected_among, write_protected, write_unseen
from ebbtide.quarantined import record_address
from ebbtide.retention.decision import Roots, decide
from ebbtide.text import count_text

_RESTORED: Final = "restored"
_LOST: Final = "lost"
_AT_ONCE: Final = 1_000
_Decided = TypeVar("_Decided")


@dataclass(frozen=True, slots=True)
class Recovered:
    """The numbers of needed files that were absent: those that were `restored` from a quarantine,
    and those that are `lost`, because no quarantine has them. Each with up to SHOWN_MAX names."""

    restored: int = 0
    lost: int = 0
    restored_names: list[str] = field(default_factory=list)
    lost_names: list[str] = field(default_factory=list)

    def __add__(self, other: Recovered) -> Recovered:
        return Recovered(
            self.restored + other.restored,
            self.lost + other.lost,
            [*self.restored_names, *other.restored_names][:SHOWN_MAX],
            [*self.lost_names, *other.lost_names][:SHOWN_MAX],
        )

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
    restored, lost = ([p for p in found if p.relation == of] for of in (_RESTORED, _LOST))
    names = _first(folder, restored), _first(folder, lost)
    return Recovered(rows_of(restored), rows_of(lost), *names)


def _first(folder: RunFolder, parts: Sequence[Part]) -> list[str]:
    """Returns the first SHOWN_MAX addresses in parts."""
    found: list[str] = []
    for table in read_tables(folder, parts, ADDRESS_SCHEMA):
        found += texts(table.column("address").slice(0, SHOWN_MAX - len(found)))
        if len(found) >= SHOWN_MAX:
            break
    return found


def chosen(
    engine: Engine, folder: RunFolder, parts: Sequence[Part], keys: KeyArray, *, name: str
) -> list[Part]:
    """Writes the rows of `parts` that are judged by one of the `keys`. Returns their parts, which
    keep the last part of their names."""

    def work(_number: int, part: Part, answer: PartRows) -> None:
        table = read_part(folder, part.name, part.checksum)
        rows = table.filter(pa.array(KeySet(keys).has(keys_of(judged_by(table)))))
        answer.wrote(folder, f"{name}/needed/{part.name.rpartition('/')[2]}", rows)

    return engine.run(list(parts), work).parts


def read_protected(
    repository: RepositoryFormat,
    folder: RunFolder,
    files: Sequence[Part],
    decide: Callable[[Roots], _Decided],
    *,
    cutoff: datetime,
    name: str,
) -> tuple[_Decided, list[Part]]:
    """Returns the decision on the present roots, and parts with the addresses that are protected
    now. If there are at most AMONG_MAX `files`, only these are looked up."""
    with repository.reading(cutoff) as reading:
        decided = decide(reading.roots())
        few = rows_of(files) <= AMONG_MAX
        kept = protected_among(reading, folder, files) if few else reading.protected()
        protected = write_protected(folder, kept, name=f"{name}/kept")
    return decided, protected + write_unseen(repository, folder, files, name=f"{name}/unseen")


@dataclass(frozen=True, slots=True)
class Needed:
    """The files of a quarantine that are needed now: their `keys`, the check to make before each
    batch of deletes, and what was `recovered` of them."""

    keys: KeyArray
    guard: Guard
    recovered: Recovered


@dataclass(frozen=True, slots=True)
class Quarantines:
    """The quarantines of one repository. A change of a quarantine needs a hold on the
    repository."""

    engine: Engine
    folders: RunFolders
    options: RunOptions

    @property
    def repository(self) -> RepositoryFormat:
        """The repository of the quarantines."""
        return self.folders.repository

    def held(self, run_id: str) -> Quarantine:
        """Returns the record of a run that has files in quarantine. Raises NotFound
        `not_quarantined`."""
        record = quarantine.read(self.repository.storage, run_id)
        if record is None or record.state != "held":
            raise NotFound("not_quarantined", f"run {run_id} has no files in quarantine")
        return record

    def rescue(self, record: Quarantine, folder: RunFolder, steps: Steps) -> Needed:
        """Restores the files of a run's quarantine that are needed now. `folder` is that of the
        present run, or of the run itself. Raises Failed `storage_error`, and Refused."""
        with steps("restore"):
            needed, guard = self.needed(record.run_id, folder)
            recovered = restore(self.engine, self.repository, folder, needed)
        return Needed(keys_in_parts(folder, needed), guard, recovered)

    def needed(self, run_id: str, folder: RunFolder) -> tuple[list[Part], Guard]:
        """Returns the files in a run's quarantine that are needed now (parts of ADDRESS_SCHEMA),
        and the check to make before each batch of deletes. Reads refs and commits anew.

        Writes its own files to `folder`, whose plan's listing tells which trees and nodes the index
        knows.
        """
        repository, engine, name = self.repository, self.engine, f"ending/{run_id}"
        place = TaskFiles(repository.storage, repository.layout, folder, name)
        held = quarantine.list_held(
            engine, place.storage, place.layout, run_id, folder=folder, stem=f"{name}/held"
        )
        cutoff = repository.now() - self.options.grace
        (roots, decision), protected = read_protected(
            repository,
            folder,
            held,
            lambda roots: (roots, decide(roots)),
            cutoff=cutoff,
            name=name,
        )
        guard = guard_of(repository, decision.active.keys())
        if not held:
            return [], guard
        marked = trees_of(roots, decision)
        trees = write_trees(folder, place.prefixed("known"), marked, roots.tree_checksums)
        asked = keys_in_parts(folder, held) if engine.holds(held) else None
        live = Mark(engine, place, trees, index=self._index(folder)).live(asked)
        keys = needed_of(engine, folder, held, live=live, protected=protected)
        found = chosen(engine, folder, held, keys, name=name)
        return without_purged(repository, folder, found), guard

    def _index(self, folder: RunFolder) -> Index | None:
        """Opens the index with the trees and nodes that the plan of `folder` has listed. Adds
        nothing to it."""
        pointers = [
            Part(name, 0, 0, None, relation=POINTERS)
            for name in folder.names("inventory", suffix=f"-{POINTERS}.parquet")
        ]
        if not pointers:
            return None
        storage, now = self.repository.storage, self.repository.now()
        return Index.open(storage, folder, pointers, read_at=now, writable=False)

    def purge(
        self, record: Quarantine, told: Mapping[str, Any] | None, needed: Needed, steps: Steps
    ) -> Mapping[str, Any]:
        """Deletes the files that a run has in quarantine, after `rescue` has restored the `needed`
        ones. `told` is the field `quarantine` of the run's report. Returns its new content.

        A needed file stays in quarantine too while a batch of a sweep is not settled, because its
        process may still delete the restored file. The quarantine is then `held` further on.
        Raises Failed `storage_error`, and Incomplete if it stops for any other reason, such as a
        file that was not needed and is needed now.
        """
        storage, run_id = self.repository.storage, record.run_id
        try:
            with steps("purge"):
                _, sweepers = open_batches(self.folders)
                stays = needed.keys if sweepers else quarantine.NO_KEYS
                self.engine.meter.begin("files", (told or {}).get("objects"))
                quarantine.delete_held(
                    self.engine,
                    storage,
                    run_id,
                    but=stays,
                    guard=partial(_unless_restored, needed.guard, needed.keys),
                    batch_max=batch_max_of(self.repository),
                )
                if len(stays):
                    return self.told(run_id, "held") | {"sweepers": sweepers}
                if record.delete_versions:
                    quarantine.delete_hidden(storage, run_id)
        except (Refused, NotFound, Conflict) as error:
            raise Incomplete(
                "incomplete",
                f"the purge of run {run_id} was stopped: {error.message}. Files that it "
                "deleted until then cannot be restored: purge the run again for the others",
            ) from error
        if record.back_at is None:
            quarantine.drop(storage, run_id)
        else:
            quarantine.write(storage, replace(record, state="purged"))
        return self.told(run_id, "purged")

    def over(self, plan: Plan) -> tuple[list[Quarantine], dict[str, Refused]]:
        """Returns the records of quarantines whose time is over, after a sweep of `plan`, and the
        errors of damaged records by run id.

        Deletes the record of an undone or purged quarantine when its restored files are no longer
        protected, and a clean run has begun since they were restored.
        """
        now, storage = self.repository.now(), self.repository.storage
        records, damaged = quarantine.read_each(storage)
        for record in records:
            is_seen = record.back_at is None or record.back_at < plan.clean_at
            if record.state != "held" and is_seen and not record.protects(now):
                quarantine.drop(storage, record.run_id)
        return [each for each in records if each.state == "held" and each.until <= now], damaged

    def has(self, run_id: str) -> bool:
        """Whether there is a record of a run's quarantine, damaged or not."""
        return self.repository.storage.head(record_address(run_id)) is not None

    def has_any(self) -> bool:
        """Whether any run may have files in quarantine."""
        records, damaged = quarantine.read_each(self.repository.storage)
        return bool(damaged) or any(record.state == "held" for record in records)

    def undone_since(self, instant: datetime) -> str | None:
        """Returns why files may have been restored after `instant`, or None. An incremental run
        does not look at restored files."""
        records, damaged = quarantine.read_each(self.repository.storage)
        for error in damaged.values():
            return error.message
        for record in records:
            if record.back_at is not None and record.back_at > instant:
                return f"run {record.run_id} was undone since the last clean run"
        return None

    def told(self, run_id: str, state: str) -> dict[str, Any]:
        """Returns the field `quarantine` of a report, with the files that are in quarantine now."""
        storage, is_held = self.repository.storage, state == "held"
        left = quarantine.count(storage, run_id)
        record = quarantine.read(storage, run_id) if is_held else None
        return {
            "state": state,
            "until": None if record is None else record.until.isoformat(),
            "at": None if is_held else self.repository.now().isoformat(),
            "objects": left.objects,
            "bytes": left.bytes_total,
        }


def _unless_restored(guard: Guard, restored: KeyArray, addresses: Column) -> Mapping[str, str]:
    """Calls `guard` with the addresses whose files were not restored, if there are any."""
    left = pa.array(~KeySet(restored).has(keys_of(addresses)))
    return guard(addresses.filter(left))
