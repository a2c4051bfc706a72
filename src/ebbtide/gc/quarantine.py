"""What a sweep moved aside in place of deleting it, under the run's own name.

```
_ebbtide/gc/quarantines/<run_id>.json        until when it is kept, and what became of it since
_ebbtide/gc/runs/<run_id>/quarantine/<address>   the objects
```

Both lie in the repository's own storage, wherever the run's folder is: nobody collects what is
under `_ebbtide/gc/`. Only who holds the repository changes them. Not for: bringing objects back
(`undoing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import counts, make_schema, texts
from ebbtide.errors import Failed, NotFound, Refused
from ebbtide.formats.base import QUARANTINES_PREFIX, RUNS_PREFIX
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.meter import advance
from ebbtide.gc.parts import Part, PartRows, split
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import DeleteOutcome, Storage
from ebbtide.wording import counted

BACK_SCHEMA: Final = make_schema(
    ("address", pa.string()), ("size_bytes", pa.int64()), ("kind", pa.string())
)
"""What came back: where it is again, and its kind."""

FORGOTTEN: Final = "forgotten"
"""Where a run keeps the records that it drops, by its epoch, in its folder."""

State = Literal["held", "undone", "purged"]


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What is on record of a run's quarantine: what is `held` in it may be deleted for good from
    `until` on; all of it came back; or what had not was deleted. `back` are parts (BACK_SCHEMA) in
    the run's folder of what came back, which no run takes before `back_until`; when the last of it
    did is `back_at`."""

    run_id: str
    run_path: str
    state: State
    until: datetime
    back_at: datetime | None = None
    back_until: datetime | None = None
    back: tuple[Part, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the file."""
        return {
            "run_id": self.run_id,
            "run_path": self.run_path,
            "state": self.state,
            "until": self.until.isoformat(),
            "back_at": None if self.back_at is None else self.back_at.isoformat(),
            "back_until": None if self.back_until is None else self.back_until.isoformat(),
            "back": [part.to_json() for part in self.back],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Quarantine:
        """The one that `to_json` wrote. KeyError, TypeError or ValueError on anything else."""
        return cls(
            run_id=content["run_id"],
            run_path=content["run_path"],
            state=content["state"],
            until=datetime.fromisoformat(content["until"]),
            back_at=_instant(content["back_at"]),
            back_until=_instant(content["back_until"]),
            back=tuple(Part.from_json(part) for part in content["back"]),
        )

    def protects(self, now: datetime) -> bool:
        """Whether what came back is kept from all runs."""
        return self.back_until is not None and self.back_until > now


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def write(storage: Storage, found: Quarantine) -> None:
    """Write the record, in the place of an earlier one."""
    storage.put(_address(found.run_id), json.dumps(found.to_json(), indent=1).encode())


def read(storage: Storage, run_id: str) -> Quarantine | None:
    """The record of a run's quarantine; None where it has none, or none any more. Refused
    `plan_corrupt`."""
    try:
        data = storage.get(_address(run_id))
    except NotFound:
        return None
    try:
        return Quarantine.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            "plan_corrupt",
            f"{storage.url}/{_address(run_id)} is not as it was written ({error}): bring it back "
            f"from a backup, or delete it, and what is under {prefix_of(run_id)} with it",
        ) from error


def drop(storage: Storage, run_id: str) -> None:
    """Delete the record."""
    storage.delete([_address(run_id)])


def read_all(storage: Storage) -> list[Quarantine]:
    """Every record, the newest run first. Raises as `read`."""
    names: list[str] = []
    for batch in storage.list(QUARANTINES_PREFIX):
        names += texts(batch.column("address"))
    ids = (name.removeprefix(QUARANTINES_PREFIX).removesuffix(".json") for name in names)
    found = (read(storage, run_id) for run_id in sorted(ids))
    return [each for each in found if each is not None]


def _address(run_id: str) -> str:
    return f"{QUARANTINES_PREFIX}{run_id}.json"


def prefix_of(run_id: str) -> str:
    """Under which prefix of the storage a run's objects are, each by its address."""
    return f"{RUNS_PREFIX}{run_id}/quarantine/"


def move_aside(storage: Storage, run_id: str, addresses: Sequence[str]) -> list[DeleteOutcome]:
    """Move objects into a run's quarantine."""
    prefix = prefix_of(run_id)
    return storage.move([(address, prefix + address) for address in addresses])


Share = tuple[str, bool]
"""A prefix within a quarantine, and whether what is deeper under it is meant too."""


def listed(storage: Storage, run_id: str, share: Share = ("", True)) -> Iterator[pa.Table]:
    """What a run's quarantine holds of a share, by addresses in the repository (columns `address`,
    `size_bytes`), in batches."""
    prefix, (inner, recursive) = prefix_of(run_id), share
    for batch in storage.list(prefix + inner, recursive=recursive):
        table = pa.Table.from_batches([batch])
        addresses = pc.utf8_slice_codeunits(table.column("address"), len(prefix))
        yield pa.table([addresses, table.column("size_bytes")], names=["address", "size_bytes"])


def shares(storage: Storage, run_id: str) -> list[Share]:
    """A quarantine divided into tasks."""
    prefix = prefix_of(run_id)
    tops = storage.list_prefixes(prefix)
    inner = [each for top in tops for each in storage.list_prefixes(top)]
    flat = [(each.removeprefix(prefix), False) for each in (prefix, *tops)]
    return flat + [(each.removeprefix(prefix), True) for each in inner]


def count(storage: Storage, run_id: str) -> Count:
    """How much a run's quarantine holds. Lists it."""
    found = Count()
    for table in listed(storage, run_id):
        found += Count(table.num_rows, sum(counts(table.column("size_bytes"))))
    return found


def delete_held(engine: Engine, storage: Storage, run_id: str) -> Count:
    """Delete what a run's quarantine holds, for good; how much that was. Failed `storage_error`
    where not all of it went: it can be asked for again."""
    prefix = prefix_of(run_id)

    def work(_number: int, task: Sequence[Share], answer: PartRows) -> None:
        for share in task:
            for table in listed(storage, run_id, share):
                names = [prefix + address for address in texts(table.column("address"))]
                failed = [each for each in storage.delete(names) if each.outcome == "failed"]
                size = sum(counts(table.column("size_bytes")))
                answer.counted(table.num_rows, bytes_total=size, group="deleted")
                advance(table.num_rows)
                if failed:
                    reason = f"{failed[0].address}: {failed[0].error}"
                    stay = counted(len(failed), "file stays", "files stay")
                    answer.failed(Failed("storage_error", f"{stay}: {reason}"))

    try:
        answers = engine.run(split(shares(storage, run_id), tasks=engine.task_count), work)
    except Failed as error:
        raise Failed(error.kind, f"{error.message}: purge the run again") from error
    return sum((part.count for part in answers), Count())


def delete_copies(storage: Storage, addresses: Sequence[str]) -> dict[str, DeleteOutcome]:
    """Delete what any run has aside of some addresses; what failed, by address."""
    failed: dict[str, DeleteOutcome] = {}
    for record in read_all(storage):
        prefix = prefix_of(record.run_id)
        for found in storage.delete([prefix + address for address in addresses]):
            if found.outcome == "failed":
                address = found.address.removeprefix(prefix)
                failed[address] = DeleteOutcome(address, "failed", found.error)
    return failed


def held_back(storage: Storage, folder: RunFolder, *, now: datetime, name: str) -> list[Part]:
    """What undone runs brought back lately, and no run may take: parts with a column `address` in
    `folder`. Refused `plan_corrupt`."""
    answer = PartRows()
    for found in read_all(storage):
        if not found.protects(now):
            continue
        source = RunFolder.at(found.run_path)
        for number, part in enumerate(found.back):
            target = f"{name}/back-{found.run_id}-{number:05d}.parquet"
            answer.copied(folder, target, source, part, relation="protected")
    return answer.parts()


def keep_records(folder: RunFolder, run_epoch: int, records: Sequence[dict[str, Any]]) -> None:
    """Write down what is about to be dropped."""
    if records:
        folder.put_json(f"{FORGOTTEN}/{run_epoch:06d}.json", {"records": list(records)})


def kept_records(folder: RunFolder) -> list[dict[str, Any]]:
    """All that a run dropped. Refused `plan_corrupt`."""
    found: dict[str, dict[str, Any]] = {}
    for batch in folder.storage.list(folder.address(f"{FORGOTTEN}/")):
        for address in sorted(texts(batch.column("address"))):
            name = address.removeprefix(folder.prefix)
            content = folder.get_json(name) if name.endswith(".json") else None
            for record in (content or {}).get("records", ()):
                found[record["commit_id"]] = record
    return list(found.values())
