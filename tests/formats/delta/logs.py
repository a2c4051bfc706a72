"""Writes random Delta tables on a local disk, action by action, as many kinds of writers do.

The files have no rows: their dates and names are what a collector sees. `replay` has the oracle,
which reads the log that this writes. Shares no code with Ebbtide.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from tests.formats.delta.replay import DAY, Z85, Action, Key, key_of

HOUR: Final = 3_600_000


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct([*fields.items()])


_TEXT, _LONG, _INT, _FLAG = pa.string(), pa.int64(), pa.int32(), pa.bool_()
_TEXTS: Final = pa.map_(_TEXT, _TEXT)
_VECTOR: Final = _struct(
    storageType=_TEXT, pathOrInlineDv=_TEXT, offset=_INT, sizeInBytes=_INT, cardinality=_LONG
)
_FILE: Final[dict[str, pa.DataType]] = {
    "path": _TEXT,
    "partitionValues": _TEXTS,
    "size": _LONG,
    "dataChange": _FLAG,
}
_ADD: Final = _FILE | {"modificationTime": _LONG, "stats": _TEXT}
COLUMNS: Final[dict[str, pa.DataType]] = {
    "protocol": _struct(
        minReaderVersion=_INT,
        minWriterVersion=_INT,
        readerFeatures=pa.list_(_TEXT),
        writerFeatures=pa.list_(_TEXT),
    ),
    "metaData": _struct(
        id=_TEXT,
        format=_struct(provider=_TEXT, options=_TEXTS),
        schemaString=_TEXT,
        partitionColumns=pa.list_(_TEXT),
        configuration=_TEXTS,
    ),
    "txn": _struct(appId=_TEXT, version=_LONG),
    "add": _struct(**_ADD, deletionVector=_VECTOR),
    "remove": _struct(**_FILE, deletionTimestamp=_LONG, deletionVector=_VECTOR),
    "sidecar": _struct(path=_TEXT, sizeInBytes=_LONG, modificationTime=_LONG),
    "checkpointMetadata": _struct(version=_LONG),
}
VALUES: Final = ("a b", "x/y", "50%", "ü", "q=1", "c:d", "~t", "[z]", "a+b&c", "_x", ".y")
KINDS: Final = ("classic", "parts", "uuid json", "uuid parquet", "classic with sidecars")
FEATURES: Final = ("deletionVectors", "columnMapping", "timestampNtz", "v2Checkpoint")


def vector_code(token: UUID) -> str:
    """The UUID of a file of deletion vectors in Z85."""
    text = ""
    for start in range(0, 16, 4):
        number, digits = int.from_bytes(token.bytes[start : start + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits = Z85[digit] + digits
        text += digits
    return text


class DeltaWriter:
    """A table that grows commit by commit. `now` is its time in milliseconds, which each commit
    moves on. `states` has the adds of all versions, as the writer means them."""

    def __init__(self, root: Path, rng: Random, *, now: int, others: Sequence[str] = ()) -> None:
        """`others` are URIs of files outside of the table, as a shallow clone has them."""
        self.root, self.rng, self.now = root, rng, now
        self.log = root / "_delta_log"
        self.log.mkdir(parents=True)
        self.states: list[dict[Key, dict[str, Any]]] = []
        self.actions: list[list[Action]] = []
        self.heads: list[tuple[Action, Action]] = []
        self.tombstones: dict[Key, dict[str, Any]] = {}
        self.adopted: list[str] = []
        self.others = list(others)
        self.column = rng.choice(("", "p", "_day"))
        self.has_dates = rng.random() < 0.6
        """Versions have their time from the dates of their files, as long as this is true."""
        is_new = not self.has_dates or rng.random() < 0.5
        features = [*FEATURES, "changeDataFeed", "appendOnly", "inCommitTimestamp"]
        self.protocol: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        if is_new:
            self.protocol = {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": [*FEATURES],
                    "writerFeatures": features,
                }
            }
        self.metadata: Action = {
            "metaData": {
                "id": str(self.token()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": '{"type":"struct","fields":[]}',
                "partitionColumns": [self.column] if self.column else [],
                "configuration": {},
            }
        }
        self.commit([self.protocol, self.metadata, *self.adds(2)], {})

    @property
    def head(self) -> int:
        return len(self.states) - 1

    def token(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    # Files

    def put(self, address: str, at: int | None = None, data: bytes = b"rows") -> Path:
        """Writes a file with a date in milliseconds; by itself some time before the next commit."""
        path = self.root / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        date = (self.now - self.rng.randrange(6 * HOUR) if at is None else at) * 1_000_000
        os.utime(path, ns=(date, date))
        return path

    def folder(self) -> str:
        """A directory of data: of a partition, with a name as it is or escaped; or a random one."""
        if self.column:
            value = self.rng.choice(VALUES)
            value = quote(value, safe=self.rng.choice(("", " +~[]=&")))
            return f"{self.column}={value.replace('/', '%2F')}/"
        return self.rng.choice(("", "", "k7/", "00/a1/", "data set/"))

    def data_name(self) -> str:
        odd = self.rng.choice(("", "", "-a b", "-%41", "-ü"))
        return f"{self.folder()}part-00000-{self.token()}{odd}.c000.snappy.parquet"

    def uri(self, address: str) -> str:
        """One of the spellings of an address in the log."""
        safe = self.rng.choice(("/", "/ =+~[]&", "/=:"))
        kind = self.rng.choice(("",) * 9 + ("file://", "file:", "absolute"))
        if not kind:
            return quote(address, safe=safe.replace(":", ""))
        path = quote(f"{self.root}/{address}", safe=safe)
        return path if kind == "absolute" else f"{kind}{path}"

    # Actions

    def added(self, address: str, vector: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.file(self.uri(address), vector)

    def file(self, uri: str, vector: dict[str, Any] | None = None) -> dict[str, Any]:
        found = {
            "path": uri,
            "partitionValues": {self.column: "v"} if self.column else {},
            "size": 4,
            "modificationTime": self.now,
            "dataChange": True,
            "stats": '{"numRecords":1}',
        }
        return found if vector is None else found | {"deletionVector": vector}

    def adds(self, count: int) -> list[Action]:
        found = []
        for _ in range(count):
            address = self.data_name()
            self.put(address)
            if self.rng.random() < 0.1:
                folder, slash, name = address.rpartition("/")
                self.put(f"{folder}{slash}.{name}.crc")
            found.append({"add": self.added(address)})
        return found

    def remove(self, add: dict[str, Any]) -> Action:
        found = {"path": add["path"], "dataChange": self.rng.random() < 0.5}
        if self.rng.random() < 0.8:
            found["deletionTimestamp"] = self.now
        if self.rng.random() < 0.8:
            found |= {"extendedFileMetadata": True, "partitionValues": {}, "size": 4}
        if "deletionVector" in add:
            found["deletionVector"] = add["deletionVector"]
        return {"remove": found}

    def vectors(self, count: int) -> list[dict[str, Any]]:
        """Deletion vectors, of which those in a file share it."""
        token, prefix = self.token(), self.rng.choice(("", "ab", "x y"))
        name = f"{prefix}/deletion_vector_{token}.bin".removeprefix("/")
        kind = self.rng.choice("uuuip")
        if kind == "i":
            found = [f"{self.rng.getrandbits(60):020d}" for _ in range(count)]
        else:
            self.put(name)
            found = [f"{prefix}{vector_code(token)}"] * count
            if kind == "p":
                found = [f"file://{quote(f'{self.root}/{name}')}"] * count
        more = {"sizeInBytes": 34, "cardinality": 1}
        return [
            {"storageType": kind, "pathOrInlineDv": text}
            | ({} if kind == "i" else {"offset": 1 + 40 * number})
            | more
            for number, text in enumerate(found)
        ]

    def changes(self) -> list[Action]:
        """Files of the change data feed."""
        if self.rng.random() < 0.5:
            return []
        address = f"_change_data/{self.folder()}cdc-00000-{self.token()}.parquet"
        self.put(address)
        return [{"cdc": {"path": self.uri(address), "partitionValues": {}, "size": 4}}]

    # Operations: each returns the actions of a commit

    def chosen(self) -> list[dict[str, Any]]:
        adds = sorted(self.states[-1].values(), key=lambda add: str(key_of(add)))
        return self.rng.sample(adds, min(len(adds), self.rng.randrange(1, 4)))

    def append(self) -> list[Action]:
        return self.adds(self.rng.randrange(1, 4))

    def delete(self) -> list[Action]:
        return [*map(self.remove, self.chosen()), *self.changes()]

    def update(self) -> list[Action]:
        """Files get other deletion vectors."""
        chosen = self.chosen()
        # A path is removed once in a commit.
        chosen = [*{add["path"]: add for add in chosen}.values()]
        new = [
            {"add": {**add, "deletionVector": vector}}
            for add, vector in zip(chosen, self.vectors(len(chosen)), strict=True)
        ]
        return [*map(self.remove, chosen), *new, *self.changes()]

    def rewrite(self) -> list[Action]:
        """As OPTIMIZE, PURGE and MERGE do."""
        return [*map(self.remove, self.chosen()), *self.adds(1), *self.changes()]

    def readd(self) -> list[Action]:
        """The same files once more: new statistics, or other tags."""
        return [{"add": {**add, "dataChange": False, "stats": None}} for add in self.chosen()]

    def twin(self) -> list[Action]:
        """The same files by other spellings of their paths."""
        found = [key for key in self.states[-1] if not key[0].startswith(("file:", "s3:", "/"))]
        return [{"add": self.file(f"file://{quote(str(self.root))}/{k[0]}")} for k in found[:1]]

    def restore(self, version: int | None = None) -> list[Action]:
        """What a version had comes back, whatever removed it."""
        old = self.states[self.rng.randrange(len(self.states)) if version is None else version]
        now = self.states[-1]
        gone = [self.remove(add) for key, add in now.items() if key not in old]
        return gone + [
            {"add": {**add, "dataChange": True}} for key, add in old.items() if key not in now
        ]

    def adopt(self) -> list[Action]:
        """Takes files that no commit has named, as CONVERT does, or files of other tables."""
        if self.others and self.rng.random() < 0.5:
            return [{"add": self.file(self.rng.choice(self.others))}]
        taken, self.adopted = self.adopted[:1], self.adopted[1:]
        return [{"add": self.added(each)} for each in taken]

    def configure(self) -> list[Action]:
        metadata = deepcopy(self.metadata)
        metadata["metaData"]["configuration"] |= self.rng.choice(
            (
                {"delta.enableChangeDataFeed": "false"},
                {"delta.checkpointInterval": "3"},
                {"delta.universalFormat.enabledFormats": "iceberg"},
                {"delta.universalFormat.enabledFormats": ""},
                {"delta.deletedFileRetentionDuration": f"interval {self.rng.randrange(1, 9)} days"},
            )
        )
        self.metadata = metadata
        return [metadata]

    def nothing(self) -> list[Action]:
        """Actions that name no files, also unknown ones."""
        return [
            {"txn": {"appId": "a", "version": self.head}},
            {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
            {"ofTheFuture": {"path": "part-x.parquet"}},
        ]

    def step(self) -> None:
        """One random commit."""
        rare = (self.readd, self.twin, self.adopt, self.configure, self.nothing)
        often = (self.append, self.delete, self.update, self.rewrite, self.rewrite, self.restore)
        operation: Callable[[], list[Action]] = self.rng.choice(often * 3 + rare)
        actions = operation()
        self.commit(actions, {"operation": operation.__name__.upper()})

    # The log

    def commit(self, actions: list[Action], info: dict[str, Any]) -> None:
        """Writes a commit, whose actions have no order, and moves the time on."""
        state = dict(self.states[-1]) if self.states else {}
        for action in actions:
            if "remove" in action:
                key = key_of(action["remove"])
                state.pop(key, None)
                self.tombstones[key] = action["remove"]
        for action in actions:
            if "add" in action:
                key = key_of(action["add"])
                state[key] = action["add"]
                self.tombstones.pop(key, None)
        if not self.has_dates:
            info = {"inCommitTimestamp": self.now} | info
        self.rng.shuffle(actions)
        commit = {"commitInfo": {"timestamp": self.now, "operationParameters": {}} | info}
        # An in-commit timestamp is in the first action.
        has_info = not actions or not self.has_dates or self.rng.random() < 0.8
        lines = [commit, *actions] if has_info else actions
        text = "\n".join(map(self.line, lines))
        name = f"_delta_log/{len(self.states):020d}"
        late = self.rng.choice((0, 0, -5 * DAY, 4 * DAY)) if self.states else 0
        self.put(f"{name}.json", self.now + late, text.encode() + b"\n")
        self.states.append(state)
        self.actions.append(actions)
        self.heads.append((self.protocol, self.metadata))
        self.now += self.rng.randrange(1_000, 3 * DAY)
        if self.has_dates and len(self.states) > 3 and self.rng.random() < 0.05:
            self.has_dates = "readerFeatures" not in self.protocol["protocol"]

    def line(self, action: Action) -> str:
        """An action as one of the writers has it. Some name all actions that it is not."""
        style: dict[str, Any] = {"ensure_ascii": self.rng.random() < 0.5}
        if self.rng.random() < 0.5:
            style["separators"] = (",", ":")
        if self.rng.random() < 0.1:
            return json.dumps(dict.fromkeys((*COLUMNS, "cdc", "commitInfo")) | action, **style)
        return json.dumps(action, **style)

    def rows(self, version: int) -> list[Action]:
        """The actions of a checkpoint. Tombstones are those of the head, if it is the head's."""
        adds: list[Action] = [{"add": each} for each in self.states[version].values()]
        gone = self.tombstones if version == self.head else {}
        return adds + [
            {"remove": each}
            for key, each in gone.items()
            if key not in self.states[version] and self.rng.random() < 0.5
        ]

    def checkpoint(self, kind: str, version: int | None = None) -> list[Path]:
        """Writes a checkpoint of a version, by itself the newest. Returns its files."""
        version = self.head if version is None else version
        head, rows = [*self.heads[version]], self.rows(version)
        self.rng.shuffle(rows)
        name = f"_delta_log/{version:020d}.checkpoint"
        if kind == "classic":
            return [self.parquet(f"{name}.parquet", head + rows)]
        if kind == "parts":
            count = self.rng.randrange(1, 4)
            return [
                self.parquet(f"{name}.{part + 1:010d}.{count:010d}.parquet", some)
                for part, some in enumerate((head + rows)[at::count] for at in range(count))
            ]
        cars, count = [], self.rng.randrange(0, 3)
        for some in (rows[at::count] for at in range(count)):
            car = f"{self.token()}.parquet"
            cars.append(self.parquet(f"_delta_log/_sidecars/{car}", some))
            path = self.rng.choice((car, car.replace("-", "%2D"), f"_sidecars/{car}"))
            path = car if path.startswith("_") else path
            head.append({"sidecar": {"path": path, "sizeInBytes": 9, "modificationTime": 9}})
        head += [{"checkpointMetadata": {"version": version}}, *([] if count else rows)]
        if kind == "uuid json":
            text = "".join(f"{json.dumps(each)}\n" for each in head)
            return [self.put(f"{name}.{self.token()}.json", self.now, text.encode()), *cars]
        token = f".{self.token()}" if kind == "uuid parquet" else ""
        return [self.parquet(f"{name}{token}.parquet", head), *cars]

    def compact(self, first: int, last: int, *, loses: str = "") -> Path:
        """Writes a log compaction of some versions. One that `loses` removes is wrong."""
        found: dict[object, Action] = {}
        for actions in self.actions[first : last + 1]:
            for kind in ("protocol", "metaData", "remove", "add"):
                for each in actions:
                    if kind in each:
                        is_file = kind in ("remove", "add")
                        found[key_of(each[kind]) if is_file else kind] = each
        lines = [self.line(each) for each in found.values() if loses not in each]
        name = f"_delta_log/{first:020d}.{last:020d}.compacted.json"
        return self.put(name, self.now, "\n".join(lines).encode())

    def parquet(self, address: str, rows: Iterable[Action]) -> Path:
        """Writes actions as Parquet. Some writers leave out columns that no row has."""
        rows, columns = list(rows), dict(COLUMNS)
        if self.rng.random() < 0.5:
            columns = {k: v for k, v in columns.items() if any(k in row for row in rows)}
            if not any("deletionVector" in row.get("add", ()) for row in rows) and "add" in columns:
                columns["add"] = _struct(**_ADD)
        columns = columns or {"add": COLUMNS["add"]}
        table = pa.Table.from_pylist(rows, schema=pa.schema(columns))
        path = self.put(address, self.now, b"")
        date = path.stat().st_mtime_ns
        pq.write_table(table, path)
        os.utime(path, ns=(date, date))
        return path

    def litter(self, now: int, grace: int, *, nests: bool = True) -> None:
        """Files that no commit names: old and young orphans, files that always stay, and a table
        that nobody can read."""
        for _ in range(self.rng.randrange(2, 7)):
            age = self.rng.choice((grace + HOUR, grace + 9 * DAY, grace - HOUR, 1_000))
            name = self.rng.choice(
                (
                    self.data_name(),
                    f"ab/deletion_vector_{self.token()}.bin",
                    f"_change_data/{self.folder()}cdc-{self.token()}.parquet",
                    "notes/readme.txt",
                    f"_day_backup/part-{self.token()}.parquet",
                    f"_delta_index/part-{self.token()}.parquet",
                    f".hidden/part-{self.token()}.parquet",
                    f"inner table/part-{self.token()}.parquet",
                    "metadata/00001-a.metadata.json",
                    f"metadata/part-{self.token()}.parquet",
                    f".part-{self.token()}.parquet.crc",
                    f"_temporary/0/part-{self.token()}.parquet",
                )
            )
            self.put(name, now - age)
        if nests and self.rng.random() < 0.3:
            self.put("inner table/_delta_log/00000000000000000000.json", now - 90 * DAY, b"{}")

    def hints(self) -> None:
        """Hints that lie."""
        lie = self.rng.randrange(100)
        self.put("_delta_log/_last_checkpoint", self.now, f'{{"version":{lie},"size":1}}'.encode())
        self.put(f"_delta_log/{self.head:020d}.crc", self.now, b'{"numFiles":12345}')

    def clean(self) -> None:
        """Deletes the log below a checkpoint, the oldest files first, and maybe not all of it."""
        found = [
            int(each.name[:20])
            for each in self.log.glob("*.checkpoint*")
            if ".checkpoint." in each.name and "0000000002.00000000" not in each.name
        ]
        if not found:
            return
        bound = self.rng.choice(found)
        old = sorted(each for each in self.log.glob("[0-9]*") if int(each.name[:20]) < bound)
        for each in old[
            : len(old) if self.rng.random() < 0.6 else self.rng.randrange(len(old) + 1)
        ]:
            each.unlink()


def random_table(root: Path, rng: Random, *, now: int, others: Sequence[str] = ()) -> DeltaWriter:
    """A table with a history of some weeks before `now`, with checkpoints of all kinds, of which
    some lack a part, and a log that may have been cleaned up."""
    count = rng.randrange(4, 22)
    made = DeltaWriter(root, rng, now=now - count * 2 * DAY, others=others)
    if rng.random() < 0.7:
        made.adopted = [made.data_name() for _ in range(2)]
        for each in made.adopted:
            made.put(each, made.now - 50 * DAY)
    while made.head < count and made.now < now - HOUR:
        made.step()
        if rng.random() < 0.35:
            files = made.checkpoint(
                rng.choice(KINDS), rng.choice((None, rng.randrange(made.head + 1)))
            )
            if len(files) > 1 and rng.random() < 0.3:
                rng.choice(files).unlink()
    made.now = min(made.now, now - 1_000)
    if rng.random() < 0.2:
        first = rng.randrange(made.head)
        made.compact(first, rng.randrange(first, made.head + 1))
    if rng.random() < 0.4:
        made.clean()
    if rng.random() < 0.5:
        made.hints()
    return made
