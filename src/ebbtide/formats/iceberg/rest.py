"""Expiries on REST catalogs: one request for each table, and then a look at what it did.

The server makes the metadata file, from the metadata of that moment. A request can require where
known refs point, but not that there are no others: a ref that somebody sets after the reading goes
together with its snapshot, without an error. So the metadata file before the change is read
afterwards, and what was lost is listed again. A note on the storage lasts until then, and no run
begins meanwhile. Source: Iceberg REST catalog specification, "updateTable"; `TableMetadata.Builder`
of Iceberg's Java library 1.11.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, cast

from pydantic import AwareDatetime, BaseModel
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from ebbtide.arrow import texts
from ebbtide.errors import Failed, InvalidInput, Refused
from ebbtide.formats.iceberg.expiring import Removal, SqlCommit, refs_of, restored, without
from ebbtide.formats.iceberg.layout import file_at, refusing
from ebbtide.formats.iceberg.metadata import STATISTICS, document_of
from ebbtide.formats.iceberg.tables import Warehouse
from ebbtide.formats.notes import as_written
from ebbtide.storage import Storage

NOTES_PREFIX: Final = "_ebbtide/expiring/"
LATE_MAX: Final = timedelta(hours=1)
"""How long a server may still carry out a request whose outcome is unknown."""
STEPS_MAX: Final = 1_000
"""The most metadata files that are read to find the one before a change."""
REPAIRS_MAX: Final = 5
_TABLE: Final = "namespaces/{namespace}/tables/{table}"

_WITHOUT_NOTE: Final = (
    "set branches and tags again that the last expiry took away, and delete it: no run begins "
    "while it is there"
)

Document = Mapping[str, Any]  # the JSON of a metadata file


def commit_of(warehouse: Warehouse) -> SqlCommit | RestCommit:
    """Returns what changes the tables of a warehouse. Raises InvalidInput `invalid_argument` for a
    catalog that this program cannot change safely."""
    with warehouse.catalog.opened() as found:
        if isinstance(found, SqlCatalog):
            return SqlCommit(warehouse.catalog, warehouse.storage)
        if isinstance(found, RestCatalog):
            return RestCommit(warehouse)
        raise InvalidInput(
            "invalid_argument",
            f"expiry is only for catalogs of SQL and REST, and {warehouse.catalog.name} is a "
            f"{type(found).__name__}: expire its snapshots with another program, and collect the "
            "files with 'gc run'",
        )


def check_settled(storage: Storage) -> None:
    """Raises Refused `repository_changed` while an expiry is unfinished: it may have to list a
    snapshot again whose files nothing else keeps."""
    for noted in _notes(storage):
        raise Refused(
            "repository_changed",
            f"an expiry was not finished ({noted}): 'ebbtide expire' finishes it. Then run this "
            "again",
        )


def settle(warehouse: Warehouse, now: datetime) -> None:
    """Finishes changes that an earlier process has left unfinished. Raises as `RestCommit.remove`,
    and Refused `plan_corrupt`. Called under a hold."""
    storage = warehouse.storage
    for noted in list(_notes(storage)):
        with as_written(storage, noted, _WITHOUT_NOTE):
            note = UnfinishedExpiry.model_validate_json(storage.get(noted))
        own = note.catalog == warehouse.catalog.name
        if own and not RestCommit(warehouse).settle(noted, note, now):
            if now - note.at <= LATE_MAX:
                raise _failed(note.table, "the server did not answer an earlier expiry")
            storage.delete([noted])


def _notes(storage: Storage) -> Iterator[str]:
    for batch in storage.list(NOTES_PREFIX):
        yield from texts(batch.column("address"))


class UnfinishedExpiry(BaseModel, frozen=True):
    """The note of an expiry of one table that may not be finished: what it removes from the table
    at `location`, and the snapshots and refs that it knows."""

    catalog: str
    table: str
    location: str
    at: AwareDatetime
    snapshots: frozenset[int]
    refs: frozenset[str]
    known_snapshots: frozenset[int]
    known_refs: frozenset[str]


class _OutcomeUnknownError(Exception):
    """The server may have carried out a request, or may do so later."""


class _ConflictError(Exception):
    """The server has not carried out a request, because the table is not as required."""


@dataclass(frozen=True, slots=True)
class RestCommit:
    """Changes tables of a REST catalog, as `SqlCommit` does. `back` has snapshots that `remove` has
    listed again."""

    warehouse: Warehouse
    back: set[int] = field(default_factory=set)

    def remove(
        self, table: str, location: str, address: str, removed: Removal, now: datetime
    ) -> bool:
        """Removes snapshots and refs from a table whose pointer is at `location`, the file
        `address`, and lists again what refs need that were set meanwhile. Returns False if the
        table is not as it was.

        Raises Failed `catalog_error`, also if the outcome is unknown, and Refused
        `repository_changed` if something cannot be listed again. No run begins before `settle` has
        finished such a change.
        """
        storage = self.warehouse.storage
        before = document_of(storage.get(address))
        note = UnfinishedExpiry(
            catalog=self.warehouse.catalog.name,
            table=table,
            location=location,
            at=now,
            snapshots=removed.snapshots,
            refs=frozenset(removed.refs),
            known_snapshots=frozenset(_ids(before)),
            known_refs=frozenset(refs_of(before)),
        )
        noted = f"{NOTES_PREFIX}{secrets.token_hex(16)}.json"
        storage.put(noted, note.model_dump_json(indent=1).encode(), create_only=True)
        unknown = "the server says that it did so, and its metadata do not show it"
        try:
            self._send(table, before, without(before, removed, location=location, now=now))
        except _OutcomeUnknownError as error:
            unknown = f"the server did not answer ({error})"
        except (Failed, _ConflictError) as error:
            storage.delete([noted])
            if isinstance(error, Failed):
                raise
            return False
        if not self.settle(noted, note, now):
            raise _failed(table, unknown)
        return True

    def put(self, table: str, location: str, address: str, document: Document) -> bool:
        """Gives a table what a document has and it lacks: snapshots, their statistics, and refs.
        Returns False if the table is not as it was. Raises Failed `catalog_error`, and Refused
        `repository_changed` if the server lists no old snapshots again."""
        try:
            self._send(table, document_of(self.warehouse.storage.get(address)), document)
        except _OutcomeUnknownError as error:
            raise _failed(table, f"the server did not answer ({error})") from error
        except _ConflictError as error:
            if self._pointer(table) == location:
                raise Refused(
                    "repository_changed",
                    f"the server lists no old snapshots of table {table} again ({error}): register "
                    "a metadata file that has them under another name",
                ) from error
            return False
        return True

    def settle(self, noted: str, note: UnfinishedExpiry, now: datetime) -> bool:
        """Lists again what a change took away without being told to, and deletes its note. Returns
        False if the change has not happened, at least yet."""
        try:
            losses = self._losses(note)
            for lost in losses:
                self._list_again(note.table, lost, now)
        except Refused as error:
            error.restate(
                f"an expiry of table {note.table} is not finished: {error.message}. Then delete "
                f"{noted}: no run begins while it is there"
            )
            raise
        if losses:
            self.warehouse.storage.delete([noted])
        return bool(losses)

    def _losses(self, note: UnfinishedExpiry) -> list[dict[str, Any]]:
        """Returns what a change took away beside what it was told to, as the record of an expiry
        has it, each with the `base` that has it all. Nothing if the change has not happened. Reads
        the metadata files from the current one back to the change, or to the file before it."""
        places, location = self.warehouse.layout.places, self._pointer(note.table)
        after, left, found = self._document(location), set(note.snapshots), list[dict[str, Any]]()
        for _ in range(STEPS_MAX):
            if places.address(location) == places.address(note.location):
                return found
            if not after.get("metadata-log"):
                break
            location = after["metadata-log"][-1]["metadata-file"]
            before = self._document(location)
            taken = _taken(before, after, note)
            if taken is not None:
                found.append(taken | {"base": location})
                left -= _ids(before) - _ids(after)
                if not left:
                    return found
            after = before
        raise Refused(
            "repository_changed",
            f"no metadata file before {location} is known, to see which refs it took away: look "
            "for refs that are missing, and set them again",
        )

    def _list_again(self, table: str, lost: Mapping[str, Any], now: datetime) -> None:
        self.back.update(row["snapshot-id"] for row in lost["snapshots"])
        reason = ""
        for _ in range(REPAIRS_MAX):
            location = self._pointer(table)
            before = self._document(location)
            after = restored(before, lost, location=location, now=now)
            if after is None:
                return
            named = {**refs_of(before), **lost["refs"]}
            after["refs"] = {k: ref for k, ref in after["refs"].items() if k in named}
            try:
                self._send(table, before, after)
            except (_OutcomeUnknownError, _ConflictError, Failed) as error:
                reason = str(error)
        raise Refused(
            "repository_changed",
            f"refs were set meanwhile ({', '.join(lost['refs']) or 'a branch'}), and the server "
            f"does not list their snapshots again ({reason}). {lost['base']} has them: register it "
            "under another name, to keep their files",
        )

    def _pointer(self, table: str) -> str:
        found = self.warehouse.catalog.pointer(table)
        if found is None:
            raise Refused(
                "repository_changed",
                f"there is no table {table} any more: if it has another name now, give it its name "
                "back, and expire again",
            )
        return found

    def _document(self, location: str) -> dict[str, Any]:
        storage, address = self.warehouse.storage, self.warehouse.layout.places.address(location)
        with refusing(storage, address, what="tree"):
            return document_of(file_at(storage, address))

    def _send(self, table: str, before: Document, after: Document) -> None:
        """Asks the server for the changes between two documents. Raises _ConflictError,
        _OutcomeUnknownError, and Failed `catalog_error` if the server refuses."""
        asked = {
            "requirements": list(_requirements(before, after)),
            "updates": list(_updates(before, after)),
        }
        sent = False
        try:
            with self.warehouse.catalog.opened() as found:
                catalog = cast("RestCatalog", found)
                url = catalog.url(_TABLE, **catalog._split_identifier_for_path(table))
                sent = True
                # Not PyIceberg's `commit_table`, which drops fields that it does not know.
                answer = catalog._session.post(url, json=asked)
        except Failed as error:
            if not sent:
                raise
            raise _OutcomeUnknownError(error.message) from error
        try:
            said = str(answer.json()["error"]["message"])
        except (ValueError, LookupError, TypeError):
            said = answer.text[:300]
        if answer.status_code >= 500 or answer.status_code == 408:
            raise _OutcomeUnknownError(said)
        if answer.status_code == 409:
            raise _ConflictError(said)
        if answer.status_code >= 300:
            raise Failed(
                "catalog_error",
                f"the catalog {self.warehouse.catalog.name} refuses to change table {table}: {said}"
                f" ({answer.status_code})",
            )


def _failed(table: str, why: str) -> Failed:
    return Failed(
        "catalog_error",
        f"it is not known whether table {table} was changed: {why}. Run this again later",
    )


def _ids(document: Document) -> set[int]:
    return {each["snapshot-id"] for each in document.get("snapshots", [])}


def _taken(before: Document, after: Document, note: UnfinishedExpiry) -> dict[str, Any] | None:
    """Returns what an expiry took away from one metadata file to the next that refs need which it
    did not know. None if this is no change of the expiry."""
    gone = note.snapshots & _ids(before) - _ids(after)
    refs, left = refs_of(before), refs_of(after)
    if not gone and not note.refs & refs.keys() - left.keys():
        return None
    unknown = {name: ref for name, ref in refs.items() if name not in note.known_refs}
    needed = set[int]()
    for ref in unknown.values():
        # A branch that was made at a snapshot that stays needs none before it.
        history = list(_history(before, ref))
        if next((each for each in history if each in note.known_snapshots), None) in gone:
            needed |= gone & set(history)
    return {
        "refs": {name: ref for name, ref in unknown.items() if name not in left},
        **{
            name: [each for each in before.get(name, []) if each["snapshot-id"] in needed]
            for name in ("snapshots", *STATISTICS)
        },
    }


def _history(document: Document, ref: Mapping[str, Any]) -> Iterator[int]:
    """Yields the snapshots that a ref keeps, the newest first. A tag keeps one."""
    parents = {
        each["snapshot-id"]: each.get("parent-snapshot-id") for each in document["snapshots"]
    }
    place = ref["snapshot-id"]
    while place in parents:
        yield place
        place = parents.pop(place) if ref["type"] == "branch" else None


def _requirements(before: Document, after: Document) -> Iterator[dict[str, Any]]:
    """Yields what a request requires: the table, and all refs that are known, set or free."""
    if "table-uuid" in before:
        yield {"type": "assert-table-uuid", "uuid": before["table-uuid"]}
    refs = refs_of(before)
    for name in {"main": None, **refs, **refs_of(after)}:
        known = refs[name]["snapshot-id"] if name in refs else None
        yield {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": known}


def _updates(before: Document, after: Document) -> Iterator[dict[str, Any]]:
    back = [each for each in after["snapshots"] if each["snapshot-id"] not in _ids(before)]
    old, new = refs_of(before), refs_of(after)
    yield from _additions(before, back, after["last-updated-ms"]) if back else ()
    for name in old.keys() - new.keys():
        yield {"action": "remove-snapshot-ref", "ref-name": name}
    if gone := _ids(before) - _ids(after):
        yield {"action": "remove-snapshots", "snapshot-ids": sorted(gone)}
    for name in new.keys() - old.keys():
        yield {"action": "set-snapshot-ref", "ref-name": name, **new[name]}
    ids = {each["snapshot-id"] for each in back}
    for kind in STATISTICS:
        for each in after.get(kind, []):
            if each["snapshot-id"] in ids:
                yield {"action": f"set-{kind}", kind: each, "snapshot-id": each["snapshot-id"]}


def _additions(before: Document, back: list[Any], at: int) -> Iterator[dict[str, Any]]:
    """Yields updates that list old snapshots again.

    A builder of metadata takes the sequence number and the date of the table from the snapshot that
    was added last, and refuses one that is older, if it has a parent. So a snapshot of the number 0
    is added before the old ones, and one of the table's number behind them; both are removed again.
    If another commit has raised the number meanwhile, the server refuses all of it.
    """
    has_numbers = before["format-version"] > 1
    first, end = (
        {key: each for key, each in back[0].items() if key != "parent-snapshot-id"}
        | {"snapshot-id": secrets.randbits(62), "sequence-number": number, "timestamp-ms": at}
        for number in (0, before.get("last-sequence-number", 0))
    )
    for each in (first, *back, end):
        has_parent = not has_numbers or each.get("sequence-number", 0)
        row = {k: value for k, value in each.items() if has_parent or k != "parent-snapshot-id"}
        yield {"action": "add-snapshot", "snapshot": row}
    ids = [first["snapshot-id"], end["snapshot-id"]]
    yield {"action": "remove-snapshots", "snapshot-ids": ids}
