"""Random histories of Iceberg tables: writers by PyIceberg, and what runs and expiries may do.

Beside `Warehouse.needed`, the definitions are here: the files that a run of a name must take, the
metadata files that refuse it, and the snapshots that an expiry must keep. They are written from the
specification and the documents, and read metadata files as they are.
"""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate

from ebbtide.formats.iceberg.catalog import CatalogTables
from ebbtide.storage.local import LocalStorage
from tests.formats.iceberg.warehouse import Warehouse, rows

_AGE: Final = "history.expire.max-snapshot-age-ms"
_LEAST: Final = "history.expire.min-snapshots-to-keep"
_LOG_CUT: Final = "write.metadata.delete-after-commit.enabled"
_FOLDERS: Final = ("write.data.path", "write.metadata.path")
_MERGING: Final = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "2",
}
"""A manifest then takes over the entries of others."""


_NEVER: Final = 1 << 60
_OF_THREE: Final = ("twin", "rename", "drop", "leave", "foreign")


class DiedError(BaseException):
    """The process of a writer, or that of an expiry, has ended here."""


def litter(lake: Warehouse, table: Table, number: int) -> set[str]:
    """What a writer leaves that dies just before its commit: a copy of each kind of file, and a
    metadata file that nothing points at. One of five has only begun its metadata file."""
    folder = lake.relative(table.location())
    token = UUID(int=number)
    made = [
        f"{folder}/data/00000-0-{token}.parquet",
        f"{folder}/metadata/{token}-m0.avro",
        f"{folder}/metadata/snap-{number + 1}-0-{token}.avro",
        f"{folder}/metadata/{number + 1}-{token}.stats",
        f"{folder}/metadata/{number % 100_000:05d}-{token}.metadata.json",
    ]
    for each in made:
        (lake.path / each).parent.mkdir(parents=True, exist_ok=True)
        (lake.path / each).write_bytes(b"")
    written = [each for each in sorted((lake.path / folder).rglob("*.parquet")) if is_whole(each)]
    if written:
        shutil.copyfile(written[number % len(written)], lake.path / made[0])
    if number % 5:
        shutil.copyfile(lake.path / lake.relative(table.metadata_location), lake.path / made[-1])
    return set(made)


def is_whole(path: Path) -> bool:
    """Whether a file is one of Parquet that a writer has finished."""
    return path.read_bytes()[-4:] == b"PAR1"


@contextmanager
def ids_of(seed: int) -> Iterator[None]:
    """Draws the ids in the names of files by the seed."""
    drawn = Random(seed)
    with patch("uuid.uuid4", lambda: UUID(int=drawn.getrandbits(128), version=4)):
        yield


class History:
    """The writers of one warehouse. `seen` has all files that a table has needed since the last
    `begin`, and `done` counts what was done."""

    def __init__(self, rng: Random, lake: Warehouse) -> None:
        self.rng = rng
        self.lake = lake
        self.done = Counter[str]()
        self.seen = set[str]()
        self.foreign = set[str]()
        self.refs: dict[str, dict[str, int]] = {}
        self.protected: dict[str, set[int]] = {}
        self._made = 0
        self._at_work = False
        self.acts: dict[str, Callable[[Table], object]] = {
            "append": lambda table: table.append(self._rows(), branch=self._branch(table)),
            "append again": lambda table: table.append(self._rows()),
            "overwrite": self._overwrite,
            "delete": self._delete,
            "tag": self._tag,
            "branch": self._make_branch,
            "rollback": self._roll_back,
            "adopt": self._adopt,
            "statistics": self._set_statistics,
            "twin": self._register,
            "rename": self._rename,
            "drop": lambda table: lake.catalog.drop_table(table.name()),
            "die": self._die,
            "leave": lambda table: litter(lake, table, rng.getrandbits(40)),
            "expire elsewhere": self._expire_elsewhere,
            "upgrade": self._upgrade,
            "foreign": self._leave_foreign,
        }

    def act(self, name: str | None = None) -> None:
        """Does something to one of the tables, or makes one. What PyIceberg cannot do is left."""
        names = self.lake.names()
        if len(names) < 2 or self.rng.random() < 0.12:
            self._make(sorted(names))
            return
        chosen = name or self.rng.choice(sorted(self.acts))
        if chosen == "drop" and self.rng.random() < 0.5:
            return
        table = self.lake.catalog.load_table(self.rng.choice(sorted(names)))
        if table.metadata.format_version == 3 and chosen not in _OF_THREE:
            chosen = "upgrade"  # PyIceberg cannot write this version
        with suppress(CommitFailedException):  # a writer meets another one
            self.acts[chosen](table)
            self.done[chosen] += 1

    def look(self) -> None:
        """Notes the refs, and the snapshots that no expiry may remove."""
        self.refs, self.protected = self.refs_of_all(), self.kept()

    def begin(self) -> None:
        self.seen = self.lake.needed()
        self.look()

    @contextmanager
    def at_work(self, often: float, acts: tuple[str, ...] = ()) -> Iterator[None]:
        """Has a writer at work in the block: before and after each look at the catalog, and behind
        each metadata file that this program writes."""
        pointers, put = CatalogTables.pointers, LocalStorage.put

        def looked(catalog: CatalogTables) -> Any:
            self._work(often, acts)
            found = pointers(catalog)
            self._work(often, acts)
            return found

        def written(storage: LocalStorage, address: str, *arguments: Any, **more: Any) -> None:
            put(storage, address, *arguments, **more)
            if address.endswith(".metadata.json"):
                self._work(often, acts)

        with ExitStack() as stack:
            stack.enter_context(patch.object(CatalogTables, "pointers", looked))
            stack.enter_context(patch.object(LocalStorage, "put", written))
            yield

    def _work(self, often: float, acts: tuple[str, ...]) -> None:
        if self._at_work or self.rng.random() > often:
            return
        self._at_work = True
        try:
            # A file that was needed too late can be in the quarantine, until it is brought back.
            with suppress(FileNotFoundError):
                self.act(self.rng.choice(acts) if acts and self.rng.random() < 0.5 else None)
            with suppress(FileNotFoundError):
                self.seen |= self.lake.needed()
            self.look()
        finally:
            self._at_work = False

    def _rows(self) -> Any:
        return rows(*self.rng.sample(range(20), 2))

    def _branch(self, table: Table) -> str:
        refs = table.metadata.refs
        return self.rng.choice(
            sorted(each for each in refs if str(refs[each].snapshot_ref_type) == "branch")
            or ["main"]
        )

    def _make(self, names: list[str]) -> None:
        self._made += 1
        own, rng = f"t{self._made}", self.rng
        among = [name.rpartition(".")[2] for name in names] or [own]
        inside = f"{rng.choice(among)}/in{self._made}"
        location = rng.choices((None, inside, rng.choice(among)), (6, 2, 1))[0]
        properties = dict(_MERGING)
        pools = {name: f"file://{self.lake.path}/pool{rng.randrange(2)}" for name in _FOLDERS}
        for key, value, often in (
            (_AGE, "0", 0.6),
            (_LEAST, "2", 0.3),
            ("format-version", "1", 0.3),
            ("write.metadata.previous-versions-max", str(rng.randrange(1, 4)), 0.3),
            (_LOG_CUT, "true", 0.3),
            *((name, pools[name], 0.15) for name in _FOLDERS),
        ):
            if rng.random() < often:
                properties[key] = value
        within = rng.choice(("db", "db", "db.inner"))
        self.lake.catalog.create_namespace_if_not_exists(within)
        name = f"{within.removeprefix('db')}.{own}"[1:]
        table = self.lake.table(name, location or own, **properties)
        if rng.random() < 0.7:
            table.append(self._rows())
        self.done["make"] += 1

    def _overwrite(self, table: Table) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Delete operation did not match")
            table.overwrite(self._rows(), f"id > {self.rng.randrange(20)}")

    def _delete(self, table: Table) -> None:
        if found := table.scan().to_arrow()["id"].to_pylist():
            table.delete(f"id == {self.rng.choice(found)}")

    def _tag(self, table: Table) -> None:
        name, ids = f"r{self.rng.randrange(3)}", [*table.metadata.snapshots]
        if name in table.metadata.refs:
            table.manage_snapshots().remove_tag(name).commit()
        elif ids:
            chosen = self.rng.choice(ids).snapshot_id
            table.manage_snapshots().create_tag(chosen, name).commit()

    def _make_branch(self, table: Table) -> None:
        name, ids = f"b{self.rng.randrange(2)}", [*table.metadata.snapshots]
        if name in table.metadata.refs:
            table.manage_snapshots().remove_branch(name).commit()
        elif ids:
            chosen = self.rng.choice(ids).snapshot_id
            table.manage_snapshots().create_branch(chosen, name).commit()

    def _roll_back(self, table: Table) -> None:
        if ids := [each.snapshot_id for each in table.metadata.snapshots]:
            table.manage_snapshots().set_current_snapshot(self.rng.choice(ids)).commit()

    def _adopt(self, table: Table) -> None:
        """Adds a file of another table, or one that a dead writer has left."""
        mine = {each.file.file_path for each in table.scan().plan_files()}
        whole = {
            f"file://{self.lake.path}/{each}"
            for each in self.lake.files()
            if each.endswith(".parquet") and is_whole(self.lake.path / each)
        }
        orphans = whole - {f"file://{self.lake.path}/{each}" for each in self.lake.needed()}
        if new := sorted(orphans if orphans and self.rng.random() < 0.6 else whole - mine):
            table.add_files([self.rng.choice(new)])

    def _set_statistics(self, table: Table) -> None:
        """The old ones of the snapshot become an orphan."""
        if not table.metadata.snapshots:
            return
        at = self.rng.choice(table.metadata.snapshots).snapshot_id
        token = UUID(int=self.rng.getrandbits(100))
        folder = f"{table.location()}/metadata"
        is_whole = self.rng.random() < 0.5
        name = f"{at}-{token}.stats" if is_whole else f"partition-stats-{at}-{token}.parquet"
        place = self.lake.path / self.lake.relative(f"{folder}/{name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"stats")
        common: dict[str, Any] = {"snapshot-id": at, "statistics-path": f"{folder}/{name}"}
        common |= {"file-size-in-bytes": 5}
        if is_whole:
            more = {"file-footer-size-in-bytes": 1, "blob-metadata": []}
            table.update_statistics().set_statistics(StatisticsFile(**common | more)).commit()
            return
        new = SetPartitionStatisticsUpdate.model_validate({"partition-statistics": common})
        with table.transaction() as transaction:
            transaction._stage((new,))

    def _register(self, table: Table) -> None:
        """Registers a table once more, as it is or as it was at one of the files of its log. All
        that it needs is still there. Where writers delete old metadata files, a second table would
        lose its own: nobody does that."""
        logged = [each.metadata_file for each in table.metadata.metadata_log]
        old = self.rng.choice([*logged, table.metadata_location])
        place = self.lake.path / self.lake.relative(old)
        if _LOG_CUT in table.properties or not place.exists():
            return
        needed = self._needed_by(old)
        if needed is None or not needed <= self.lake.files():
            return
        self._made += 1
        self.lake.catalog.register_table(f"db.t{self._made}", old)

    def _needed_by(self, location: str) -> set[str] | None:
        try:
            return self.lake.needed_by(location)
        except FileNotFoundError:  # a list that is gone: the snapshot has expired
            return None

    def _rename(self, table: Table) -> None:
        self._made += 1
        self.lake.catalog.rename_table(table.name(), f"db.t{self._made}")

    def _die(self, table: Table) -> None:
        """A writer dies: before it writes its metadata file, or before the catalog has it."""
        write = SqlCatalog._write_metadata

        def died(*arguments: Any, **more: Any) -> None:
            if is_late:
                write(*arguments, **more)
            raise DiedError

        is_late = self.rng.random() < 0.5
        name = "_write_metadata" if is_late else "commit_table"
        with suppress(DiedError), patch.object(SqlCatalog, name, staticmethod(died)):
            table.append(self._rows())

    def _expire_elsewhere(self, table: Table) -> None:
        """Another program expires a snapshot."""
        protected = {ref.snapshot_id for ref in table.metadata.refs.values()}
        ids = {each.snapshot_id for each in table.metadata.snapshots} - protected
        if ids:
            table.maintenance.expire_snapshots().by_id(self.rng.choice(sorted(ids))).commit()

    def _upgrade(self, table: Table) -> None:
        """To version 3, which PyIceberg can only read; or of one that has it, a tag."""

        def to_three(document: dict[str, Any]) -> None:
            if document["format-version"] == 3 and document.get("snapshots"):
                chosen = self.rng.choice(document["snapshots"])["snapshot-id"]
                ref = {"snapshot-id": chosen, "type": "tag"}
                document.setdefault("refs", {})[f"r{self.rng.randrange(3)}"] = ref
            document |= {"format-version": 3, "next-row-id": 0}

        if table.metadata.format_version > 1 and self.rng.random() < 0.4:
            self.lake.swap(".".join(table.name()), to_three)

    def _leave_foreign(self, table: Table) -> None:
        folder = self.lake.path / self.lake.relative(table.location())
        for name in ("README.txt", "metadata/version-hint.text", "data/_tmp/0/part-0.parquet"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"mine")
            self.foreign.add((folder / name).relative_to(self.lake.path).as_posix())

    def dead(self, within: str = "") -> set[str]:
        """The files that a run of a name must take, if all are old: those in the folders of the
        named tables that no table needs, and that are not foreign."""
        return {
            each
            for each in self.lake.files() - self.lake.needed() - self.foreign
            if self._is_in(each, within)
        }

    def _is_in(self, address: str, within: str) -> bool:
        for name, location in self.lake.names().items():
            if within and name != within and not name.startswith(f"{within}."):
                continue
            document = self.lake.metadata_of(location)
            known = document.get("properties", {})
            folders = [document["location"], *(known[each] for each in _FOLDERS if each in known)]
            if any(address.startswith(f"{self.lake.relative(each)}/") for each in folders):
                return True
        return False

    def unknown(self, within: str = "") -> set[str]:
        """The metadata files that must refuse a run of a name: those of a table that the catalog
        does not know, and those made from a file that no known log has. But where the beginning of
        a log was cut off, nothing tells what came before."""
        logs: dict[str, list[tuple[int, str]]] = {}
        begun: dict[str, int] = {}
        for location in self.lake.names().values():
            document = self.lake.metadata_of(location)
            log = [(e["timestamp-ms"], e["metadata-file"]) for e in document["metadata-log"]]
            own = document["table-uuid"]
            logs.setdefault(own, []).extend([*log, (0, location)])
            if log:
                begun[own] = max(begun.get(own, 0), min(log)[0])
        known = {location for log in logs.values() for _, location in log}
        found = set[str]()
        for each in self.dead(within):
            if not each.endswith(".metadata.json") or not (self.lake.path / each).stat().st_size:
                continue
            document = self.lake.metadata_of(f"file://{self.lake.path}/{each}")
            own, log = document["table-uuid"], document["metadata-log"]
            if own not in logs:
                found.add(each)
            elif log and log[-1]["timestamp-ms"] >= begun.get(own, _NEVER):
                found |= set() if log[-1]["metadata-file"] in known else {each}
        return found

    def kept(self) -> dict[str, set[int]]:
        """The snapshots that an expiry by the tables' own rules must keep, of each table. The
        properties make all of them old enough, or none."""
        found = {}
        for name, location in self.lake.names().items():
            document = self.lake.metadata_of(location)
            known = {each["snapshot-id"]: each for each in document.get("snapshots", ())}
            found[name] = set(known)
            if _AGE not in document["properties"]:
                continue
            least, kept = int(document["properties"].get(_LEAST, 1)), set[int]()
            for ref in document.get("refs", {}).values():
                place, count = ref["snapshot-id"], 1 if ref["type"] == "tag" else least
                while place in known and count:
                    kept.add(place)
                    place, count = known[place].get("parent-snapshot-id"), count - 1
            found[name] = kept
        return found

    def refs_of_all(self) -> dict[str, dict[str, int]]:
        """The snapshots that the refs of each table name."""
        return {
            name: {
                ref: row["snapshot-id"] for ref, row in self.lake.metadata_of(at)["refs"].items()
            }
            for name, at in self.lake.names().items()
        }

    def listed(self) -> dict[str, set[int]]:
        """The snapshots of each table."""
        return {
            name: {each["snapshot-id"] for each in self.lake.metadata_of(at).get("snapshots", ())}
            for name, at in self.lake.names().items()
        }
