"""What an Icechunk repository says of itself at one moment: refs, snapshots, and what must stay.

A session holds no lease, and reads or writes for as long as it likes. So whatever it may be built
on stays for a grace after nothing reaches it any more. Version 2 remembers what was reachable a
grace ago, in its backups. Version 1 does not: there the runs themselves remember since when they
saw a snapshot unreachable, so that two runs a grace apart must agree. This holds for a grace after
an upgrade too, since the backups of version 2 begin there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow.compute as pc

from ebbtide.arrow import instants, texts
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.icechunk.envelope import UnknownVersionError
from ebbtide.formats.icechunk.flatbuffer import DamagedError, UnknownFieldError
from ebbtide.formats.icechunk.ids import ID_PATTERN
from ebbtide.formats.icechunk.layout import LOGS_PREFIX, SNAPSHOTS_PREFIX, load_snapshot
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
from ebbtide.formats.icechunk.rooted import check_clean
from ebbtide.model import Commit, Ref
from ebbtide.retention.decision import reachable
from ebbtide.retention.expiry import Expiry
from ebbtide.storage import Storage

READERS: Final = 32
"""Snapshots of version 1 that are read at a time: only they know their parents."""

_PRECISION: Final = timedelta(milliseconds=1)
"""Of the time in the name of a copy, which is no later than the copy."""

COPIES_TRIED: Final = 20
"""Copies that are looked at for one of a time: those whose write was lost lie among them."""

YOUNG: Final = "younger than the grace"
RECENT: Final = "reachable within the grace"
NEWLY_SEEN: Final = "seen unreachable for less than the grace"


@dataclass(frozen=True, slots=True)
class History:
    """Refs and snapshots. `commits` has all that a ref reaches, with their parents, and of the
    others those that the repository still lists; `logs` has the transaction logs that a snapshot
    needs besides its own."""

    refs: tuple[Ref, ...]
    commits: Mapping[str, Commit]
    logs: Mapping[str, tuple[str, ...]]

    def reached(self) -> frozenset[str]:
        """All that a ref reaches."""
        return reachable(self.commits.values(), [ref.commit_id for ref in self.refs])


@dataclass(frozen=True, slots=True)
class State:
    """A reading. `held` are the unreachable snapshots that stay, each with the reason; they do so
    for a grace from `held_since` on, where None is now at the latest; what no plan has seen yet is
    not in it. `backups` are the names of the copies in
    `overwritten/` that stay, `old_backups` those of the others; `unreachable` all that no ref
    reaches, with the dates of their files. `logs` are the transaction logs that are there;
    `inherits` is true in version 2, where a snapshot inherits those of ancestors that go."""

    history: History
    held: Mapping[str, str]
    held_since: Mapping[str, datetime | None]
    backups: frozenset[str]
    old_backups: Set[str]
    unreachable: Mapping[str, datetime]
    logs: Set[str]
    inherits: bool

    def with_backup(self, name: str) -> State:
        """The same, but that a copy in `overwritten/` stays, too."""
        backups, others = self.backups | {name}, self.old_backups - {name}
        return replace(self, backups=backups, old_backups=others)


def spec_version(storage: Storage) -> int:
    """Which version of the format a repository has. NotFound `repository_not_found`; Refused
    `repository_rooted`."""
    check_clean(storage, (REPO_ADDRESS, MAIN_ADDRESS))
    if storage.head(REPO_ADDRESS) is not None:
        return 2
    if storage.head(MAIN_ADDRESS) is not None:
        return 1
    raise NotFound(
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
    """Read a repository. `first_seen` is what earlier runs saw unreachable, and since when.

    With `quiet` nothing stays for what was reachable lately, only for its own age. With an
    `expiry`, it is read as if that had been carried out. Raises Refused
    (`corrupt_repo`, `corrupt_ref`, `missing_tree`, `corrupt_tree`, `missing_backup`,
    `unknown_format_version`).
    """
    # Files before refs: whatever is in flight is a file before it is referred to.
    files = snapshot_files(storage)
    repo = load_repo(storage) if spec_version(storage) == 2 else None
    history = history_v1(storage, files) if repo is None else history_of(repo)
    if expiry is not None:
        history = expired_history(history, expiry, inherits=repo is not None)
    reached = history.reached()
    unreachable = {name: date for name, date in files.items() if name not in reached}
    # Listed, and their files gone: so a collection leaves them that was undone in `repo`.
    unreachable |= {
        name: commit.created_at
        for name, commit in history.commits.items()
        if name not in reached and name not in files and commit.created_at < cutoff
    }
    held: dict[str, str] = {}
    since: dict[str, datetime | None] = {}
    copy_dates = copies(storage)
    backups = frozenset(name for name, date in copy_dates.items() if may_be_since(date, cutoff))
    recent = None if quiet or repo is None else _recent(storage, repo, cutoff, backups)
    # What no ref reaches, and nothing says since when.
    undated = () if quiet or (recent is not None and recent.upgraded_at is None) else unreachable
    held |= {name: NEWLY_SEEN for name in undated if first_seen.get(name, cutoff) >= cutoff}
    since |= {name: first_seen[name] for name in held if name in first_seen}
    if recent is not None:
        # An upgrade takes over what refs reach: nothing reached the others at that time.
        since |= {name: recent.upgraded_at for name in held if name not in since}
        held |= {name: RECENT for name in recent.reached if name in unreachable}
        since |= {name: None for name in recent.reached if name in unreachable}
        history = History(history.refs, history.commits, {**recent.logs, **history.logs})
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
        # After refs: a commit writes its log before anything refers to it.
        logs=_files(storage, LOGS_PREFIX).keys(),
        inherits=repo is not None,
    )


def load_repo(storage: Storage, address: str = REPO_ADDRESS) -> RepoFile:
    """Read `repo`, or a copy of it. NotFound; Refused `corrupt_repo`, `unknown_format_version`."""
    where = f"{storage.url}/{address}"
    data, version = storage.get_versioned(address)
    try:
        return parse_repo(data, version)
    except (UnknownVersionError, UnknownFieldError) as error:
        raise Refused(
            "unknown_format_version", f"{where}: {error}: use a newer version of this program"
        ) from error
    except DamagedError as error:
        raise Refused("corrupt_repo", f"{where} is damaged: {error}") from error


def history_of(repo: RepoFile) -> History:
    """What the file `repo` says."""
    return History(repo.refs, {c.commit_id: c for c in repo.commits}, repo.inherited_logs)


def expired_history(history: History, expiry: Expiry, *, inherits: bool) -> History:
    """The history as it would be. In version 2 a snapshot inherits the transaction logs of what is
    cut off between it and its new parent."""
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
    return History(kept, commits, logs)


def may_be_since(date: datetime, cutoff: datetime) -> bool:
    """Whether a file of this date may have been written at or after the cutoff: a date in whole
    seconds may stand for any instant of that second."""
    return _latest(date) >= cutoff


def _latest(date: datetime) -> datetime:
    return date if date.microsecond else date + timedelta(microseconds=999_999)


def snapshot_files(storage: Storage) -> dict[str, datetime]:
    """The dates of all snapshots' files, by id."""
    return _files(storage, SNAPSHOTS_PREFIX)


def _files(storage: Storage, prefix: str) -> dict[str, datetime]:
    """The dates of all files under `prefix` whose names are ids, by id."""
    found: dict[str, datetime] = {}
    for batch in storage.list(prefix):
        addresses, dates = batch.column("address"), batch.column("last_modified")
        mask = pc.match_substring_regex(addresses, rf"\A{prefix}{ID_PATTERN}\z")
        names = texts(addresses.filter(mask))
        days = instants(dates.filter(mask))
        found |= dict(zip((name.removeprefix(prefix) for name in names), days, strict=True))
    return found


def history_v1(storage: Storage, files: Iterable[str]) -> History:
    """Read refs, the snapshots `files`, and whatever else refs reach: only they know their parents.

    One that no ref reaches may be damaged, or go away meanwhile: then it is none.
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
            f"snapshots {roots[0]} and {roots[1]} at {storage.url} both have no parent, which only "
            "the first of all has: one of them is damaged",
        )
    return History(refs, known, {})


@dataclass(frozen=True, slots=True)
class _Recent:
    """What refs `reached` at the cutoff or since, and the `logs` that it inherited then. If the
    repository was upgraded from version 1 since, then from `upgraded_at` on."""

    reached: frozenset[str]
    logs: Mapping[str, tuple[str, ...]]
    upgraded_at: datetime | None


def _recent(storage: Storage, repo: RepoFile, cutoff: datetime, young: frozenset[str]) -> _Recent:
    """What refs reached lately.

    Such a ref is there now, or was in the copy that was current at the cutoff, or was put
    somewhere and taken away since: the operations log tells from where, and what an expiry took
    away stands in the copy before it. Each history is walked from all of them, since an expiry
    cuts histories: what a snapshot came from before one stays even if the ref on it is younger.
    What was made since is young.
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
            # The entries before it were made up by the upgrade: there are no copies of their time.
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
    """The operations log, the newest entry first, over all files that it goes on in. Refused
    `missing_backup` where one of them is gone."""
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
    """The copy of `repo` whose newest entry is this one, among those of these names, and its name.
    Refused `missing_backup`.

    Whoever made the next change copied the file before: that is the first copy made after.
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
    return Refused(
        "missing_backup",
        f"{storage.url}/{BACKUPS_PREFIX} lacks the copy of {REPO_ADDRESS} "
        f"{name or 'of that time'}, so that nobody can tell what was reachable a grace ago: wait "
        "until that is longer ago, or, if no session is open, add --quiet-repository",
    )


def copies(storage: Storage) -> dict[str, datetime]:
    """The copies of what was overwritten, by name, each with the latest date that it may have.

    Their names tell when they were made. Their files may be older: in a directory a copy is a
    second link to what was overwritten, dated when that was written.
    """
    found: dict[str, datetime] = {}
    for batch in storage.list(BACKUPS_PREFIX):
        names = (name.removeprefix(BACKUPS_PREFIX) for name in texts(batch.column("address")))
        for name, date in zip(names, instants(batch.column("last_modified")), strict=True):
            made_at = backup_time(name)
            found[name] = date if made_at is None else max(date, made_at + _PRECISION)
    return found


def _chain(storage: Storage, repo: RepoFile) -> Iterable[str]:
    """The backups that the operations log goes on in, one after the other. A log that was cut
    short by somebody ends there."""
    name = repo.previous
    seen: set[str] = set()
    while name is not None and name not in seen:
        seen.add(name)
        yield name
        try:
            name = load_repo(storage, f"{BACKUPS_PREFIX}{name}").previous
        except NotFound:
            return
