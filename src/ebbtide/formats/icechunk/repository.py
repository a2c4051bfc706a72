"""An Icechunk repository as the collector sees it.

There is no database beside it: what a run has to remember lies under `_ebbtide/` on the
repository's own storage, or in the directory for runs where that storage is not to be written to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Final

from ebbtide.clock import Clock, SystemClock
from ebbtide.errors import Conflict, InvalidInput, NotFound, Refused
from ebbtide.escaping import shown
from ebbtide.formats.base import (
    EPOCH_ADDRESS,
    RUNS_PREFIX,
    Clocks,
    Fencing,
    Guard,
    Identity,
    RunHold,
    unguarded,
)
from ebbtide.formats.icechunk.expiring import apply_v1, apply_v2, write_record
from ebbtide.formats.icechunk.guards import RefsGuard, RepoGuard, changed, check_unreached
from ebbtide.formats.icechunk.layout import IcechunkLayout, is_directory
from ebbtide.formats.icechunk.lease import hold_storage
from ebbtide.formats.icechunk.mixed import check_unmixed
from ebbtide.formats.icechunk.reading import IcechunkReading
from ebbtide.formats.icechunk.refs import MAIN_ADDRESS, check_spelling
from ebbtide.formats.icechunk.reopening import listable, read_holds, records_of, write_holds
from ebbtide.formats.icechunk.repo import REPO_ADDRESS, Edit, RepoFile, write_repo
from ebbtide.formats.icechunk.state import (
    History,
    history_of,
    history_v1,
    load_repo,
    read_state,
    snapshot_files,
    spec_version,
)
from ebbtide.formats.icechunk.unreachable import Seen, read_seen, remember
from ebbtide.formats.icechunk.walk import IcechunkWalk
from ebbtide.ids import descending_id
from ebbtide.retention.decision import Roots
from ebbtide.retention.expiry import Expiry, ExpiryRequest, plan_expiry
from ebbtide.settings import Settings
from ebbtide.storage import Storage

FORMAT_NAME: Final = "icechunk"
RECORD_FILE: Final = "record.json"
WRITE_ATTEMPTS: Final = 50
"""How often to write `repo` when commits are faster."""


class IcechunkRepository:
    """A repository of version 1 or 2.

    `run_dir` is where the files of runs go, None for the storage itself. With `quiet`, the caller
    vouches that no session is open: what was reachable lately does not stay for that. With an
    `expiry`, plans are made as if it had been carried out; they cannot be swept.
    """

    layout: IcechunkLayout

    def __init__(
        self,
        storage: Storage,
        *,
        name: str,
        settings: Settings,
        run_dir: Storage | None = None,
        quiet: bool = False,
        expiry: Expiry | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.storage = storage
        self.layout = IcechunkLayout()
        self.spec_version = spec_version(storage)
        former_id = "spec-1" if self.spec_version == 2 else None
        self.identity = Identity(
            FORMAT_NAME, storage.url, f"spec-{self.spec_version}", name, former_id
        )
        self._settings = settings
        self._quiet = quiet
        self._clock = clock or SystemClock()
        self._run_dir = run_dir
        self._expiry = expiry
        self._closed: frozenset[str] = frozenset()
        self._known: History | None = None
        self._backups: frozenset[str] = frozenset()
        self._old_backups = False
        self._unreachable: Mapping[str, datetime] = {}
        self._seen = Seen({}, None)

    def now(self) -> datetime:
        """This machine's time: there is no database."""
        return self._clock.host_now()

    def hold(self, run_id: str, *, deletes: bool) -> AbstractContextManager[RunHold]:
        """Take the lease on the storage; on the directory for runs, for a plan that must not write
        to the storage."""
        storage = self._run_dir if self._run_dir is not None and not deletes else self.storage
        return hold_storage(
            storage,
            run_id=run_id,
            heartbeat=self._settings.run_heartbeat,
            lease_ttl=self._settings.run_lease_ttl,
            skew_max=self._settings.clock_skew_max,
            epoch_min=self._last_epoch(),
            clock=self._clock.host_now,
        )

    def _last_epoch(self) -> int:
        """The highest that a run announced, should somebody delete the lease's file."""
        try:
            return int(json.loads(self.storage.get(EPOCH_ADDRESS))["run_epoch"])
        except (NotFound, ValueError, KeyError, TypeError):
            return 0

    @property
    def walk(self) -> IcechunkWalk:
        """Snapshots and manifests."""
        return IcechunkWalk(self.storage)

    @property
    def landmark(self) -> str:
        """What says which version it is."""
        return REPO_ADDRESS if self.spec_version == 2 else MAIN_ADDRESS

    def check_storage(self) -> None:
        """Refused `repository_readonly` where its owners allow no changes."""
        if self.spec_version == 2:
            _check_writable(load_repo(self.storage), self.storage)

    def clocks(self) -> Clocks:
        """The storage's time is the date of the run's epoch, written just now. A plan that writes
        nothing to the storage cannot tell it, nor does it delete by it."""
        return self._clocks(EPOCH_ADDRESS)

    def _clocks(self, written: str) -> Clocks:
        host = self.now()
        info = None if self._run_dir is not None else self.storage.head(written)
        stored = host if info is None else self._clock.storage_time(info.last_modified)
        return Clocks(host=host, database=host, storage=stored)

    @contextmanager
    def reading(self, cutoff: datetime) -> Iterator[IcechunkReading]:
        """Read everything anew."""
        yield self._read(cutoff)

    def _read(self, cutoff: datetime) -> IcechunkReading:
        now = self.now()
        copy = self._check_unmixed()
        state = read_state(
            self.storage,
            cutoff=cutoff,
            quiet=self._quiet,
            first_seen=self._read_seen().since,
            expiry=self._expiry,
        )
        if copy is not None:
            state = state.with_backup(copy)
        self._known = state.history
        self._backups = state.backups
        self._old_backups = bool(state.old_backups)
        self._unreachable = state.unreachable
        back = read_holds(self.storage, now)
        return IcechunkReading(state, now, now - cutoff, self._closed, back)

    def _check_unmixed(self) -> str | None:
        """Of version 2: see `check_unmixed`."""
        return None if self.spec_version == 1 else check_unmixed(self.storage)

    def record_run(
        self, run_id: str, *, state: str, run_path: str, plan_checksum: str | None = None
    ) -> None:
        """Keep the run in its own folder; with a plan, also what it saw unreachable."""
        storage, prefix = self._runs()
        address = f"{prefix}{run_id}/{RECORD_FILE}"
        record = {"state": state, "run_path": run_path, "plan_checksum": plan_checksum}
        if plan_checksum is None:
            record["plan_checksum"] = self.plan_checksum(run_id)
        else:
            self._remember_unreachable(self._unreachable, forgetting=True)
        storage.put(address, json.dumps(record).encode())

    def plan_checksum(self, run_id: str) -> str | None:
        """From the run's record."""
        record = self._record(run_id)
        return None if record is None else record.get("plan_checksum")

    def drop_run(self, run_id: str) -> None:
        """Delete its record, if that did not go with the run's folder."""
        storage, prefix = self._runs()
        storage.delete([f"{prefix}{run_id}/{RECORD_FILE}"])

    def run_paths(self) -> dict[str, str]:
        """From the records."""
        storage, prefix = self._runs()
        found = {}
        for folder in storage.list_prefixes(prefix):
            run_id = folder.removeprefix(prefix).rstrip("/")
            record = self._record(run_id)
            if record is not None:
                found[run_id] = str(record["run_path"])
        return dict(sorted(found.items()))

    def resolve(self, expression: str) -> str:
        """There are no expressions: NotFound `ref_not_found`."""
        raise NotFound(
            "ref_not_found",
            f"there is no branch, tag or snapshot {shown(expression)} at {self.storage.url}",
        )

    def address_at(self, ref: str, path: str) -> str:
        """InvalidInput `invalid_argument`: arrays have many chunks each."""
        del path
        raise InvalidInput(
            "invalid_argument",
            f"{self.identity.repository_name} has arrays, and no single file at a path: name the "
            f"file itself, such as chunks/ID, or the snapshot or ref alone ({shown(ref)})",
        )

    def plan_expiry(self, request: ExpiryRequest) -> tuple[History, Expiry]:
        """What a request comes to now, and the history that it was judged by. InvalidInput
        `invalid_policy` for a rule that spells a branch as its folder is called. Refused
        `repository_mixed`."""
        self._check_unmixed()
        file = None if self.spec_version == 1 else load_repo(self.storage)
        return self._plan_expiry(request, file)

    def expire(self, request: ExpiryRequest) -> tuple[History, Expiry]:
        """Carry a request out; what was done, and the history as it was before.

        Refused `run_in_progress` beside a collection or another expiry, `repository_readonly`,
        `repository_changed`, `repository_mixed`, `clock_skew`. Version 1 may be left half done by
        the third: each edit is complete in itself, and doing it again finishes it.
        """
        expire_id = descending_id(self.now())
        with self.hold(expire_id, deletes=True) as hold:
            for _ in range(WRITE_ATTEMPTS):
                self._check_unmixed()
                self._read_seen()
                file = self._load()
                history, expiry = self._plan_expiry(request, file)
                if expiry.is_empty:
                    return history, expiry
                record = write_record(self.storage, expire_id, history, expiry, self.now())
                hold.check()
                # The record was written just now: by an older file what is released would seem to
                # have been so for long.
                clocks = self._clocks(record)
                try:
                    clocks.check(skew_max=self._settings.clock_skew_max)
                except Refused:
                    self.storage.delete([record])
                    raise
                dated = clocks.earliest
                try:
                    if file is None:
                        parents = {c.commit_id: c.first_parent_id for c in history.commits.values()}
                        apply_v1(self.storage, expiry, parents)
                    else:
                        apply_v2(self.storage, file, expiry, dated)
                except Conflict:
                    self.storage.delete([record])  # a commit was faster
                    continue
                self._hold_released(expiry, dated)
                return history, expiry
            raise changed(f"{WRITE_ATTEMPTS} attempts to write 'repo' met other changes")

    def _hold_released(self, expiry: Expiry, dated: datetime) -> None:
        """See to it that what was released stays for a grace. Version 1 remembers it. In version 2
        runs go by the expiry's date: where that is long ago, since the machine was suspended before
        it wrote, it is held from now on."""
        self._remember_unreachable(expiry.released, forgetting=False)
        now = self.now()
        if now - dated > self._settings.clock_skew_max:
            until = now + self._settings.icechunk_grace
            write_holds(self.storage, expiry.released, until=until, now=now)

    def _load(self) -> RepoFile | None:
        """The file `repo` of version 2."""
        if self.spec_version == 1:
            return None
        file = load_repo(self.storage)
        _check_writable(file, self.storage)
        return file

    def _plan_expiry(self, request: ExpiryRequest, file: RepoFile | None) -> tuple[History, Expiry]:
        if file is None:
            history = history_v1(self.storage, snapshot_files(self.storage))
            if request.policy is not None:
                check_spelling(self.storage, request.policy, history.refs)
        else:
            history = history_of(file)
        return history, plan_expiry(history.commits, history.refs, request, now=self.now())

    def fence(
        self,
        hold: RunHold,
        run_id: str,
        choose: Callable[[Roots], Fencing],
        *,
        cutoff: datetime,
    ) -> None:
        """Nothing can be closed beforehand: `forget` closes, on the condition that nothing came to
        need what goes."""
        del run_id
        assert self._expiry is None, "a plan of what might be is not for sweeping"
        hold.check()
        self._closed = frozenset()
        self._closed = frozenset(choose(self._read(cutoff).roots()).tombstone)

    def lift(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Nothing was closed but in this process."""
        del run_id
        hold.check()
        self._closed -= frozenset(commit_ids)

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Version 2: drop the snapshots from the list in `repo`, and the names of backups if some
        are about to go; from then on nobody can make a ref or commit on them.

        Refused `repository_changed` when a ref, or a new snapshot, needs one of them by now, or
        when a client of version 1 has written. Version 1 has no list; `guard` watches over its
        refs.
        """
        del run_id
        if self.spec_version == 1:
            return
        try:
            self._check_unmixed()
        except Refused as error:
            # The sweep goes back to its fence then, which refuses before anything has changed.
            raise changed(error.message) from error

        def edit_of(file: RepoFile) -> Edit | None:
            self._check_unneeded(file, frozenset(commit_ids))
            drop = frozenset(commit_ids).intersection(file.ids)
            if not drop and not self._old_backups:
                return None
            return Edit(kind="GCRan", drop=drop, forget_backups=self._old_backups)

        self._rewrite(hold, edit_of)

    def _rewrite(self, hold: RunHold, edit_of: Callable[[RepoFile], Edit | None]) -> RepoFile:
        """Edit `repo` on the condition that nobody else changes it, anew where somebody did; the
        file as it is then. Without an edit it stays. Refused `repository_changed`."""
        for _ in range(WRITE_ATTEMPTS):
            file = self._load()
            assert file is not None
            edit = edit_of(file)
            if edit is None:
                return file
            hold.check()
            try:
                return write_repo(self.storage, file, edit, self._log_time())
            except Conflict:
                continue  # a commit was faster
        raise changed(f"{WRITE_ATTEMPTS} attempts to write 'repo' met other changes")

    def closed_after(self) -> None:
        """There are no slices: runs are clean ones."""

    def check_undoable(self) -> None:
        """They can."""

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Entries of `repo`; of version 1 names alone."""
        file = None if self.spec_version == 1 else load_repo(self.storage)
        return records_of(file, commit_ids)

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """Runs close nothing that is not dropped."""
        del run_id
        return []

    def reopen(
        self,
        hold: RunHold,
        run_id: str,
        commit_ids: Collection[str],
        records: Sequence[Mapping[str, Any]],
        *,
        until: datetime,
    ) -> int:
        """First they are held, then listed: on the condition that nobody else changes `repo`. One
        whose parent is not listed any more stays closed.

        Refused `repository_readonly`, `repository_changed`, `plan_corrupt`, `missing_tree`,
        `corrupt_tree`.
        """
        del run_id
        hold.check()
        write_holds(self.storage, commit_ids, until=until, now=self.now())
        if self.spec_version == 1:
            return len(commit_ids)

        def edit_of(file: RepoFile) -> Edit | None:
            add = listable(self.storage, file, records)
            return Edit(kind="NewDetachedSnapshot", add=add) if add else None

        return len(frozenset(commit_ids).intersection(self._rewrite(hold, edit_of).ids))

    def purged_among(self, addresses: Sequence[str]) -> frozenset[str]:
        """None: Icechunk's repositories are not purged."""
        del addresses
        return frozenset()

    def guard(self) -> Guard:
        """Version 1: the refs, as they are at each batch. Version 2: `forget` closed what goes, but
        in a directory, where Icechunk writes `repo` without a condition, its commit may have
        brought the list back; so there `repo` is read too."""
        if not self._closed:
            return unguarded
        if self.spec_version == 2:
            if is_directory(self.storage):
                return RepoGuard(self.storage, self._closed)
            return unguarded
        assert self._known is not None
        kept = self._known.reached() - self._closed
        return RefsGuard(self.storage, kept=kept, going=self._closed)

    def _log_time(self) -> datetime:
        """The date of a run's entry in the operations log: by the clock that is behind, since
        Icechunk refuses to write until its own is past it."""
        return self.clocks().earliest

    def _check_unneeded(self, file: RepoFile, going: frozenset[str]) -> None:
        assert self._known is not None
        history = history_of(file)
        if file.previous is not None and file.previous not in self._backups:
            raise changed("the operations log goes on in a backup that was to go")
        check_unreached(history, going)
        for commit in history.commits.values():
            is_new = commit.commit_id not in self._known.commits
            if is_new and going.intersection(commit.parent_ids):
                raise changed(f"snapshot {commit.commit_id} was made on one that was to go")

    def _read_seen(self) -> Seen:
        """What was seen unreachable in version 1, before it is looked at what is so now."""
        self._seen = read_seen(self._runs()[0])
        return self._seen

    def _remember_unreachable(self, names: Collection[str], *, forgetting: bool) -> None:
        """Keep since when each was seen unreachable; with `forgetting`, of these alone. Version 2
        remembers by itself."""
        if self.spec_version == 1:
            kept = {} if forgetting else self._seen.since
            remember(self._runs()[0], self._seen, names, kept=kept, now=self.now())

    def _runs(self) -> tuple[Storage, str]:
        """Where the folders of runs lie."""
        return (self.storage, RUNS_PREFIX) if self._run_dir is None else (self._run_dir, "")

    def _record(self, run_id: str) -> dict[str, Any] | None:
        storage, prefix = self._runs()
        try:
            found = json.loads(storage.get(f"{prefix}{run_id}/{RECORD_FILE}"))
        except (NotFound, ValueError):
            return None
        return found if isinstance(found, dict) and "run_path" in found else None


def _check_writable(file: RepoFile, storage: Storage) -> None:
    if not file.writable:
        raise Refused(
            "repository_readonly",
            f"{storage.url} is set to allow no changes ({file.unwritable_reason}): set its "
            "status to online first",
        )
