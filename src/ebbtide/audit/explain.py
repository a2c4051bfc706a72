"""Explains why an address or a commit exists, until when it stays, and why it was deleted.

The reasons are those of a run. The repository is read once, the same function decides, and trees
and nodes are read in the same way. Explaining changes nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.audit.answers import (
    AddressState,
    CommitState,
    ExplainedAddress,
    ExplainedCommit,
    Went,
)
from ebbtide.audit.keepers import AddressKeepers, Surroundings
from ebbtide.audit.past import PastRuns
from ebbtide.audit.search import Holders, find_holders
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.formats.base import FOREIGN, SYSTEM, Reading, RepositoryFormat
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.relations.inventory import latest_micros
from ebbtide.gc.runs import RunFolders
from ebbtide.model import EPOCH, ONE_MICROSECOND, Commit
from ebbtide.retention.decision import Decision
from ebbtide.retention.outlook import Outlook, outlook
from ebbtide.storage import ObjectInfo

LIMIT: Final = 20


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
        self._engine = engine
        self._past = PastRuns(engine, RunFolders(repository, run_dir))
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
        if self._kind_of(what)[0] in self._repository.layout.delete_order:
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
            around = Surroundings(reading.roots())
            commit_id, expired = around.named(name) or name, None
            if commit_id not in around.commits and commit_id not in around.roots.stub_ids:
                try:
                    commit_id = self._repository.resolve(name)
                except NotFound:
                    expired = self._past.expired(name, forgotten=True)
                    if expired is None:
                        raise
            if commit_id in around.commits:
                return self._known_commit(reading, around, around.commits[commit_id])
            expired = reading.expired_commit(commit_id) or expired
        expired = expired or self._past.expired(commit_id, forgotten=True)
        if expired is None:
            raise NotFound(
                "commit_not_found",
                f"commit {commit_id} does not exist, and no run on record deleted it",
            )
        fate = self._past.fate(expired.run_id)
        return ExplainedCommit(commit_id=commit_id, state="forgotten", expired=expired, fate=fate)

    def _known_commit(
        self, reading: Reading, around: Surroundings, commit: Commit
    ) -> ExplainedCommit:
        roots, decision = around.roots, around.decision
        commit_id = commit.commit_id
        refs = around.reaching(commit_id)
        is_active, is_recorded = commit_id in decision.active, commit_id in decision.recorded
        data = outlook(roots, data=[commit_id]) if is_active else Outlook(None)
        record = outlook(roots, records=[commit_id]) if is_recorded else Outlook(None)
        expired = self._past.closing(commit, reading, is_active=is_active)
        return ExplainedCommit(
            **around.facts(commit),
            state=_commit_state(commit, decision),
            tree_id=commit.tree_id,
            reason=decision.active.get(commit_id),
            refs=tuple(refs[: self._limit]),
            ref_count=len(refs),
            data_until=data.ends_at,
            data_kept_by=data.reason,
            record_until=record.ends_at,
            expired=expired,
            fate=None if expired is None else self._past.fate(expired.run_id),
        )

    def address(self, address: str) -> ExplainedAddress:
        """Explains an address within the storage root.

        Raises NotFound `object_not_found` if the file does not exist, nothing keeps it, and no run
        has recorded it. Raises Refused as `explain` does.
        """
        kind, target = self._kind_of(address)
        if kind in (FOREIGN, SYSTEM):
            return self._uncollected(address, kind)
        with self._reading() as reading:
            around = Surroundings(reading.roots())
            protectors = reading.protectors(target or address)
            protectors += self._past.restored(target or address, around.roots.now)
            purged = reading.purged_at(address)
        held = Holders()
        if target is None:
            roots, decision = around.roots, around.decision
            held = find_holders(self._repository, self._engine, roots, decision, address)
        found = AddressKeepers(around, protectors, held, address)
        info = self._repository.storage.head(address)
        went = None if info or purged else self._went(address, found, held)
        end = found.outlook(self._old_at(info)) if info and not purged else Outlook(None)
        past = found.past_holders()
        return ExplainedAddress(
            **_facts(address, kind, info),
            state="purged" if purged else _state(found, is_there=info is not None),
            target=target,
            keepers=found.nearest(self._limit),
            keeper_count=found.count,
            past_holders=tuple(past[: self._limit]),
            past_holder_count=len(past),
            unread_nodes=held.unread_nodes,
            collectable_at=end.ends_at,
            kept_by=end.reason,
            went=went,
            purged=purged,
        )

    def _went(self, address: str, found: AddressKeepers, held: Holders) -> Went | None:
        """Returns the run that deleted a file, or None if no run has recorded it. Raises NotFound
        `object_not_found` in place of None if nothing keeps the address."""
        went = self._past.went(address, held.data | held.files, limit=self._limit)
        if went is None and not found.count:
            raise self._not_there(
                address,
                "nothing refers to it, and no run on record deleted it. Records of runs are kept "
                "for EBBTIDE_RUN_RETENTION. Files that were never committed can be deleted without "
                "a record",
            )
        return went

    def _old_at(self, info: ObjectInfo) -> datetime:
        """Returns the first instant at which a run finds a file older than the grace."""
        written = pa.chunked_array([pa.array([info.last_modified], pa.timestamp("us", "UTC"))])
        latest = EPOCH + int(latest_micros(written)[0]) * ONE_MICROSECOND
        return latest + self._grace + ONE_MICROSECOND

    def _uncollected(self, address: str, kind: str) -> ExplainedAddress:
        """Explains a foreign or system file, which no run deletes. Raises NotFound
        `object_not_found` if it does not exist."""
        info = self._repository.storage.head(address)
        if info is None:
            raise self._not_there(address, "and is no name of a file that runs delete")
        state: AddressState = "system" if kind == SYSTEM else "foreign"
        return ExplainedAddress(**_facts(address, kind, info), state=state)

    def _not_there(self, address: str, more: str) -> NotFound:
        url = self._repository.storage.url
        return NotFound("object_not_found", f"{address[:200]} is not at {url}, {more}")

    def _reading(self) -> AbstractContextManager[Reading]:
        return self._repository.reading(self._repository.now() - self._grace)

    def _kind_of(self, address: str) -> tuple[str, str | None]:
        """Returns the kind of an address, and for a temporary file its final address."""
        layout, asked = self._repository.layout, pa.array([address], pa.string())
        return texts(layout.classify(asked))[0], layout.targets(asked)[0].as_py()

    def _has_file(self, address: str) -> bool:
        try:
            return self._repository.storage.head(address) is not None
        except InvalidInput:
            return False


def _facts(address: str, kind: str, info: ObjectInfo | None) -> dict[str, Any]:
    """Returns the fields of `ExplainedAddress` about the file itself."""
    found: dict[str, Any] = {"address": address, "kind": kind}
    if info is not None:
        found |= {"size_bytes": info.size_bytes, "last_modified": info.last_modified}
    return found


def _state(found: AddressKeepers, *, is_there: bool) -> AddressState:
    if found.count:
        return "kept" if is_there else "missing"
    return "unneeded" if is_there else "gone"


def _commit_state(commit: Commit, decision: Decision) -> CommitState:
    if commit.commit_id in decision.active:
        return "kept"
    if commit.commit_id not in decision.recorded:
        return "unneeded"
    return "closed" if commit.tombstoned else "expired"
