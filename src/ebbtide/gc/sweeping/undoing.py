"""Undoes a sweep with a quarantine: restores objects, nodes, trees and records, in this order.

Commits are opened last. The files to restore are recorded before they are moved. No run deletes
recorded files during the undo, and for some days after it. If an undo is interrupted, the user runs
it again. If the end of a batch is not on record, its files stay where they are: a process of an
earlier sweep may still delete them (`intents`). A commit is opened only if all files that it needs
exist, and none of them is at this risk. An undo can be repeated until all files of the run are
accounted for.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, split_by, texts
from ebbtide.errors import Conflict, EbbtideError, Failed, Incomplete, NotFound, Refused
from ebbtide.formats.base import FOREIGN, RepositoryFormat, RunHold
from ebbtide.formats.capabilities import purged_among, undoable
from ebbtide.gc import quarantine
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Part, PartRows, read_part, read_tables, split
from ebbtide.gc.quarantine import BACK_SCHEMA, Quarantine, Share, kept_records
from ebbtide.gc.relations.keys import KeySet, keys_of, rows_of
from ebbtide.gc.runs import RunFolder, RunFolders
from ebbtide.gc.steps import Steps, advance
from ebbtide.gc.sweeping.intents import Intent, told, unsettled
from ebbtide.gc.sweeping.outcomes import OUTCOME_SCHEMA
from ebbtide.text import count_text

ROWS_PER_PART: Final = 50_000
PAUSE_SECONDS: Final = 1.0
_MISSING_SCHEMA: Final = make_schema(("tree_id", pa.string()), ("address", pa.string()))
"""An address that a tree needs, and that is missing or at risk. Null if the tree cannot be read."""


@dataclass(frozen=True, slots=True)
class Undone:
    """The result of an undo.

    `back` counts the restored files, and `reopened` the opened commits. `closed` counts the commits
    that stay closed, because a file that they need is missing or at risk. `purged` counts the files
    that were purged after the sweep. `at_risk` counts the files that the processes `sweepers` may
    still delete. `lost` counts the quarantined files that do not exist any more. `is_whole`: every
    file is accounted for, and the undo cannot be repeated.
    """

    back: Count
    reopened: int
    closed: int
    purged: int
    at_risk: int
    lost: int
    sweepers: str
    is_whole: bool

    def to_json(self) -> dict[str, int | str]:
        """Returns the figures for the report."""
        return {
            "back_objects": self.back.objects,
            "back_bytes": self.back.bytes_total,
            "reopened_commits": self.reopened,
            "closed_commits": self.closed,
            "purged_objects": self.purged,
            "at_risk_objects": self.at_risk,
            "lost_objects": self.lost,
            "sweepers": self.sweepers,
        }


def open_batches(folders: RunFolders) -> list[tuple[RunFolder, Intent]]:
    """Returns the batches of all runs that are not settled, each with its run's folder. Raises
    Refused `plan_corrupt`."""
    return [
        (folder, intent)
        for places in folders.known().values()
        for folder in places
        for intent in unsettled(folder)
    ]


@dataclass(slots=True)
class Undo:
    """One undo of one run, under a hold.

    With `under`, it restores only files whose addresses begin with this prefix, and opens no
    commits. No run deletes restored files for the time `lasts`. The undo waits for `patience` for
    the batches of sweeps that lost the repository. `sweeps_ended`: the user has checked that no
    process of any sweep exists, not even a suspended one.
    """

    engine: Engine
    folders: RunFolders
    run_id: str
    folder: RunFolder
    hold: RunHold
    steps: Steps
    lasts: timedelta
    patience: timedelta
    under: str = ""
    sweeps_ended: bool = False
    wait: Callable[[float], None] = time.sleep
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

    def execute(self) -> Undone:
        """Undoes the run.

        Raises Conflict `plan_used` if the run was undone or purged, and NotFound `not_quarantined`
        if it has no quarantine. Raises Incomplete if it stops after the first restored file, and
        Failed `storage_error` if files could not be moved; the undo can be run again then.
        """
        storage = self.repository.storage
        found = quarantine.read(storage, self.run_id)
        if found is None:
            raise NotFound(
                "not_quarantined",
                f"run {self.run_id} has no files in quarantine: it deleted them at once, or "
                "they were purged; 'ebbtide gc show' has the outcomes",
            )
        if found.state != "held":
            raise Conflict(
                "plan_used",
                f"run {self.run_id} was {found.state} already: see 'ebbtide gc show'",
            )
        self._bring_lists(found)
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

    def _bring_lists(self, found: Quarantine) -> None:
        """Copies the lists of an earlier version, which are in the run's folder elsewhere."""
        for part in found.back:
            folder = quarantine.folder_of_back(self.folders, self.run_id, part)
            if folder != self._home:
                PartRows().copied(self._home, part.name, folder, part, relation=part.relation)

    def _restore(self, found: Quarantine, sweepers: str, risks: list[Part]) -> Undone:
        storage = self.repository.storage
        with self.steps("bring back"):
            found, back, purged = self._bring_back(found, risks)
            if self.under:
                return Undone(back, 0, 0, purged, rows_of(risks), 0, sweepers, is_whole=False)
            found, late, lost = self._bring_the_rest(found, risks)
        with self.steps("reopen"):
            reopened, closed = self._reopen(risks)
        self.hold.check()
        is_whole = not (risks or lost)
        if is_whole:
            quarantine.write(storage, replace(found, state="undone"))
            if purged:
                quarantine.delete_held(self.engine, storage, self.run_id)
        return Undone(
            back + late,
            reopened,
            closed,
            purged,
            rows_of(risks),
            lost,
            sweepers,
            is_whole=is_whole,
        )

    def _risks(self) -> tuple[str, list[Part]]:
        """Waits for open batches. Returns the processes of batches that do not end in time, and the
        files of these batches (parts of ADDRESS_SCHEMA).

        A sweep that begins a batch from now on sees that it has lost the repository.
        """
        if self.sweeps_ended:
            return "", []
        waited = 0.0
        while True:
            found = open_batches(self.folders)
            left = self.patience.total_seconds() - waited
            if not found or left <= 0:
                break
            pause = min(left, PAUSE_SECONDS)
            self.wait(pause)
            waited += pause
        answer = PartRows()
        for number, (folder, intent) in enumerate(found):
            name = f"back/{self.hold.run_epoch:06d}-risk-{number:05d}.parquet"
            answer.wrote(self._home, name, intent.addresses(folder))
        return told(intent for _, intent in found), answer.parts()

    def _bring_back(self, found: Quarantine, risks: list[Part]) -> tuple[Quarantine, Count, int]:
        """Restores the files in quarantine, until a listing finds no more. Returns the record, the
        count of restored files, and the number of purged files."""
        back = Count()
        for attempt in itertools.count():
            listed = self._without(risks, self._listed(attempt), f"{self._stem(attempt)}-safe")
            parts, purged = self._without_purged(listed, attempt)
            if not parts:
                return found, back, purged
            found = self._return(found, parts)
            back += sum((part.count for part in parts), Count())
        raise AssertionError("unreachable")

    def _bring_the_rest(
        self, found: Quarantine, risks: list[Part]
    ) -> tuple[Quarantine, Count, int]:
        """Restores recorded files that the listings lacked, by their addresses. Returns the record,
        the count of restored files, and the number of files that do not exist any more."""
        stem = f"back/{self.hold.run_epoch:06d}-rest"
        parts = self._without([*found.back, *risks], self._quarantined(stem), stem)
        parts, _ = self._without_purged(parts, "rest")
        if not parts:
            return found, Count(), 0
        missing = rows_of(parts)
        there = self._existing(parts, stem)
        if there:
            found = self._return(found, there)
        back = sum((part.count for part in there), Count())
        return found, back, missing - back.objects

    def _quarantined(self, stem: str) -> list[Part]:
        """Returns the files that this run quarantined according to its record: parts of BACK_SCHEMA
        with one kind each."""
        folder, home = self.folder, self._home

        def work(number: int, task: Sequence[str], answer: PartRows) -> None:
            for place, name in enumerate(task):
                table = read_part(folder, name, columns=OUTCOME_SCHEMA.names)
                held = table.filter(pc.equal(table.column("outcome"), pa.scalar("quarantined")))
                for kind, rows in split_by(held.select(BACK_SCHEMA.names), "kind"):
                    target = f"{stem}-{number:05d}-{place:05d}-{kind}.parquet"
                    answer.wrote(home, target, rows, kind=kind)

        names = folder.names("deleted")
        return self.engine.run(split(names, tasks=self.engine.task_count), work).parts

    def _existing(self, parts: Sequence[Part], stem: str) -> list[Part]:
        """Returns the files of parts (BACK_SCHEMA) that exist, in quarantine or at their own
        addresses."""
        storage, folder = self.repository.storage, self._home
        prefix = quarantine.prefix_of(self.run_id)

        def work(number: int, part: Part, answer: PartRows) -> None:
            table = next(read_tables(folder, [part], BACK_SCHEMA))
            addresses = texts(table.column("address"))
            held = storage.sizes([prefix + address for address in addresses])
            back = storage.sizes(addresses)
            rows = table.filter(pc.or_(held.column("regular"), back.column("regular")))
            name = f"{stem}-there-{number:05d}.parquet"
            answer.wrote(folder, name, rows, kind=part.kind, durable=True)

        return self.engine.run(list(parts), work).parts

    def _return(self, found: Quarantine, parts: list[Part]) -> Quarantine:
        """Restores files (parts of BACK_SCHEMA), after it has added them to the record. Returns the
        new record."""
        self.hold.check()
        found = self._remember(found, parts)
        self._has_begun = True
        self._move_back(parts)
        return found

    def _without(self, taken: Sequence[Part], parts: list[Part], stem: str) -> list[Part]:
        """Returns parts (BACK_SCHEMA) without the addresses in the parts `taken`."""
        if not (taken and parts):
            return parts
        folder = self._home

        def work(number: int, part: Part, answer: PartRows) -> None:
            table = next(read_tables(folder, [part], BACK_SCHEMA))
            known = KeySet.read(folder, taken).has(keys_of(table.column("address")))
            name = f"{stem}-less-{number:05d}.parquet"
            rows = table.filter(pc.invert(pa.array(known)))
            answer.wrote(folder, name, rows, kind=part.kind, durable=True)

        return self.engine.run(parts, work).parts

    def _stem(self, attempt: int) -> str:
        return f"back/{self.hold.run_epoch:06d}-{attempt:02d}"

    def _listed(self, attempt: int) -> list[Part]:
        """Lists the quarantine. Returns parts of BACK_SCHEMA with one kind each."""
        storage, folder, layout = self.repository.storage, self._home, self.repository.layout
        run_id, under, stem = self.run_id, self.under, self._stem(attempt)

        def work(number: int, task: Sequence[Share], answer: PartRows) -> None:
            written = itertools.count()
            for share in task:
                for table in quarantine.listed(storage, run_id, share):
                    rows = table.filter(pc.starts_with(table.column("address"), under))
                    addresses: Any = rows.column("address").combine_chunks()
                    columns = [addresses, rows.column("size_bytes"), layout.classify(addresses)]
                    for kind, of_kind in split_by(pa.table(columns, schema=BACK_SCHEMA), "kind"):
                        name = f"{stem}-{number:05d}-{next(written):05d}.parquet"
                        answer.wrote(folder, name, of_kind, kind=kind, durable=True)

        shares = quarantine.shares(storage, run_id)
        return self.engine.run(split(shares, tasks=self.engine.task_count), work).parts

    def _without_purged(self, parts: list[Part], attempt: int | str) -> tuple[list[Part], int]:
        """Returns the parts without purged addresses, and the number of these."""
        kept: list[Part] = []
        answer = PartRows()
        count = 0
        for number, part in enumerate(parts):
            table = next(read_tables(self._home, [part], BACK_SCHEMA))
            purged = purged_among(self.repository, texts(table.column("address")))
            if not purged:
                kept.append(part)
                continue
            count += len(purged)
            gone = pc.is_in(table.column("address"), value_set=pa.array(sorted(purged)))
            name = f"back/{self.hold.run_epoch:06d}-{attempt}-unpurged-{number:05d}.parquet"
            rows = table.filter(pc.invert(gone))
            answer.wrote(self._home, name, rows, kind=part.kind, durable=True)
        return kept + answer.parts(), count

    def _remember(self, found: Quarantine, parts: list[Part]) -> Quarantine:
        """Records the files to restore. Called before the first of them is moved."""
        now = self.repository.now()
        known = replace(found, back=(*found.back, *parts), back_at=now, back_until=now + self.lasts)
        quarantine.write(self.repository.storage, known)
        return known

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
                failed = [each for each in outcomes if each.outcome == "failed"]
                advance(len(some))
                if failed:
                    reason = f"{failed[0].address}: {failed[0].error}"
                    message = f"{count_text(len(failed), 'file')} could not be restored: {reason}"
                    answer.failed(Failed("storage_error", message))

        self.engine.meter.begin("files", rows_of(parts))
        order = self.repository.layout.delete_order
        kinds = [*(kind for kind in reversed(order)), *({p.kind for p in parts} - {*order})]
        for kind in kinds:
            self.hold.check()
            try:
                self.engine.run([part for part in parts if part.kind == kind], work)
            except Failed as error:
                raise Failed(error.kind, f"{error.message}: undo the run again") from error

    def _reopen(self, risks: list[Part]) -> tuple[int, int]:
        """Opens the commits whose files all exist and are not at risk. Returns the number of opened
        commits, and of commits that stay closed."""
        run_id, repository = self.run_id, undoable(self.repository)
        records = {row["commit_id"]: row for row in kept_records(self.folder)}
        closed = {row["commit_id"]: row for row in repository.closed_by(run_id)}
        rows = {**records, **closed}.values()
        lost = self._incomplete({row["tree_id"]: row["tree_checksum"] for row in rows}, risks)
        whole = [row for row in rows if row["tree_id"] not in lost]
        commit_ids = [row["commit_id"] for row in whole]
        opened = repository.reopen(
            self.hold,
            run_id,
            commit_ids,
            [row for row in whole if row["commit_id"] not in closed],
            until=self.repository.now() + self.lasts,
        )
        return opened, len(rows) - opened

    def _incomplete(self, trees: dict[str, str], risks: list[Part]) -> frozenset[str]:
        """Returns the `trees` (id to checksum) that refer to a file that is missing or at risk.

        The storage is asked for each file, because other runs may have deleted files without a
        record. Purged files do not count as missing. A tree that cannot be read is incomplete too.
        """
        epoch = self.hold.run_epoch
        storage, layout, folder = self.repository.storage, self.repository.layout, self._home

        def missing(tree_id: str, risky: KeySet, nodes: dict[str, list[str]]) -> Iterator[str]:
            found = layout.read_tree(storage, tree_id, trees[tree_id])
            pointers = [layout.tree_address(tree_id)]
            pointers += map(layout.node_address, texts(found.column("node_id")))
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
            risky = KeySet.read(folder, risks)
            nodes: dict[str, list[str]] = {}
            rows: list[dict[str, str | None]] = []
            for tree_id in task:
                try:
                    lacks = set(missing(tree_id, risky, nodes))
                    rows += [{"tree_id": tree_id, "address": each} for each in lacks]
                except Failed:
                    raise  # the storage failed: the tree may be complete
                except EbbtideError:
                    rows.append({"tree_id": tree_id, "address": None})
            name = f"back/incomplete-{epoch:06d}-{number:05d}.parquet"
            answer.wrote(folder, name, pa.Table.from_pylist(rows, schema=_MISSING_SCHEMA))

        tasks = split(sorted(trees), tasks=self.engine.task_count)
        incomplete: set[str] = set()
        written = self.engine.run(tasks, work).parts
        for table in read_tables(folder, written, _MISSING_SCHEMA):
            addresses = table.column("address")
            purged = purged_among(self.repository, texts(addresses.drop_null()))
            is_purged = pc.is_in(addresses, value_set=pa.array(sorted(purged), pa.string()))
            incomplete.update(texts(table.filter(pc.invert(is_purged)).column("tree_id")))
        return frozenset(incomplete)
