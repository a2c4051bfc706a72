"""An Icechunk repository as the collector sees it.

There is no database beside it. The state that runs remember is under `_ebbtide/` on the
repository's own storage, or in the directory for runs if that storage must not be written to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from ebbtide.clock import Clock
from ebbtide.durations import format_duration
from ebbtide.errors import Conflict, EbbtideError, Incomplete, InvalidInput, Refused
from ebbtide.escaping import shown
from ebbtide.formats.base import (
    Fencing,
    Guard,
    Identity,
    RunHold,
    unguarded,
)
from ebbtide.formats.holds import read_holds, write_holds
from ebbtide.formats.icechunk.expiring import apply_v1, apply_v2, write_record
from ebbtide.formats.icechunk.guards import RefsGuard, RepoGuard, check_unreached
from ebbtide.formats.icechunk.layout import IcechunkLayout, is_directory
from ebbtide.formats.icechunk.mixed import check_unmixed
from ebbtide.formats.icechunk.reading import IcechunkReading
from ebbtide.formats.icechunk.refs import MAIN_ADDRESS, check_spelling
from ebbtide.formats.icechunk.reopening import listable, records_of
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
from ebbtide.formats.plain import PlainRepository, changed
from ebbtide.ids import descending_id
from ebbtide.model import EPOCH
from ebbtide.retention.decision import Roots
from ebbtide.retention.expiry import Expiry, ExpiryRequest, plan_expiry
from ebbtide.settings import Settings
from ebbtide.storage import Storage

FORMAT_NAME: Final = "icechunk"
WRITE_ATTEMPTS: Final = 50
"""The most attempts to write `repo`, while commits of other clients are faster."""


class IcechunkRepository(PlainRepository):
    """A repository of version 1 or 2.

    With `quiet`, the caller guarantees that no session is open: then no snapshot stays only because
    it was reachable within the grace. With an `expiry`, plans are made as if it had been carried
    out; they cannot be swept.
    """

    layout: IcechunkLayout
    batch_max: int | None = None

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
        self.layout = IcechunkLayout()
        self.spec_version = spec_version(storage)
        former_id = "spec-1" if self.spec_version == 2 else None
        identity = Identity(FORMAT_NAME, storage.url, f"spec-{self.spec_version}", name, former_id)
        super().__init__(storage, identity, settings=settings, run_dir=run_dir, clock=clock)
        self._quiet = quiet
        self._expiry = expiry
        self._known: SnapshotHistory | None = None
        self._backups: frozenset[str] = frozenset()
        self._old_backups = False
        self._unreachable: Mapping[str, datetime] = {}
        self._seen = FirstSeen({}, None)

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
        2), and `nested_root` as `PlainRepository.check_storage` does."""
        super().check_storage()
        if self.spec_version == 2:
            _check_writable(load_repo(self.storage), self.storage)

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
        self, run_id: str, *, state: str, run_path: str | None, plan_checksum: str | None = None
    ) -> None:
        """Records the run in its own folder. With a plan, also records the snapshots that the plan
        saw unreachable."""
        if plan_checksum is not None:
            self._remember_unreachable(self._unreachable, forgetting=True)
        super().record_run(run_id, state=state, run_path=run_path, plan_checksum=plan_checksum)

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
        `repository_readonly`, `repository_changed`, `repository_mixed` or `clock_skew`. Raises
        Incomplete if a part of the edits of version 1 is done. Each edit is complete in itself, and
        a repetition finishes the expiry. Also raises Incomplete if only the last step failed.
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
                # The record was written just now, so that its date is the storage's clock. By the
                # date of an older file, the snapshots would seem to have been released long ago.
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
                try:
                    self._hold_released(expiry, dated)
                except EbbtideError as error:
                    raise Incomplete(
                        "incomplete",
                        "the expiry is done, but it could not be recorded when its snapshots were "
                        f"released: {error.message}. Collect the repository only after "
                        f"{format_duration(self._settings.icechunk_grace)}",
                    ) from error
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
        """Chooses the commits to close. A repository that was opened with an expiry has no
        sweep."""
        assert self._expiry is None, "a plan of what might be is not for sweeping"
        super().fence(hold, run_id, choose, cutoff=cutoff)

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

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Returns the snapshots' entries in `repo`; for version 1, only their names."""
        file = None if self.spec_version == 1 else load_repo(self.storage)
        return records_of(file, commit_ids)

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """Returns no commits: a run deletes the record of each commit that it closes."""
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

    def proofs(self, commits: Mapping[str, datetime], heads: Collection[str]) -> Collection[str]:
        """Returns the heads that are younger than the newest entry of the operations log. To remove
        a snapshot that was a head, a client writes a younger entry. Version 1 has no log."""
        if self.spec_version != 2:
            return ()
        newest = max((update.at for update in load_repo(self.storage).updates), default=EPOCH)
        return [head for head in heads if commits[head] > newest]

    def guard(self, active: Collection[str] | None = None) -> Guard:
        """Returns the check before each batch of deletes.

        Version 1: it reads the refs again. Version 2: `forget` has closed the snapshots. But in a
        directory, Icechunk writes `repo` without a condition, so that its commit may have restored
        the old list. There the check reads `repo` again.
        """
        del active
        if not self._closed:
            return unguarded
        if self.spec_version == 2:
            if is_directory(self.storage):
                return RepoGuard(self.storage, self._closed)
            return unguarded
        assert self._known is not None
        kept = self._known.reached() - self._closed
        return RefsGuard(self.storage, kept=kept, going=self._closed)

    def lost(self) -> str | None:
        """Returns None: snapshots that `forget` closed cannot be needed again."""
        return None

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


def _check_writable(file: RepoFile, storage: Storage) -> None:
    if not file.writable:
        raise Refused(
            "repository_readonly",
            f"{storage.url} is set to allow no changes ({file.unwritable_reason}): set its "
            "status to online first",
        )
