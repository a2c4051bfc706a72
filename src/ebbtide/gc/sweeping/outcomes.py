"""Deletes or quarantines candidates, and records the outcome of each.

The record consists of parts `deleted/<part of candidates>/<epoch>-…` (OUTCOME_SCHEMA). A part is
written after each batch of deletes. If a sweep is killed, only the outcomes of its last batches are
missing, and these batches were recorded before they began (`intents`). The name of a part contains
that of its part of candidates, so that no search is needed.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts, without
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import Guard
from ebbtide.gc import quarantine
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Batches, Engine
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    Answers,
    Counted,
    Part,
    PartRows,
    read_part,
    read_rows,
    split,
    total_by_kind,
)
from ebbtide.gc.planning.subtract import CANDIDATE_SCHEMA
from ebbtide.gc.relations.inventory import judged_by
from ebbtide.gc.relations.keys import KeyArray, KeySet, keys_in_parts, keys_of
from ebbtide.gc.runs import RunFolder, epoch_is_ours
from ebbtide.gc.steps import advance
from ebbtide.gc.sweeping.intents import batches, declared
from ebbtide.interrupts import held
from ebbtide.storage import DeleteOutcome, Storage
from ebbtide.storage.failures import LOCKED as ERROR_LOCKED

OUTCOME_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("kind", pa.string()),
    ("outcome", pa.string()),
    ("error", pa.string()),
)
"""`outcome` is one of OUTCOMES. `error` is the reason of the outcome, and null for most of them."""

OUTCOMES: Final = ("deleted", "quarantined", "revived", "missing", "failed")
"""The outcomes by rank. If several attempts recorded an address, the outcome that comes first here
counts."""

LOCKED: Final = "locked"
"""The count of those `failed` files that are hidden, and of which an object lock keeps versions."""

TODO: Final = "todo"
"""The relation of candidates that are still to be deleted."""
_MOVED: Final = {"moved": "quarantined"}
ADDRESSES_PER_BATCH: Final = 20_000
LOOKS_AT_ONCE: Final = 16
_DATE_PRECISION: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class NotDeleted:
    """The outcome of a candidate that is not deleted."""

    outcome: str
    error: str | None = None


REVIVED: Final = NotDeleted("revived")
NEEDED_AND_MISSING: Final = NotDeleted("missing", "it is needed again, and in no quarantine")


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The counts of the plan's candidates by outcome, of the deleted ones by kind, and of the
    failed ones that are LOCKED."""

    by_outcome: dict[str, Count]
    deleted_by_kind: dict[str, Count]
    locked: Count


def delete_parts(
    engine: Engine,
    *,
    storage: Storage,
    folder: RunFolder,
    parts: Iterable[Part],
    epoch: int,
    run_id: str,
    guard: Guard,
    looks_again: bool = False,
    quarantined: bool = False,
    with_versions: bool = False,
    batch_max: int | None = None,
) -> Answers:
    """Deletes the files of `parts` (CANDIDATE_SCHEMA), or quarantines them with `quarantined`.
    Returns the parts of the record, and the counts of each outcome by kind.

    With `looks_again`, only files that have not changed since they were listed are deleted.
    `with_versions` deletes their versions too, if the files are not quarantined. `guard`
    is called before each batch, which has at most `batch_max` addresses. Raises the errors of
    `guard`, and Refused `plan_corrupt`, or `lease_lost` if another run has announced itself.
    """
    rows_max = min(ADDRESSES_PER_BATCH, batch_max or ADDRESSES_PER_BATCH)
    move = partial(quarantine.move_in, storage, run_id) if quarantined else None
    remove = partial(_remove, storage, move, looks_again, with_versions)

    def work(_number: int, task: Part, answer: PartRows) -> None:
        stem = _stem(task.name)
        attempt = secrets.token_hex(4)  # Spark may run a task twice, even at the same time
        written: Future[None] | None = None
        with ThreadPoolExecutor(1) as recorder:  # records a batch while the next is deleted
            try:
                table = read_part(folder, task.name, task.checksum)
                for intent in batches(
                    task, stem=stem, rows_max=rows_max, epoch=epoch, attempt=attempt
                ):
                    batch = table.slice(intent.start, intent.stop - intent.start)
                    with declared(folder, intent):
                        # After the intent: in the other order an undo could miss the batch.
                        if not epoch_is_ours(storage, run_epoch=epoch, run_id=run_id):
                            raise _lease_lost(run_id)
                        guard(batch.column("address"))
                        with held():  # an interrupt waits until the outcomes are recorded
                            outcomes = remove(batch)
                            if written is not None:
                                written.result()
                            name = f"deleted/{intent.name}"
                            written = recorder.submit(
                                _record, folder, answer, name, batch, outcomes
                            )
                            advance(batch.num_rows)
            except EbbtideError as error:
                answer.failed(error)
            if written is not None:
                written.result()

    return engine.run(list(parts), work)


def _remove(
    storage: Storage,
    move: Callable[[list[str]], list[DeleteOutcome]] | None,
    looks_again: bool,
    with_versions: bool,
    batch: pa.Table,
) -> Sequence[DeleteOutcome | NotDeleted]:
    """Deletes the files of a batch, or moves them with `move`. Returns an outcome for each row."""
    remove = storage.delete if move is None else move
    if looks_again:
        outcomes = remove_unchanged(storage, batch, remove)
    else:
        outcomes = remove(texts(batch.column("address")))
    if move is None and with_versions:
        return remove_versions(storage, texts(batch.column("address")), outcomes)
    return outcomes


def remove_versions(
    storage: Storage, addresses: Sequence[str], outcomes: Sequence[DeleteOutcome | NotDeleted]
) -> list[DeleteOutcome | NotDeleted]:
    """Deletes the versions of files whose outcomes are `deleted` or `missing`. Returns the new
    outcomes: `failed` for a file of which a version is left, so that the next sweep tries again."""
    gone = [
        address
        for address, each in zip(addresses, outcomes, strict=True)
        if each.outcome in ("deleted", "missing")
    ]
    found = {each.address: each for each in storage.delete_versions(gone)}
    changed: list[DeleteOutcome | NotDeleted] = []
    for address, each in zip(addresses, outcomes, strict=True):
        versions = found.get(address)
        if versions is None or versions.error is None:
            changed.append(each)
        elif versions.outcome == "failed":
            changed.append(NotDeleted("failed", versions.error))
        else:
            changed.append(NotDeleted(each.outcome, versions.error))
    return changed


def _lease_lost(run_id: str) -> Refused:
    return Refused(
        "lease_lost",
        f"run {run_id} lost the repository to another run: it deletes nothing more",
    )


def remove_unchanged(
    storage: Storage, batch: pa.Table, remove: Callable[[list[str]], list[DeleteOutcome]]
) -> Sequence[DeleteOutcome | NotDeleted]:
    """Removes the files of rows of CANDIDATE_SCHEMA whose size and date are still the same.

    Returns an outcome for each row. A missing file is `missing`, and a changed one `revived`.
    """
    columns = ("address", "size_bytes", "last_modified")
    rows = list(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))

    def look(row: tuple[str, int, datetime]) -> NotDeleted | None:
        address, size_bytes, last_modified = row
        found = storage.head(address)
        if found is None:
            return NotDeleted("missing")
        # The dates of an inventory can be more precise than those of `Storage.head`.
        is_same = abs(found.last_modified - last_modified) < _DATE_PRECISION
        if found.size_bytes == size_bytes and is_same:
            return None
        return NotDeleted("revived", "another object is at this address now")

    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        settled = list(pool.map(look, rows))
    todo = [row[0] for row, known in zip(rows, settled, strict=True) if known is None]
    outcomes = iter(remove(todo))
    return [next(outcomes) if known is None else known for known in settled]


def _record(
    folder: RunFolder,
    answer: PartRows,
    name: str,
    batch: pa.Table,
    outcomes: Sequence[DeleteOutcome | NotDeleted],
) -> None:
    """Writes a part of the record: the rows of `batch` with their outcomes."""
    table = pa.table(
        [
            batch.column("address"),
            batch.column("size_bytes"),
            batch.column("kind"),
            pa.array([_MOVED.get(o.outcome, o.outcome) for o in outcomes], pa.string()),
            pa.array([each.error for each in outcomes], pa.string()),
        ],
        schema=OUTCOME_SCHEMA,
    )
    answer.wrote(folder, f"{name}.parquet", table, relation="outcomes", durable=True)
    counts = (
        table.append_column("locked", _is_locked(table))
        .group_by(["outcome", "kind", "locked"])
        .aggregate([("size_bytes", "sum"), ("size_bytes", "count")])
    )
    for row in counts.to_pylist():
        count = Count(row["size_bytes_count"], row["size_bytes_sum"])
        answer.counted(count, of=row["outcome"], kind=row["kind"])
        if row["locked"]:
            answer.counted(count, of=LOCKED, kind=row["kind"])


def _is_locked(table: pa.Table) -> pa.Array[Any]:
    """Returns whether the error of each row of OUTCOME_SCHEMA says that a lock keeps versions."""
    errors = table.column("error").to_pylist()
    return pa.array([(each or "").startswith(ERROR_LOCKED) for each in errors], pa.bool_())


def write_todo(
    engine: Engine,
    *,
    storage: Storage,
    folder: RunFolder,
    epoch: int,
    candidates: Iterable[Part],
    back: KeyArray,
    settled: Iterable[str],
) -> tuple[list[Part], Answers]:
    """Writes the candidates that are still to be deleted. Returns their parts, and the answers
    for revived candidates in the form of `delete_parts`.

    Candidates whose keys (of `judged_by`) are in `back` are needed. They are revived if their files
    exist in the `storage`, and missing otherwise, whatever an earlier attempt recorded. Other
    candidates with an outcome other than `failed` in the record parts named by `settled` are left
    out.
    """
    earlier = _by_stem(settled)

    def work(_number: int, task: Sequence[Part], answer: PartRows) -> None:
        needed = KeySet(back)
        for part in task:
            settle(part, earlier.get(_stem(part.name), []), needed, answer)

    def settle(part: Part, records: list[str], needed: KeySet, answer: PartRows) -> None:
        stem = _stem(part.name)
        table = read_part(folder, part.name, part.checksum).cast(CANDIDATE_SCHEMA)
        revived = pa.array(needed.has(keys_of(judged_by(table))))
        kept, table = table.filter(revived), table.filter(pc.invert(revived))
        for name in records:
            done = read_part(folder, name)
            done = done.filter(pc.not_equal(done.column("outcome"), pa.scalar("failed")))
            table = without(table, "address", done)
        if kept.num_rows:
            name = f"deleted/{stem}/{epoch:06d}-revived-{secrets.token_hex(4)}"
            there = storage.sizes(texts(kept.column("address"))).column("regular").to_pylist()
            outcomes = [REVIVED if is_there else NEEDED_AND_MISSING for is_there in there]
            _record(folder, answer, name, kept, outcomes)
        answer.wrote(
            folder, f"todo/{epoch:06d}/{stem}.parquet", table, relation=TODO, kind=part.kind
        )

    answers = engine.run(split(list(candidates), tasks=engine.task_count), work)
    todo = [part for part in answers.parts if part.relation == TODO]
    revived = [part for part in answers.parts if part.relation != TODO]
    return todo, Answers(revived, answers.counts)


def _stem(name: str) -> str:
    """Returns the name that a part of candidates has in `candidates/`, `todo/` and `deleted/`."""
    return name.rpartition("/")[2].removesuffix(".parquet")


def _by_stem(records: Iterable[str]) -> dict[str, list[str]]:
    """Groups the names of record parts by the name of their part of candidates."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in records:
        found[name.split("/")[1]].append(name)
    return found


def tally(engine: Engine, folder: RunFolder, answers: Answers) -> Outcomes:
    """Counts the outcomes of all candidates, over all attempts.

    `answers` are those of this attempt's tasks. They suffice if these tasks wrote the whole record.
    If an earlier attempt, or a task that Spark repeated, wrote parts too, the record is read.
    """
    names = folder.names("deleted")
    written = {part.name for part in answers.parts}
    counted = answers.counts if written == set(names) else _read_tally(engine, folder, names)
    by_outcome = dict.fromkeys((*OUTCOMES, LOCKED), Count())
    for each in counted:
        by_outcome[each.of] += each.count
    deleted_by_kind = total_by_kind(each for each in counted if each.of == "deleted")
    return Outcomes(by_outcome, deleted_by_kind, by_outcome.pop(LOCKED))


def gone_among(engine: Engine, folder: RunFolder, dropped: Sequence[Part]) -> list[str]:
    """Returns those addresses in `dropped` (parts with keys) whose files a sweep deleted or moved,
    by its record. Raises Refused `plan_corrupt`."""
    keys = keys_in_parts(folder, dropped)
    gone = pa.array(("deleted", "quarantined", "missing"))

    def step(names: Sequence[str]) -> Batches:
        wanted = KeySet(keys)
        for name in names:
            table = read_part(folder, name, columns=("address", "outcome"))
            table = table.filter(pc.is_in(table.column("outcome"), value_set=gone))
            table = table.filter(pa.array(wanted.has(keys_of(table.column("address")))))
            yield from table.select(ADDRESS_SCHEMA.names).to_batches()

    tasks = split(folder.names("deleted"), tasks=engine.task_count)
    return texts(engine.rows(tasks, step, ADDRESS_SCHEMA).collect().column("address"))


def _read_tally(engine: Engine, folder: RunFolder, names: list[str]) -> list[Counted]:
    """Reads the record and returns counts in the form of `_record`. Each address counts once."""

    def work(_number: int, records: list[str], answer: PartRows) -> None:
        parts = [Part(name, 0, 0, None) for name in records]
        table = read_rows(folder, parts, OUTCOME_SCHEMA)
        ranks = pc.index_in(table.column("outcome"), value_set=pa.array(OUTCOMES))
        each = (
            table.append_column("rank", ranks)
            .append_column("locked", _is_locked(table))
            .group_by("address")
            .aggregate([("rank", "min"), ("kind", "min"), ("size_bytes", "max"), ("locked", "max")])
        )
        counts = each.group_by(["rank_min", "kind_min", "locked_max"]).aggregate(
            [("size_bytes_max", "sum"), ("size_bytes_max", "count")]
        )
        for row in counts.to_pylist():
            count = Count(row["size_bytes_max_count"], row["size_bytes_max_sum"])
            outcome = OUTCOMES[row["rank_min"]]
            answer.counted(count, of=outcome, kind=row["kind_min"])
            if row["locked_max"] and outcome == "failed":
                answer.counted(count, of=LOCKED, kind=row["kind_min"])

    return engine.run(list(_by_stem(names).values()), work).counts
