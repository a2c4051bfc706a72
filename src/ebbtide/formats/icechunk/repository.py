"""An Icechunk repository as the collector sees it.

There is no database beside it. The state that runs remember is under `_ebbtide/` on the
repository's own storage, or in the directory for runs if that storage must not be written to.
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
    SnapshotHistory,
    history_of,
    history_v1,
    load_repo,
    read_state,
    snapshot_files,
    spec_version,
)
from ebbtide.formats.icechunk.unreachable import FirstSeen, read_seen, remember
from ebbtide.formats.icechunk.walk import IcechunkWalk
from ebbtide.ids import descending_id
from ebbtide.retention.decision import Roots
from ebbtide.retention.expiry import Expiry, ExpiryRequest, plan_expiry
from ebbtide.settings import Settings
from ebbtide.storage import Storage

FORMAT_NAME: Final = "icechunk"
RECORD_FILE: Final = "record.json"
WRITE_ATTEMPTS: Final = 50
"""How often to try to write `repo` while commits are faster."""


class IcechunkRepository:
    """A repository of version 1 or 2.

    `run_dir` is the storage for the files of runs; None means the repository's own storage. With
    `quiet`, the caller guarantees that no session is open: then no snapshot stays only because it
    was reachable within the grace. With an `expiry`, plans are made as if it had been carried out;
    they cannot be swept.
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
        self._known: SnapshotHistory | None = None
        self._backups: frozenset[str] = frozenset()
        self._old_backups = False
        self._unreachable: Mapping[str, datetime] = {}
        self._seen = FirstSeen({}, None)

    def now(self) -> datetime:
        """Returns this machine's time: there is no database."""
        return self._clock.host_now()

    def hold(self, run_id: str, *, deletes: bool) -> AbstractContextManager[RunHold]:
        """Takes the lease on the storage. A plan that must not write there takes it in the
        directory for runs."""
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
        """Returns the highest epoch that a run announced, in case the lease's file was deleted."""
        try:
            return int(json.loads(self.storage.get(EPOCH_ADDRESS))["run_epoch"])
        except (NotFound, ValueError, KeyError, TypeError):
            return 0

    @property
    def walk(self) -> IcechunkWalk:
        """The second reader of snapshots and manifests, for verification."""
        return IcechunkWalk(self.storage)

    @property
    def landmark(self) -> str:
        """The address of the file that tells the version of the format."""
        return REPO_ADDRESS if self.spec_version == 2 else MAIN_ADDRESS

    def check_storage(self) -> None:
        """Raises Refused `repository_readonly` if the repository's owners allow no changes (version
        2)."""
        if self.spec_version == 2:
            _check_writable(load_repo(self.storage), self.storage)

    def clocks(self) -> Clocks:
        """Reads the clocks. The storage's time is the date of the run's file EPOCH, just written.

        With a `run_dir`, the host's time is used instead: a plan then writes no file to the
        storage, and deletes none.
        """
        return self._clocks(EPOCH_ADDRESS)

    def _clocks(self, written: str) -> Clocks:
        host = self.now()
        info = None if self._run_dir is not None else self.storage.head(written)
        stored = host if info is None else self._clock.storage_time(info.last_modified)
        return Clocks(host=host, database=host, storage=stored)

    @contextmanager
    def reading(self, cutoff: datetime) -> Iterator[IcechunkReading]:
        """Reads the whole repository anew."""
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
        """Runs `check_unmixed` for version 2. Returns the name of the copy that must stay, or
        None."""
        return None if self.spec_version == 1 else check_unmixed(self.storage)

    def record_run(
        self, run_id: str, *, state: str, run_path: str, plan_checksum: str | None = None
    ) -> None:
        """Records the run in its own folder. With a plan, also records the snapshots that the plan
        saw unreachable."""
        storage, prefix = self._runs()
        address = f"{prefix}{run_id}/{RECORD_FILE}"
        record = {"state": state, "run_path": run_path, "plan_checksum": plan_checksum}
        if plan_checksum is None:
            record["plan_checksum"] = self.plan_checksum(run_id)
        else:
            self._remember_unreachable(self._unreachable, forgetting=True)
        storage.put(address, json.dumps(record).encode())

    def plan_checksum(self, run_id: str) -> str | None:
        """Returns the plan's checksum from the run's record, or None."""
        record = self._record(run_id)
        return None if record is None else record.get("plan_checksum")

    def drop_run(self, run_id: str) -> None:
        """Deletes the run's record, if it was not deleted with the run's folder."""
        storage, prefix = self._runs()
        storage.delete([f"{prefix}{run_id}/{RECORD_FILE}"])

    def run_paths(self) -> dict[str, str]:
        """Returns the folders of all runs that have a record, newest first."""
        storage, prefix = self._runs()
        found = {}
        for folder in storage.list_prefixes(prefix):
            run_id = folder.removeprefix(prefix).rstrip("/")
            record = self._record(run_id)
            if record is not None:
                found[run_id] = str(record["run_path"])
        return dict(sorted(found.items()))

    def resolve(self, expression: str) -> str:
        """Raises NotFound `ref_not_found`: this format has no expressions."""
        raise NotFound(
            "ref_not_found",
            f"there is no branch, tag or snapshot {shown(expression)} at {self.storage.url}",
        )

    def address_at(self, ref: str, path: str) -> str:
        """Raises InvalidInput `invalid_argument`: a path is an array, which has many chunks."""
        del path
        raise InvalidInput(
            "invalid_argument",
            f"a path of {self.identity.repository_name} is an array, which has many files: give "
            f"the address of a file, such as chunks/ID, or only the snapshot or ref ({shown(ref)})",
        )

    def plan_expiry(self, request: ExpiryRequest) -> tuple[SnapshotHistory, Expiry]:
        """Returns the present history, and the expiry that a request leads to.

        Raises InvalidInput `invalid_policy` if a rule spells a branch by the name of its folder,
        and Refused `repository_mixed`.
        """
        self._check_unmixed()
        file = None if self.spec_version == 1 else load_repo(self.storage)
        return self._plan_expiry(request, file)

    def expire(self, request: ExpiryRequest) -> tuple[SnapshotHistory, Expiry]:
        """Carries out a request. Returns the history before it, and the expiry.

        Raises Refused `run_in_progress` during a collection or another expiry,
        `repository_readonly`, `repository_changed`, `repository_mixed` or `clock_skew`. After
        `repository_changed`, a part of the edits of version 1 may be done. Each edit is complete in
        itself, and a repetition finishes the expiry.
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
                # The record was written just now, so that its date is the storage's clock. By an
                # older file, released snapshots would seem to have been released long ago.
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
            raise changed(
                f"other clients changed 'repo' during {WRITE_ATTEMPTS} attempts: try again"
            )

    def _hold_released(self, expiry: Expiry, dated: datetime) -> None:
        """Ensures that released snapshots stay for a grace.

        Version 1 remembers them. In version 2, runs use the date of the expiry. If this date is
        long ago, because the machine was suspended before the write, the snapshots are held from
        now on.
        """
        self._remember_unreachable(expiry.released, forgetting=False)
        now = self.now()
        if now - dated > self._settings.clock_skew_max:
            until = now + self._settings.icechunk_grace
            write_holds(self.storage, expiry.released, until=until, now=now)

    def _load(self) -> RepoFile | None:
        """Returns the file `repo` of version 2, and None for version 1. Raises Refused
        `repository_readonly`."""
        if self.spec_version == 1:
            return None
        file = load_repo(self.storage)
        _check_writable(file, self.storage)
        return file

    def _plan_expiry(
        self, request: ExpiryRequest, file: RepoFile | None
    ) -> tuple[SnapshotHistory, Expiry]:
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
        """Chooses the commits to close. Nothing can be closed yet: `forget` closes them, on the
        condition that nothing needs them again."""
        del run_id
        assert self._expiry is None, "a plan of what might be is not for sweeping"
        hold.check()
        self._closed = frozenset()
        self._closed = frozenset(choose(self._read(cutoff).roots()).tombstone)

    def lift(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Opens the commits again, in this process. They are not closed anywhere else."""
        del run_id
        hold.check()
        self._closed -= frozenset(commit_ids)

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Version 2: drops the snapshots from the list in `repo`, and the names of backups if some
        backups will be deleted. Afterwards nobody can make a ref or commit on the snapshots.

        Raises Refused `repository_changed` if a ref or a new snapshot needs one of them by now, or
        if a client of version 1 has written. Version 1 has no list; there, `guard` checks the refs.
        """
        del run_id
        if self.spec_version == 1:
            return
        try:
            self._check_unmixed()
        except Refused as error:
            # The sweep then goes back to its fence, which refuses before anything has changed.
            raise changed(error.message) from error

        def edit_of(file: RepoFile) -> Edit | None:
            self._check_unneeded(file, frozenset(commit_ids))
            drop = frozenset(commit_ids).intersection(file.ids)
            if not drop and not self._old_backups:
                return None
            return Edit(kind="GCRan", drop=drop, forget_backups=self._old_backups)

        self._rewrite(hold, edit_of)

    def _rewrite(self, hold: RunHold, edit_of: Callable[[RepoFile], Edit | None]) -> RepoFile:
        """Edits `repo` on the condition that nobody else changes it, and returns the new file.

        If another client changed it, tries again. If `edit_of` returns None, the file stays as it
        is. Raises Refused `repository_changed`.
        """
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
        raise changed(f"other clients changed 'repo' during {WRITE_ATTEMPTS} attempts: try again")

    def closed_after(self) -> None:
        """Returns None: there are no slices, and all runs are clean."""

    def check_undoable(self) -> None:
        """Does nothing: runs of this format can be undone."""

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Returns the snapshots' entries in `repo`; for version 1, only their names."""
        file = None if self.spec_version == 1 else load_repo(self.storage)
        return records_of(file, commit_ids)

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """Returns an empty list: a run closes no commit without dropping it."""
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
        """Holds the snapshots, and then lists them in `repo` if nobody else changes it meanwhile.

        A snapshot whose parent is no longer listed stays closed. Raises Refused
        `repository_readonly`, `repository_changed`, `plan_corrupt`, `missing_tree` or
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
        """Returns an empty set: Icechunk repositories are not purged."""
        del addresses
        return frozenset()

    def guard(self) -> Guard:
        """Returns the check before each batch of deletes.

        Version 1: it reads the refs again. Version 2: `forget` has closed the snapshots. But in a
        directory, Icechunk writes `repo` without a condition, so that its commit may have restored
        the old list. There the check reads `repo` again.
        """
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
        """Returns the date of a run's entry in the operations log, by the slowest clock. Icechunk
        refuses to write until its own clock is past this date."""
        return self.clocks().earliest

    def _check_unneeded(self, file: RepoFile, going: frozenset[str]) -> None:
        assert self._known is not None
        history = history_of(file)
        if file.previous is not None and file.previous not in self._backups:
            raise changed("the operations log continues in a backup that was about to be deleted")
        check_unreached(history, going)
        for commit in history.commits.values():
            is_new = commit.commit_id not in self._known.commits
            if is_new and going.intersection(commit.parent_ids):
                raise changed(
                    f"the parent of the new snapshot {commit.commit_id} was about to be deleted"
                )

    def _read_seen(self) -> FirstSeen:
        """Reads which snapshots were seen unreachable in version 1. Called before the present refs
        are read."""
        self._seen = read_seen(self._runs()[0])
        return self._seen

    def _remember_unreachable(self, names: Collection[str], *, forgetting: bool) -> None:
        """Records since when each snapshot was seen unreachable. With `forgetting`, the record has
        only these snapshots. Version 2 needs no record."""
        if self.spec_version == 1:
            kept = {} if forgetting else self._seen.since
            remember(self._runs()[0], self._seen, names, kept=kept, now=self.now())

    def _runs(self) -> tuple[Storage, str]:
        """Returns the storage and the prefix of the runs' folders."""
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
