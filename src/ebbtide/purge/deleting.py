"""Deletes the closed objects, and records the outcome of each address.

It handles one part of the plan at a time. An address with a recorded outcome other than `failed` is
not tried again. A purge that was stopped, or had failed deletes, therefore continues from there.

A bucket with versions keeps the bytes of deleted objects. If the request says so, the versions are
deleted too: those of the objects, and of their copies in the quarantines of runs, also of copies
that were deleted before.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts, without
from ebbtide.gc.parts import Part, PartRows, read_part
from ebbtide.gc.quarantine import delete_copies, hidden_copies
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import advance
from ebbtide.gc.sweeping.outcomes import NotDeleted, remove_versions
from ebbtide.purge.addresses import AddressSet
from ebbtide.purge.plan import DELETED_SCHEMA, outcome_counts, read_objects
from ebbtide.storage import DeleteOutcome, Storage


@dataclass(slots=True)
class Deleted:
    """The outcomes of a purge: the parts that contain them (DELETED_SCHEMA), and the number of each
    outcome."""

    parts: list[Part] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether no delete failed."""
        return not self.outcomes.get("failed", 0)

    def add(self, part: Part, table: pa.Table) -> None:
        """Adds one part."""
        self.parts.append(part)
        for outcome, count in outcome_counts(table).items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count


def delete_objects(
    storage: Storage,
    folder: RunFolder,
    parts: Sequence[Part],
    *,
    check: Callable[[], None],
    into: Deleted,
    with_versions: bool = False,
) -> None:
    """Deletes the objects of the plan's `parts`, except those that earlier attempts settled.

    `check` is called before each part. It raises an error if the purge must not continue.
    `with_versions` includes versions. An object of which a version is left is `failed`.
    """
    done = set(folder.names("deleted"))
    hidden = _hidden_copies(storage, folder, parts) if with_versions else None
    for part, objects in zip(parts, read_objects(folder, parts), strict=True):
        name = record_name(part)
        earlier = read_part(folder, name).cast(DELETED_SCHEMA) if name in done else None
        table, is_new = _delete_part(storage, objects, earlier, check, hidden)
        answer = PartRows()
        advance(part.rows)
        if is_new:
            answer.wrote(folder, name, table, durable=True)
            into.add(answer.parts()[0], table)
        else:
            into.add(part_of(folder, name, table), table)


def _hidden_copies(
    storage: Storage, folder: RunFolder, parts: Sequence[Part]
) -> dict[str, list[str]]:
    """Returns the files that were in quarantines, and of which the storage keeps versions, by the
    addresses of `parts`."""
    wanted = AddressSet(table.column("address") for table in read_objects(folder, parts))
    found: dict[str, list[str]] = defaultdict(list)
    for copies in hidden_copies(storage):
        matches = wanted.matches(list(copies.values()))
        for (name, address), is_wanted in zip(copies.items(), matches, strict=True):
            if is_wanted:
                found[address].append(name)
    return found


def record_name(part: Part) -> str:
    """Returns the name of the file with the outcomes of one part of the plan."""
    return f"deleted/{part.name.rpartition('/')[2]}"


def part_of(folder: RunFolder, name: str, table: pa.Table) -> Part:
    """Returns the description of a part that an earlier attempt wrote."""
    data = folder.storage.get(folder.address(name))
    size = int(pc.sum(table.column("size_bytes")).as_py() or 0)
    return Part(name, table.num_rows, size, hashlib.sha256(data).hexdigest())


def _delete_part(
    storage: Storage,
    objects: pa.Table,
    earlier: pa.Table | None,
    check: Callable[[], None],
    hidden: Mapping[str, Sequence[str]] | None,
) -> tuple[pa.Table, bool]:
    """Returns the outcomes of a part, and whether any of them is new. With `hidden`, the result of
    `_hidden_copies`, versions are deleted too."""
    settled = DELETED_SCHEMA.empty_table()
    if earlier is not None:
        settled = earlier.filter(pc.not_equal(earlier.column("outcome"), pa.scalar("failed")))
    left = without(objects, "address", settled)
    if not left.num_rows:
        return settled, False
    check()
    addresses = texts(left.column("address"))
    kept = delete_copies(storage, addresses, with_versions=hidden is not None)
    outcomes: list[DeleteOutcome | NotDeleted] = [*storage.delete(addresses)]
    if hidden is not None:
        copies = {name: address for address in addresses for name in hidden.get(address, ())}
        for each in storage.delete_versions(list(copies)):
            if each.outcome == "failed":
                kept[copies[each.address]] = each
        outcomes = remove_versions(storage, addresses, outcomes)
    outcomes = [kept.get(*pair) for pair in zip(addresses, outcomes, strict=True)]
    table = pa.table(
        [
            *left.columns,
            pa.array([found.outcome for found in outcomes], pa.string()),
            pa.array([found.error for found in outcomes], pa.string()),
        ],
        schema=DELETED_SCHEMA,
    )
    return pa.concat_tables([settled, table]).sort_by("address"), True
