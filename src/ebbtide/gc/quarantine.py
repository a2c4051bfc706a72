"""Quarantines: the files that a sweep moved to a folder of its run instead of deleting them.

```
_ebbtide/gc/quarantines/<run_id>.json            the record: the end of the quarantine, its state
_ebbtide/gc/runs/<run_id>/quarantine/<address>   the files
```

Both lie in the repository's own storage, even if the run's folder is in another place. Files under
`_ebbtide/gc/` are no candidates, except in a gone repository. Only a process that holds the
repository changes quarantines. Not for: restoring files (`undoing`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import counts, make_schema, texts
from ebbtide.errors import EbbtideError, Failed, NotFound, Refused
from ebbtide.formats.base import RUNS_PREFIX, Guard, unguarded
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Part, PartRows, read_part, split
from ebbtide.gc.runs import RunFolder, RunFolders
from ebbtide.gc.steps import advance
from ebbtide.ids import is_id
from ebbtide.quarantined import (
    QUARANTINES_PREFIX,
    State,
    damaged,
    read_record,
    record_address,
    state_of,
)
from ebbtide.storage import DeleteOutcome, Storage
from ebbtide.storage.base import SizedPieces
from ebbtide.text import count_text

BACK_SCHEMA: Final = make_schema(
    ("address", pa.string()), ("size_bytes", pa.int64()), ("kind", pa.string())
)
"""The schema of restored files."""

_FOLDER: Final = "/quarantine/"
BACK: Final = "back"
"""The folder within a run's folder for the lists of restored files."""

FORGOTTEN: Final = "forgotten"
"""The folder within a run's folder for the commit records that the run deletes. It has one file for
each epoch of the run."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The record of a run's quarantine.

    The `state` is `held`, `undone` or `purged`. A `held` quarantine has files, which may be deleted
    from `until` on. The files of an `undone` one were restored. The files of a `purged` one were
    deleted, except files that had been restored before.

    `back` are parts (BACK_SCHEMA) of the restored files. They lie in the run's folder in the
    repository's own storage, also if the run has another folder elsewhere. `back_at` is the time of
    the last restore. No run deletes restored files before `back_until`. `delete_versions` says that
    the end of the quarantine also deletes the versions that a bucket keeps of the files.
    """

    run_id: str
    state: State
    until: datetime
    back_at: datetime | None = None
    back_until: datetime | None = None
    back: tuple[Part, ...] = ()
    delete_versions: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the record's file."""
        return {
            "run_id": self.run_id,
            "state": self.state,
            "until": self.until.isoformat(),
            "back_at": None if self.back_at is None else self.back_at.isoformat(),
            "back_until": None if self.back_until is None else self.back_until.isoformat(),
            "back": [part.to_json() for part in self.back],
            "delete_versions": self.delete_versions,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Quarantine:
        """Returns the record that `to_json` wrote. Raises KeyError, TypeError, ValueError or
        OverflowError for other content. The field `run_path` of an earlier version is not used."""
        state, until = state_of(content)
        return cls(
            run_id=content["run_id"],
            state=state,
            until=until,
            back_at=_instant(content["back_at"]),
            back_until=_instant(content["back_until"]),
            back=tuple(Part.from_json(part) for part in content["back"]),
            delete_versions=content.get("delete_versions", False),
        )

    def protects(self, now: datetime) -> bool:
        """Whether the restored files are still protected from all runs."""
        return self.back_until is not None and self.back_until > now


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def write(storage: Storage, found: Quarantine) -> None:
    """Writes the record of a quarantine, and replaces an earlier one."""
    storage.put(record_address(found.run_id), json.dumps(found.to_json(), indent=1).encode())


def read(storage: Storage, run_id: str) -> Quarantine | None:
    """Returns the record of a run's quarantine, or None if there is none. Raises Refused
    `plan_corrupt`."""
    content = read_record(storage, run_id)
    if content is None:
        return None
    try:
        found = Quarantine.from_json(content)
        if found.run_id != run_id:
            raise ValueError(f"it is of run {found.run_id}")
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(storage, run_id, error) from error


def is_recorded(storage: Storage, run_id: str) -> bool:
    """Whether there is a record of a run's quarantine, damaged or not."""
    return storage.head(record_address(run_id)) is not None


def drop(storage: Storage, run_id: str) -> None:
    """Deletes the record of a run's quarantine."""
    storage.delete([record_address(run_id)])


def read_all(storage: Storage) -> list[Quarantine]:
    """Returns the records of all quarantines, newest run first. Raises as `read`."""
    found = (read(storage, run_id) for run_id in recorded_ids(storage))
    return [each for each in found if each is not None]


def read_each(storage: Storage) -> tuple[list[Quarantine], dict[str, Refused]]:
    """Returns the records of all quarantines, newest run first, and the errors of the damaged ones
    by run id."""
    found: list[Quarantine] = []
    damaged: dict[str, Refused] = {}
    for run_id in recorded_ids(storage):
        try:
            record = read(storage, run_id)
        except Refused as error:
            damaged[run_id] = error
        else:
            found += [] if record is None else [record]
    return found, damaged


def recorded_ids(storage: Storage) -> list[str]:
    """Returns the ids of all runs that have a record of a quarantine, damaged or not, newest
    first."""
    names: list[str] = []
    for batch in storage.list(QUARANTINES_PREFIX):
        names += texts(batch.column("address"))
    ids = (name.removeprefix(QUARANTINES_PREFIX).removesuffix(".json") for name in names)
    return sorted(each for each in ids if is_id(each))


def prefix_of(run_id: str) -> str:
    """Returns the prefix of a run's files in quarantine. The name of a file is the prefix and its
    address."""
    return f"{RUNS_PREFIX}{run_id}{_FOLDER}"


def move_in(storage: Storage, run_id: str, addresses: Sequence[str]) -> list[DeleteOutcome]:
    """Moves files to a run's quarantine. Returns the outcome for each file."""
    prefix = prefix_of(run_id)
    return storage.move([(address, prefix + address) for address in addresses])


def move_back(storage: Storage, run_id: str, addresses: Sequence[str]) -> list[DeleteOutcome]:
    """Moves files from a run's quarantine to their addresses. Returns the outcome for each file in
    quarantine.

    A move that was broken off may have left two files, the original and an incomplete copy. If
    their sizes differ, neither is touched, and the outcome is `failed`.
    """
    prefix = prefix_of(run_id)
    held = _sizes(storage.sizes([prefix + address for address in addresses]))
    there = _sizes(storage.sizes(addresses))
    found = [
        DeleteOutcome(
            prefix + address,
            "failed",
            f"it has {held_bytes} bytes there and {there_bytes} bytes at {address}: one of the two "
            "is not complete, delete that one",
        )
        if None not in (held_bytes, there_bytes) and held_bytes != there_bytes
        else None
        for address, held_bytes, there_bytes in zip(addresses, held, there, strict=True)
    ]
    safe = [each for each, failed in zip(addresses, found, strict=True) if failed is None]
    moved = iter(storage.move([(prefix + address, address) for address in safe]))
    return [next(moved) if failed is None else failed for failed in found]


def copy_back(storage: Storage, run_id: str, addresses: Sequence[str]) -> list[str]:
    """Copies files from a run's quarantine to their addresses, if no file is there. Returns the
    addresses of the copied files.

    The files in quarantine stay: a sweep that was suspended while it moved them may still delete
    the files at their addresses.
    """
    prefix = prefix_of(run_id)
    held = _sizes(storage.sizes([prefix + address for address in addresses]))
    there = _sizes(storage.sizes(addresses))
    copied = []
    for address, held_bytes, there_bytes in zip(addresses, held, there, strict=True):
        if held_bytes is not None and there_bytes is None:
            pieces = SizedPieces(storage.stream(prefix + address), held_bytes, is_stored=True)
            storage.put(address, pieces)
            copied.append(address)
    return copied


def runs_with_files(storage: Storage) -> list[str]:
    """Returns the ids of the runs whose quarantines have files, newest first."""
    ids = [
        each.removeprefix(RUNS_PREFIX).rstrip("/") for each in storage.list_prefixes(RUNS_PREFIX)
    ]
    return [each for each in sorted(ids) if storage.list_prefixes(prefix_of(each))]


def _sizes(batch: pa.RecordBatch) -> list[int | None]:
    """Returns the sizes in a batch of `Storage.sizes`."""
    sizes: list[int | None] = batch.column("size_bytes").to_pylist()
    return sizes


Share = tuple[str, bool]
"""A prefix within a quarantine, and whether files in deeper directories are included."""


def listed(storage: Storage, run_id: str, share: Share = ("", True)) -> Iterator[pa.Table]:
    """Yields the files in a share of a run's quarantine, in batches (columns `address`,
    `size_bytes`). The addresses are those in the repository."""
    prefix, (inner, recursive) = prefix_of(run_id), share
    for batch in storage.list(prefix + inner, recursive=recursive):
        table = pa.Table.from_batches([batch])
        addresses = pc.utf8_slice_codeunits(table.column("address"), len(prefix))
        yield pa.table([addresses, table.column("size_bytes")], names=["address", "size_bytes"])


def shares(storage: Storage, run_id: str) -> list[Share]:
    """Divides a run's quarantine into shares, to be listed by several tasks."""
    prefix = prefix_of(run_id)
    tops = storage.list_prefixes(prefix)
    inner = [each for top in tops for each in storage.list_prefixes(top)]
    flat = [(each.removeprefix(prefix), False) for each in (prefix, *tops)]
    return flat + [(each.removeprefix(prefix), True) for each in inner]


def count(storage: Storage, run_id: str) -> Count:
    """Counts the files in a run's quarantine by listing them."""
    found = Count()
    for table in listed(storage, run_id):
        found += Count(table.num_rows, sum(counts(table.column("size_bytes"))))
    return found


def _all(table: pa.Table) -> pa.Table:
    return table


@dataclass(frozen=True, slots=True)
class FinalChecks:
    """What is checked before files in quarantine are deleted: of the rows of `listed`, those that
    `wanted` chooses are deleted, and `guard` is called before each batch of at most `batch_max`."""

    wanted: Callable[[pa.Table], pa.Table] = _all
    guard: Guard = unguarded
    batch_max: int | None = None


UNCHECKED: Final = FinalChecks()


def delete_held(
    engine: Engine, storage: Storage, run_id: str, checks: FinalChecks = UNCHECKED
) -> Count:
    """Deletes the files in a run's quarantine, if the checks allow it. Returns their count.

    Raises Failed `storage_error` if some files could not be deleted; then it can be called again.
    Raises the errors of the checks' guard.
    """
    prefix = prefix_of(run_id)

    def batches(share: Share) -> Iterator[pa.Table]:
        for table in listed(storage, run_id, share):
            rows, size = checks.wanted(table), checks.batch_max or table.num_rows
            yield from (rows.slice(start, size) for start in range(0, rows.num_rows, size))

    def work(_number: int, task: Sequence[Share], answer: PartRows) -> None:
        for share in task:
            for table in batches(share):
                try:
                    checks.guard(table.column("address"))
                except EbbtideError as error:
                    answer.failed(error)
                    return
                names = [prefix + address for address in texts(table.column("address"))]
                failed = [each for each in storage.delete(names) if each.outcome == "failed"]
                size = sum(counts(table.column("size_bytes")))
                answer.counted(Count(table.num_rows, size), of="deleted")
                advance(table.num_rows)
                if failed:
                    reason = f"{failed[0].address}: {failed[0].error}"
                    message = f"{count_text(len(failed), 'file')} could not be deleted: {reason}"
                    answer.failed(Failed("storage_error", message))

    try:
        answers = engine.run(split(shares(storage, run_id), tasks=engine.task_count), work)
    except Failed as error:
        raise Failed(error.kind, f"{error.message}: purge the run again") from error
    return sum((each.count for each in answers.counts), Count())


def delete_hidden(storage: Storage, run_id: str) -> None:
    """Deletes the versions of files that were in a run's quarantine, there and at their addresses.
    The versions of a file that exists stay: it was restored.

    The versions in quarantine go last, since they are the list of files: so this can be called
    again. Raises Failed `storage_error`.
    """
    prefix = prefix_of(run_id)
    for names in storage.hidden(prefix):
        for some in ([name.removeprefix(prefix) for name in names], names):
            failed = [each for each in storage.delete_versions(some) if each.outcome == "failed"]
            if failed:
                files = count_text(len(failed), "file")
                raise Failed(
                    "storage_error",
                    f"the versions of {files} could not be deleted: {failed[0].address}: "
                    f"{failed[0].error}: purge the run again",
                )


def delete_copies(
    storage: Storage, addresses: Sequence[str], *, with_versions: bool = False
) -> dict[str, DeleteOutcome]:
    """Deletes the files with these addresses from the quarantines of all runs. Returns the deletes
    that failed, by address. `with_versions` includes the versions that a bucket keeps of them."""
    failed: dict[str, DeleteOutcome] = {}
    for run_id in recorded_ids(storage):
        prefix = prefix_of(run_id)
        names = [prefix + address for address in addresses]
        found = storage.delete(names)
        if with_versions:
            found += storage.delete_versions(names)
        for each in found:
            if each.outcome == "failed":
                address = each.address.removeprefix(prefix)
                failed[address] = DeleteOutcome(address, "failed", each.error)
    return failed


def hidden_copies(storage: Storage) -> Iterator[dict[str, str]]:
    """Yields the files that were in quarantines, and of which the storage keeps versions, in
    batches: the address that each had in the repository, by its own."""
    for names in storage.hidden(RUNS_PREFIX):
        found = ((name, name.partition(_FOLDER)[2]) for name in names)
        yield {name: address for name, address in found if address}


def held_back(folders: RunFolders, folder: RunFolder, *, now: datetime, name: str) -> list[Part]:
    """Copies the parts of restored files that are still protected to `folder`. Returns the copies,
    which have a column `address`. If the record of a quarantine is damaged, all files that its run
    restored are protected. Raises Refused `plan_corrupt`."""
    records, damaged = read_each(folders.repository.storage)
    answer = PartRows()
    for found in records:
        for number, part in enumerate(found.back if found.protects(now) else ()):
            target = f"{name}/back-{found.run_id}-{number:05d}.parquet"
            source = folder_of_back(folders, found.run_id, part)
            answer.copied(folder, target, source, part, relation="protected")
    for run_id, error in damaged.items():
        for number, table in enumerate(_all_back(folders, run_id, error)):
            target = f"{name}/back-{run_id}-{number:05d}.parquet"
            answer.wrote(folder, target, table, relation="protected")
    return answer.parts()


def folder_of_back(folders: RunFolders, run_id: str, part: Part) -> RunFolder:
    """Returns the folder that has a part of restored files. An earlier version wrote it to the
    run's folder, wherever this was. Raises Refused `plan_corrupt` if no known folder has it."""
    for folder in (folders.inside(run_id), *folders.places(run_id)):
        if folder.has(part.name):
            return folder
    raise Refused(
        "plan_corrupt",
        f"an undo of run {run_id} restored files, and their list {part.name} is missing: it is not "
        f"in {folders.inside(run_id).path}. If the run's files are in another directory, name it "
        "with --run-dir; or restore the list from a backup",
    )


def _all_back(folders: RunFolders, run_id: str, error: Refused) -> Iterator[pa.Table]:
    """Yields all lists of files that undos of a run restored, or were about to. `error` is that of
    the run's record, which would name them. Raises it if the run's folder is not known."""
    try:
        home = folders.of(run_id)
    except NotFound as missing:
        raise Refused(error.kind, f"{error.message}. And {missing.message}") from missing
    inside = folders.inside(run_id)
    for folder in [inside] if home == inside else [inside, home]:
        for name in folder.names(BACK):
            if not name.startswith(f"{BACK}/incomplete-"):
                yield read_part(folder, name, columns=["address"])


def keep_records(folder: RunFolder, run_epoch: int, records: Sequence[dict[str, Any]]) -> None:
    """Writes the commit records that a run is about to delete to the run's folder."""
    if records:
        folder.put_json(f"{FORGOTTEN}/{run_epoch:06d}.json", {"records": list(records)})


def kept_records(folder: RunFolder) -> list[dict[str, Any]]:
    """Returns all commit records that a run deleted. Raises Refused `plan_corrupt`."""
    found: dict[str, dict[str, Any]] = {}
    for batch in folder.storage.list(folder.address(f"{FORGOTTEN}/")):
        for address in sorted(texts(batch.column("address"))):
            name = address.removeprefix(folder.prefix)
            content = folder.get_json(name) if name.endswith(".json") else None
            for record in (content or {}).get("records", ()):
                found[record["commit_id"]] = record
    return list(found.values())
