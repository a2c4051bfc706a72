"""A client of Icechunk, as far as a collector can tell: what it writes, in which order, and on what
condition.

Files are put together by hand (`tests.support.icechunk_files`); of the file `repo` only the tables
are the program's own. Source: Icechunk specification, versions 1 and 2.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, Final

from ebbtide.errors import Conflict, NotFound
from ebbtide.formats.icechunk.files import FileType
from ebbtide.formats.icechunk.repo import REPO, UPDATE_TYPES
from ebbtide.formats.icechunk.tables import Row, decode, encode
from ebbtide.storage import Storage
from tests.simulation.knowledge import micros
from tests.support.icechunk_files import (
    HEADER_BYTES,
    ID_BYTES,
    MadeManifest,
    MadeRef,
    MadeSnapshot,
    SlowSnapshot,
    new_file,
    slow_snapshot,
    spell,
    unpacked,
)

ROOT: Final = "1CECHNKREP0F1RSTCMT0"
ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
CHUNKS: Final = 2
"""Of each array."""
TRIES: Final = 20
YEAR_3000_MILLIS: Final = 32_503_680_000_000
NUMBERS: Final = {name: number for number, (name, _) in enumerate(UPDATE_TYPES, 1)}


def id_bytes(text: str) -> bytes:
    """The bytes of an id, without the four zeros at its end."""
    bits = 0
    for character in text:
        bits = bits << 5 | ALPHABET.index(character)
    return (bits >> 4).to_bytes(ID_BYTES, "big")


def new_id() -> str:
    return spell(secrets.token_bytes(ID_BYTES))


@dataclass(frozen=True, slots=True)
class Array:
    """An array in a snapshot: its manifest, the size of that, and its chunks."""

    manifest_id: str
    size_bytes: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """What a snapshot was written with: arrays by name."""

    snapshot_id: str
    arrays: Mapping[str, Array] = field(default_factory=dict)

    @property
    def read(self) -> frozenset[str]:
        """The addresses that a reader needs."""
        found = {f"snapshots/{self.snapshot_id}"}
        for array in self.arrays.values():
            found.add(f"manifests/{array.manifest_id}")
            found.update(f"chunks/{chunk}" for chunk in array.chunks)
        return frozenset(found)

    @property
    def whole(self) -> frozenset[str]:
        """Those, and its transaction log. The first snapshot of all has none."""
        log = () if self.snapshot_id == ROOT else (f"transactions/{self.snapshot_id}",)
        return self.read.union(log)


@dataclass(slots=True)
class Client(ABC):
    """A client with its sessions. `contents` is what was written, by snapshot; `note` is told right
    behind each write of a ref, whether it took effect or not, of the date that it has."""

    storage: Storage
    now: Callable[[], datetime]
    contents: dict[str, Content]
    note: Callable[[datetime], None]

    spec_version: ClassVar[int]

    @abstractmethod
    def create(self) -> None:
        """Make the repository, with one empty snapshot."""

    @abstractmethod
    def head(self, branch: str) -> str:
        """The snapshot that a branch points at. NotFound."""

    @abstractmethod
    def parent(self, snapshot_id: str) -> str | None:
        """A snapshot's parent, as it is now. NotFound."""

    @abstractmethod
    def commit(self, branch: str, base: str, content: Content) -> None:
        """Make a branch point at a new snapshot, if it still points at its base. Conflict."""

    @abstractmethod
    def create_ref(self, kind: str, name: str, snapshot_id: str) -> None:
        """Make a branch or tag. Conflict."""

    @abstractmethod
    def reset(self, branch: str, snapshot_id: str) -> None:
        """Make a branch point at another snapshot. NotFound, Conflict."""

    @abstractmethod
    def delete_ref(self, kind: str, name: str) -> None:
        """Delete a branch or tag. NotFound."""

    def write(self, base: str, array: str) -> Content:
        """Write one chunk of an array anew, or all of a new one, and the snapshot with it."""
        before = self.contents[base]
        chunks = list(before.arrays[array].chunks) if array in before.arrays else [""] * CHUNKS
        for place in range(CHUNKS):
            if not chunks[place] or place == 0:
                chunks[place] = new_id()
                self.storage.put(f"chunks/{chunks[place]}", b"chunk")
        manifest_id = new_id()
        refs = [MadeRef(("native",), length=5, chunk_id=id_bytes(each)) for each in chunks]
        payload = MadeManifest(id_bytes(manifest_id), [refs]).payload()
        data = self._file(payload, FileType.MANIFEST)
        self.storage.put(f"manifests/{manifest_id}", data)
        made = Array(manifest_id, len(data), tuple(chunks))
        content = Content(new_id(), {**before.arrays, array: made})
        self.storage.put(f"transactions/{content.snapshot_id}", b"a log")
        self.contents[content.snapshot_id] = content
        self._put_snapshot(content, base)
        return content

    def _put_snapshot(self, content: Content, parent: str | None) -> None:
        infos = [
            (id_bytes(each.manifest_id), each.size_bytes, len(each.chunks))
            for _, each in sorted(content.arrays.items())
        ]
        has_parents = self.spec_version == 1
        made = MadeSnapshot(
            id_bytes(content.snapshot_id),
            id_bytes(parent) if parent is not None and has_parents else None,
            micros(self.now()),
            listed=infos if has_parents else [],
            listed_v2=None if has_parents else infos,
            nodes=[[info[0]] for info in infos],
        )
        address = f"snapshots/{content.snapshot_id}"
        self.storage.put(address, self._file(made.payload(), FileType.SNAPSHOT))

    def _file(self, payload: bytes, kind: FileType) -> bytes:
        return new_file(payload, kind, self.spec_version, compressed=False)


# Version 1


class FirstClient(Client):
    """Version 1: a small file for each ref; snapshots know their parents."""

    spec_version = 1

    def create(self) -> None:
        self.contents[ROOT] = Content(ROOT)
        self._put_snapshot(self.contents[ROOT], None)
        self.storage.put("refs/branch.main/ref.json", ref_file(ROOT), create_only=True)

    def head(self, branch: str) -> str:
        return pointed_at(self.storage.get(f"refs/branch.{branch}/ref.json"))

    def parent(self, snapshot_id: str) -> str | None:
        return snapshot_in(self.storage.get(f"snapshots/{snapshot_id}")).parent_id

    def commit(self, branch: str, base: str, content: Content) -> None:
        data, version = self.storage.get_versioned(f"refs/branch.{branch}/ref.json")
        if pointed_at(data) != base:
            raise Conflict("object_changed", f"branch {branch} has moved")
        self._replace(branch, content.snapshot_id, version)

    def create_ref(self, kind: str, name: str, snapshot_id: str) -> None:
        address = f"refs/{kind}.{name}/ref.json"
        if kind == "tag" and self.storage.head(f"{address}.deleted") is not None:
            raise Conflict("object_exists", f"tag {name} was deleted")
        try:
            self.storage.put(address, ref_file(snapshot_id), create_only=True)
        finally:
            self.note(self.now())

    def reset(self, branch: str, snapshot_id: str) -> None:
        _, version = self.storage.get_versioned(f"refs/branch.{branch}/ref.json")
        self._replace(branch, snapshot_id, version)

    def _replace(self, branch: str, snapshot_id: str, version: str) -> None:
        address = f"refs/branch.{branch}/ref.json"
        try:
            self.storage.replace(address, ref_file(snapshot_id), version=version)
        finally:
            self.note(self.now())

    def delete_ref(self, kind: str, name: str) -> None:
        address = f"refs/{kind}.{name}/ref.json"
        if kind == "tag":
            self.storage.put(f"{address}.deleted", b"", create_only=True)
        else:
            self.storage.delete([address])

    def upgrade(self) -> None:
        """To version 2: what branches and tags reach is listed there, and their files go."""
        listed = [batch.column("address") for batch in self.storage.list("refs/")]
        addresses = [str(each) for column in listed for each in column.to_pylist()]
        refs = {}
        for address in addresses:
            kind, _, name = address.split("/")[1].partition(".")
            if address.endswith("/ref.json") and f"{address}.deleted" not in addresses:
                refs[kind, name] = pointed_at(self.storage.get(address))
        parents: dict[str, str | None] = {}
        dates: dict[str, int] = {}
        for tip in refs.values():
            place: str | None = tip
            while place is not None and place not in parents:
                found = snapshot_in(self.storage.get(f"snapshots/{place}"))
                parents[place], dates[place] = found.parent_id, found.flushed_at_micros
                place = found.parent_id
        gone = [each.split("/")[1] for each in addresses if each.endswith(".deleted")]
        now = micros(self.now())
        data = new_repo(
            dates,
            parents,
            refs,
            _entry("RepoMigrated", now, from_version=1, to_version=2),
            _entry("RepoInitialized", dates[ROOT]),
            deleted_tags=[each.removeprefix("tag.") for each in gone],
        )
        try:
            self.storage.put("repo", data, create_only=True)
        finally:
            self.note(self.now())
        self.storage.delete(addresses)


def ref_file(snapshot_id: str) -> bytes:
    return json.dumps({"snapshot": snapshot_id}).encode()


def pointed_at(data: bytes) -> str:
    """The snapshot that a ref's file names."""
    return str(json.loads(data)["snapshot"])


@lru_cache(maxsize=4_096)
def snapshot_in(data: bytes) -> SlowSnapshot:
    return slow_snapshot(payload_of(data))


def payload_of(data: bytes) -> bytes:
    """What is in a file behind its header."""
    return unpacked(data) if data[HEADER_BYTES - 1] == 1 else data[HEADER_BYTES:]


# Version 2


@dataclass(slots=True)
class Repo:
    """What is in the file `repo`: entries of snapshots and their parents by id, refs by name."""

    row: Row
    infos: dict[str, Row]
    parents: dict[str, str | None]
    refs: dict[tuple[str, str], str]

    @classmethod
    def of(cls, data: bytes) -> Repo:
        row = decode(payload_of(data), REPO)
        ids = [spell(info["id"]) for info in row["snapshots"]]
        places = [info["parent_offset"] for info in row["snapshots"]]
        return cls(
            row,
            dict(zip(ids, row["snapshots"], strict=True)),
            {name: ids[at] if at >= 0 else None for name, at in zip(ids, places, strict=True)},
            {
                (kind, ref["name"]): ids[ref["snapshot_index"]]
                for kind, name in (("branch", "branches"), ("tag", "tags"))
                for ref in row[name]
            },
        )

    def logs(self, snapshot_id: str) -> list[str]:
        """The transaction logs that a snapshot inherited."""
        found = self.infos[snapshot_id].get("pruned_ancestor_tx_logs", [])
        return [spell(each) for each in found]

    def require(self, kind: str, name: str) -> str:
        """The snapshot of a ref. NotFound."""
        if (kind, name) not in self.refs:
            raise NotFound("ref_not_found", f"there is no {kind} {name}")
        return self.refs[kind, name]

    def together(self, entries: list[Row]) -> bytes:
        """The file, with this operations log."""
        ids = sorted(self.infos, key=id_bytes)
        places = {name: place for place, name in enumerate(ids)}

        def refs_of(kind: str) -> list[Row]:
            return [
                {"name": name, "snapshot_index": places[snapshot_id]}
                for (of, name), snapshot_id in sorted(self.refs.items())
                if of == kind
            ]

        row: Row = self.row | {
            "snapshots": [
                {**self.infos[name], "parent_offset": places.get(self.parents[name] or "", -1)}
                for name in ids
            ],
            "branches": refs_of("branch"),
            "tags": refs_of("tag"),
            "latest_updates": entries,
        }
        return new_file(encode(row, REPO), FileType.REPO, 2, compressed=False)

    def with_entry(self, entry: Row, backup: str) -> bytes:
        """The file with a new entry of the operations log."""
        newest, *older = self.row["latest_updates"]
        entry = {**entry, "updated_at": max(entry["updated_at"], newest["updated_at"] + 1)}
        return self.together([entry, {**newest, "backup_path": backup}, *older])


def new_repo(
    dates: Mapping[str, int],
    parents: dict[str, str | None],
    refs: dict[tuple[str, str], str],
    *entries: Row,
    deleted_tags: Sequence[str] = (),
) -> bytes:
    """The first file `repo`, with snapshots by their dates in microseconds."""
    row: Row = {
        "spec_version": 2,
        "deleted_tags": sorted(deleted_tags),
        "status": {"availability": 0, "set_at": entries[0]["updated_at"]},
    }
    infos = {name: info(name, at) for name, at in dates.items()}
    return Repo(row, infos, parents, refs).together([*entries])


def info(snapshot_id: str, at: int) -> Row:
    return {"id": id_bytes(snapshot_id), "flushed_at": at, "message": "by hand", "metadata": []}


class SecondClient(Client):
    """Version 2: refs and parents lie in one file, which is copied before each change."""

    spec_version = 2

    def create(self) -> None:
        self.contents[ROOT] = Content(ROOT)
        self._put_snapshot(self.contents[ROOT], None)
        now = micros(self.now())
        made = _entry("RepoInitialized", now)
        data = new_repo({ROOT: now}, {ROOT: None}, {("branch", "main"): ROOT}, made)
        self.storage.put("repo", data, create_only=True)

    def head(self, branch: str) -> str:
        return self._read()[0].require("branch", branch)

    def parent(self, snapshot_id: str) -> str | None:
        repo, _, _ = self._read()
        if snapshot_id not in repo.parents:
            raise NotFound("ref_not_found", f"snapshot {snapshot_id} is not listed")
        return repo.parents[snapshot_id]

    def _read(self) -> tuple[Repo, bytes, str]:
        data, version = self.storage.get_versioned("repo")
        return Repo.of(data), data, version

    def commit(self, branch: str, base: str, content: Content) -> None:
        name = content.snapshot_id

        def change(repo: Repo) -> Row:
            if repo.require("branch", branch) != base:
                raise Conflict("object_changed", f"branch {branch} has moved")
            repo.infos[name] = info(name, micros(self.now()))
            repo.parents[name] = base
            repo.refs["branch", branch] = name
            return _entry("NewCommit", branch=branch, new_snap_id=id_bytes(name))

        self._edit(change)

    def create_ref(self, kind: str, name: str, snapshot_id: str) -> None:

        def change(repo: Repo) -> Row:
            if (kind, name) in repo.refs or name in repo.row["deleted_tags"]:
                raise Conflict("object_exists", f"there is a {kind} {name}")
            _require_listed(repo, snapshot_id)
            repo.refs[kind, name] = snapshot_id
            return _entry("TagCreated" if kind == "tag" else "BranchCreated", name=name)

        self._edit(change)

    def reset(self, branch: str, snapshot_id: str) -> None:

        def change(repo: Repo) -> Row:
            before = repo.require("branch", branch)
            _require_listed(repo, snapshot_id)
            repo.refs["branch", branch] = snapshot_id
            return _entry("BranchReset", name=branch, previous_snap_id=id_bytes(before))

        self._edit(change)

    def delete_ref(self, kind: str, name: str) -> None:

        def change(repo: Repo) -> Row:
            before = repo.require(kind, name)
            del repo.refs[kind, name]
            if kind == "tag":
                repo.row["deleted_tags"] = sorted({*repo.row["deleted_tags"], name})
            ended = "TagDeleted" if kind == "tag" else "BranchDeleted"
            return _entry(ended, name=name, previous_snap_id=id_bytes(before))

        self._edit(change)

    def _edit(self, change: Callable[[Repo], Row]) -> None:
        """Change `repo`, anew where somebody else was faster."""
        for _ in range(TRIES):
            repo, data, version = self._read()
            entry = change(repo)
            now = self.now()
            millis = YEAR_3000_MILLIS - micros(now) // 1_000
            backup = f"repo.{millis:014}.{new_id()}"
            self.storage.put(f"overwritten/{backup}", data, create_only=True)
            made = repo.with_entry({**entry, "updated_at": micros(now)}, backup)
            try:
                self.storage.replace("repo", made, version=version)
            except Conflict:
                continue
            finally:
                self.note(now)
            return
        raise Conflict("object_changed", "others were faster each time")


def _entry(kind: str, at: int = 0, **details: Any) -> Row:
    return {"update_type": (NUMBERS[kind], details), "updated_at": at}


def _require_listed(repo: Repo, snapshot_id: str) -> None:
    if snapshot_id not in repo.infos:
        raise NotFound("ref_not_found", f"snapshot {snapshot_id} is not listed")


CLIENTS: Final[Mapping[int, type[Client]]] = {1: FirstClient, 2: SecondClient}
