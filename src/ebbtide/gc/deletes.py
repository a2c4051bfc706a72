"""Deletes or quarantines candidates in batches, and records the outcome of each.

```
<run_id>/intended/<part>/<epoch>-<number>-<attempt>.json    an intent: rows of a part of candidates
<run_id>/deleted/<part>/<epoch>-<number>-<attempt>.parquet  the outcomes of these rows
```

An intent is written before each batch, and the outcomes (OUTCOME_SCHEMA) after it. If a sweep is
killed, only the outcomes of its last batches are missing. Names contain that of the part of
candidates, so that no search is needed.

A process can be suspended in the middle of a batch (a virtual machine, a container, a laptop). When
it wakes up, it continues with the batch, and the storage does not refuse that. Therefore an undo
must not restore a file that such a batch can still delete. Both sides write before they read. The
sweep writes its intent, and then checks that the repository is still its own. The undo announces
its epoch, and then reads the intents. In every order of these four steps, the sweep stops before
its batch, or the undo sees the intent. This requires a storage on which later reads see earlier
writes, such as a directory or S3.

An intent is settled when its outcomes are recorded, or when its process gives up and deletes the
intent.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts, without
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import Guard
from ebbtide.gc import quarantine
from ebbtide.gc.engines.base import Batches, Engine
from ebbtide.gc.keys import KeySet, keys_in_parts, keys_of
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    Count,
    Part,
    PartRows,
    read_part,
    read_rows,
    split,
    total_by_kind,
)
from ebbtide.gc.runs import RunFolder, RunFolders, epoch_is_ours
from ebbtide.gc.steps import advance
from ebbtide.interrupts import held
from ebbtide.storage import DeleteOutcome, Storage
from ebbtide.storage.clients import LOCKED as ERROR_LOCKED

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

_SETTLED: Final = ("deleted", "quarantined", "revived", "missing")
"""The outcomes of candidates that are not tried again."""

LOCKED: Final = "locked"
"""The count of those `failed` files that are hidden, and of which an object lock keeps versions."""

Ended = tuple[str, str | None]
"""The outcome of a candidate, and its reason or None."""

ADDRESSES_PER_BATCH: Final = 20_000
LOOKS_AT_ONCE: Final = 16
_DATE_PRECISION: Final = timedelta(seconds=1)
_INTENDED: Final = "intended"
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class Intent:
    """A batch: the rows from `start` to before `stop` of a part of candidates. `process` names the
    process that deletes the batch, for messages."""

    name: str
    part: str
    checksum: str
    start: int
    stop: int
    process: str = ""

    def addresses(self, folder: RunFolder) -> pa.Table:
        """Returns the addresses of the batch (column `address`). Raises Refused `plan_corrupt`."""
        table = read_part(folder, self.part, self.checksum, columns=["address"])
        return table.slice(self.start, self.stop - self.start)


def _intents(part: Part, *, rows_max: int, epoch: int) -> Iterator[Intent]:
    """Divides a part of candidates into batches of at most `rows_max` rows."""
    assert part.checksum is not None
    process = f"process {os.getpid()} on {platform.node() or 'a nameless host'}"
    attempt = secrets.token_hex(4)  # Spark may run a task twice, even at the same time
    for number, start in enumerate(range(0, part.rows, rows_max)):
        name = f"{_stem(part.name)}/{epoch:06d}-{number:04d}-{attempt}"
        stop = min(start + rows_max, part.rows)
        yield Intent(name, part.name, part.checksum, start, stop, process)


@contextmanager
def _declared(folder: RunFolder, intent: Intent) -> Iterator[None]:
    """Writes the intent before the block. Deletes it if the block raises: the process has given up
    then, and deletes no more files of the batch."""
    name = f"{_INTENDED}/{intent.name}{_SUFFIX}"
    content = {key: value for key, value in asdict(intent).items() if key != "name"}
    folder.put_json(name, content)
    try:
        yield
    except (Exception, KeyboardInterrupt):
        folder.storage.delete([folder.address(name)])
        raise


def unsettled(folder: RunFolder) -> list[Intent]:
    """Returns the intents of a run that are not settled. Raises Refused `plan_corrupt`."""
    names = folder.names(_INTENDED, suffix=_SUFFIX)
    # Outcomes are listed after intents: a batch that ends in between counts as settled.
    ended = {_batch_name(name) for name in folder.names("deleted")}
    found = (_read(folder, name) for name in names if _batch_name(name) not in ended)
    return [intent for intent in found if intent is not None]


def _batch_name(name: str) -> str:
    """Returns the name of the batch in the name of its intent, or of its outcomes."""
    return name.partition("/")[2].rpartition(".")[0]


def _read(folder: RunFolder, name: str) -> Intent | None:
    """Reads an intent. Returns None if its process has deleted it. Raises Refused
    `plan_corrupt`."""
    content = folder.get_json(name)
    try:
        return None if content is None else Intent(name=_batch_name(name), **content)
    except TypeError as error:
        raise Refused("plan_corrupt", f"{folder.path}/{name} is not as it was written") from error


def open_batches(folders: RunFolders) -> tuple[list[tuple[RunFolder, Intent]], str]:
    """Returns the batches of all runs that are not settled, each with its run's folder, and the
    names of their processes, for messages. Raises Refused `plan_corrupt`."""
    found = [
        (folder, intent)
        for places in folders.known().values()
        for folder in places
        for intent in unsettled(folder)
    ]
    return found, ", ".join(sorted({intent.process for _, intent in found}))


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
) -> int:
    """Deletes the files of `parts` (CANDIDATE_SCHEMA), or quarantines them with `quarantined`, and
    records the outcomes. Files with an outcome on record other than `failed` are left out. Returns
    the number of files that could not be deleted, without locked ones, which are hidden.

    With `looks_again`, only files that have not changed since they were listed are deleted.
    `with_versions` deletes their versions too, if the files are not quarantined. `guard` is called
    before each batch of at most `batch_max` addresses. Files that it returns stay as revived.
    Raises its errors, and Refused `plan_corrupt`, or `lease_lost` if another run began.
    """
    rows_max = min(ADDRESSES_PER_BATCH, batch_max or ADDRESSES_PER_BATCH)
    move = partial(quarantine.move_in, storage, run_id) if quarantined else None
    remove = partial(_remove, storage, move, looks_again, with_versions)
    earlier = _by_stem(folder.names("deleted"))

    def work(_number: int, task: Part, answer: PartRows) -> None:
        written: Future[None] | None = None
        with ThreadPoolExecutor(1) as recorder:  # records a batch while the next is deleted
            try:
                table = read_part(folder, task.name, task.checksum)
                records = earlier.get(_stem(task.name), ())
                settled = read_outcomes(folder, records, _SETTLED)
                for intent in _intents(task, rows_max=rows_max, epoch=epoch):
                    rows = table.slice(intent.start, intent.stop - intent.start)
                    batch = without(rows, "address", settled)
                    if not batch.num_rows:
                        advance(rows.num_rows)
                        continue
                    with _declared(folder, intent):
                        # After the intent: in the other order an undo could miss the batch.
                        if not epoch_is_ours(storage, run_epoch=epoch, run_id=run_id):
                            raise _lease_lost(run_id)
                        needed = guard(batch.column("address"))
                        with held():  # an interrupt waits until the outcomes are recorded
                            outcomes = remove(batch, needed)
                            if written is not None:
                                written.result()
                            written = recorder.submit(
                                _record, folder, answer, intent.name, batch, outcomes
                            )
                            advance(rows.num_rows)
            except EbbtideError as error:
                answer.failed(error)
            if written is not None:
                written.result()

    return sum(each.count.objects for each in engine.run(list(parts), work).counts)


def _lease_lost(run_id: str) -> Refused:
    return Refused(
        "lease_lost",
        f"run {run_id} lost the repository to another run: it deletes nothing more",
    )


def _remove(
    storage: Storage,
    move: Callable[[list[str]], list[DeleteOutcome]] | None,
    looks_again: bool,
    with_versions: bool,
    batch: pa.Table,
    needed: Mapping[str, str],
) -> list[Ended]:
    """Deletes the files of a batch, or moves them with `move`, except those that are `needed`.
    Returns an outcome for each row."""
    addresses = texts(batch.column("address"))
    found = _changed(storage, batch) if looks_again else [None] * len(addresses)
    kept: list[Ended | None] = [
        ("revived", f"{needed[address]} needs it") if address in needed else known
        for address, known in zip(addresses, found, strict=True)
    ]
    going = [each for each, known in zip(addresses, kept, strict=True) if known is None]
    removed = iter(ended(storage.delete(going) if move is None else move(going)))
    outcomes = [next(removed) if known is None else known for known in kept]
    if move is None and with_versions:
        return remove_versions(storage, addresses, outcomes)
    return outcomes


def ended(found: Iterable[DeleteOutcome]) -> list[Ended]:
    """Returns what a storage answered as outcomes: a moved file is `quarantined`."""
    return [
        ("quarantined" if each.outcome == "moved" else each.outcome, each.error) for each in found
    ]


def remove_versions(
    storage: Storage, addresses: Sequence[str], outcomes: Sequence[Ended]
) -> list[Ended]:
    """Deletes the versions of files whose outcomes are `deleted` or `missing`. Returns the new
    outcomes: `failed` for a file of which a version is left, so that the next sweep tries again."""
    gone = [
        address
        for address, (outcome, _) in zip(addresses, outcomes, strict=True)
        if outcome in ("deleted", "missing")
    ]
    found = {each.address: each for each in storage.delete_versions(gone)}
    changed: list[Ended] = []
    for address, (outcome, error) in zip(addresses, outcomes, strict=True):
        versions = found.get(address)
        if versions is None or versions.error is None:
            changed.append((outcome, error))
        else:
            failed = versions.outcome == "failed"
            changed.append(("failed" if failed else outcome, versions.error))
    return changed


def _changed(storage: Storage, batch: pa.Table) -> list[Ended | None]:
    """Returns an outcome for each row of CANDIDATE_SCHEMA whose file is missing, or has another
    size or date than when it was listed, and None for the other rows."""
    columns = ("address", "size_bytes", "last_modified")
    rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)

    def look(row: tuple[str, int, datetime]) -> Ended | None:
        address, size_bytes, last_modified = row
        found = storage.head(address)
        if found is None:
            return "missing", None
        # The dates of an inventory can be more precise than those of `Storage.head`.
        is_same = abs(found.last_modified - last_modified) < _DATE_PRECISION
        if found.size_bytes == size_bytes and is_same:
            return None
        return "revived", "another object is at this address now"

    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        return list(pool.map(look, rows))


def _record(
    folder: RunFolder, answer: PartRows, name: str, batch: pa.Table, outcomes: Sequence[Ended]
) -> None:
    """Writes the outcomes of the rows of `batch`. Counts those that `delete_parts` counts."""
    rows = batch.select(("address", "size_bytes", "kind"))
    table = with_outcomes(rows, outcomes, OUTCOME_SCHEMA)
    answer.wrote(folder, f"deleted/{name}.parquet", table, relation="outcomes", durable=True)
    failed = sum(o == "failed" and not _is_locked(error) for o, error in outcomes)
    answer.counted(Count(failed), of="failed")


def with_outcomes(rows: pa.Table, outcomes: Sequence[Ended], schema: pa.Schema) -> pa.Table:
    """Returns rows with the outcome of each, and its reason, in two more columns (`schema`)."""
    reasons = [pa.array([each[number] for each in outcomes], pa.string()) for number in (0, 1)]
    return pa.table([*rows.columns, *reasons], schema=schema)


def _is_locked(error: str | None) -> bool:
    """Whether the error of a failed delete says that an object lock keeps versions."""
    return error is not None and error.startswith(ERROR_LOCKED)


def record_needed(
    engine: Engine, storage: Storage, folder: RunFolder, needed: Iterable[Part], *, epoch: int
) -> None:
    """Records the outcomes of `needed` candidates (parts of CANDIDATE_SCHEMA): revived if their
    files exist, and missing otherwise, whatever an earlier attempt recorded."""
    revived: Ended = ("revived", None)
    lost: Ended = ("missing", "it is needed again, and in no quarantine")

    def work(_number: int, part: Part, answer: PartRows) -> None:
        table = read_part(folder, part.name, part.checksum)
        there = storage.sizes(texts(table.column("address"))).column("regular").to_pylist()
        outcomes = [revived if is_there else lost for is_there in there]
        name = f"{_stem(part.name)}/{epoch:06d}-revived-{secrets.token_hex(4)}"
        _record(folder, answer, name, table, outcomes)

    engine.run(list(needed), work)


def read_outcomes(folder: RunFolder, names: Iterable[str], outcomes: Sequence[str]) -> pa.Table:
    """Returns the rows of parts of the record (OUTCOME_SCHEMA) with one of the `outcomes`. Raises
    Refused `plan_corrupt`."""
    table = read_rows(folder, [Part(name, 0, 0, None) for name in names], OUTCOME_SCHEMA)
    return table.filter(pc.is_in(table.column("outcome"), value_set=pa.array(outcomes)))


def _stem(name: str) -> str:
    """Returns the name that a part of candidates has in `candidates/` and in `deleted/`."""
    return name.rpartition("/")[2].removesuffix(".parquet")


def _by_stem(records: Iterable[str]) -> dict[str, list[str]]:
    """Groups the names of record parts by the name of their part of candidates."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in records:
        found[name.split("/")[1]].append(name)
    return found


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The counts of the candidates on record by outcome, with LOCKED, and of the deleted ones by
    kind. `tried` counts all of them by kind."""

    counts: dict[str, Count]
    deleted_by_kind: dict[str, Count]
    tried: dict[str, Count]


def tally(engine: Engine, folder: RunFolder) -> Outcomes:
    """Counts the outcomes on record, over all attempts. Each address counts once."""

    def work(_number: int, records: list[str], answer: PartRows) -> None:
        table = read_outcomes(folder, records, OUTCOMES)
        ranks = pc.index_in(table.column("outcome"), value_set=pa.array(OUTCOMES))
        locked = pa.array(map(_is_locked, table.column("error").to_pylist()), pa.bool_())
        each = (
            table.append_column("rank", ranks)
            .append_column("locked", locked)
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

    records = _by_stem(folder.names("deleted"))
    counted = engine.run(list(records.values()), work).counts
    counts = dict.fromkeys((*OUTCOMES, LOCKED), Count())
    for each in counted:
        counts[each.of] += each.count
    deleted, tried = (
        total_by_kind(each for each in counted if each.of in chosen)
        for chosen in (("deleted",), OUTCOMES)
    )
    return Outcomes(counts, deleted, tried)


def gone_among(engine: Engine, folder: RunFolder, dropped: Sequence[Part]) -> list[str]:
    """Returns those addresses in `dropped` (parts with keys) whose files a sweep deleted or moved,
    by its record. Raises Refused `plan_corrupt`."""
    keys = keys_in_parts(folder, dropped)

    def step(names: Sequence[str]) -> Batches:
        wanted = KeySet(keys)
        for name in names:
            table = read_outcomes(folder, [name], ("deleted", "quarantined", "missing"))
            table = table.filter(pa.array(wanted.has(keys_of(table.column("address")))))
            yield from table.select(ADDRESS_SCHEMA.names).to_batches()

    tasks = split(folder.names("deleted"), tasks=engine.task_count)
    return texts(engine.rows(tasks, step, ADDRESS_SCHEMA).collect().column("address"))
