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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, counts, make_schema, split_by, texts
from ebbtide.errors import EbbtideError, Failed, NotFound, Refused
from ebbtide.formats.base import RUNS_PREFIX, Guard, Layout, changed, unguarded
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.keys import KeyArray, KeySet, keys_of
from ebbtide.gc.parts import Count, Part, PartRows, read_part, split
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
"""The schema of files in a quarantine, and of restored ones."""

Share = tuple[str, bool]
"""A prefix within a quarantine, and whether files in deeper directories are included."""

NO_KEYS: Final[KeyArray] = np.empty(0, np.int64)
PURGE_AGAIN: Final = "purge the run again"

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
    found = [
        DeleteOutcome(
            prefix + address,
            "failed",
            f"it has {held_bytes} bytes there and {there_bytes} bytes at {address}: one of the two "
            "is not complete, delete that one",
        )
        if None not in (held_bytes, there_bytes) and held_bytes != there_bytes
        else None
        for address, held_bytes, there_bytes in _both_sizes(storage, run_id, addresses)
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
    prefix, copied = prefix_of(run_id), []
    for address, held_bytes, there_bytes in _both_sizes(storage, run_id, addresses):
        if held_bytes is not None and there_bytes is None:
            pieces = SizedPieces(storage.stream(prefix + address), held_bytes, is_stored=True)
            storage.put(address, pieces)
            copied.append(address)
    return copied


def existing(storage: Storage, run_id: str, addresses: Sequence[str]) -> pa.Array[Any]:
    """Returns for each address whether its file exists, there or in a run's quarantine."""
    sizes = (pair for _, *pair in _both_sizes(storage, run_id, addresses))
    return pa.array([pair != [None, None] for pair in sizes], pa.bool_())


def _both_sizes(
    storage: Storage, run_id: str, addresses: Sequence[str]
) -> Iterator[tuple[str, int | None, int | None]]:
    """Yields each address with the size of the file in a run's quarantine and of the file at the
    address. The size of a file that does not exist is None."""
    prefix = prefix_of(run_id)
    held, there = (
        storage.sizes(names).column("size_bytes").to_pylist()
        for names in ([prefix + address for address in addresses], addresses)
    )
    return zip(addresses, held, there, strict=True)


def runs_with_files(storage: Storage) -> list[str]:
    """Returns the ids of the runs whose quarantines have files, newest first."""
    ids = [
        each.removeprefix(RUNS_PREFIX).rstrip("/") for each in storage.list_prefixes(RUNS_PREFIX)
    ]
    return [each for each in sorted(ids) if storage.list_prefixes(prefix_of(each))]


def listed(
    storage: Storage, run_id: str, shares: Iterable[Share] = (("", True),)
) -> Iterator[pa.Table]:
    """Yields the files in some shares of a run's quarantine, or in all of it, in batches (columns
    `address`, `size_bytes`). The addresses are those in the repository."""
    prefix = prefix_of(run_id)
    for inner, recursive in shares:
        for batch in storage.list(prefix + inner, recursive=recursive):
            table = pa.Table.from_batches([batch])
            addresses = pc.utf8_slice_codeunits(table.column("address"), len(prefix))
            yield pa.table([addresses, table.column("size_bytes")], names=["address", "size_bytes"])


def _shares(engine: Engine, storage: Storage, run_id: str) -> list[Sequence[Share]]:
    """Divides a run's quarantine into shares, for several tasks."""
    prefix = prefix_of(run_id)
    tops = storage.list_prefixes(prefix)
    inner = [each for top in tops for each in storage.list_prefixes(top)]
    flat = [(each.removeprefix(prefix), False) for each in (prefix, *tops)]
    shares = flat + [(each.removeprefix(prefix), True) for each in inner]
    return split(shares, tasks=engine.task_count)


def list_held(
    engine: Engine,
    storage: Storage,
    layout: Layout,
    run_id: str,
    *,
    folder: RunFolder,
    stem: str,
    under: str = "",
    but: KeyArray = NO_KEYS,
) -> list[Part]:
    """Lists the files in a run's quarantine whose addresses begin with `under`, without those with
    the keys `but`. Writes them to `folder`, and returns their parts (BACK_SCHEMA) with one kind
    each."""

    def work(number: int, task: Sequence[Share], answer: PartRows) -> None:
        left_out = KeySet(but)
        for place, table in enumerate(listed(storage, run_id, task)):
            rows = not_among(left_out, table)
            rows = rows.filter(pc.starts_with(rows.column("address"), under))
            addresses: Any = rows.column("address").combine_chunks()
            columns = [addresses, rows.column("size_bytes"), layout.classify(addresses)]
            for kind, of_kind in split_by(pa.table(columns, schema=BACK_SCHEMA), "kind"):
                name = f"{stem}-{number:05d}-{place:05d}-{kind}.parquet"
                answer.wrote(folder, name, of_kind, kind=kind, durable=True)

    return engine.run(_shares(engine, storage, run_id), work).parts


def not_among(keys: KeySet, table: pa.Table) -> pa.Table:
    """Returns the rows whose addresses have none of the keys."""
    return table.filter(pa.array(~keys.has(keys_of(table.column("address")))))


def count(storage: Storage, run_id: str) -> Count:
    """Counts the files in a run's quarantine by listing them."""
    found = Count()
    for table in listed(storage, run_id):
        found += Count(table.num_rows, sum(counts(table.column("size_bytes"))))
    return found


def failure_of(outcomes: Iterable[DeleteOutcome], what: str, then: str) -> Failed | None:
    """Returns the error for files whose outcome is `failed`, or None if there are none. `what` is a
    clause about `{files}`, and `then` what the user does next."""
    failed = [each for each in outcomes if each.outcome == "failed"]
    if not failed:
        return None
    clause = what.format(files=count_text(len(failed), "file"))
    return Failed("storage_error", f"{clause}, {then}: {failed[0].address}: {failed[0].error}")


def delete_held(
    engine: Engine,
    storage: Storage,
    run_id: str,
    *,
    but: KeyArray = NO_KEYS,
    guard: Guard = unguarded,
    batch_max: int | None = None,
) -> None:
    """Deletes the files in a run's quarantine, without those with the keys `but`. `guard` is called
    before each batch of at most `batch_max` files.

    Raises Failed `storage_error` if some files could not be deleted; then it can be called again.
    Raises the errors of `guard`, and Refused `repository_changed` if a file is needed again: it is
    not at its place, so that somebody must restore it first.
    """
    prefix = prefix_of(run_id)

    def batches(task: Sequence[Share]) -> Iterator[Column]:
        left_out = KeySet(but)
        for table in listed(storage, run_id, task):
            addresses = not_among(left_out, table).column("address")
            size = batch_max or len(table)
            yield from (addresses.slice(start, size) for start in range(0, len(addresses), size))

    def work(_number: int, task: Sequence[Share], answer: PartRows) -> None:
        for addresses in batches(task):
            try:
                for address, what in guard(addresses).items():
                    raise changed(f"{what} needs {address}")
            except EbbtideError as error:
                answer.failed(error)
                return
            outcomes = storage.delete([prefix + address for address in texts(addresses)])
            advance(len(addresses))
            failure = failure_of(outcomes, "{files} could not be deleted", PURGE_AGAIN)
            if failure is not None:
                answer.failed(failure)

    engine.run(_shares(engine, storage, run_id), work)


def delete_hidden(storage: Storage, run_id: str) -> None:
    """Deletes the versions of files that were in a run's quarantine, there and at their addresses.
    The versions of a file that exists stay: it was restored.

    The versions in quarantine go last, since they are the list of files: so this can be called
    again. Raises Failed `storage_error`.
    """
    prefix, what = prefix_of(run_id), "the versions of {files} could not be deleted"
    for names in storage.hidden(prefix):
        for some in ([name.removeprefix(prefix) for name in names], names):
            failure = failure_of(storage.delete_versions(some), what, PURGE_AGAIN)
            if failure is not None:
                raise failure


def delete_copies(
    storage: Storage, addresses: Sequence[str], *, with_versions: bool = False
) -> dict[str, str]:
    """Deletes the files with these addresses from the quarantines of all runs. Returns the errors
    of the deletes that failed, by address. `with_versions` includes the versions that a bucket
    keeps of them."""
    failed: dict[str, str] = {}
    for run_id in recorded_ids(storage):
        prefix = prefix_of(run_id)
        names = [prefix + address for address in addresses]
        found = storage.delete(names)
        if with_versions:
            found += storage.delete_versions(names)
        failed |= {
            each.address.removeprefix(prefix): each.error or "failed"
            for each in found
            if each.outcome == "failed"
        }
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
    restored, or was about to, are protected. Raises Refused `plan_corrupt`."""
    records, damaged = read_each(folders.repository.storage)
    answer = PartRows()
    for found in records:
        source = folders.inside(found.run_id)
        for number, part in enumerate(found.back if found.protects(now) else ()):
            target = f"{name}/back-{found.run_id}-{number:05d}.parquet"
            answer.copied(folder, target, source, part, relation="protected")
    for run_id, error in damaged.items():
        source = _folder_of_damaged(folders, run_id, error)
        for number, listed in enumerate(source.names(BACK)):
            if not listed.startswith(f"{BACK}/incomplete-"):
                target = f"{name}/back-{run_id}-{number:05d}.parquet"
                table = read_part(source, listed, columns=["address"])
                answer.wrote(folder, target, table, relation="protected")
    return answer.parts()


def _folder_of_damaged(folders: RunFolders, run_id: str, error: Refused) -> RunFolder:
    """Returns the folder with the lists of files that undos of a run restored. `error` is that of
    the run's record, which would name them. Raises it if the run has no files any more."""
    try:
        folders.of(run_id)
    except NotFound as missing:
        raise Refused(error.kind, f"{error.message}. And {missing.message}") from missing
    return folders.inside(run_id)


def keep_records(folder: RunFolder, run_epoch: int, records: Sequence[dict[str, Any]]) -> None:
    """Writes the commit records that a run is about to delete to the run's folder."""
    if records:
        folder.put_json(f"{FORGOTTEN}/{run_epoch:06d}.json", {"records": list(records)})


def kept_records(folder: RunFolder) -> list[dict[str, Any]]:
    """Returns all commit records that a run deleted. Raises Refused `plan_corrupt`."""
    contents = (folder.get_json(name) or {} for name in folder.names(FORGOTTEN, suffix=".json"))
    records = (record for content in contents for record in content.get("records", ()))
    return list({record["commit_id"]: record for record in records}.values())
