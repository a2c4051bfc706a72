"""Delta tables as the collector sees them.

The name says whose files may be deleted. What is needed is read from all named tables: a table may
name files of another (a shallow clone). Nothing closes a version: a run expires it by deleting
files that only such versions need, the log is never changed, and `guard` reads new commits before
each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import pyarrow as pa

from ebbtide.arrow import table_of, texts
from ebbtide.clock import Clock, SystemClock
from ebbtide.errors import Refused
from ebbtide.formats import notes
from ebbtide.formats.base import PROTECTED_SCHEMA, SYSTEM_PREFIX, Guard, Identity
from ebbtide.formats.capabilities import Changes
from ebbtide.formats.delta.features import LOG_RETENTION
from ebbtide.formats.delta.finding import Found, has_log
from ebbtide.formats.delta.history import FileHistory, belongs, in_words, unkept_since
from ebbtide.formats.delta.layout import CHECKSUM, DeltaLayout, TableFolder, tree_id, tree_of
from ebbtide.formats.delta.places import DeltaPlaces
from ebbtide.formats.delta.reading import (
    ONLY,
    ROOT,
    DeltaGuard,
    DeltaReading,
    SeenTable,
    changes_since,
    commit_id_of,
    own_policy,
)
from ebbtide.formats.delta.tables import TableReader, TableState
from ebbtide.formats.delta.walk import DeltaWalk
from ebbtide.formats.file_names import FileNames, NamesAsked, names_in_tables
from ebbtide.formats.holds import reasons_of
from ebbtide.model import Commit
from ebbtide.retention import Policy
from ebbtide.retention.decision import Decision, Roots
from ebbtide.text import date_text

FORMAT_NAME: Final = "delta"
NESTED: Final = "in the folder of another table"
CHECKED: Final = "the checksum of a file that exists"
CLONES: Final = (
    "shallow clones of a table cannot be known from the table: name them in one run "
    "(delta:ROOT/**), or their files may be deleted"
)


class DeltaRepository:
    """Tables below one root. Made by `open_delta`."""

    batch_max = 5_000

    def __init__(self, found: Found, *, name: str, clock: Clock | None = None) -> None:
        self.storage = found.storage
        self.identity = Identity(FORMAT_NAME, self.storage.url, found.key, name)
        self.clock = clock or SystemClock()
        self._readers = {
            ONLY if found.is_one else each.rstrip("/") or ROOT: TableReader(self.storage, each)
            for each in found.prefixes
        }
        self.walk = DeltaWalk(self.storage)
        self._tables: Mapping[str, TableState] = {}
        self._layout: DeltaLayout | None = None

    def now(self) -> datetime:
        """Returns this machine's time."""
        return self.clock.host_now()

    def check_storage(self) -> None:
        """Raises Refused `nested_root` if one of several tables was collected under a name of its
        own: its policy, holds and quarantine would not count."""
        for name, table in self._readers.items():
            own = f"{table.prefix}{SYSTEM_PREFIX}"
            if table.prefix and any(batch.num_rows for batch in self.storage.list(own)):
                raise Refused(
                    "nested_root",
                    f"table {name} was collected as delta:{table.where}: the policy and records in "
                    f"{table.where}/{SYSTEM_PREFIX} do not count here. Use that name, or move its "
                    "policy here, and delete that folder once its quarantines have ended",
                )

    @property
    def landmark(self) -> str:
        """The address of the newest commit of one of the tables."""
        tables = self._tables or self._read()
        return min(tree_id(each.prefix, each.newest) for each in tables.values())

    @contextmanager
    def reading(self, cutoff: datetime) -> Iterator[DeltaReading]:
        """Reads the logs of all tables anew."""
        del cutoff
        now = self.now()
        self._tables = self._read()
        self._layout = self._layout_of(self._tables)
        yield self._reading(self.written_policy(), now)

    def _read(self) -> Mapping[str, TableState]:
        return {name: reader.read() for name, reader in self._readers.items()}

    def _reading(self, policy: Policy | None, now: datetime) -> DeltaReading:
        holds, held = reasons_of(self.storage), notes.read_holds(self.storage, now)
        warnings = (CLONES,) if len(self._tables) == 1 else ()
        return DeltaReading(self._tables, policy, holds, held, now, warnings)

    @property
    def layout(self) -> DeltaLayout:
        """The layout by the last reading, or by one on first use: the kinds of files depend on the
        metadata."""
        if self._layout is None:
            self._layout = self._layout_of(self._read())
        return self._layout

    def _layout_of(self, tables: Mapping[str, TableState]) -> DeltaLayout:
        folders = tuple(
            TableFolder(each.prefix, each.partition_columns, each.has_iceberg)
            for each in tables.values()
        )
        rows = {each.prefix: tuple(each.log.rows()) for each in tables.values()}
        return DeltaLayout(DeltaPlaces(self.storage.url), folders, rows=rows)

    def roots(self, policy: Policy | None) -> Roots:
        """Reads the versions, for a decision by `policy`; without one, by the tables' own rules."""
        now = self.now()
        self._tables = self._read()
        return self._reading(policy, now).roots()

    def policy(self) -> Policy:
        """Returns the policy beside the tables, or else the tables' own rules."""
        written = self.written_policy()
        return own_policy(self._read()) if written is None else written

    def written_policy(self) -> Policy | None:
        """Returns the policy beside the tables; None if their own rules apply."""
        return notes.read_policy(self.storage)

    def set_policy(self, policy: Policy | None) -> tuple[str, ...]:
        """Writes the policy beside the tables; None removes it. Returns its patterns that match no
        table. Raises Failed."""
        notes.write_policy(self.storage, policy)
        return () if policy is None else policy.unmatched(self._readers)

    def change_policy(self, change: Callable[[Policy], Policy]) -> tuple[Policy, tuple[str, ...]]:
        """Writes what `change` makes of the policy beside the tables. Returns it, and its patterns
        that match no table. Raises as `notes.change_policy` does."""
        changed = notes.change_policy(self.storage, change)
        return changed, changed.unmatched(self._readers)

    def used_unseen(self, candidates: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yields candidates in folders of tables that the name does not have, and checksums of
        files that exist."""
        known = {"", *(each.prefix for each in self._tables.values())}
        others = dict.fromkeys(known, False)
        for rows in candidates:
            addresses = pa.array(texts(rows.column("address")), pa.string())
            kinds = texts(self.layout.classify(addresses))
            found = [
                (address, NESTED if is_nested else CHECKED, None, None)
                for address, kind in zip(texts(addresses), kinds, strict=True)
                if (is_nested := self._is_nested(address, others))
                or (kind == CHECKSUM and self._has_file(address))
            ]
            yield table_of(found, PROTECTED_SCHEMA)

    def _is_nested(self, address: str, others: dict[str, bool]) -> bool:
        """Whether an address lies in a table that was not named. `others` says this of folders."""
        folder = address[: address.rfind("/") + 1]
        if folder not in others:
            above = self._is_nested(folder[:-1], others)
            others[folder] = above or has_log(self.storage, folder)
        return others[folder]

    def _has_file(self, checksum: str) -> bool:
        folder, slash, name = checksum.rpartition("/")
        address = f"{folder}{slash}{name.removeprefix('.').removesuffix('.crc')}"
        return self.storage.head(address) is not None

    def changes(
        self, earlier: Collection[str], released: Collection[str], kept: Collection[str]
    ) -> Changes:
        """Returns what commits have released and added since an earlier plan. Raises as
        `changes_since`."""
        return changes_since(self._tables.values(), earlier, released, kept)

    def guard(self, kept: Collection[str], going: Collection[str]) -> Guard:
        """Returns the check before each batch of deletes, against the last reading."""
        del going
        tables, known = [], frozenset(kept)
        for name, table in self._tables.items():
            numbers = (each.number for each in table.versions)
            oldest = next((v for v in numbers if commit_id_of(name, v) in known), table.newest)
            commits = {v: stamp for v, stamp in table.log.commits.items() if v >= oldest}
            tables.append(SeenTable(name, table.prefix, commits))
        return DeltaGuard(self.storage, tuple(tables))

    def proofs(self, commits: Mapping[str, datetime], heads: Collection[str]) -> Collection[str]:
        """Returns the versions that are newer than the newest one now: a log only grows at its
        end."""
        del heads
        newest = {name: each.newest for name, each in self._tables.items()}
        parts = {each: each.partition(":") for each in commits}
        return [
            each
            for each, (number, _, name) in parts.items()
            if int(number) > newest.get(name or ONLY, int(number))
        ]

    def holding(self, address: str) -> frozenset[str]:
        """Returns the trees of the versions that need an address."""
        trees = set[str]()
        for table in self._tables.values():
            history = FileHistory(self.storage, self.layout, table, address)
            for first, last in history.intervals():
                trees |= {tree_id(table.prefix, each) for each in range(first, last + 1)}
        return frozenset(trees)

    def file_names(self, asked: NamesAsked) -> FileNames:
        """Returns the table and the partition of files, by the folders that they lie in."""
        whole = self.storage.url.rstrip("/").rpartition("/")[2]
        prefixes = [each.prefix for each in self._readers.values()]
        return names_in_tables(
            asked.addresses, {each: each.rstrip("/") or whole for each in prefixes}
        )

    def recount(
        self, address: str | None, commits: Sequence[Commit], roots: Roots, decision: Decision
    ) -> tuple[str, ...]:
        """Returns the intervals of versions that need an address, with the rules that keep some of
        them, or the date since which no rule keeps one."""
        words = []
        for name, table in self._tables.items():
            needing = {tree_of(each.tree_id)[1]: each for each in commits if belongs(each, table)}
            if not needing:
                continue
            lead = f"{table.prefix} " if table.prefix else ""
            if address is not None:
                words += [f"{lead}{each}" for each in in_words(table, needing, decision)]
            since = unkept_since(roots, name, needing.values(), decision)
            if since is not None:
                which = "it" if address is None else "any of them"
                words.append(f"{lead}the policy has not kept {which} since {date_text(since)} UTC")
        return tuple(words)

    def readable_until(self, commit_ids: Collection[str]) -> str:
        """Returns the earliest time at which Delta's cleanup of a log may delete a version, as a
        sentence; empty if no log is cleaned up."""
        ends = [
            version.at + lasts
            for name, table in self._read().items()
            if (lasts := table.metadata.log_retention) is not None
            for version in table.versions
            if commit_id_of(name, version.number) in commit_ids
        ]
        if not ends:
            return ""
        if min(ends) <= self.now():
            return f"the next checkpoint may end this for the oldest of them ({LOG_RETENTION})"
        return (
            f"the log keeps them until {min(ends):%Y-%m-%d %H:%M} UTC or longer ({LOG_RETENTION})"
        )
