"""Counts of files, Parquet parts, which steps read and write, and the answers of tasks.

A task writes parts to the run's folder, and answers with one row for each part (`PARTS_SCHEMA`).
The driver therefore sees names and counts, and never addresses. Parts are read and written through
`Storage`, so that Spark needs no connector of its own to S3.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.arrow import make_schema
from ebbtide.errors import EbbtideError, Failed, Refused
from ebbtide.gc.runs import RunFolder

ANSWERS_SCHEMA: Final = make_schema(
    ("name", pa.string()),
    ("relation", pa.string()),
    ("kind", pa.string()),
    ("rows", pa.int64()),
    ("bytes_total", pa.int64()),
    ("sized", pa.bool_()),
    ("checksum", pa.string()),
    ("error_kind", pa.string()),
    ("error", pa.string()),
)
"""A row of a task's answer, as it comes to the driver: a `Part`, a `Counted` without a name, or an
error without a name."""

ADDRESS_SCHEMA: Final = make_schema(
    ("address", pa.string()),
)
"""The schema of a part of addresses."""

ERRORS_PER_TASK_MAX: Final = 20
REPEATING: Final = frozenset({"kind", "slice", "storage_class", "reason", "outcome", "error"})
"""Columns of parts that have few different values."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of files, and the sum of their sizes in bytes.

    If `sized` is false, the sizes of some files are unknown. `bytes_total` is then the sum of the
    others, and must not be shown.
    """

    objects: int = 0
    bytes_total: int = 0
    sized: bool = True

    def __sub__(self, other: Count) -> Count:
        return Count(
            max(0, self.objects - other.objects),
            max(0, self.bytes_total - other.bytes_total),
            self.sized and other.sized,
        )

    def or_more(self, other: Count) -> Count:
        """Returns the larger value of each figure."""
        return Count(
            max(self.objects, other.objects),
            max(self.bytes_total, other.bytes_total),
            self.sized and other.sized,
        )

    def __add__(self, other: Count) -> Count:
        return Count(
            self.objects + other.objects,
            self.bytes_total + other.bytes_total,
            self.sized and other.sized,
        )

    @property
    def known_bytes(self) -> int | None:
        """The bytes of all files, or None if the size of some is unknown."""
        return self.bytes_total if self.sized else None

    @classmethod
    def of(cls, objects: int, known_bytes: int | None) -> Count:
        """Returns the count with these figures; `known_bytes` is None if it is unknown."""
        return cls(objects, known_bytes or 0, known_bytes is not None)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON for plan.json and reports. `bytes_total` is null if it is unknown."""
        return {"objects": self.objects, "bytes_total": self.known_bytes}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Count:
        """Returns the count that `to_json` wrote. Raises KeyError for other content."""
        return cls.of(content["objects"], content["bytes_total"])


@dataclass(frozen=True, slots=True)
class Part:
    """A Parquet file in a run's folder: its name there, the `relation` that it is a part of, and
    the `kind` of files that it lists, empty if there are several.

    `bytes_total` is the sum of `size_bytes` over its `rows`; `sized` says whether all rows have a
    size. `checksum` is the SHA-256 of the file, or None if it was not recorded.
    """

    name: str
    rows: int
    bytes_total: int
    checksum: str | None
    sized: bool = True
    relation: str = ""
    kind: str = ""

    @property
    def count(self) -> Count:
        """The part's rows, counted as files, and their bytes."""
        return Count(self.rows, self.bytes_total, self.sized)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON for plan.json."""
        return {
            "name": self.name,
            "relation": self.relation,
            "kind": self.kind,
            "rows": self.rows,
            "bytes": self.count.known_bytes,
            "checksum": self.checksum,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Part:
        """Returns the part that `to_json` wrote. Raises KeyError or TypeError for other
        content."""
        # Records of an earlier version have `group` in place of `relation` and `kind`.
        relation, kind = (
            str(content[name] if name in content else content["group"])
            for name in ("relation", "kind")
        )
        return cls(
            str(content["name"]),
            int(content["rows"]),
            int(content["bytes"] or 0),
            str(content["checksum"]),
            content["bytes"] is not None,
            relation,
            kind,
        )


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows that a task saw. `of` says which rows, such as those of a class or an outcome; `kind` is
    the kind of their files, or empty."""

    of: str
    kind: str
    count: Count


@dataclass(frozen=True, slots=True)
class Answers:
    """What the tasks of a step answered: the parts that they wrote, and what they counted."""

    parts: list[Part] = field(default_factory=list)
    counts: list[Counted] = field(default_factory=list)


@dataclass(slots=True)
class PartRows:
    """Collects the answer of one task: parts, counts and errors, as rows of ANSWERS_SCHEMA."""

    rows: list[dict[str, Any]] = field(default_factory=list)  # a row by column name
    errors: int = 0

    def wrote(
        self,
        folder: RunFolder,
        name: str,
        table: pa.Table,
        *,
        relation: str = "",
        kind: str = "",
        durable: bool = False,
    ) -> None:
        """Writes `table` as part `name`, and adds the part to the answer. Empty tables are not
        written.

        Only parts that cannot be made again have to be `durable`. If a power cut damages another
        part, its checksum does not match, and the part is not used.
        """
        if table.num_rows:
            data, sized = encode(table), _is_sized(table)
            part = Part(name, table.num_rows, _bytes(table), "", sized, relation, kind)
            self._put(folder, part, data, durable=durable)

    def encoded(
        self,
        folder: RunFolder,
        name: str,
        data: bytes,
        *,
        rows: int,
        relation: str,
        durable: bool = False,
    ) -> None:
        """Writes `data`, the bytes of a Parquet file without sizes, as part `name`, and adds the
        part to the answer."""
        self._put(folder, Part(name, rows, 0, "", relation=relation), data, durable=durable)

    def _put(self, folder: RunFolder, part: Part, data: bytes, *, durable: bool) -> None:
        folder.storage.put(folder.address(part.name), data, durable=durable)
        self.rows.append({**asdict(part), "checksum": hashlib.sha256(data).hexdigest()})

    def copied(
        self, folder: RunFolder, name: str, source: RunFolder, part: Part, *, relation: str
    ) -> None:
        """Copies another run's part unchanged to part `name`, and adds it to the answer. Raises
        Refused `plan_corrupt`."""
        data = _read_bytes(source, part.name, part.checksum)
        folder.storage.put(folder.address(name), data, durable=False)
        self.rows.append({**asdict(part), "name": name, "relation": relation})

    def counted(self, count: Count, *, of: str, kind: str = "") -> None:
        """Adds a count to the answer, as `Counted` describes it."""
        self.rows.append(
            {
                "relation": of,
                "kind": kind,
                "rows": count.objects,
                "bytes_total": count.bytes_total,
                "sized": count.sized,
            }
        )

    def failed(self, error: EbbtideError) -> None:
        """Adds an error to the answer, which the driver raises. A task answers with at most
        ERRORS_PER_TASK_MAX errors, and counts the others."""
        self.errors += 1
        if self.errors <= ERRORS_PER_TASK_MAX:
            self.rows.append({"error_kind": error.kind, "error": error.message})

    def parts(self) -> list[Part]:
        """Returns the parts in order of kind and name. For code that writes parts in the driver,
        where an error is raised at once and is never a row."""
        return checked(self.rows).parts

    def batch(self) -> pa.RecordBatch:
        """Returns the rows as one batch of ANSWERS_SCHEMA."""
        return pa.RecordBatch.from_pylist(self.rows, schema=ANSWERS_SCHEMA)


def encode(table: pa.Table) -> bytes:
    """Returns `table` as the bytes of a Parquet file."""
    return encode_all([table], table.schema)


def encode_all(tables: Iterable[pa.Table], schema: pa.Schema) -> bytes:
    """Returns several tables, one after the other, as the bytes of one Parquet file, with
    dictionaries only for the columns in REPEATING.

    By default Parquet tries a dictionary for every column. Addresses, ids, keys and checksums
    hardly repeat: dictionaries of them would take a third of the time, and space.
    """
    sink = io.BytesIO()
    repeating: Any = [name for name in schema.names if name in REPEATING]
    with pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=repeating) as writer:
        for table in tables:
            writer.write_table(table)
    return sink.getvalue()


def read_part(
    folder: RunFolder,
    name: str,
    checksum: str | None = None,
    *,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Returns a part as a table. With `columns`, returns only those of these columns that it has.

    Raises Refused `plan_corrupt` if the part is missing, damaged or was changed, and Failed
    `storage_error`. Without `checksum` the part is not compared with one: no checksum was recorded
    for the parts of an attempt that was killed.
    """
    with opened_part(folder, name, checksum) as file:
        # No threads of Arrow: a thread that still runs when Python ends aborts the process.
        return file.read(None if columns is None else list(columns), use_threads=False)


@contextmanager
def opened_part(
    folder: RunFolder, name: str, checksum: str | None = None
) -> Iterator[pq.ParquetFile]:
    """Opens a part, for callers that look at its schema before they read it. Raises as
    `read_part`."""
    data = _read_bytes(folder, name, checksum)
    try:
        yield pq.ParquetFile(pa.BufferReader(data))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _corrupt(folder, name, error) from error


def _read_bytes(folder: RunFolder, name: str, checksum: str | None) -> bytes:
    """Returns the bytes of a part. Raises as `read_part`."""
    try:
        data = folder.storage.get(folder.address(name))
        if checksum is not None and hashlib.sha256(data).hexdigest() != checksum:
            raise ValueError("its checksum is not the one recorded")
    except Failed:
        raise  # the storage failed: the part itself may be intact
    except (EbbtideError, ValueError) as error:
        raise _corrupt(folder, name, error) from error
    return data


def _corrupt(folder: RunFolder, name: str, error: Exception) -> Refused:
    return Refused(
        "plan_corrupt", f"{folder.path}/{name} is not as it was written ({error}): plan again"
    )


def count_of(table: pa.Table) -> Count:
    """Returns the rows of a table, counted as files, and their bytes."""
    return Count(table.num_rows, _bytes(table), _is_sized(table))


def _bytes(table: pa.Table) -> int:
    if "size_bytes" not in table.column_names:
        return 0
    return int(pa.compute.sum(table.column("size_bytes")).as_py() or 0)


def _is_sized(table: pa.Table) -> bool:
    return "size_bytes" not in table.column_names or not table.column("size_bytes").null_count


def checked(rows: Iterable[Mapping[str, Any]]) -> Answers:
    """Returns the answers in rows of ANSWERS_SCHEMA, the parts in order of kind and name.

    If there are errors, raises an error of the first one's kind: Failed for `storage_error`, and
    Refused for all other kinds.
    """
    answers = list(rows)
    errors = [row for row in answers if row.get("error") is not None]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise (Failed if errors[0]["error_kind"] == "storage_error" else Refused)(
            errors[0]["error_kind"],
            errors[0]["error"] + more,
            errors=[row["error"] for row in errors[:ERRORS_PER_TASK_MAX]],
        )
    parts = [
        Part(**{key: row[key] for key in Part.__dataclass_fields__})
        for row in answers
        if row.get("name") is not None
    ]
    counts = [
        Counted(row["relation"], row["kind"], Count(row["rows"], row["bytes_total"], row["sized"]))
        for row in answers
        if row.get("name") is None
    ]
    return Answers(sorted(parts, key=lambda part: (part.kind, part.name)), counts)


def read_tables(folder: RunFolder, parts: Iterable[Part], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yields a table with the columns of `schema` for each part. Raises Refused
    `plan_corrupt`."""
    for part in parts:
        table = read_part(folder, part.name, part.checksum, columns=schema.names)
        yield table.select(schema.names).cast(schema)


def read_batches(
    folder: RunFolder, parts: Iterable[Part], schema: pa.Schema, *, rows_max: int
) -> Iterator[pa.Table]:
    """Yields tables with the columns of `schema` and at most `rows_max` rows, so that no part is
    held as one table. Raises Refused `plan_corrupt`."""
    for part in parts:
        with opened_part(folder, part.name, part.checksum) as file:
            for batch in file.iter_batches(rows_max, columns=schema.names, use_threads=False):
                yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)


def read_rows(folder: RunFolder, parts: Iterable[Part], schema: pa.Schema) -> pa.Table:
    """Returns one table with the columns of `schema` of all parts; without parts it is empty.
    Raises Refused `plan_corrupt`."""
    return pa.concat_tables([schema.empty_table(), *read_tables(folder, parts, schema)])


def total_by_kind(found: Iterable[Part | Counted]) -> dict[str, Count]:
    """Returns the files and bytes for each kind."""
    totals: dict[str, Count] = {}
    for each in found:
        totals[each.kind] = totals.get(each.kind, Count()) + each.count
    return totals


def split(items: Sequence[Any], *, tasks: int, items_min: int = 1) -> list[Sequence[Any]]:
    """Divides `items` into at most `tasks` groups of consecutive items. Each group has at least
    `items_min` items, except the last one."""
    size = max(items_min, -(-len(items) // max(tasks, 1)))
    return [items[start : start + size] for start in range(0, len(items), size)]
