"""Explains why an address or a commit exists, until when it stays, and why it was deleted.

The reasons are those of a run. The repository is read once, the same function decides, and trees
and nodes are read in the same way. Explaining changes nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.audit.answers import (
    AddressState,
    CommitState,
    ExplainedAddress,
    ExplainedCommit,
    Keeper,
    PastHolder,
    ReachingRef,
    Went,
)
from ebbtide.audit.past_runs import PastRuns
from ebbtide.audit.search import Holders, find_holders
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.formats.base import FOREIGN, SYSTEM, Protector, Reading, RepositoryFormat
from ebbtide.formats.capabilities import (
    WithPaths,
    expired_commit,
    protectors,
    purged_at,
    recounted,
    recounted_gone,
)
from ebbtide.formats.file_names import file_names
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.runs import RunFolders
from ebbtide.gc.store import latest_micros
from ebbtide.model import EPOCH, ONE_MICROSECOND, Commit, Ref
from ebbtide.retention.decision import Decision, Outlook, Roots, decide, outlook
from ebbtide.storage import ObjectInfo
from ebbtide.storage.local import temporary_targets
from ebbtide.text import shown

LIMIT: Final = 20
_KINDS: Final = ("branch", "tag", "collection")


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
            return self.address(self._address_at(what, path))
        if self._kind_of(what)[0] in self._repository.layout.delete_order:
            return self.address(what)
        try:
            return self.commit(what)
        except (NotFound, InvalidInput):
            if not self._has_file(what):
                raise
        return self.address(what)

    def _address_at(self, ref: str, path: str) -> str:
        if isinstance(self._repository, WithPaths):
            return self._repository.address_at(ref, path)
        raise InvalidInput(
            "invalid_argument",
            f"{self._repository.identity.repository_name} has no paths of single files: give the "
            f"address of a file, or only the commit or ref ({shown(ref)})",
        )

    def _resolve(self, name: str) -> str:
        if isinstance(self._repository, WithPaths):
            return self._repository.resolve(name)
        where = self._repository.storage.url
        raise NotFound(
            "ref_not_found", f"there is no branch, tag or snapshot {shown(name)} at {where}"
        )

    def commit(self, name: str) -> ExplainedCommit:
        """Explains the commit that a ref, an id or another expression names. Raises as `explain`
        does."""
        unresolved: NotFound | None = None
        with self._repository.reading(self._repository.now() - self._grace) as reading:
            around = Surroundings(reading.roots())
            commit_id = around.named(name) or name
            if commit_id not in around.commits and commit_id not in around.roots.stub_ids:
                try:
                    commit_id = self._resolve(name)
                except NotFound as error:  # a run may have deleted the record of this id
                    unresolved = error
            if commit_id in around.commits:
                return self._known_commit(reading, around, around.commits[commit_id])
            expired = expired_commit(reading, commit_id)
        expired = expired or self._past.expired(commit_id, forgotten=True)
        history = recounted_gone(self._repository, commit_id)
        if expired is None and not history:
            raise unresolved or NotFound(
                "commit_not_found",
                f"commit {commit_id} does not exist, and no run on record deleted it",
            )
        return ExplainedCommit(
            commit_id=commit_id,
            state="forgotten",
            expired=expired,
            fate=None if expired is None else self._past.fate(expired.run_id),
            history=history,
        )

    def _known_commit(
        self, reading: Reading, around: Surroundings, commit: Commit
    ) -> ExplainedCommit:
        decision, commit_id = around.decision, commit.commit_id
        refs = around.reaching(commit_id)
        data = record = Outlook(None)
        is_active = commit_id in decision.active
        if is_active:
            data = outlook(around.roots, data=[commit_id])
        if commit_id in decision.recorded:
            record = outlook(around.roots, records=[commit_id])
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
            history=recounted(self._repository, None, [commit], around.roots, decision),
        )

    def address(self, address: str) -> ExplainedAddress:
        """Explains an address within the storage root.

        Raises NotFound `object_not_found` if the file does not exist, nothing keeps it, and no run
        has recorded it. Raises Refused as `explain` does.
        """
        kind, target = self._kind_of(address)
        if kind in (FOREIGN, SYSTEM):
            return self._uncollected(address, kind)
        with self._repository.reading(self._repository.now() - self._grace) as reading:
            around = Surroundings(reading.roots())
            keeping = protectors(reading, target or address)
            keeping += self._past.restored(target or address, around.roots.now)
            purged = purged_at(reading, address)
        held = Holders()
        if target is None:
            roots, decision = around.roots, around.decision
            held = find_holders(self._repository, self._engine, roots, decision, address)
        found = AddressKeepers(around, keeping, held, address)
        info = self._repository.storage.head(address)
        went = None if info or purged else self._went(address, found, held)
        end = found.outlook(self._old_at(info)) if info and not purged else Outlook(None)
        history: tuple[str, ...] = ()
        if target is None and not purged:
            history = recounted(
                self._repository, address, found.holders, around.roots, around.decision
            )
        holders = sorted(found.holders, key=lambda each: each.created_at, reverse=True)
        named = file_names(self._repository, [address], holders).by_address.get(address)
        past = found.past_holders()
        return ExplainedAddress(
            **_facts(address, kind, info),
            state="purged" if purged else _state(found, is_there=info is not None),
            name=None if named is None else named.name,
            target=target,
            keepers=found.nearest(self._limit),
            keeper_count=found.count,
            past_holders=tuple(past[: self._limit]),
            past_holder_count=len(past),
            unread_nodes=held.unread_nodes,
            history=history,
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

    def _kind_of(self, address: str) -> tuple[str, str | None]:
        """Returns the kind of an address, and for a temporary file its final address."""
        layout, asked = self._repository.layout, pa.array([address], pa.string())
        return texts(layout.classify(asked))[0], temporary_targets(asked)[0].as_py()

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


class Surroundings:
    """The roots of one reading, the decision that a run would make from them, and both by
    commit."""

    def __init__(self, roots: Roots) -> None:
        """Raises as `decide`."""
        self.roots = roots
        self.decision = decide(roots)
        self.commits = {commit.commit_id: commit for commit in roots.commits}
        self._refs: defaultdict[str, list[Ref]] = defaultdict(list)
        self._children: defaultdict[str, list[str]] = defaultdict(list)
        for ref in roots.refs:
            self._refs[ref.commit_id].append(ref)
        for commit in roots.commits:
            for parent_id in commit.parent_ids:
                self._children[parent_id].append(commit.commit_id)

    def named(self, name: str) -> str | None:
        """Returns the commit of the ref with this name, or None. A branch comes before a tag, and a
        tag before a collection. A ref in the trash is used only if there is no other."""

        def rank(ref: Ref) -> tuple[bool, int]:
            return ref.is_in_trash(self.roots.now), _KINDS.index(ref.kind)

        found = min((ref for ref in self.roots.refs if ref.name == name), key=rank, default=None)
        return None if found is None else found.commit_id

    def facts(self, commit: Commit) -> dict[str, Any]:
        """Returns the fields that `Keeper` and `ExplainedCommit` share: id, date, lease, hold."""
        policy, lease = self.roots.policy, commit.leased_until
        return {
            "commit_id": commit.commit_id,
            "created_at": commit.created_at,
            "leased_until": lease if lease is not None and lease > self.roots.now else None,
            "hold": None if policy is None else policy.holds.get(commit.commit_id),
        }

    def refs_at(self, commit_id: str) -> tuple[str, ...]:
        """Returns the refs that point at a commit, in words."""
        return tuple(f"{ref.kind} {ref.name}" for ref in self._refs.get(commit_id, ()))

    def reaching(self, commit_id: str) -> list[ReachingRef]:
        """Returns the refs that have a commit in their history, nearest first."""
        found = [
            ReachingRef(
                kind=ref.kind,
                name=ref.name,
                distance=distance,
                expires_at=ref.expires_at,
                keeps_data=ref.keeps_data,
            )
            for descendant, distance in self._distances(commit_id).items()
            for ref in self._refs.get(descendant, ())
        ]
        return sorted(found, key=lambda ref: (ref.distance, _KINDS.index(ref.kind), ref.name))

    def why_recorded(self, commit_id: str) -> str:
        """Returns the reason why the record of a commit stays, in words."""
        active = self.decision.active
        if commit_id in active:
            return active[commit_id]
        reaching = self.reaching(commit_id)
        if reaching:
            return f"in the history of {reaching[0].kind} {reaching[0].name}"
        kept = next(each for each in self._distances(commit_id) if each in active)
        return f"in the history of commit {kept}, which is kept"

    def _distances(self, commit_id: str) -> dict[str, int]:
        """Returns the distance of a commit and of each of its descendants, nearest first."""
        found = {commit_id: 0}
        waiting = deque([commit_id])
        while waiting:
            place = waiting.popleft()
            for child in self._children.get(place, ()):
                if child not in found:
                    found[child] = found[place] + 1
                    waiting.append(child)
        return found


class AddressKeepers:
    """The protections and commits that keep one address, nearest first, and other commits that
    hold it."""

    def __init__(
        self, around: Surroundings, protectors: Sequence[Protector], held: Holders, address: str
    ) -> None:
        roots, decision = around.roots, around.decision
        self._around = around
        self._protectors = protectors
        # If an operator gave up a commit, its tree has no checksum and is not read.
        data, files = (trees & roots.tree_checksums.keys() for trees in (held.data, held.files))
        self._data = [commit for commit in roots.commits if commit.tree_id in data]
        self._records = [
            commit
            for commit in roots.commits
            if commit.tree_id in files or address in roots.companions.get(commit.commit_id, ())
        ]
        found = [(each, True) for each in self._data if each.commit_id in decision.active]
        found += [(each, False) for each in self._records if each.commit_id in decision.recorded]
        # Commits that a ref points at come first, and then newest first.
        self._keeping = sorted(
            found,
            key=lambda each: (
                not around.refs_at(each[0].commit_id),
                roots.now - each[0].created_at,
                each[0].commit_id,
            ),
        )
        """The commits that keep the address: by their data, or else by their records."""

    @property
    def holders(self) -> Sequence[Commit]:
        """The commits that hold the address, whether or not they keep it."""
        return list(dict.fromkeys([*self._data, *self._records]))

    @property
    def count(self) -> int:
        """The number of protections and commits that keep the address."""
        return len(self._protectors) + len(self._keeping)

    def nearest(self, limit: int) -> tuple[Keeper, ...]:
        """Returns the nearest keepers, at most `limit`."""
        around = self._around
        found = [Keeper(by="protected", **asdict(each)) for each in self._protectors[:limit]]
        for commit, is_data in self._keeping[: limit - len(found)]:
            commit_id = commit.commit_id
            active = around.decision.active
            found.append(
                Keeper(
                    by="data" if is_data else "record",
                    reason=active[commit_id] if is_data else around.why_recorded(commit_id),
                    refs=around.refs_at(commit_id),
                    **around.facts(commit),
                )
            )
        return tuple(found)

    def past_holders(self) -> list[PastHolder]:
        """Returns the commits that were found to hold the address and do not keep it, newest
        first."""
        past = {each.commit_id: each.created_at for each in (*self._data, *self._records)}
        for commit, _ in self._keeping:
            past.pop(commit.commit_id, None)
        return [
            PastHolder(commit_id=commit_id, created_at=date, refs=self._around.refs_at(commit_id))
            for date, commit_id in sorted(zip(past.values(), past, strict=True), reverse=True)
        ]

    def outlook(self, old_at: datetime) -> Outlook:
        """Returns the instant from which on nothing keeps the address, if nothing changes. The
        file is too young for a run before `old_at`."""
        for each in self._protectors:
            if each.until is None:
                where = "" if each.where is None else f": {each.where}"
                return Outlook(None, f"{each.reason}{where}")
        roots = self._around.roots
        # Nearest first, so that the nearest commit that has no end is named.
        near = [commit.commit_id for commit, is_data in self._keeping if is_data]
        found = outlook(
            roots,
            data=dict.fromkeys([*near, *(commit.commit_id for commit in self._data)]),
            records=[commit.commit_id for commit in self._records],
        )
        if found.ends_at is None:
            return found
        untils = [each.until for each in self._protectors if each.until is not None]
        return Outlook(max(found.ends_at, *untils, roots.now, old_at))
