"""Undoes a sweep with a quarantine: restores objects, nodes, trees and records, in this order.

Commits are opened last. The files to restore are recorded before they are moved. No run deletes
recorded files during the undo, and for some days after it. If an undo is interrupted, the user runs
it again. If the end of a batch is not on record, its files stay where they are: a process of an
earlier sweep may still delete them (`deletes`). A commit is opened only if all files that it needs
exist, and none of them is at this risk. An undo can be repeated until all files of the run are
accounted for.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, split_by, texts
from ebbtide.errors import Conflict, EbbtideError, Failed, Incomplete, NotFound, Refused
from ebbtide.formats.base import FOREIGN, RepositoryFormat, RunHold, tree_address
from ebbtide.formats.capabilities import Fencing, Forgetting, reopen
from ebbtide.gc import quarantine
from ebbtide.gc.candidates import without_purged
from ebbtide.gc.deletes import open_batches, read_outcomes
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.keys import KeyArray, KeySet, keys_in_parts, keys_of, once, rows_of
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Count, Part, PartRows, read_tables, split
from ebbtide.gc.quarantine import BACK_SCHEMA, Quarantine, failure_of, kept_records
from ebbtide.gc.runs import RunFolder, RunFolders
from ebbtide.gc.steps import Steps, advance

ROWS_PER_PART: Final = 50_000
PAUSE_SECONDS: Final = 1.0
_BACK: Final = "back"
_LOST: Final = "lost"
_MISSING_SCHEMA: Final = make_schema(("tree_id", pa.string()), ("address", pa.string()))
"""An address that a tree needs, and that is missing or at risk. Empty if the tree cannot be
read."""


@dataclass(frozen=True, slots=True)
class Undone:
    """The result of an undo, as fields of the report.

    `back_objects` counts the restored files, and `reopened_commits` the opened commits.
    `closed_commits` counts those that stay closed, because a file that they need is missing or at
    risk. `purged_objects` counts the files that were purged after the sweep. `at_risk_objects`
    counts the files that the processes `sweepers` may still delete. `lost_objects` counts the
    quarantined files that do not exist any more. `readable_until` says until when the opened
    commits can be read; empty if nothing ends this time.
    """

    back_objects: int
    back_bytes: int
    purged_objects: int
    at_risk_objects: int
    sweepers: str
    reopened_commits: int = 0
    closed_commits: int = 0
    lost_objects: int = 0
    readable_until: str = ""


@dataclass(slots=True)
class Undo:
    """One undo of one run, under a hold.

    With `under`, it restores only files whose addresses begin with this prefix, and opens no
    commits. No run deletes restored files for the time `undo_hold`. The undo waits for the time
    `patience` for the batches of sweeps that lost the repository. `sweeps_ended`: the user has
    checked that no process of any sweep exists, not even a suspended one.
    """

    engine: Engine
    folders: RunFolders
    run_id: str
    folder: RunFolder
    hold: RunHold
    steps: Steps
    options: RunOptions
    under: str = ""
    sweeps_ended: bool = False
    _has_begun: bool = False

    @property
    def repository(self) -> RepositoryFormat:
        """The repository of the run."""
        return self.folders.repository

    @property
    def _home(self) -> RunFolder:
        """The place of the lists that this undo makes: in the repository's own storage, where each
        later run finds them, even if the run's folder is elsewhere."""
        return self.folders.inside(self.run_id)

    def execute(self) -> tuple[Undone, bool]:
        """Undoes the run. Returns the result, and whether it is whole: every file is accounted for,
        and the undo cannot be repeated.

        Raises Conflict `plan_used` if the run was undone or purged, and NotFound `not_quarantined`
        if it has no quarantine. Raises Incomplete if it stops after the first restored file, and
        Failed `storage_error` if files could not be moved; the undo can be run again then.
        """
        storage = self.repository.storage
        found = quarantine.read(storage, self.run_id)
        if found is None:
            raise NotFound(
                "not_quarantined",
                f"run {self.run_id} has no files in quarantine: it moved none there, or they were "
                "purged; 'ebbtide gc show' says what it did",
            )
        if found.state != "held":
            raise Conflict(
                "plan_used",
                f"run {self.run_id} was {found.state} already: see 'ebbtide gc show'",
            )
        with self.steps("wait"):
            sweepers, risks = self._risks()
        try:
            return self._restore(found, sweepers, risks)
        except (Refused, NotFound, Conflict) as error:
            if not self._has_begun:
                raise
            raise Incomplete(
                "incomplete",
                f"the undo was stopped: {error.message}. The files that it restored until then "
                "stay, and no run deletes them for now: undo the run again, it continues where it "
                "stopped",
            ) from error

    def _restore(self, found: Quarantine, sweepers: str, risks: KeyArray) -> tuple[Undone, bool]:
        storage = self.repository.storage
        with self.steps("bring back"):
            found, back, purged = self._bring_back(found, risks)
            if self.under:
                return Undone(back.objects, back.bytes_total, purged, len(risks), sweepers), False
            found, late, lost = self._bring_the_rest(found, risks)
        with self.steps("reopen"):
            reopened, closed, until = self._reopen(risks)
        self.hold.check()
        back += late
        told = Undone(
            *(back.objects, back.bytes_total, purged, len(risks), sweepers),
            *(reopened, closed, lost, until),
        )
        is_whole = not (len(risks) or lost)
        if is_whole:
            quarantine.write(storage, replace(found, state="undone"))
            if purged:
                quarantine.delete_held(self.engine, storage, self.run_id)
        return told, is_whole

    def _risks(self) -> tuple[str, KeyArray]:
        """Waits for open batches. Returns the processes of batches that do not end in time, and the
        keys of the files of these batches.

        A sweep that begins a batch from now on sees that it has lost the repository.
        """
        if self.sweeps_ended:
            return "", quarantine.NO_KEYS
        waited = 0.0
        while True:
            found, sweepers = open_batches(self.folders)
            left = self.options.patience.total_seconds() - waited
            if not found or left <= 0:
                break
            pause = min(left, PAUSE_SECONDS)
            time.sleep(pause)
            waited += pause
        keys = [keys_of(intent.addresses(folder).column("address")) for folder, intent in found]
        return sweepers, once(np.concatenate([quarantine.NO_KEYS, *keys]))

    def _bring_back(self, found: Quarantine, risks: KeyArray) -> tuple[Quarantine, Count, int]:
        """Restores the files in quarantine, until a listing finds no more. Returns the record, the
        count of restored files, and the number of purged files."""
        repository, back = self.repository, Count()
        for attempt in itertools.count():
            listed = quarantine.list_held(
                self.engine,
                repository.storage,
                repository.layout,
                self.run_id,
                folder=self._home,
                stem=f"back/{self.hold.run_epoch:06d}-{attempt:02d}",
                under=self.under,
                but=risks,
            )
            parts = without_purged(repository, self._home, listed)
            if not parts:
                return found, back, rows_of(listed)
            found = self._return(found, parts)
            back += sum((part.count for part in parts), Count())
        raise AssertionError("unreachable")

    def _bring_the_rest(self, found: Quarantine, risks: KeyArray) -> tuple[Quarantine, Count, int]:
        """Restores recorded files that the listings lacked, by their addresses. Returns the record,
        the count of restored files, and the number of files that do not exist any more."""
        recorded = self._recorded(found.back, risks)
        parts = without_purged(self.repository, self._home, recorded)
        lost = [part for part in parts if part.relation == _LOST]
        there = [part for part in parts if part.relation != _LOST]
        if there:
            found = self._return(found, there)
        return found, sum((part.count for part in there), Count()), rows_of(lost)

    def _recorded(self, back: Sequence[Part], risks: KeyArray) -> list[Part]:
        """Returns the files that this run quarantined according to its record, without those that
        are back or at risk: parts of BACK_SCHEMA with one kind each. The relation of files that do
        not exist is _LOST."""
        storage, run_id = self.repository.storage, self.run_id
        folder, home = self.folder, self._home
        stem = f"back/{self.hold.run_epoch:06d}-rest"

        def work(number: int, task: Sequence[str], answer: PartRows) -> None:
            known = KeySet(np.concatenate([keys_in_parts(home, back), risks]))
            for place, name in enumerate(task):
                held = read_outcomes(folder, [name], ["quarantined"])
                rows = quarantine.not_among(known, held.select(BACK_SCHEMA.names))
                there = quarantine.existing(storage, run_id, texts(rows.column("address")))
                for relation, mask in ((_BACK, there), (_LOST, pc.invert(there))):
                    for kind, some in split_by(rows.filter(mask), "kind"):
                        name = f"{stem}-{relation}-{number:05d}-{place:05d}-{kind}.parquet"
                        answer.wrote(home, name, some, relation=relation, kind=kind, durable=True)

        names = folder.names("deleted")
        return self.engine.run(split(names, tasks=self.engine.task_count), work).parts

    def _return(self, found: Quarantine, parts: list[Part]) -> Quarantine:
        """Restores files (parts of BACK_SCHEMA), after it has added them to the record. Returns the
        new record."""
        self.hold.check()
        now = self.repository.now()
        until = now + self.options.undo_hold
        found = replace(found, back=(*found.back, *parts), back_at=now, back_until=until)
        quarantine.write(self.repository.storage, found)
        self._has_begun = True
        self._move_back(parts)
        return found

    def _move_back(self, parts: Sequence[Part]) -> None:
        """Moves files from the quarantine to their addresses, kind by kind, so that a file comes
        after the files that it refers to. Raises Failed `storage_error`."""
        storage, folder, run_id = self.repository.storage, self._home, self.run_id

        def work(_number: int, task: Part, answer: PartRows) -> None:
            table = next(read_tables(folder, [task], BACK_SCHEMA))
            addresses = texts(table.column("address"))
            for start in range(0, len(addresses), ROWS_PER_PART):
                some = addresses[start : start + ROWS_PER_PART]
                outcomes = quarantine.move_back(storage, run_id, some)
                advance(len(some))
                failure = failure_of(
                    outcomes, "{files} could not be restored", "undo the run again"
                )
                if failure is not None:
                    answer.failed(failure)

        self.engine.meter.begin("files", rows_of(parts))
        order = self.repository.layout.delete_order
        kinds = [*(kind for kind in reversed(order)), *({p.kind for p in parts} - {*order})]
        for kind in kinds:
            self.hold.check()
            self.engine.run([part for part in parts if part.kind == kind], work)

    def _reopen(self, risks: KeyArray) -> tuple[int, int, str]:
        """Opens the commits whose files all exist and are not at risk. Returns the number of opened
        commits, of commits that stay closed, and until when the opened ones can be read."""
        run_id, repository = self.run_id, self.repository
        records = {row["commit_id"]: row for row in kept_records(self.folder)}
        by_run = repository.closed_by(run_id) if isinstance(repository, Fencing) else ()
        closed = {row["commit_id"]: row for row in by_run}
        rows = {**records, **closed}.values()
        lost = self._incomplete({row["tree_id"]: row["tree_checksum"] for row in rows}, risks)
        whole = [row for row in rows if row["tree_id"] not in lost]
        commit_ids = [row["commit_id"] for row in whole]
        opened = reopen(
            repository,
            self.hold,
            run_id,
            commit_ids,
            [row for row in whole if row["commit_id"] not in closed],
            until=self.repository.now() + self.options.undo_hold,
        )
        until = repository.readable_until(commit_ids) if isinstance(repository, Forgetting) else ""
        return opened, len(rows) - opened, until

    def _incomplete(self, trees: dict[str, str], risks: KeyArray) -> frozenset[str]:
        """Returns the `trees` (id to checksum) that refer to a file that is missing or at risk.

        The storage is asked for each file, because other runs may have deleted files without a
        record. Purged files do not count as missing. A tree that cannot be read is incomplete too.
        """
        epoch = self.hold.run_epoch
        storage, layout, folder = self.repository.storage, self.repository.layout, self._home

        def missing(tree_id: str, risky: KeySet, nodes: dict[str, list[str]]) -> Iterator[str]:
            found = layout.read_tree(storage, tree_id, trees[tree_id])
            pointers = [tree_address(layout, tree_id)]
            pointers += texts(layout.node_addresses(found.column("node_id")))
            if risky.has(keys_of(pa.array(pointers))).any():
                raise Refused("missing_tree", "it is at risk")
            for row in found.to_pylist():
                if row["node_id"] not in nodes:
                    addresses = layout.read_node(
                        storage, row["node_id"], row["checksum"], entry_count=row["entry_count"]
                    )
                    # Imported files are outside the storage root, and runs never delete them.
                    own = addresses.filter(
                        pc.not_equal(layout.classify(addresses), pa.scalar(FOREIGN))
                    )
                    there = storage.sizes(texts(own)).column("regular")
                    safe = pc.and_(there, pc.invert(pa.array(risky.has(keys_of(own)))))
                    nodes[row["node_id"]] = texts(own.filter(pc.invert(safe)))
                yield from nodes[row["node_id"]]

        def work(number: int, task: Sequence[str], answer: PartRows) -> None:
            risky = KeySet(risks)
            nodes: dict[str, list[str]] = {}
            rows: list[dict[str, str]] = []
            for tree_id in task:
                try:
                    lacks = set(missing(tree_id, risky, nodes))
                    rows += [{"tree_id": tree_id, "address": each} for each in lacks]
                except Failed:
                    raise  # the storage failed: the tree may be complete
                except EbbtideError:
                    rows.append({"tree_id": tree_id, "address": ""})
            name = f"back/incomplete-{epoch:06d}-{number:05d}.parquet"
            answer.wrote(folder, name, pa.Table.from_pylist(rows, schema=_MISSING_SCHEMA))

        tasks = split(sorted(trees), tasks=self.engine.task_count)
        found = without_purged(self.repository, folder, self.engine.run(tasks, work).parts)
        tables = read_tables(folder, found, _MISSING_SCHEMA)
        return frozenset(tree_id for table in tables for tree_id in texts(table.column("tree_id")))
