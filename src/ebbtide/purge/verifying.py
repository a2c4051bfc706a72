"""Verifies a purge: its record is genuine, and agrees with the list, the database and the storage.

It changes nothing. It names every difference, and raises no error for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import counts, texts
from ebbtide.documents import documented, in_document
from ebbtide.errors import EbbtideError, Failed, Refused
from ebbtide.formats.gone import GoneLayout
from ebbtide.gc.candidates import exists
from ebbtide.gc.parts import read_part
from ebbtide.gc.runs import RunFolder
from ebbtide.purge.objects import own_among
from ebbtide.purge.plan import DELETED_SCHEMA, PurgePlan, outcome_counts, read_plan
from ebbtide.purge.purger import Purges
from ebbtide.purge.record import Record, is_genuine, read_record
from ebbtide.storage import Storage, open_storage
from ebbtide.store.content.layout import OWNER_ADDRESS
from ebbtide.store.embedded import Store
from ebbtide.store.purge_records import PurgeRow, count_purged, find_purged
from ebbtide.store.repositories.owner import read_owner
from ebbtide.store.repositories.repository_rows import list_repositories
from ebbtide.text import count_text

HEADS_MAX: Final = 100
"""The most addresses for each directory that are looked up one by one. If there are more, the
directories are listed."""
NAMED_MAX: Final = 20
"""The most addresses that are named for one kind of difference. The others are counted."""


@documented
@dataclass(frozen=True, slots=True)
class Difference:
    """A difference from the record: its kind, and a text."""

    kind: str
    text: str


@documented
@dataclass(frozen=True, slots=True)
class PurgeFindings:
    """The differences that a verification found."""

    purge_id: str
    address_count: int
    differences: tuple[Difference, ...]

    @property
    @in_document
    def verified(self) -> bool:
        """Whether there is no difference."""
        return not self.differences


def verify(store: Store, purge_id: str) -> PurgeFindings:
    """Compares a purge with its record, the database and the storage.

    Raises NotFound `purge_not_found`, Failed `storage_error`.
    """
    purges = Purges(store)
    row = purges.find(purge_id)
    work = _Verifying(store, row, purges.folder(row))
    if row.state != "done":
        work.note("state", f"the purge is {row.state}, and not done")
    if row.plan_checksum is not None:
        work.check_files(row.plan_checksum, purges.keys.public_keys())
    return PurgeFindings(purge_id, work.address_count, tuple(work.differences()))


@dataclass(slots=True)
class _Verifying:
    """The verification of one purge. `addresses` are the first of each kind of difference, and
    `counts` counts all of them."""

    store: Store
    row: PurgeRow
    folder: RunFolder
    address_count: int = 0
    found: list[Difference] = field(default_factory=list)
    addresses: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def differences(self) -> Iterator[Difference]:
        """Yields the differences. Addresses with the same kind of difference are named together."""
        yield from self.found
        for kind, count in self.counts.items():
            shown = ", ".join(self.addresses[kind])
            more = "" if count <= NAMED_MAX else f" and {count - NAMED_MAX} more"
            yield Difference(kind, f"{_WORDS[kind]}: {shown}{more}")

    def note(self, kind: str, text: str) -> None:
        """Adds a difference."""
        self.found.append(Difference(kind, text))

    def _name(self, kind: str, addresses: list[str]) -> None:
        """Adds addresses with the same kind of difference."""
        if addresses:
            self.counts[kind] += len(addresses)
            self.addresses[kind] = [*self.addresses.get(kind, ()), *addresses][:NAMED_MAX]

    def check_files(self, plan_checksum: str, public_keys: Mapping[str, str]) -> None:
        """Checks the plan, the record and its list."""
        try:
            plan, record = read_plan(self.folder, plan_checksum), read_record(self.folder)
        except Failed:
            raise  # the record could not be read, and may be correct
        except EbbtideError as error:
            self.note("record", error.message)
            return
        if record is None:
            self.note("record", f"there is no record in {self.folder.path}")
            return
        if not is_genuine(record, public_keys):
            text = f"the signature of {record.name} was not made by a key of this store"
            self.note("signature", text)
        self._check_record(record, plan)
        self._check_list(record.content, plan)

    def _check_record(self, record: Record, plan: PurgePlan) -> None:
        row = self.row
        if record.checksum != row.record_checksum:
            self.note("record", f"{record.name} has another checksum than the database says")
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
            if record.content.get(name) != expected:
                self.note("record", f"{name} of the record differs from the database")

    def _check_list(self, record: Mapping[str, Any], plan: PurgePlan) -> None:
        with self.store.metadata.snapshot() as tx:
            repositories = list_repositories(tx)
        is_there = any(each.repository_id == self.row.repository_id for each in repositories)
        if plan.whole and is_there:
            self.note("repository", "the repository is still, or again, in the database")
        owners = {
            each.repository_id for each in repositories if each.storage_url == plan.storage_url
        }
        # Another repository at this root has its own files there.
        storage = None if owners - {self.row.repository_id} else open_storage(plan.storage_url)
        left = _own_files(storage, plan) if plan.whole and storage is not None else set()
        listed = record.get("list", [])
        names = [part.get("name") for part in listed]
        for name in sorted(set(self.folder.names("deleted")).difference(names)):
            self.note("list", f"{name} is not in the record")
        outcomes: Counter[str] = Counter()
        closed = size = 0
        for table in filter(None, map(self._read, listed)):
            addresses = texts(table.column("address"))
            self.address_count += len(addresses)
            left.difference_update(addresses)
            size += sum(counts(table.column("size_bytes")))
            outcomes.update(outcome_counts(table))
            if not plan.whole and is_there:
                closed += self._check_closed(addresses)
            if storage is not None:
                self._check_gone(storage, addresses)
        self._name("left_behind", sorted(left))
        found = {"object_count": self.address_count, "size_bytes": size, "outcomes": outcomes}
        if any(record.get(name) != value for name, value in found.items()):
            self.note("list", "object count, size or outcomes of the record differ from its list")
        if self.address_count < plan.object_count:
            self.note("list", "the list has fewer objects than the plan")
        if not plan.whole and is_there:
            self._check_no_others(closed)

    def _read(self, part: dict[str, Any]) -> pa.Table | None:
        try:
            table = read_part(self.folder, part["name"], part["sha256"]).cast(DELETED_SCHEMA)
        except Failed:
            raise
        except (EbbtideError, KeyError, ValueError) as error:
            self.note("list", error.message if isinstance(error, EbbtideError) else str(error))
            return None
        is_gone = pc.is_in(table.column("outcome"), value_set=pa.array(["deleted", "missing"]))
        self._name("outcome", texts(table.column("address").filter(pc.invert(is_gone))))
        return table

    def _check_closed(self, addresses: list[str]) -> int:
        """Returns the number of the addresses that this purge closed."""
        with self.store.metadata.snapshot() as tx:
            found = find_purged(tx, self.row.repository_id, addresses)
        self._name("not_closed", [each for each in addresses if each not in found])
        return sum(purge_id == self.row.purge_id for purge_id in found.values())

    def _check_no_others(self, closed: int) -> None:
        with self.store.metadata.snapshot() as tx:
            count = count_purged(tx, self.row.repository_id, self.row.purge_id)
        if count != closed:
            addresses = count_text(count, "address", "addresses")
            self.note("list", f"the purge closed {addresses}, of which the list has {closed:,}")

    def _check_gone(self, storage: Storage, addresses: list[str]) -> None:
        directories = {address[: address.rfind("/") + 1] for address in addresses}
        if len(addresses) <= HEADS_MAX * len(directories):
            there = pa.array(addresses, pa.string()).filter(exists(storage, addresses))
            self._name("still_there", texts(there))
        else:
            listed = (
                texts(batch.column("address"))
                for each in directories
                for batch in storage.list(each, recursive=False)
            )
            self._name("still_there", _among(addresses, listed))
        if self.row.request.get("delete_versions", False):
            hidden = (names for each in directories for names in storage.hidden(each))
            self._name("versions_left", _among(addresses, hidden))


_WORDS: Final = {
    "outcome": "objects that were neither deleted nor missing",
    "not_closed": "addresses that are not in the table of purged addresses",
    "still_there": "objects that are still on the storage",
    "left_behind": "files that a writer left during the purge or after it: delete them",
    "versions_left": "objects of which the storage keeps versions",
}


def _own_files(storage: Storage, plan: PurgePlan) -> set[str]:
    """Returns the files of a purged repository that are under its root, without OWNER; none if the
    root is another repository's by now."""
    try:
        owner = read_owner(storage)
    except Refused:
        return set()
    if owner is not None and owner.repository_id != plan.identity.repository_id:
        return set()
    layout, found = GoneLayout(), set[str]()
    for batch in storage.list(sized=False):
        found.update(texts(own_among(layout, cast("pa.StringArray", batch.column("address")))))
    return found - {OWNER_ADDRESS}


def _among(addresses: list[str], found: Iterator[list[str]]) -> list[str]:
    """Returns the addresses that were found, sorted and each once."""
    wanted = set(addresses)
    return sorted(set().union(*map(wanted.intersection, found)))
