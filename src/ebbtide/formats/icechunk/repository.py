"""An Icechunk repository as the collector sees it.

There is no database beside it. The state that runs remember is under `_ebbtide/` on the
repository's own storage, or in the directory for runs if that storage must not be written to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ebbtide.arrow import Column
from ebbtide.clock import Clock, SystemClock
from ebbtide.durations import format_duration
from ebbtide.errors import Conflict, EbbtideError, Incomplete, NotFound, Refused
from ebbtide.formats.base import (
    EPOCH_ADDRESS,
    Guard,
    Identity,
    RunHold,
    changed,
    storage_clocks,
    unguarded,
)
from ebbtide.formats.file_names import FileNames, NamesAsked
from ebbtide.formats.icechunk.edits import apply_v1, apply_v2, listable, records_of, write_record
from ebbtide.formats.icechunk.layout import (
    SNAPSHOTS_PREFIX,
    IcechunkLayout,
    is_directory,
    load_snapshot,
)
from ebbtide.formats.icechunk.mixed import check_unmixed
from ebbtide.formats.icechunk.named import NamedFiles
from ebbtide.formats.icechunk.refs import MAIN_ADDRESS, check_spelling, read_refs
from ebbtide.formats.icechunk.relations import IcechunkReading
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
from ebbtide.formats.icechunk.walk import IcechunkWalk
from ebbtide.formats.notes import dates_text, put_if, read_dates, read_holds, write_holds
from ebbtide.model import EPOCH, Commit
from ebbtide.retention.expiry import Expiry, ExpiryRequest, plan_expiry
from ebbtide.settings import Settings
from ebbtide.storage import Storage

FORMAT_NAME: Final = "icechunk"
WRITE_ATTEMPTS: Final = 50
"""The most attempts to write `repo`, while commits of other clients are faster."""


@dataclass(frozen=True, slots=True)
class RefsGuard:
    """The guard of version 1, which cannot make refs conditional.

    Before each batch it reads the refs again. A ref that reaches a snapshot of `going` stops the
    sweep. `going` are the snapshots that the sweep deletes, `kept` those that it keeps.
    """

    storage: Storage
    kept: frozenset[str]
    going: frozenset[str]

    def __call__(self, addresses: Column) -> Mapping[str, str]:
        """Raises Refused `repository_changed` to stop the sweep, whatever the batch has."""
        del addresses
        for ref in read_refs(self.storage):
            place: str | None = ref.commit_id
            while place is not None and place not in self.kept:
                if place in self.going:
                    raise changed(f"{ref.kind} {ref.name} needs snapshot {place} again")
                place = load_snapshot(self.storage, place).parent_id
        return {}


@dataclass(frozen=True, slots=True)
class RepoGuard:
    """The guard of version 2 in a directory. Before each batch it checks whether a branch or tag
    reaches a snapshot of `going`."""

    storage: Storage
    going: frozenset[str]

    def __call__(self, addresses: Column) -> Mapping[str, str]:
        """Raises Refused `repository_changed` to stop the sweep, whatever the batch has."""
        del addresses
        check_unreached(history_of(load_repo(self.storage)), self.going)
        return {}


def check_unreached(history: SnapshotHistory, going: frozenset[str]) -> None:
    """Raises Refused `repository_changed` if a ref reaches a snapshot of `going`."""
    needed = history.reached() & going
    if needed:
        raise changed(f"a branch or tag needs snapshot {min(needed)} again")


UNREACHABLE_ADDRESS: Final = "_ebbtide/gc/unreachable.json"


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """Since when each snapshot was seen unreachable, and the version of the file that says so.
    `version` is None if there is no file.

    Expiries record the snapshots that they release. Plans record those that they see unreachable.
    Version 2 has its own records, but uses this one for a grace after an upgrade.
    """

    since: Mapping[str, datetime]
    version: str | None


def read_seen(storage: Storage) -> FirstSeen:
    """Reads the present file. A damaged file counts as empty: the grace then begins anew."""
    version: str | None = None
    since: dict[str, datetime] = {}
    with suppress(NotFound, ValueError, AttributeError, TypeError):
        data, version = storage.get_versioned(UNREACHABLE_ADDRESS)
        since = read_dates(data)
    return FirstSeen(since, version)


def remember(
    storage: Storage,
    seen: FirstSeen,
    names: Iterable[str],
    *,
    kept: Mapping[str, datetime],
    now: datetime,
) -> None:
    """Records since when the snapshots `names` are unreachable, besides the dates in `kept`.

    Writes only if nobody has written the file since it was read as `seen`. Read the file before you
    determine `names`. Otherwise a suspended process could restore old dates of snapshots that were
    reachable meanwhile. If a snapshot is not recorded, the next plan records it.
    """
    dates = {**kept, **{name: seen.since.get(name, now) for name in sorted(names)}}
    with suppress(Conflict):
        put_if(storage, UNREACHABLE_ADDRESS, dates_text(dates), seen.version)


class IcechunkRepository:
    """A repository of version 1 or 2.

    With `quiet`, the caller guarantees that no session is open: then no snapshot stays only because
    it was reachable within the grace. With an `expiry`, plans are made as if it had been carried
    out; they cannot be swept. `notes` is where version 1 remembers unreachable snapshots, if it is
    not the storage itself.
    """

    layout = IcechunkLayout()
    batch_max: int | None = None

    def __init__(
        self,
        storage: Storage,
        *,
        name: str,
        settings: Settings,
        notes: Storage | None = None,
        quiet: bool = False,
        expiry: Expiry | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.spec_version = spec_version(storage)
        former_id = "spec-1" if self.spec_version == 2 else None
        self.identity = Identity(
            FORMAT_NAME, storage.url, f"spec-{self.spec_version}", name, former_id
        )
        self.storage = storage
        self.clock = clock or SystemClock()
        self._settings = settings
        self._notes = notes or storage
        self._quiet = quiet
        self._expiry = expiry
        self._known: SnapshotHistory | None = None
        self._backups: frozenset[str] = frozenset()
        self._old_backups = False
        self._unreachable: Mapping[str, datetime] = {}
        self._seen = FirstSeen({}, None)

    def now(self) -> datetime:
        """Returns this machine's time: there is no database."""
        return self.clock.host_now()

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
        return IcechunkReading(state, now, now - cutoff, back)

    def _check_unmixed(self) -> str | None:
        """Runs `check_unmixed` for version 2. Returns the name of the copy that must stay, or
        None."""
        return None if self.spec_version == 1 else check_unmixed(self.storage)

    def note_plan(self) -> None:
        """Records the snapshots that the plan saw unreachable."""
        self._remember_unreachable(self._unreachable, forgetting=True)

    def plan_expiry(self, request: ExpiryRequest) -> tuple[SnapshotHistory, Expiry]:
        """Returns the present history, and the expiry that a request leads to.

        Raises InvalidInput `invalid_policy` if a rule spells a branch by the name of its folder,
        and Refused `repository_mixed`.
        """
        self._check_unmixed()
        file = None if self.spec_version == 1 else load_repo(self.storage)
        return self._plan_expiry(request, file)

    def expire(
        self, request: ExpiryRequest, hold: RunHold, expire_id: str
    ) -> tuple[SnapshotHistory, Expiry]:
        """Carries out a request. Returns the history before it, and the expiry.

        Raises Refused `repository_readonly`, `repository_changed`, `repository_mixed` or
        `clock_skew`. Raises Incomplete if a part of the edits of version 1 is done. Each edit is
        complete in itself, and a repetition finishes the expiry. Also raises Incomplete if only the
        last step failed.
        """
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
            clocks = storage_clocks(self.storage, record, self.clock)
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
        raise changed(f"other clients changed 'repo' during {WRITE_ATTEMPTS} attempts: try again")

    def expired(self, expiry: Expiry | None) -> IcechunkRepository:
        """Returns the repository as it would be after an expiry. No session counts as open."""
        return IcechunkRepository(
            self.storage,
            name=self.identity.repository_name,
            settings=self._settings,
            notes=self._notes,
            quiet=True,
            expiry=expiry,
            clock=self.clock,
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

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Version 2: drops the snapshots from the list in `repo`, and the names of backups if some
        backups will be deleted. Afterwards nobody can make a ref or commit on the snapshots.

        Raises Refused `repository_changed` if a ref or a new snapshot needs one of them by now, or
        if a client of version 1 has written. Version 1 has no list; there, `guard` checks the refs.
        """
        del run_id
        assert self._expiry is None, "a plan of what might be is not for sweeping"
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

    def guard(self, kept: Collection[str], going: Collection[str]) -> Guard:
        """Returns the check before each batch of deletes.

        Version 1: it reads the refs again. Version 2: `forget` has closed the snapshots. But in a
        directory, Icechunk writes `repo` without a condition, so that its commit may have restored
        the old list. There the check reads `repo` again.
        """
        del kept  # unreachable snapshots too, which may have ancestors in `going`
        closed = frozenset(going)
        if not closed:
            return unguarded
        if self.spec_version == 2:
            return RepoGuard(self.storage, closed) if is_directory(self.storage) else unguarded
        assert self._known is not None
        return RefsGuard(self.storage, kept=self._known.reached() - closed, going=closed)

    def file_names(self, asked: NamesAsked) -> FileNames:
        """Returns the keys of chunks, the arrays of manifests, and the messages of snapshots and
        their logs. Snapshots among the files are searched too: no ref may lead to them."""
        loose = (each.removeprefix(SNAPSHOTS_PREFIX) for each in asked.among("snapshot"))
        known = {each.commit_id for each in asked.commits}
        others = [Commit(each, (), EPOCH, each) for each in loose if each not in known]
        return NamedFiles(asked.storage, asked.addresses).names([*asked.commits, *others])

    def _log_time(self) -> datetime:
        """Returns the date of a run's entry in the operations log, by the slowest clock. Icechunk
        refuses to write until its own clock is past this date."""
        return storage_clocks(self.storage, EPOCH_ADDRESS, self.clock).earliest

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
        self._seen = read_seen(self._notes)
        return self._seen

    def _remember_unreachable(self, names: Collection[str], *, forgetting: bool) -> None:
        """Records since when each snapshot was seen unreachable. With `forgetting`, the record has
        only these snapshots. Version 2 needs no record."""
        if self.spec_version == 1:
            kept = {} if forgetting else self._seen.since
            remember(self._notes, self._seen, names, kept=kept, now=self.now())


def _check_writable(file: RepoFile, storage: Storage) -> None:
    if not file.writable:
        raise Refused(
            "repository_readonly",
            f"{storage.url} is set to allow no changes ({file.unwritable_reason}): set its "
            "status to online first",
        )
