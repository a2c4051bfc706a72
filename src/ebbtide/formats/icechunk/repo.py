"""The file `repo` of version 2: refs, snapshots with their parents, and the operations log.

It is the only file that changes. A change first copies it to `overwritten/`, and then replaces it
if nobody else did meanwhile. All other parts of the file are written again as they were read.
Source: Icechunk specification 2.1, "Repo Info File"; Icechunk design document 016 for the logs that
a snapshot inherits from ancestors that are cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Final

from flatbuffers import flexbuffers

from ebbtide.errors import Conflict
from ebbtide.formats.icechunk.files import DamagedError, FileType, pack, unpack
from ebbtide.formats.icechunk.ids import ID_BYTES, ROOT_ID, id_bytes, id_text, new_id_text
from ebbtide.formats.icechunk.snapshots import instant
from ebbtide.formats.icechunk.tables import (
    INT32,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    Fixed,
    Row,
    Text,
    Union,
    Vector,
    decode,
    encode,
    table,
)
from ebbtide.model import EPOCH, Commit, Ref
from ebbtide.storage import Storage

WRITER: Final = f"ebbtide-{version('ebbtide')}"


# The tables of the file, slot by slot.
# Source: Icechunk specification 2.1, `repo.fbs` and `common.fbs`.
_ID: Final = Fixed(ID_BYTES)
_EMPTY: Final = table()

METADATA_ITEM: Final = table(name=Text(), value=Vector(UINT8))
REF: Final = table(name=Text(), snapshot_index=UINT32)
SNAPSHOT_INFO: Final = table(
    id=_ID,
    parent_offset=INT32,
    flushed_at=UINT64,
    message=Text(),
    metadata=Vector(METADATA_ITEM),
    pruned_ancestor_tx_logs=Vector(_ID),
)
STATUS: Final = table(availability=UINT8, set_at=UINT64, limited_availability_reason=Text())
_CREATED: Final = table(name=Text())
_MOVED: Final = table(name=Text(), previous_snap_id=_ID)
UPDATE_TYPES: Final = (
    ("RepoInitialized", _EMPTY),
    ("RepoMigrated", table(from_version=UINT8, to_version=UINT8)),
    ("ConfigChanged", _EMPTY),
    ("MetadataChanged", _EMPTY),
    ("TagCreated", _CREATED),
    ("TagDeleted", _MOVED),
    ("BranchCreated", _CREATED),
    ("BranchDeleted", _MOVED),
    ("BranchReset", _MOVED),
    ("NewCommit", table(branch=Text(), new_snap_id=_ID)),
    ("CommitAmended", table(branch=Text(), previous_snap_id=_ID, new_snap_id=_ID)),
    ("NewDetachedSnapshot", table(new_snap_id=_ID)),
    ("GCRan", _EMPTY),
    ("ExpirationRan", _EMPTY),
    ("FeatureFlagChanged", table(id=UINT16, new_value=UINT8, is_set=UINT8)),
    ("RepoStatusChanged", table(status=STATUS)),
)
"""The kinds of entries of the operations log, in the order of the union's numbers, from 1."""

UPDATE: Final = table(
    update_type=Union(tuple(kind for _, kind in UPDATE_TYPES)),
    updated_at=UINT64,
    backup_path=Text(),
)
REPO: Final = table(
    spec_version=UINT8,
    tags=Vector(REF),
    branches=Vector(REF),
    deleted_tags=Vector(Text()),
    snapshots=Vector(SNAPSHOT_INFO),
    status=STATUS,
    metadata=Vector(METADATA_ITEM),
    latest_updates=Vector(UPDATE),
    repo_before_updates=Text(),
    config=Vector(UINT8),
    enabled_feature_flags=Vector(UINT16),
    disabled_feature_flags=Vector(UINT16),
    extra=Vector(UINT8),
)
REQUIRED: Final = ("tags", "branches", "deleted_tags", "snapshots", "status", "latest_updates")


REPO_ADDRESS: Final = "repo"
BACKUPS_PREFIX: Final = "overwritten/"
UPDATES_MAX: Final = 1000
"""Entries of the operations log in one file, if the repository's configuration has no number."""

MAIN: Final = "main"
MIGRATED: Final = "RepoMigrated"
"""The kind of an entry of the operations log: an upgrade from version 1."""
_ONLINE: Final = 0
NO_PARENT: Final = -1
_MICROS_MAX: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_YEAR_3000: Final = 32_503_680_000_000
"""Milliseconds since 1970. Names of backups count down to this time: the newest sorts first."""

_UPDATE_NUMBERS: Final = {name: number for number, (name, _) in enumerate(UPDATE_TYPES, 1)}


@dataclass(frozen=True, slots=True)
class Update:
    """An entry of the operations log. `backup` names the copy of the file in which this is the
    newest entry. `left` is the snapshot that a ref pointed at before this entry."""

    kind: str
    at: datetime
    backup: str | None
    left: str | None


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot's entry in the list, and its parent."""

    row: Row
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class RepoFile:
    """The file as it was read. `version` is the storage's version of exactly these bytes."""

    data: bytes
    version: str
    row: Row
    ids: tuple[str, ...]

    @property
    def listed(self) -> dict[str, ListedSnapshot]:
        """The file's snapshots by id, in the order of the list."""
        ids = self.ids
        return {
            name: ListedSnapshot(
                info, None if (place := info["parent_offset"]) == NO_PARENT else ids[place]
            )
            for name, info in zip(ids, self.row["snapshots"], strict=True)
        }

    @property
    def commits(self) -> Iterator[Commit]:
        """The file's snapshots as commits."""
        for snapshot_id, found in self.listed.items():
            parents = () if found.parent_id is None else (found.parent_id,)
            yield Commit(snapshot_id, parents, instant(found.row["flushed_at"]), snapshot_id)

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The file's branches and tags."""
        branches = [
            Ref(ref["name"], "branch", self.ids[ref["snapshot_index"]])
            for ref in self.row["branches"]
        ]
        tags = [
            Ref(ref["name"], "tag", self.ids[ref["snapshot_index"]]) for ref in self.row["tags"]
        ]
        return (*branches, *tags)

    @property
    def inherited_logs(self) -> Mapping[str, tuple[str, ...]]:
        """The transaction logs that a snapshot needs besides its own, oldest first."""
        return {
            snapshot_id: tuple(map(id_text, info["pruned_ancestor_tx_logs"]))
            for snapshot_id, info in zip(self.ids, self.row["snapshots"], strict=True)
            if "pruned_ancestor_tx_logs" in info
        }

    @property
    def updates(self) -> Iterator[Update]:
        """The part of the operations log in this file, newest entry first."""
        for entry in self.row["latest_updates"]:
            number, details = entry["update_type"]
            left = details.get("previous_snap_id")
            yield Update(
                kind=UPDATE_TYPES[number - 1][0],
                at=instant(entry["updated_at"]),
                backup=entry.get("backup_path"),
                left=None if left is None else id_text(left),
            )

    @property
    def previous(self) -> str | None:
        """The name of the backup that continues the operations log, or None."""
        found: str | None = self.row.get("repo_before_updates")
        return found

    @property
    def writable(self) -> bool:
        """Whether the repository's owners allow changes."""
        return bool(self.row["status"]["availability"] == _ONLINE)

    @property
    def unwritable_reason(self) -> str:
        """The owners' reason for allowing no changes."""
        return str(self.row["status"].get("limited_availability_reason") or "no reason is given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of the file.

    `new_parents` maps snapshots to their new parents. `drop` are the snapshots that leave the list,
    `add` those that enter it; the parents of added snapshots must be in the new list.
    `drop_branches` and `drop_tags` are names. With `forget_backups`, older entries of the
    operations log no longer name backups. The log then needs only backups that are made from now
    on, and the backup that continues this file's log.
    """

    kind: str  # of an entry of the operations log
    new_parents: Mapping[str, str] = field(default_factory=dict)
    drop: Collection[str] = ()
    add: Mapping[str, ListedSnapshot] = field(default_factory=dict)
    drop_branches: Collection[str] = ()
    drop_tags: Collection[str] = ()
    forget_backups: bool = False


def parse_repo(data: bytes, version: str) -> RepoFile:
    """Parses the file's bytes. Raises DamagedError, UnknownFieldError or UnknownVersionError."""
    row = decode(unpack(data, FileType.REPO).payload, REPO)
    for name in REQUIRED:
        if name not in row:
            raise DamagedError(f"it has no {name}")
    if any("id" not in info for info in row["snapshots"]):
        raise DamagedError("a snapshot has no id")
    ids = tuple(id_text(info["id"]) for info in row["snapshots"])
    if any(first >= second for first, second in pairwise(ids)):
        raise DamagedError("its snapshots are not in order")
    for info in row["snapshots"]:
        if not NO_PARENT <= info["parent_offset"] < len(ids):
            raise DamagedError("a snapshot's parent is not in its list")
    for ref in (*row["branches"], *row["tags"]):
        if "name" not in ref or ref["snapshot_index"] >= len(ids):
            raise DamagedError("a branch or tag points outside its list of snapshots")
    if MAIN not in {ref["name"] for ref in row["branches"]}:
        raise DamagedError(f"it has no branch {MAIN}")
    _check_circles(row)
    if not row["latest_updates"] or any("update_type" not in e for e in row["latest_updates"]):
        raise DamagedError("its operations log is empty, or has an entry without a kind")
    dates = [
        (f"snapshot {name}", info["flushed_at"])
        for name, info in zip(ids, row["snapshots"], strict=True)
    ]
    dates += [
        ("an entry of its operations log", each["updated_at"]) for each in row["latest_updates"]
    ]
    for what, micros in dates:
        if micros > _MICROS_MAX:
            raise DamagedError(f"{what} is dated {micros} µs after 1970")
    return RepoFile(data, version, row, ids)


def backup_time(name: str) -> datetime | None:
    """Returns the time in a copy's name; None if the name is not a copy's."""
    _, _, rest = name.rpartition(".")[0].rpartition(".")
    if not rest.isascii() or not rest.isdigit():
        return None
    try:
        return EPOCH + timedelta(milliseconds=_YEAR_3000 - int(rest))
    except OverflowError:
        return None


def write_repo(storage: Storage, file: RepoFile, edit: Edit, now: datetime) -> RepoFile:
    """Backs the file up, replaces it, and returns the new file.

    Raises Conflict `object_changed` if somebody else was faster. An edit that leaves the repository
    without its main branch, or with a ref or parent that is missing, is a defect of the caller and
    raises ValueError or KeyError.
    """
    backup = f"repo.{_YEAR_3000 - (now - EPOCH) // timedelta(milliseconds=1):014}.{new_id_text()}"
    row = _edited(file, edit, now, backup)
    data = pack(encode(row, REPO), FileType.REPO, writer=WRITER, spec_version=2)
    parse_repo(data, "")  # a file that cannot be read must not be written
    storage.put(f"{BACKUPS_PREFIX}{backup}", file.data, create_only=True)
    try:
        version = storage.replace(REPO_ADDRESS, data, version=file.version)
    except Conflict:
        # The conflict can be with this call's own write, whose answer was lost. Then the log names
        # the copy. The copy stays in any case: after a further write, the file may not show any
        # more that the copy is needed.
        found = parse_repo(*storage.get_versioned(REPO_ADDRESS))
        if backup not in {update.backup for update in found.updates} | {found.previous}:
            raise
        return found
    return parse_repo(data, version)


def _edited(file: RepoFile, edit: Edit, now: datetime, backup: str) -> Row:
    row: dict[str, Any] = dict(file.row)
    known = {**file.listed, **edit.add}
    kept = sorted(known.keys() - frozenset(edit.drop), key=id_bytes)
    places = {snapshot_id: place for place, snapshot_id in enumerate(kept)}
    parents = {snapshot_id: found.parent_id for snapshot_id, found in known.items()}
    row["snapshots"] = [
        _edited_info(snapshot_id, known[snapshot_id].row, file, parents, edit, places)
        for snapshot_id in kept
    ]
    for kind, dropped in (("branches", edit.drop_branches), ("tags", edit.drop_tags)):
        row[kind] = [
            ref | {"snapshot_index": places[file.ids[ref["snapshot_index"]]]}
            for ref in file.row[kind]
            if ref["name"] not in dropped
        ]
    # In the order of their UTF-8 bytes, as readers look them up.
    row["deleted_tags"] = sorted({*file.row["deleted_tags"], *edit.drop_tags}, key=str.encode)
    return row | _edited_log(file, edit, now, backup)


def _edited_info(
    snapshot_id: str,
    info: Row,
    file: RepoFile,
    parents: Mapping[str, str | None],
    edit: Edit,
    places: Mapping[str, int],
) -> Row:
    """Returns a snapshot's entry, with the place of its parent in the new list.

    A snapshot that gets another parent inherits the transaction logs of all snapshots between it
    and the new parent. Without them, its changes could no longer be shown.
    """
    old = parents[snapshot_id]
    new = edit.new_parents.get(snapshot_id, old)
    if old is not None and new is not None and new not in places:
        new = _nearest_kept(parents, old, places)
    changed: dict[str, Any] = {"parent_offset": NO_PARENT if new is None else places[new]}
    if new != old:
        inherited = logs_between(parents, file.inherited_logs, old, new)
        own = list(info.get("pruned_ancestor_tx_logs", []))
        if inherited or own:
            changed["pruned_ancestor_tx_logs"] = [*map(id_bytes, inherited), *own]
    return {**info, **changed}


def _nearest_kept(
    parents: Mapping[str, str | None], start: str, places: Mapping[str, int]
) -> str | None:
    """Returns the first ancestor from `start` on that stays, or the repository's first snapshot."""
    place: str | None = start
    while place is not None and place not in places:
        place = parents[place]
    return ROOT_ID if place is None and ROOT_ID in places else place


def logs_between(
    parents: Mapping[str, str | None],
    logs: Mapping[str, tuple[str, ...]],
    start: str | None,
    end: str | None,
) -> list[str]:
    """Returns the transaction logs of the ancestors from `start` to before `end`, oldest first.

    `logs` has the logs that each ancestor inherited itself.
    """
    passed = []
    place = start
    while place is not None and place != end:
        passed.append(place)
        place = parents[place]
    return [log for name in reversed(passed) for log in (*logs.get(name, ()), name)]


def _edited_log(file: RepoFile, edit: Edit, now: datetime, backup: str) -> Row:
    """Returns the operations log with a new entry, or with one for each snapshot that enters the
    list. If the log is too long for the file, the result names the backup that continues it."""
    newest, *older = file.row["latest_updates"]
    micros = max((now - EPOCH) // timedelta(microseconds=1), newest["updated_at"] + 1)
    told: list[Row] = [{"new_snap_id": id_bytes(name)} for name in sorted(edit.add)] or [{}]
    number = _UPDATE_NUMBERS[edit.kind]
    entries = [
        *(
            {"update_type": (number, details), "updated_at": micros + place}
            for place, details in reversed([*enumerate(told)])
        ),
        {**newest, "backup_path": backup},
        *(_without_backup(entry) if edit.forget_backups else entry for entry in older),
    ]
    log: Row = {"latest_updates": entries}
    for place in range(_updates_max(file.row), len(entries)):
        # The log can only be cut at an entry with a backup. Until then, the file has more entries.
        if "backup_path" in entries[place]:
            log["latest_updates"] = entries[:place]
            log["repo_before_updates"] = entries[place]["backup_path"]
            break
    return log


def _without_backup(entry: Row) -> Row:
    return {name: value for name, value in entry.items() if name != "backup_path"}


def _updates_max(row: Row) -> int:
    """Returns the number in the repository's configuration, or UPDATES_MAX."""
    try:
        found = flexbuffers.Loads(row["config"]).get("num_updates_per_repo_info_file")
    except (KeyError, AttributeError, ValueError, IndexError):
        found = None
    return found if isinstance(found, int) and found > 0 else UPDATES_MAX


def _check_circles(row: Row) -> None:
    """Raises DamagedError if the parents form a circle: a walk up the parents must end."""
    infos = row["snapshots"]
    ends = bytearray(len(infos))
    for start in range(len(infos)):
        path = []
        place = start
        while place != NO_PARENT and not ends[place]:
            ends[place] = 1
            path.append(place)
            place = infos[place]["parent_offset"]
        if place != NO_PARENT and ends[place] == 1:
            raise DamagedError("its snapshots are each other's ancestors")
        for passed in path:
            ends[passed] = 2
