"""The state of an Icechunk repository at one instant: refs, snapshots, and protected snapshots.

A session has no lease, and may read or write for any time. Therefore a snapshot that a session may
use stays for a grace after it has become unreachable. Version 2 has backups, which tell what was
reachable a grace ago. Version 1 has none. There, runs remember since when they saw a snapshot
unreachable. A snapshot is deleted only if two runs, one grace apart, both saw it unreachable. The
same applies for a grace after an upgrade, because no backup is older than the upgrade.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow.compute as pc

from ebbtide.arrow import instants, texts
from ebbtide.errors import NotFound, Refused, UnknownRepository
from ebbtide.formats.icechunk.ids import ID_PATTERN
from ebbtide.formats.icechunk.layout import LOGS_PREFIX, SNAPSHOTS_PREFIX, load_snapshot, refusing
from ebbtide.formats.icechunk.refs import MAIN_ADDRESS, read_refs
from ebbtide.formats.icechunk.repo import (
    BACKUPS_PREFIX,
    MIGRATED,
    REPO_ADDRESS,
    RepoFile,
    Update,
    backup_time,
    logs_between,
    parse_repo,
)
from ebbtide.model import Commit, Ref
from ebbtide.retention.decision import reachable
from ebbtide.retention.expiry import Expiry
from ebbtide.storage import RemoteStorage, Storage
from ebbtide.storage.requests import Bucket

READERS: Final = 32
"""Snapshots of version 1 that are read at the same time. Only a snapshot's file names its
parent."""

_PRECISION: Final = timedelta(milliseconds=1)
"""The precision of the time in a copy's name. The copy is not older than this time."""

COPIES_TRIED: Final = 20
"""The most copies that are read to find the copy of one time. Failed writes of `repo` have left
copies too."""

YOUNG: Final = "younger than the grace"
RECENT: Final = "reachable within the grace"
NEWLY_SEEN: Final = "seen unreachable for less than the grace"


@dataclass(frozen=True, slots=True)
class SnapshotHistory:
    """Refs and snapshots.

    `commits` has all snapshots that a ref reaches, with their parents, and the other snapshots that
    the repository still lists. `logs` maps a snapshot to the transaction logs that it needs besides
    its own.
    """

    refs: tuple[Ref, ...]
    commits: Mapping[str, Commit]
    logs: Mapping[str, tuple[str, ...]]

    def reached(self) -> frozenset[str]:
        """Returns all snapshots that a ref reaches."""
        return reachable(self.commits.values(), [ref.commit_id for ref in self.refs])


@dataclass(frozen=True, slots=True)
class State:
    """The state of a repository at one instant.

    `held` maps each unreachable snapshot that is still protected to the reason. The protection ends
    one grace after `held_since`. There, None means an unknown time that is not after now. Snapshots
    that no plan has seen unreachable yet are missing there.

    `backups` are the names of the copies in `overwritten/` that stay, `old_backups` the names of
    the others. `unreachable` maps all snapshots that no ref reaches to the dates of their files.
    `logs` are the existing transaction logs. `inherits` is true in version 2, where a snapshot
    inherits the logs of ancestors that are deleted.
    """

    history: SnapshotHistory
    held: Mapping[str, str]
    held_since: Mapping[str, datetime | None]
    backups: frozenset[str]
    old_backups: Set[str]
    unreachable: Mapping[str, datetime]
    logs: Set[str]
    inherits: bool

    def with_backup(self, name: str) -> State:
        """Returns this state with one more copy in `overwritten/` that stays."""
        backups, others = self.backups | {name}, self.old_backups - {name}
        return replace(self, backups=backups, old_backups=others)


def spec_version(storage: Storage) -> int:
    """Returns the version of a repository's format, 1 or 2.

    Raises NotFound `repository_not_found` and Refused `repository_rooted`.
    """
    check_clean(storage, (REPO_ADDRESS, MAIN_ADDRESS))
    if storage.head(REPO_ADDRESS) is not None:
        return 2
    if storage.head(MAIN_ADDRESS) is not None:
        return 1
    raise UnknownRepository(
        "repository_not_found",
        f"there is no Icechunk repository at {storage.url}: neither {REPO_ADDRESS} (version 2) "
        f"nor {MAIN_ADDRESS} (version 1) is there",
    )


def read_state(
    storage: Storage,
    *,
    cutoff: datetime,
    quiet: bool,
    first_seen: Mapping[str, datetime],
    expiry: Expiry | None = None,
) -> State:
    """Reads a repository. `first_seen` says since when earlier runs saw snapshots unreachable.

    With `quiet`, an unreachable snapshot stays only for its own age, not because it was reachable
    within the grace. With an `expiry`, the state is as if it had been carried out. Raises Refused
    (`corrupt_repo`, `corrupt_ref`, `missing_tree`, `corrupt_tree`, `missing_backup`,
    `unknown_format_version`).
    """
    # Files before refs: a snapshot that is being made has a file before a ref points at it.
    files = snapshot_files(storage)
    repo = load_repo(storage) if spec_version(storage) == 2 else None
    history = history_v1(storage, files) if repo is None else history_of(repo)
    if expiry is not None:
        history = expired_history(history, expiry, inherits=repo is not None)
    reached = history.reached()
    unreachable = _unreachable(history, files, reached, cutoff)
    held: dict[str, str] = {}
    since: dict[str, datetime | None] = {}
    copy_dates = copies(storage)
    backups = frozenset(name for name, date in copy_dates.items() if may_be_since(date, cutoff))
    recent = None if quiet or repo is None else _recent(storage, repo, cutoff, backups)
    # Version 1, and a grace after an upgrade: no backup says since when snapshots are unreachable.
    undated = () if quiet or (recent is not None and recent.upgraded_at is None) else unreachable
    held |= {name: NEWLY_SEEN for name in undated if first_seen.get(name, cutoff) >= cutoff}
    since |= {name: first_seen[name] for name in held if name in first_seen}
    if recent is not None:
        # An upgrade takes over the snapshots that refs reach. No ref reached the others at that
        # time.
        since |= {name: recent.upgraded_at for name in held if name not in since}
        held |= {name: RECENT for name in recent.reached if name in unreachable}
        since |= {name: None for name in recent.reached if name in unreachable}
        history = SnapshotHistory(history.refs, history.commits, {**recent.logs, **history.logs})
    unseen = held.keys() - since.keys()
    young = {name: date for name, date in unreachable.items() if may_be_since(date, cutoff)}
    held |= dict.fromkeys(young, YOUNG)
    for name in young.keys() - unseen:
        date, seen = _latest(young[name]), since.get(name, young[name])
        since[name] = None if seen is None else max(date, seen)
    if repo is not None:
        backups |= frozenset(_chain(storage, repo))
    return State(
        history,
        held,
        since,
        backups,
        copy_dates.keys() - backups,
        unreachable,
        # After refs: a commit writes its log before a ref points at it.
        logs=_files(storage, LOGS_PREFIX).keys(),
        inherits=repo is not None,
    )


def _unreachable(
    history: SnapshotHistory,
    files: Mapping[str, datetime],
    reached: Collection[str],
    cutoff: datetime,
) -> dict[str, datetime]:
    """Returns the snapshots that no ref reaches, each with the date of its file.

    Some snapshots on the list have no file: a collection deleted it, and a client then overwrote
    the collection's change of `repo`.
    """
    without_file = {
        name: commit.created_at
        for name, commit in history.commits.items()
        if name not in reached and name not in files and commit.created_at < cutoff
    }
    return {name: date for name, date in files.items() if name not in reached} | without_file


def load_repo(storage: Storage, address: str = REPO_ADDRESS) -> RepoFile:
    """Reads `repo`, or a copy of it. Raises NotFound (`object_not_found`), and Refused
    `corrupt_repo` or `unknown_format_version`."""
    data, version = storage.get_versioned(address)
    with refusing(storage, address, what="repo"):
        return parse_repo(data, version)


def history_of(repo: RepoFile) -> SnapshotHistory:
    """Returns the history in the file `repo`."""
    return SnapshotHistory(repo.refs, {c.commit_id: c for c in repo.commits}, repo.inherited_logs)


def expired_history(history: SnapshotHistory, expiry: Expiry, *, inherits: bool) -> SnapshotHistory:
    """Returns the history as it would be after an expiry. In version 2, a snapshot inherits the
    transaction logs of the snapshots that are cut off between it and its new parent."""
    gone = {(ref.kind, ref.name) for ref in expiry.deleted_refs}
    parents = {name: commit.first_parent_id for name, commit in history.commits.items()}
    commits: dict[str, Commit] = dict(history.commits)
    logs = dict(history.logs)
    for name, parent_id in expiry.new_parents.items():
        commits[name] = replace(commits[name], parent_ids=(parent_id,))
        if inherits:
            inherited = logs_between(parents, history.logs, parents[name], parent_id)
            logs[name] = (*inherited, *history.logs.get(name, ()))
    kept = tuple(ref for ref in history.refs if (ref.kind, ref.name) not in gone)
    return SnapshotHistory(kept, commits, logs)


def may_be_since(date: datetime, cutoff: datetime) -> bool:
    """Whether a file of this date may have been written at or after the cutoff. A date in whole
    seconds may stand for any instant of that second."""
    return _latest(date) >= cutoff


def _latest(date: datetime) -> datetime:
    return date if date.microsecond else date + timedelta(microseconds=999_999)


def snapshot_files(storage: Storage) -> dict[str, datetime]:
    """Returns the dates of all snapshots' files, by id."""
    return _files(storage, SNAPSHOTS_PREFIX)


def _files(storage: Storage, prefix: str) -> dict[str, datetime]:
    """Returns the dates of all files under `prefix` whose names are ids, by id."""
    found: dict[str, datetime] = {}
    for batch in storage.list(prefix):
        addresses, dates = batch.column("address"), batch.column("last_modified")
        mask = pc.match_substring_regex(addresses, rf"\A{prefix}{ID_PATTERN}\z")
        names = texts(addresses.filter(mask))
        days = instants(dates.filter(mask))
        found |= dict(zip((name.removeprefix(prefix) for name in names), days, strict=True))
    return found


def history_v1(storage: Storage, files: Iterable[str]) -> SnapshotHistory:
    """Reads refs, the snapshots `files`, and all other snapshots that refs reach. Only a snapshot's
    file names its parent.

    A snapshot that no ref reaches is left out if it is damaged, or was deleted meanwhile.
    """
    refs = read_refs(storage)
    known: dict[str, Commit] = {}
    failed: dict[str, Refused] = {}

    def read(snapshot_id: str) -> None:
        try:
            found = load_snapshot(storage, snapshot_id)
        except Refused as error:
            failed[snapshot_id] = error
            return
        parents = () if found.parent_id is None else (found.parent_id,)
        known[snapshot_id] = Commit(snapshot_id, parents, found.flushed_at, snapshot_id)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, files))
    seen: set[str] = set()
    for ref in refs:
        place: str | None = ref.commit_id
        while place is not None and place not in seen:
            seen.add(place)
            if place not in known and place not in failed:
                read(place)  # newer than the listing, or not there
            if place in failed:
                raise failed[place]
            place = known[place].first_parent_id
    roots = [name for name in seen if not known[name].parent_ids]
    if len(roots) > 1:
        raise Refused(
            "corrupt_tree",
            f"snapshots {roots[0]} and {roots[1]} at {storage.url} both have no parent, but only "
            "the first snapshot of a repository has none: one of them is damaged",
        )
    return SnapshotHistory(refs, known, {})


@dataclass(frozen=True, slots=True)
class _Recent:
    """The snapshots that refs `reached` at the cutoff or since, and the `logs` that these inherited
    then. After a recent upgrade from version 1, both cover only the time since `upgraded_at`."""

    reached: frozenset[str]
    logs: Mapping[str, tuple[str, ...]]
    upgraded_at: datetime | None


def _recent(storage: Storage, repo: RepoFile, cutoff: datetime, young: frozenset[str]) -> _Recent:
    """Returns the snapshots that refs reached at the cutoff or since.

    Such a ref exists now, or it is in the copy of `repo` that was current at the cutoff, or it was
    made and removed since. The operations log names the snapshots that refs left. The copy before
    an expiry has the snapshots that the expiry removed.

    An expiry cuts histories. Therefore each of these histories is walked from all of these refs: a
    snapshot's ancestors before an expiry stay even if the ref on it is younger. Snapshots made
    since the cutoff are young.
    """
    histories = [history_of(repo)]
    tips: set[str] = set()
    before_expiry = False
    upgraded_at: datetime | None = None
    for number, update in enumerate(operations(storage, repo)):
        if before_expiry or (number and update.at < cutoff):
            _, file = copy_of(storage, update, young)
            histories.append(history_of(file))
        if update.at < cutoff:
            break
        if update.kind == MIGRATED:
            # The upgrade invented the entries before it: there are no copies of their time.
            upgraded_at = update.at
            break
        before_expiry = update.kind == "ExpirationRan"
        if update.left is not None:
            tips.add(update.left)
    tips.update(ref.commit_id for history in histories for ref in history.refs)
    logs: dict[str, tuple[str, ...]] = {}
    found: set[str] = set()
    for history in reversed(histories):
        found |= reachable(history.commits.values(), tips)
        logs |= history.logs
    return _Recent(frozenset(found), logs, upgraded_at)


def operations(storage: Storage, repo: RepoFile) -> Iterator[Update]:
    """Yields the operations log, newest entry first, from `repo` and all backups that continue it.
    Raises Refused `missing_backup` if one of them is gone."""
    yield from repo.updates
    name = repo.previous
    while name is not None:
        try:
            file = load_repo(storage, f"{BACKUPS_PREFIX}{name}")
        except NotFound:
            raise _missing(storage, name) from None
        newest, *others = file.updates
        yield replace(newest, backup=name)
        yield from others
        name = file.previous


def copy_of(storage: Storage, update: Update, names: Set[str]) -> tuple[str, RepoFile]:
    """Returns the name and the content of the copy of `repo` whose newest entry is `update`.

    `names` are the copies to look in. The client that made the next change copied the file first,
    so that the first copy after the entry is the right one. Raises Refused `missing_backup`.
    """
    named = [] if update.backup is None else [update.backup]
    dated = sorted((time, name) for name in names if (time := backup_time(name)) is not None)
    later = [name for time, name in dated if time >= update.at - _PRECISION]
    for name in (*named, *later[:COPIES_TRIED]):
        with suppress(NotFound):
            found = load_repo(storage, f"{BACKUPS_PREFIX}{name}")
            newest = next(found.updates)
            if (newest.at, newest.kind) == (update.at, update.kind):
                return name, found
    raise _missing(storage, update.backup)


def _missing(storage: Storage, name: str | None) -> Refused:
    copy = f"a copy of {REPO_ADDRESS}" if name is None else f"the copy {name} of {REPO_ADDRESS}"
    return Refused(
        "missing_backup",
        f"{storage.url}/{BACKUPS_PREFIX} lacks {copy}, so that it is unknown which snapshots were "
        "reachable within the grace: wait until the change that made this copy is older than the "
        "grace, or, if no session is open, add --quiet-repository",
    )


def copies(storage: Storage) -> dict[str, datetime]:
    """Returns the copies of overwritten files by name, each with the latest date that it may have.

    A copy's name has the time when it was made. Its file may be older: in a directory, a copy is a
    second link to the overwritten file, with the date when that was written.
    """
    found: dict[str, datetime] = {}
    for batch in storage.list(BACKUPS_PREFIX):
        names = (name.removeprefix(BACKUPS_PREFIX) for name in texts(batch.column("address")))
        for name, date in zip(names, instants(batch.column("last_modified")), strict=True):
            made_at = backup_time(name)
            found[name] = date if made_at is None else max(date, made_at + _PRECISION)
    return found


def _chain(storage: Storage, repo: RepoFile) -> Iterable[str]:
    """Yields the backups that continue the operations log, one after the other. If somebody has cut
    the log short, it ends there."""
    name = repo.previous
    seen: set[str] = set()
    while name is not None and name not in seen:
        seen.add(name)
        yield name
        try:
            name = load_repo(storage, f"{BACKUPS_PREFIX}{name}").previous
        except NotFound:
            return


_SCHEME: Final = "s3://"


def check_clean(storage: Storage, anchors: Sequence[str]) -> None:
    """Raises Refused `repository_rooted` if one of `anchors` exists with a slash before it.

    Icechunk before 2.1 wrote `/repo` in place of `repo` if it was given a bucket of S3 without a
    prefix. obstore cannot name such keys. `anchors` are addresses that only a repository has. Asks
    the storage only if it is a whole bucket of S3. Source: Icechunk 2.3, `KeyLayout` in
    `icechunk-s3/src/lib.rs`; its issue 2239.
    """
    bucket = storage.url.removeprefix(_SCHEME)
    if not isinstance(storage, RemoteStorage) or bucket == storage.url or "/" in bucket:
        return
    for anchor in anchors:
        key = f"/{anchor}"
        page = next(Bucket(bucket, storage.effective_options()).list_keys(key))
        if key in (found.key for found in page.objects):
            raise Refused(
                "repository_rooted",
                f"{storage.url} has an Icechunk repository whose keys begin with a slash ({key}), "
                "as Icechunk before 2.1 wrote them without a prefix: this program cannot read "
                "them. Stop the writers, copy each of these objects to a prefix, such as "
                f"/chunks/ID to data/chunks/ID, and use the copy: icechunk:{storage.url}/data",
            )
