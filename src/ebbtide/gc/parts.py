"""Parquet parts, which steps read and write, and what a task answers with.

Whoever does a task writes parts into the run's folder and answers with one row for each
(`PARTS_SCHEMA`), so that the driver sees names and counts, never addresses. Parts go through
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
from ebbtide.gc.counts import Count
from ebbtide.gc.runs import RunFolder

PARTS_SCHEMA: Final = make_schema(
    ("name", pa.string()),
    ("relation", pa.string()),
    ("group", pa.string()),
    ("rows", pa.int64()),
    ("bytes_total", pa.int64()),
    ("sized", pa.bool_()),
    ("checksum", pa.string()),
    ("error_kind", pa.string()),
    ("error", pa.string()),
)
"""A part: its name in the run's folder, the relation that it is of, which share of that it holds (a
kind of files, mostly), rows, the sum of `size_bytes` over them and whether all have one, and its
file's checksum. Or, with no name, an error. Or, with neither, a count of rows that were seen but
not written: then `relation` says what they are, such as a class or an outcome."""

ADDRESS_SCHEMA: Final = make_schema(
    ("address", pa.string()),
)
"""A part of addresses."""

ERRORS_PER_TASK_MAX: Final = 20
REPEATING: Final = frozenset({"kind", "slice", "reason", "outcome", "error"})
"""Columns of parts that have few values."""


@dataclass(frozen=True, slots=True)
class Part:
    """A row of PARTS_SCHEMA that is not an error."""

    name: str | None
    group: str
    rows: int
    bytes_total: int
    checksum: str | None
    sized: bool = True
    relation: str = ""

    @property
    def count(self) -> Count:
        """Its rows and their bytes."""
        return Count(self.rows, self.bytes_total, self.sized)

    def to_json(self) -> dict[str, Any]:
        """For plan.json."""
        return {
            "name": self.name,
            "group": self.group,
            "rows": self.rows,
            "bytes": self.count.known_bytes,
            "checksum": self.checksum,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Part:
        """The part that `to_json` wrote. KeyError or TypeError when it is something else."""
        return cls(
            str(content["name"]),
            str(content["group"]),
            int(content["rows"]),
            int(content["bytes"] or 0),
            str(content["checksum"]),
            content["bytes"] is not None,
        )


@dataclass(slots=True)
class PartRows:
    """Collects the answer of one task: parts and errors, as rows of PARTS_SCHEMA."""

    rows: list[dict[str, Any]] = field(default_factory=list)  # a row by column name
    errors: int = 0

    def wrote(
        self,
        folder: RunFolder,
        name: str,
        table: pa.Table,
        *,
        relation: str = "",
        group: str = "",
        durable: bool = False,
    ) -> None:
        """Write `table` as part `name` and answer for it. Empty tables are not written.

        What a power cut damages is not read: its checksum is on record. So only what cannot be
        made again has to be `durable`.
        """
        if table.num_rows:
            self.encoded(
                folder,
                name,
                encode(table),
                rows=table.num_rows,
                bytes_total=_bytes(table),
                sized=_is_sized(table),
                relation=relation,
                group=group,
                durable=durable,
            )

    def encoded(
        self,
        folder: RunFolder,
        name: str,
        data: bytes,
        *,
        rows: int,
        bytes_total: int = 0,
        sized: bool = True,
        relation: str = "",
        group: str = "",
        durable: bool = False,
    ) -> None:
        """As `wrote`, for a table that is the bytes of a Parquet file already."""
        folder.storage.put(folder.address(name), data, durable=durable)
        self.counted(
            rows,
            bytes_total=bytes_total,
            sized=sized,
            relation=relation,
            group=group,
            name=name,
            data=data,
        )

    def copied(
        self, folder: RunFolder, name: str, source: RunFolder, part: Part, *, relation: str
    ) -> None:
        """Take another run's part over as it is, as part `name`. Refused `plan_corrupt`."""
        assert part.name is not None
        data = _read_bytes(source, part.name, part.checksum)
        folder.storage.put(folder.address(name), data, durable=False)
        self.rows.append({**asdict(part), "name": name, "relation": relation})

    def counted(
        self,
        rows: int,
        *,
        bytes_total: int,
        sized: bool = True,
        relation: str = "",
        group: str = "",
        name: str | None = None,
        data: bytes | None = None,
    ) -> None:
        """Answer for rows, written under `name` or only seen."""
        checksum = None if data is None else hashlib.sha256(data).hexdigest()
        self.rows.append(
            {
                "name": name,
                "relation": relation,
                "group": group,
                "rows": rows,
                "bytes_total": bytes_total,
                "sized": sized,
                "checksum": checksum,
            }
        )

    def failed(self, error: EbbtideError) -> None:
        """Answer with an error; the driver decides. A task stops repeating itself after a few."""
        self.errors += 1
        if self.errors <= ERRORS_PER_TASK_MAX:
            self.rows.append({"error_kind": error.kind, "error": error.message})

    def parts(self) -> list[Part]:
        """The rows as parts, for one who wrote them in the driver; there are no errors then."""
        return checked(self.rows)

    def batch(self) -> pa.RecordBatch:
        """The rows as one batch of PARTS_SCHEMA."""
        return pa.RecordBatch.from_pylist(self.rows, schema=PARTS_SCHEMA)


def encode(table: pa.Table) -> bytes:
    """`table` as the bytes of a Parquet file."""
    return encode_all([table], table.schema)


def encode_all(tables: Iterable[pa.Table], schema: pa.Schema) -> bytes:
    """As `encode`, of tables that are written one after the other."""
    sink = io.BytesIO()
    with parquet_writer(sink, schema) as writer:
        for table in tables:
            writer.write_table(table)
    return sink.getvalue()


def parquet_writer(sink: io.BytesIO, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of a part. Addresses, ids, keys and checksums hardly come twice: a dictionary of
    them, which Parquet tries for every column unless told, takes a third of the time, and room."""
    repeating: Any = [name for name in schema.names if name in REPEATING]
    return pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=repeating)


def read_part(
    folder: RunFolder,
    name: str,
    checksum: str | None = None,
    *,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """A part's table, or those of the `columns` that it has. Refused `plan_corrupt` when it is
    missing, damaged or not as it was written; Failed `storage_error`.

    `checksum` None skips the comparison (parts of a killed attempt, which nobody recorded).
    """
    with opened_part(folder, name, checksum) as file:
        # Without threads of Arrow's own: one that is still there when Python ends aborts it.
        return file.read(None if columns is None else list(columns), use_threads=False)


@contextmanager
def opened_part(
    folder: RunFolder, name: str, checksum: str | None = None
) -> Iterator[pq.ParquetFile]:
    """A part, for who looks at its schema before he reads it. Refused as `read_part`."""
    data = _read_bytes(folder, name, checksum)
    try:
        yield pq.ParquetFile(pa.BufferReader(data))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _corrupt(folder, name, error) from error


def _read_bytes(folder: RunFolder, name: str, checksum: str | None) -> bytes:
    """The bytes of a part. Raises as `read_part`."""
    try:
        data = folder.storage.get(folder.address(name))
        if checksum is not None and hashlib.sha256(data).hexdigest() != checksum:
            raise ValueError("its checksum is not the one recorded")
    except Failed:
        raise  # nothing is known of the part: it may be whole
    except (EbbtideError, ValueError) as error:
        raise _corrupt(folder, name, error) from error
    return data


def _corrupt(folder: RunFolder, name: str, error: Exception) -> Refused:
    return Refused(
        "plan_corrupt", f"{folder.path}/{name} is not as it was written ({error}): plan again"
    )


def _bytes(table: pa.Table) -> int:
    if "size_bytes" not in table.column_names:
        return 0
    return int(pa.compute.sum(table.column("size_bytes")).as_py() or 0)


def _is_sized(table: pa.Table) -> bool:
    return "size_bytes" not in table.column_names or not table.column("size_bytes").null_count


def checked(rows: Iterable[Mapping[str, Any]]) -> list[Part]:
    """The parts that rows of PARTS_SCHEMA stand for, in order of group and name.

    Raises Refused of the first error's kind, if there is one; Failed, as wherever else it is met,
    for a storage that failed.
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
    parts = [Part(**{key: row[key] for key in Part.__dataclass_fields__}) for row in answers]
    return sorted(parts, key=lambda part: (part.group, part.name or ""))


def read_tables(folder: RunFolder, parts: Iterable[Part], schema: pa.Schema) -> Iterator[pa.Table]:
    """The columns of `schema` in each part, one after the other. Refused `plan_corrupt`."""
    for part in parts:
        assert part.name is not None
        table = read_part(folder, part.name, part.checksum, columns=schema.names)
        yield table.select(schema.names).cast(schema)


def read_batches(
    folder: RunFolder, parts: Iterable[Part], schema: pa.Schema, *, rows_max: int
) -> Iterator[pa.Table]:
    """As `read_tables`, at most so many rows at a time: no part is ever held as a table."""
    for part in parts:
        assert part.name is not None
        with opened_part(folder, part.name, part.checksum) as file:
            for batch in file.iter_batches(rows_max, columns=schema.names, use_threads=False):
                yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)


def read_rows(folder: RunFolder, parts: Iterable[Part], schema: pa.Schema) -> pa.Table:
    """The columns of `schema` in all parts together; none for no parts. Raises as above."""
    return pa.concat_tables([schema.empty_table(), *read_tables(folder, parts, schema)])


def total_by_group(parts: Iterable[Part]) -> dict[str, Count]:
    """Rows and bytes of `parts` by their group."""
    totals: dict[str, Count] = {}
    for part in parts:
        totals[part.group] = totals.get(part.group, Count()) + part.count
    return totals


def split(items: Sequence[Any], *, tasks: int, items_min: int = 1) -> list[Sequence[Any]]:
    """`items` in at most `tasks` runs of neighbours, none shorter than `items_min` but the last."""
    size = max(items_min, -(-len(items) // max(tasks, 1)))
    return [items[start : start + size] for start in range(0, len(items), size)]
