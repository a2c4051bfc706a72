"""Verifies a purge: its record is genuine, and agrees with the list, the database and the storage.

It changes nothing. It names every difference, and raises no error for one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import counts, texts
from ebbtide.errors import EbbtideError, Failed
from ebbtide.gc.parts import read_part
from ebbtide.gc.runs import RunFolder
from ebbtide.purge.plan import DELETED_SCHEMA, PurgePlan, outcome_counts, read_plan
from ebbtide.purge.purger import Purges
from ebbtide.purge.record import Record, is_genuine, read_record
from ebbtide.storage import Storage, open_storage
from ebbtide.store.embedded import Store
from ebbtide.store.purges.queries import PurgeRow, count_purged, find_purged
from ebbtide.store.repositories.queries import list_repositories
from ebbtide.text import count_text

HEADS_MAX: Final = 100
"""The most addresses of one directory that are looked up one by one. If there are more, the
directory is listed."""
NAMED_MAX: Final = 20
"""The most addresses that are named for one kind of difference. The others are counted."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference from the record: its kind, and a text."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PurgeFindings:
    """The differences that a verification found."""

    purge_id: str
    address_count: int
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON, for answers."""
        return {
            "purge_id": self.purge_id,
            "verified": not self.differences,
            "address_count": self.address_count,
            "differences": [{"kind": each.kind, "text": each.text} for each in self.differences],
        }


def verify(store: Store, purge_id: str) -> PurgeFindings:
    """Compares a purge with its record, the database and the storage.

    Raises NotFound `purge_not_found`, Failed `storage_error`.
    """
    purges = Purges(store)
    row = purges.find(purge_id)
    work = _Verifying(store, row, purges.folder(row), purges.keys.public_keys())
    work.run()
    return PurgeFindings(purge_id, work.address_count, tuple(work.differences()))


class _Verifying:
    def __init__(
        self, store: Store, row: PurgeRow, folder: RunFolder, public_keys: dict[str, str]
    ) -> None:
        self._store = store
        self._row = row
        self._folder = folder
        self._public_keys = public_keys
        self._found: list[Difference] = []
        self._addresses: dict[str, list[str]] = defaultdict(list)
        self._counts: dict[str, int] = defaultdict(int)
        self.address_count = 0

    def differences(self) -> Iterator[Difference]:
        """Yields the differences. Addresses with the same kind of difference are named together."""
        yield from self._found
        for kind, count in self._counts.items():
            shown = ", ".join(self._addresses[kind])
            more = "" if count <= NAMED_MAX else f" and {count - NAMED_MAX} more"
            yield Difference(kind, f"{_WORDS[kind]}: {shown}{more}")

    def run(self) -> None:
        """Checks everything."""
        row = self._row
        if row.state != "done":
            self._note("state", f"the purge is {row.state}, and not done")
        if row.plan_checksum is None:
            return
        try:
            plan = read_plan(self._folder, row.plan_checksum)
            record = read_record(self._folder)
        except Failed:
            raise  # the record could not be read, and may be correct
        except EbbtideError as error:
            self._note("record", error.message)
            return
        if record is None:
            self._note("record", f"there is no record in {self._folder.path}")
            return
        self._check_record(record, plan)
        self._check_list(record, plan)

    def _check_record(self, record: Record, plan: PurgePlan) -> None:
        row, content = self._row, record.content
        if not is_genuine(record, self._public_keys):
            text = f"the signature of {record.name} was not made by a key of this store"
            self._note("signature", text)
        if record.checksum != row.record_checksum:
            self._note("record", f"{record.name} has another checksum than the database says")
        same = {
            "purge_id": row.purge_id,
            "repository_id": row.repository_id,
            "request": row.request,
            "plan_checksum": row.plan_checksum,
            "state": row.state,
            "storage_url": plan.storage_url,
            "closed_at": None if row.closed_at is None else row.closed_at.isoformat(),
        }
        for name, expected in same.items():
            if content.get(name) != expected:
                self._note("record", f"{name} of the record differs from the database")

    def _check_list(self, record: Record, plan: PurgePlan) -> None:
        storage = open_storage(plan.storage_url)
        is_there = self._repository_is_there()
        if plan.whole and is_there:
            self._note("repository", "the repository is still, or again, in the database")
        listed = record.content.get("list", [])
        names = [part.get("name") for part in listed]
        for name in sorted(set(self._folder.names("deleted")).difference(names)):
            self._note("list", f"{name} is not in the record")
        outcomes: dict[str, int] = defaultdict(int)
        closed = size = 0
        for part in listed:
            table = self._read(part)
            if table is None:
                continue
            addresses = texts(table.column("address"))
            self.address_count += len(addresses)
            size += sum(counts(table.column("size_bytes")))
            for outcome, count in outcome_counts(table).items():
                outcomes[outcome] += count
            if not plan.whole and is_there:
                closed += self._check_closed(addresses)
            self._check_gone(storage, addresses, plan)
        if (self.address_count, size, dict(outcomes)) != (
            record.content.get("object_count"),
            record.content.get("size_bytes"),
            record.content.get("outcomes"),
        ):
            self._note("list", "object count, size or outcomes of the record differ from its list")
        if self.address_count < plan.object_count:
            self._note("list", "the list has fewer objects than the plan")
        if not plan.whole and is_there:
            self._check_no_others(closed)

    def _read(self, part: dict[str, Any]) -> pa.Table | None:
        try:
            table = read_part(self._folder, part["name"], part["sha256"]).cast(DELETED_SCHEMA)
        except Failed:
            raise
        except (EbbtideError, KeyError, ValueError) as error:
            text = error.message if isinstance(error, EbbtideError) else str(error)
            self._note("list", text)
            return None
        for address, outcome in zip(
            texts(table.column("address")), texts(table.column("outcome")), strict=True
        ):
            if outcome not in ("deleted", "missing"):
                self._name("outcome", [address])
        return table

    def _check_closed(self, addresses: list[str]) -> int:
        """Returns the number of the addresses that this purge closed."""
        with self._store.metadata.snapshot() as tx:
            found = find_purged(tx, self._row.repository_id, addresses)
        self._name("not_closed", [each for each in addresses if each not in found])
        return sum(purge_id == self._row.purge_id for purge_id in found.values())

    def _check_no_others(self, closed: int) -> None:
        with self._store.metadata.snapshot() as tx:
            count = count_purged(tx, self._row.repository_id, self._row.purge_id)
        if count != closed:
            addresses = count_text(count, "address", "addresses")
            self._note("list", f"the purge closed {addresses}, of which the list has {closed:,}")

    def _check_gone(self, storage: Storage, addresses: list[str], plan: PurgePlan) -> None:
        with self._store.metadata.snapshot() as tx:
            owners = [
                each.repository_id
                for each in list_repositories(tx)
                if each.storage_url == plan.storage_url
            ]
        if owners and owners != [plan.identity.repository_id]:
            return  # another repository is at this root now, and has its own files there
        self._name("still_there", list(still_there(storage, addresses)))
        if self._row.request.get("delete_versions", False):
            self._name("versions_left", list(versions_left(storage, addresses)))

    def _repository_is_there(self) -> bool:
        with self._store.metadata.snapshot() as tx:
            return any(
                info.repository_id == self._row.repository_id for info in list_repositories(tx)
            )

    def _note(self, kind: str, text: str) -> None:
        self._found.append(Difference(kind, text))

    def _name(self, kind: str, addresses: list[str]) -> None:
        if addresses:
            self._counts[kind] += len(addresses)
            room = NAMED_MAX - len(self._addresses[kind])
            self._addresses[kind] += addresses[:room]


_WORDS: Final = {
    "outcome": "objects that were neither deleted nor missing",
    "not_closed": "addresses that are not in the table of purged addresses",
    "still_there": "objects that are still on the storage",
    "versions_left": "objects of which the storage keeps versions",
}


def still_there(storage: Storage, addresses: Iterable[str]) -> Iterator[str]:
    """Yields the addresses at which an object exists."""
    for prefix, inside in _by_directory(addresses):
        if len(inside) <= HEADS_MAX:
            yield from (each for each in sorted(inside) if storage.head(each) is not None)
            continue
        for batch in storage.list(prefix, recursive=False):
            yield from sorted(inside.intersection(texts(batch.column("address"))))


def versions_left(storage: Storage, addresses: Iterable[str]) -> Iterator[str]:
    """Yields the addresses without an object, of which the storage keeps versions or markers."""
    for prefix, inside in _by_directory(addresses):
        for names in storage.hidden(prefix):
            yield from sorted(inside.intersection(names))


def _by_directory(addresses: Iterable[str]) -> Iterator[tuple[str, set[str]]]:
    """Groups addresses by their directory, as a prefix of listings."""
    found: dict[str, set[str]] = defaultdict(set)
    for address in addresses:
        directory = address.rpartition("/")[0]
        found[f"{directory}/" if directory else ""].add(address)
    yield from found.items()
