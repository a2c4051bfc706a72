"""Bringing back what a sweep moved aside: objects, then nodes, trees, records, tombstones last.

What is back is on record before it moves, so that no run takes it meanwhile or for a while after,
whoever breaks off in between: an undo that was interrupted is asked for again. A commit is opened
again only if nothing that it needs has gone otherwise: by a later run, or for good.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import split_by, texts
from ebbtide.errors import Conflict, EbbtideError, Failed, NotFound, Refused
from ebbtide.formats.base import RepositoryFormat, RunHold
from ebbtide.gc import quarantine
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.keys import KeySet, keys_of, rows_of
from ebbtide.gc.meter import advance, check_wanted
from ebbtide.gc.outcomes import OUTCOME_SCHEMA
from ebbtide.gc.parts import Part, PartRows, read_part, read_tables, split
from ebbtide.gc.plan import Plan
from ebbtide.gc.quarantine import BACK_SCHEMA, Quarantine, Share, kept_records
from ebbtide.gc.runs import REPORT_FILE, RunFolder
from ebbtide.gc.steps import Steps

ROWS_PER_PART: Final = 50_000
_GONE_SCHEMA: Final = pa.schema([OUTCOME_SCHEMA.field(name) for name in ("address", "outcome")])
_TREE_SCHEMA: Final = pa.schema([pa.field("tree_id", pa.string())])


@dataclass(frozen=True, slots=True)
class Undone:
    """What came back. `closed` counts the commits that stay closed, since something that they need
    has gone otherwise; `purged` the objects that an administrator closed for good meanwhile."""

    back: Count
    reopened: int
    closed: int
    purged: int
    is_whole: bool

    def to_json(self) -> dict[str, int]:
        """For the report."""
        return {
            "back_objects": self.back.objects,
            "back_bytes": self.back.bytes_total,
            "reopened_commits": self.reopened,
            "closed_commits": self.closed,
            "purged_objects": self.purged,
        }


@dataclass(slots=True)
class Undo:
    """One undo of one run, under a hold. With `under`, only of the addresses that begin so: files
    come back, and the run stays as it is. No run takes what is back while that `lasts`. A task of
    a sweep that lost the repository may go on for as long as `patience`."""

    engine: Engine
    repository: RepositoryFormat
    plan: Plan
    folder: RunFolder
    hold: RunHold
    steps: Steps
    lasts: timedelta
    patience: timedelta
    under: str = ""
    wait: Callable[[float], None] = time.sleep

    def execute(self) -> Undone:
        """Do it. Raises Conflict `plan_used` for a run that was undone or purged, NotFound
        `not_quarantined` for one that moved nothing aside, Failed `storage_error` where files did
        not move: then it may be asked for again.
        """
        storage = self.repository.storage
        found = quarantine.read(storage, self.plan.run_id)
        if found is None:
            raise NotFound(
                "not_quarantined",
                f"run {self.plan.run_id} has nothing aside: it deleted for good, or what it had "
                "was purged; 'ebbtide gc show' says what became of it",
            )
        if found.state != "held":
            raise Conflict(
                "plan_used",
                f"run {self.plan.run_id} was {found.state} already: see 'ebbtide gc show'",
            )
        if self.folder.get_json(REPORT_FILE) is None:
            # Nobody knows whether the tasks of a sweep that broke off have ended.
            with self.steps("wait"):
                self.wait(self.patience.total_seconds())
        with self.steps("bring back"):
            found, back, purged = self._bring_back(found)
        if self.under:
            return Undone(back, 0, 0, purged, is_whole=False)
        with self.steps("reopen"):
            reopened, closed = self._reopen()
        quarantine.write(storage, replace(found, state="undone"))
        if purged:
            quarantine.delete_held(self.engine, storage, self.plan.run_id)
        return Undone(back, reopened, closed, purged, is_whole=True)

    def _bring_back(self, found: Quarantine) -> tuple[Quarantine, Count, int]:
        """Until a listing finds nothing more: a task that outlived its sweep may have moved some.
        The record, what came back, and how much was purged."""
        back = Count()
        for attempt in itertools.count():
            parts, purged = self._without_purged(self._listed(attempt), attempt)
            if not parts:
                return found, back, purged
            self.hold.check()
            found = self._remember(found, parts)
            self._move_back(parts)
            back += sum((part.count for part in parts), Count())
        raise AssertionError("unreachable")

    def _stem(self, attempt: int) -> str:
        return f"back/{self.hold.run_epoch:06d}-{attempt:02d}"

    def _listed(self, attempt: int) -> list[Part]:
        """What is aside, as parts (BACK_SCHEMA) of one kind each in the run's folder."""
        storage, folder, layout = self.repository.storage, self.folder, self.repository.layout
        run_id, under, stem = self.plan.run_id, self.under, self._stem(attempt)

        def work(number: int, task: Sequence[Share], answer: PartRows) -> None:
            written = itertools.count()
            for share in task:
                for table in quarantine.listed(storage, run_id, share):
                    check_wanted()
                    rows = table.filter(pc.starts_with(table.column("address"), under))
                    addresses: Any = rows.column("address").combine_chunks()
                    columns = [addresses, rows.column("size_bytes"), layout.classify(addresses)]
                    for kind, of_kind in split_by(pa.table(columns, schema=BACK_SCHEMA), "kind"):
                        name = f"{stem}-{number:05d}-{next(written):05d}.parquet"
                        answer.wrote(folder, name, of_kind, group=kind, durable=True)

        shares = quarantine.shares(storage, run_id)
        return self.engine.run(split(shares, tasks=self.engine.task_count), work)

    def _without_purged(self, parts: list[Part], attempt: int) -> tuple[list[Part], int]:
        """The parts without what an administrator closed for good, and how much that was."""
        kept: list[Part] = []
        answer = PartRows()
        count = 0
        for number, part in enumerate(parts):
            table = next(read_tables(self.folder, [part], BACK_SCHEMA))
            purged = self.repository.purged_among(texts(table.column("address")))
            if not purged:
                kept.append(part)
                continue
            count += len(purged)
            gone = pc.is_in(table.column("address"), value_set=pa.array(sorted(purged)))
            name = f"{self._stem(attempt)}-less-{number:05d}.parquet"
            rows = table.filter(pc.invert(gone))
            answer.wrote(self.folder, name, rows, group=part.group, durable=True)
        return kept + answer.parts(), count

    def _remember(self, found: Quarantine, parts: list[Part]) -> Quarantine:
        """Have it on record, before anything moves, what is about to be back."""
        now = self.repository.now()
        known = replace(found, back=(*found.back, *parts), back_at=now, back_until=now + self.lasts)
        quarantine.write(self.repository.storage, known)
        return known

    def _move_back(self, parts: Sequence[Part]) -> None:
        """Kind by kind, what is pointed at first. Failed `storage_error`."""
        storage, folder = self.repository.storage, self.folder
        prefix = quarantine.prefix_of(self.plan.run_id)

        def work(_number: int, task: Part, answer: PartRows) -> None:
            table = next(read_tables(folder, [task], BACK_SCHEMA))
            addresses = texts(table.column("address"))
            for start in range(0, len(addresses), ROWS_PER_PART):
                some = addresses[start : start + ROWS_PER_PART]
                moves = [(prefix + address, address) for address in some]
                failed = [each for each in storage.move(moves) if each.outcome == "failed"]
                advance(len(moves))
                if failed:
                    reason = f"{failed[0].address}: {failed[0].error}"
                    message = f"{len(failed):,} files did not come back: {reason}"
                    answer.failed(Failed("storage_error", message))

        self.engine.meter.begin("files", rows_of(parts))
        order = self.repository.layout.delete_order
        kinds = [*(kind for kind in reversed(order)), *({p.group for p in parts} - {*order})]
        for kind in kinds:
            self.hold.check()
            try:
                self.engine.run([part for part in parts if part.group == kind], work)
            except Refused as error:
                raise Failed(error.kind, f"{error.message}: undo the run again") from error

    def _reopen(self) -> tuple[int, int]:
        """Open the commits again that have all they need; how many, and how many stay closed."""
        run_id = self.plan.run_id
        records = {row["commit_id"]: row for row in kept_records(self.folder)}
        closed = {row["commit_id"]: row for row in self.repository.closed_by(run_id)}
        rows = {**records, **closed}.values()
        lost = self._incomplete({row["tree_id"]: row["tree_checksum"] for row in rows})
        whole = [row for row in rows if row["tree_id"] not in lost]
        commit_ids = [row["commit_id"] for row in whole]
        opened = self.repository.reopen(
            self.hold,
            run_id,
            commit_ids,
            [row for row in whole if row["commit_id"] not in closed],
            until=self.repository.now() + self.lasts,
        )
        return opened, len(rows) - opened

    def _incomplete(self, trees: dict[str, str]) -> frozenset[str]:
        """Of trees (id → checksum) those that refer to something that has gone: to what other runs
        deleted since, or this one for good. What cannot be read is incomplete too."""
        gone, epoch = self._gone_since(), self.hold.run_epoch
        storage, layout, folder = self.repository.storage, self.repository.layout, self.folder

        def is_whole(tree_id: str, lost: KeySet, nodes: dict[str, bool]) -> bool:
            found = layout.read_tree(storage, tree_id, trees[tree_id])
            for row in found.to_pylist():
                if row["node_id"] not in nodes:
                    addresses = layout.read_node(
                        storage, row["node_id"], row["checksum"], entry_count=row["entry_count"]
                    )
                    nodes[row["node_id"]] = not lost.has(keys_of(addresses)).any()
                if not nodes[row["node_id"]]:
                    return False
            return True

        def work(number: int, task: Sequence[str], answer: PartRows) -> None:
            lost = KeySet.read(folder, gone)
            nodes: dict[str, bool] = {}
            incomplete: list[str] = []
            for tree_id in task:
                try:
                    if not is_whole(tree_id, lost, nodes):
                        incomplete.append(tree_id)
                except EbbtideError:
                    incomplete.append(tree_id)
            table = pa.table([incomplete], schema=_TREE_SCHEMA)
            name = f"back/incomplete-{epoch:06d}-{number:05d}.parquet"
            answer.wrote(folder, name, table, group="incomplete")

        tasks = split(sorted(trees), tasks=self.engine.task_count)
        parts = self.engine.run(tasks, work)
        return frozenset(
            tree_id
            for table in read_tables(folder, parts, _TREE_SCHEMA)
            for tree_id in texts(table.column("tree_id"))
        )

    def _gone_since(self) -> list[Part]:
        """Parts with the addresses that later runs took, and that this one deleted for good."""
        answer = PartRows()
        for run_id, path in self.repository.run_paths().items():
            if run_id > self.plan.run_id:  # ids sort newest first
                continue
            source = RunFolder.at(path)
            is_own = run_id == self.plan.run_id
            record = quarantine.read(self.repository.storage, run_id)
            if not is_own and record is not None and record.state == "undone":
                continue
            for number, name in enumerate(source.names("deleted")):
                table = read_part(source, name, columns=_GONE_SCHEMA.names)
                outcomes = ["deleted"] if is_own else ["deleted", "quarantined"]
                gone = pc.is_in(table.column("outcome"), value_set=pa.array(outcomes))
                rows = table.filter(gone).select(["address"])
                target = f"back/gone-{run_id}-{number:05d}.parquet"
                answer.wrote(self.folder, target, rows)
        return answer.parts()
