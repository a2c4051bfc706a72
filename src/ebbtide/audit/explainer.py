"""Explains why an address or a commit exists, until when it stays, and why it was deleted.

The reasons are those of a run. The repository is read once, the same function decides, and trees
and nodes are read in the same way. Explaining changes nothing.
"""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.audit.answers import (
    AddressState,
    CommitState,
    ExplainedAddress,
    ExplainedCommit,
    Went,
)
from ebbtide.audit.history import Surroundings
from ebbtide.audit.holders import NOTHING, Holders, Recollection, TreeSearch
from ebbtide.audit.keepers import AddressKeepers
from ebbtide.audit.past import (
    brought_back,
    describe,
    fate_in,
    find_expired,
    find_outcome,
    find_taken,
)
from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.base import (
    FOREIGN,
    SYSTEM,
    ExpiredCommit,
    Reading,
    RepositoryFormat,
)
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.planning.deciding import trees_of
from ebbtide.gc.relations.inventory import latest_micros
from ebbtide.gc.runs import RunFolder, RunFolders, TaskFiles
from ebbtide.model import EPOCH, Commit
from ebbtide.quarantined import Fate
from ebbtide.retention.decision import Decision, decide
from ebbtide.retention.outlook import outlook
from ebbtide.storage import ObjectInfo, open_storage

LIMIT: Final = 20
_MICROSECOND: Final = timedelta(microseconds=1)


class Explainer:
    """Explains the addresses and commits of one repository. `grace` is the grace of its runs, and
    `run_dir` another directory with files of runs. A list has at most `limit` rows, and a field
    beside it has the total number."""

    def __init__(
        self,
        repository: RepositoryFormat,
        *,
        engine: Engine,
        grace: timedelta,
        limit: int = LIMIT,
        run_dir: str | None = None,
    ) -> None:
        self._repository = repository
        self._folders = RunFolders(repository, run_dir)
        self._engine = engine
        self._grace = grace
        self._limit = limit

    def explain(self, what: str, path: str | None = None) -> ExplainedAddress | ExplainedCommit:
        """Explains an address, a commit's id or a ref; with a `path`, the object of the ref there.

        A text in the form of an address is taken as an address. Raises NotFound `ref_not_found`,
        `commit_not_found` or `object_not_found`, and InvalidInput `invalid_argument`. Raises
        Refused as a run does, if a file that the answer depends on cannot be read.
        """
        if path is not None:
            return self.address(self._repository.address_at(what, path))
        if self._kind_of(what) in self._repository.layout.delete_order:
            return self.address(what)
        try:
            return self.commit(what)
        except (NotFound, InvalidInput):
            if not self._has_file(what):
                raise
        return self.address(what)

    def commit(self, name: str) -> ExplainedCommit:
        """Explains the commit that a ref, an id or another expression names. Raises as `explain`
        does."""
        with self._reading() as reading:
            roots = reading.roots()
            around = Surroundings.of(roots, decide(roots))
            commit_id = self._commit_of(around, name)
            if commit_id in around.commits:
                return self._known_commit(reading, around, around.commits[commit_id])
            expired = reading.expired_commit(commit_id)
        expired = expired or find_expired(self._folders, commit_id, forgotten=True)
        if expired is None:
            raise NotFound(
                "commit_not_found",
                f"commit {commit_id} does not exist, and no run on record deleted it",
            )
        return ExplainedCommit(
            commit_id=commit_id, state="forgotten", expired=expired, fate=self._fate(expired)
        )

    def _closing(
        self, reading: Reading, commit: Commit, *, is_active: bool
    ) -> ExpiredCommit | None:
        """Returns the run that closed a commit, or None for other commits. If the format does not
        record it, the runs do. In a format that closes nothing, the run that took its data."""
        if not commit.tombstoned:
            with suppress(Refused):
                return None if is_active else find_taken(self._folders, commit.commit_id)
            return None
        found = reading.expired_commit(commit.commit_id)
        if found is not None:
            return found
        with suppress(Refused):  # the state of the commit is known without the run
            return find_expired(self._folders, commit.commit_id, forgotten=False)
        return None

    def _fate(self, expired: ExpiredCommit | None) -> Fate | None:
        """Returns what became of the data of an expired commit."""
        if expired is None or expired.run_id is None:
            return None
        return fate_in(self._folders, expired.run_id)

    def _commit_of(self, around: Surroundings, name: str) -> str:
        named = around.named(name)
        if named is not None:
            return named
        if name in around.commits or name in around.roots.stub_ids:
            return name
        try:
            return self._repository.resolve(name)
        except NotFound:
            if find_expired(self._folders, name, forgotten=True) is None:
                raise
            return name

    def _known_commit(
        self, reading: Reading, around: Surroundings, commit: Commit
    ) -> ExplainedCommit:
        roots, decision = around.roots, around.decision
        commit_id = commit.commit_id
        refs = around.reaching(commit_id)
        is_active, is_recorded = commit_id in decision.active, commit_id in decision.recorded
        data = outlook(roots, data=[commit_id]) if is_active else None
        record = outlook(roots, records=[commit_id]) if is_recorded else None
        expired = self._closing(reading, commit, is_active=is_active)
        return ExplainedCommit(
            commit_id=commit_id,
            state=_commit_state(commit, decision),
            created_at=commit.created_at,
            tree_id=commit.tree_id,
            reason=decision.active.get(commit_id),
            refs=tuple(refs[: self._limit]),
            ref_count=len(refs),
            leased_until=_future(commit.leased_until, roots.now),
            hold=None if roots.policy is None else roots.policy.holds.get(commit_id),
            data_until=None if data is None else data.ends_at,
            data_kept_by=None if data is None else data.reason,
            record_until=None if record is None else record.ends_at,
            expired=expired,
            fate=self._fate(expired),
        )

    def address(self, address: str) -> ExplainedAddress:
        """Explains an address within the storage root.

        Raises NotFound `object_not_found` if the file does not exist, nothing keeps it, and no run
        has recorded it. Raises Refused as `explain` does.
        """
        kind = self._kind_of(address)
        if kind in (FOREIGN, SYSTEM):
            return self._uncollected(address, kind)
        target = self._target_of(address)
        with self._reading() as reading:
            roots = reading.roots()
            around = Surroundings.of(roots, decide(roots))
            protectors = reading.protectors(target or address)
            protectors += brought_back(self._folders, target or address, roots.now)
            purged = reading.purged_at(address)
        held = NOTHING if target else self._search(around, address)
        found = AddressKeepers(around, protectors, held, address)
        info = self._repository.storage.head(address)
        went = None if info or purged else self._went(found)
        ends_at, kept_by = (None, None) if info is None or purged else self._outlook(found, info)
        past = found.past_holders()
        return ExplainedAddress(
            address=address,
            kind=kind,
            state=_state(found, is_there=info is not None, is_purged=purged is not None),
            target=target,
            size_bytes=None if info is None else info.size_bytes,
            last_modified=None if info is None else info.last_modified,
            keepers=found.keepers(self._limit),
            keeper_count=found.keeper_count,
            past_holders=tuple(past[: self._limit]),
            past_holder_count=len(past),
            unread_nodes=held.unread_nodes,
            collectable_at=ends_at,
            kept_by=kept_by,
            went=went,
            purged=purged,
        )

    def _search(self, around: Surroundings, address: str) -> Holders:
        repository = self._repository
        with tempfile.TemporaryDirectory(prefix="ebbtide-explain-") as directory:
            scratch = open_storage(directory)
            folder = RunFolder(scratch, "work/")
            search = TreeSearch(
                engine=self._engine,
                place=TaskFiles(repository.storage, repository.layout, folder, "live"),
                index=Recollection(
                    storage=repository.storage,
                    folder=folder,
                    pointers=(),
                    read_at=around.roots.now,
                    scratch=scratch,
                    known=bool(repository.layout.checked_kinds),
                ),
                address=address,
            )
            trees = trees_of(around.roots, around.decision)
            return search.find(trees, around.roots.tree_checksums)

    def _went(self, found: AddressKeepers) -> Went | None:
        """Returns the run that deleted a file, or None if no run has recorded it. Raises NotFound
        `object_not_found` in place of None if nothing keeps the address."""
        address, repository = found.address, self._repository
        outcome = find_outcome(self._engine, self._folders, address)
        if outcome is not None:
            trees = found.held.data | found.held.files
            return describe(self._folders, outcome, trees, limit=self._limit)
        if found.keeper_count:
            return None
        raise NotFound(
            "object_not_found",
            f"{address[:200]} is not at {repository.storage.url}, nothing refers to it, and no "
            "run on record deleted it. Records of runs are kept for EBBTIDE_RUN_RETENTION. Files "
            "that were never committed can be deleted without a record",
        )

    def _outlook(
        self, found: AddressKeepers, info: ObjectInfo
    ) -> tuple[datetime | None, str | None]:
        ends_at, kept_by = found.ends_at()
        if ends_at is None:
            return None, kept_by
        written = pa.chunked_array([pa.array([info.last_modified], pa.timestamp("us", "UTC"))])
        latest = EPOCH + int(latest_micros(written)[0]) * _MICROSECOND
        return max(ends_at, latest + self._grace + _MICROSECOND), None

    def _uncollected(self, address: str, kind: str) -> ExplainedAddress:
        """Explains a foreign or system file, which no run deletes. Raises NotFound
        `object_not_found` if it does not exist."""
        info = self._repository.storage.head(address)
        if info is None:
            raise NotFound(
                "object_not_found",
                f"{address[:200]} is not at {self._repository.storage.url}, and is no name of a "
                "file that runs delete",
            )
        return ExplainedAddress(
            address=address,
            kind=kind,
            state="system" if kind == SYSTEM else "foreign",
            size_bytes=info.size_bytes,
            last_modified=info.last_modified,
        )

    def _reading(self) -> AbstractContextManager[Reading]:
        return self._repository.reading(self._repository.now() - self._grace)

    def _kind_of(self, address: str) -> str:
        return texts(self._repository.layout.classify(pa.array([address], pa.string())))[0]

    def _target_of(self, address: str) -> str | None:
        """Returns the final address of a temporary file, and None for other files."""
        target: str | None = self._repository.layout.targets(pa.array([address], pa.string()))[
            0
        ].as_py()
        return target

    def _has_file(self, address: str) -> bool:
        try:
            return self._repository.storage.head(address) is not None
        except InvalidInput:
            return False


def _state(found: AddressKeepers, *, is_there: bool, is_purged: bool) -> AddressState:
    if is_purged:
        return "purged"
    if found.keeper_count:
        return "kept" if is_there else "missing"
    return "unneeded" if is_there else "gone"


def _commit_state(commit: Commit, decision: Decision) -> CommitState:
    if commit.commit_id in decision.active:
        return "kept"
    if commit.commit_id not in decision.recorded:
        return "unneeded"
    return "closed" if commit.tombstoned else "expired"


def _future(instant: datetime | None, now: datetime) -> datetime | None:
    return instant if instant is not None and instant > now else None
