"""The state of tables at one time: versions with their times, and what the log says of them.

Files are read only once: a commit never changes, so that its facts are kept from one reading to the
next while its size and date stay. Not for: which files the versions have (`layout`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import changed
from ebbtide.formats.delta import actions
from ebbtide.formats.delta.actions import Facts
from ebbtide.formats.delta.features import DeltaMetadata, check_protocol
from ebbtide.formats.delta.log import LOG, TableLog, commit_name, list_log
from ebbtide.formats.delta.places import DamagedLogError, unknown_vector
from ebbtide.model import EPOCH
from ebbtide.storage import Storage

ATTEMPTS: Final = 5
"""The most listings of a log whose files are deleted while they are read."""
_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version that the log can rebuild. `operation` is the name that its writer gave it."""

    number: int
    at: datetime
    operation: str | None


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one time. `prefix` is its folder, empty or with a slash at its end. `metadata` is
    that of the newest version; `partition_columns` and `has_iceberg` are of all versions."""

    prefix: str
    log: TableLog
    versions: tuple[TableVersion, ...]
    metadata: DeltaMetadata
    partition_columns: frozenset[str]
    has_iceberg: bool

    @property
    def newest(self) -> int:
        """The number of the newest version."""
        return self.versions[-1].number


@dataclass(slots=True)
class TableReader:
    """Reads the table with this prefix. `_facts` are those of files, by name, size and date."""

    storage: Storage
    prefix: str
    _facts: dict[tuple[str, object], Facts] = field(default_factory=dict)
    _agreeing: set[tuple[str, int]] = field(default_factory=set)

    @property
    def where(self) -> str:
        """The table's place, for messages."""
        return f"{self.storage.url}/{self.prefix}".rstrip("/")

    def read(self) -> TableState:
        """Reads the log. Raises Refused `zero_commits`, `missing_tree`, `corrupt_tree`,
        `unknown_format_version`, and `repository_changed` if files are deleted all the time."""
        for _ in range(ATTEMPTS):
            try:
                return self._read(list_log(self.storage, self.prefix))
            except NotFound:
                continue  # Delta's own cleanup deletes files of the log at any time
        raise changed(f"files of the log of {self.where} are deleted while they are read")

    def _read(self, log: TableLog) -> TableState:
        if not log.commits:
            raise Refused("zero_commits", f"{self.where}/{LOG} has no commits: restore the log")
        numbers = log.versions()
        if log.newest not in numbers:
            raise self._cannot_rebuild(log)
        with ThreadPoolExecutor(_READERS) as pool:
            read = pool.map(lambda version: self._known(log, version), numbers)
            facts = dict(zip(numbers, read, strict=True))
        found = self._metadata(log, facts)
        times = times_of({v: _time_in(log, v, each) for v, each in facts.items()})
        self._check_compacted(log)
        return TableState(
            self.prefix,
            log,
            tuple(TableVersion(v, self._date(v, times[v]), facts[v].operation) for v in numbers),
            found[-1],
            frozenset[str]().union(*(each.partition_columns for each in found)),
            any(each.has_iceberg for each in found),
        )

    def _cannot_rebuild(self, log: TableLog) -> Refused:
        first, last = list(log.rows())[-1]
        lacks = commit_name(log.newest if last < log.newest else first - 1)
        return Refused(
            "missing_tree",
            f"version {log.newest} of {self.where}, the newest, cannot be rebuilt: {LOG}{lacks} "
            "is missing, and no complete checkpoint replaces it. Restore it",
        )

    def _known(self, log: TableLog, version: int) -> Facts:
        key = commit_name(version), log.commits[version]
        if key not in self._facts:
            self._facts[key] = self.facts(version)
        return self._facts[key]

    def facts(self, version: int) -> Facts:
        """Reads what a commit says beside files. Raises NotFound, and Refused `corrupt_tree`."""
        with self._refusing(commit_name(version)):
            return actions.read_facts(self._get(commit_name(version)))

    def _get(self, name: str) -> bytes:
        return self.storage.get(f"{self.prefix}{LOG}{name}")

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """Raises DamagedLogError as Refused `corrupt_tree`. A missing file stays NotFound: the log
        is listed again then."""
        try:
            yield
        except DamagedLogError as error:
            text = f"{self.where}/{LOG}{name} is damaged: {error}"
            raise Refused("corrupt_tree", text) from error

    def _metadata(self, log: TableLog, facts: Mapping[int, Facts]) -> list[DeltaMetadata]:
        """Returns the metadata of the versions, each change once, the newest last. Checks what each
        version needs."""
        found: list[DeltaMetadata] = []
        for version, own in facts.items():
            each = own
            if version - 1 not in facts:
                each = self._base_facts(log, version).then(own)
                if each.protocol is None or each.metadata is None:
                    raise Refused(
                        "corrupt_tree",
                        f"version {version} of {self.where} has no protocol or no metadata",
                    )
            metadata = self.check(version, each)
            found += [] if metadata is None else [metadata]
        return found

    def check(self, version: int, facts: Facts) -> DeltaMetadata | None:
        """Checks what a version says of protocol, metadata and deletion vectors. Returns the
        metadata, if it has some. Raises Refused `unknown_format_version` or `corrupt_tree`."""
        where = f"version {version} of {self.where}"
        with self._refusing(commit_name(version)):
            if facts.protocol is not None:
                check_protocol(where, facts.protocol)
            for letter in sorted(facts.vectors - {"u", "i", "p"}):
                raise unknown_vector(where, letter)
            if facts.metadata is None:
                return None
            found = DeltaMetadata.parse(facts.metadata)
            found.check(where)
            return found

    def _base_facts(self, log: TableLog, version: int) -> Facts:
        """Returns the protocol and metadata with which the replay of a version begins."""
        base = log.base(version)
        found = Facts()
        for name in () if base is None else base.names:
            key = name, log.sizes[name]
            if key not in self._facts:
                with self._refusing(name):
                    self._facts[key] = actions.checkpoint_facts(self._get(name), name)
            found = found.then(self._facts[key])
        return found

    def _date(self, version: int, ms: int) -> datetime:
        try:
            return EPOCH + timedelta(milliseconds=ms)
        except OverflowError:
            text = f"version {version} of {self.where} has no valid date: {ms}"
            raise Refused("corrupt_tree", text) from None

    def _check_compacted(self, log: TableLog) -> None:
        """Raises Refused `corrupt_tree` if a compacted file says something else than its commits:
        readers that use it need other files than those that do not."""
        for (first, last), name in log.compacted.items():
            key, numbers = (name, log.sizes[name]), range(first, last + 1)
            if key in self._agreeing or not any(a <= first <= last <= b for a, b in log.rows()):
                continue
            with self._refusing(name):
                given = _ends(actions.read_commits([(last, self._get(name))]))
            with self._refusing(commit_name(first)):
                own = _ends(actions.read_commits([(v, self._get(commit_name(v))) for v in numbers]))
            if own[0] != given[0] or own[1] - given[1]:
                raise Refused(
                    "corrupt_tree",
                    f"{self.where}/{LOG}{name} contradicts the commits {first} to {last}: programs "
                    "that read it need other files than those that read the commits. Delete this "
                    "file, which no program needs, then run again",
                )
            self._agreeing.add(key)


def _ends(rows: pa.Table) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the files whose newest action is an add, and those whose newest one is a remove."""
    newest = actions.newest(rows)
    keys, is_add = actions.keys_of_files(newest), pc.equal(newest["kind"], pa.scalar(actions.ADD))
    return frozenset(texts(keys.filter(is_add))), frozenset(texts(keys.filter(pc.invert(is_add))))


def _time_in(log: TableLog, version: int, facts: Facts) -> tuple[int, bool]:
    if facts.committed_ms is not None:
        return facts.committed_ms, True
    return (log.commits[version][1] - EPOCH) // timedelta(milliseconds=1), False


def times_of(given: Mapping[int, tuple[int, bool]]) -> dict[int, int]:
    """Returns the times of versions in milliseconds, which never fall. `given` has for each version
    the time, and whether the commit itself tells it; otherwise it is the date of the file, which
    may be that of a copy.

    Source: Delta Transaction Log Protocol, "In-Commit Timestamps".
    """
    found: dict[int, int] = {}
    last = 0
    for version in sorted(given):
        ms, is_told = given[version]
        found[version] = last = ms if is_told else max(ms, last + 1)
    for version in sorted(found, reverse=True):
        if version + 1 in found:
            found[version] = min(found[version], found[version + 1] - 1)
    return found
