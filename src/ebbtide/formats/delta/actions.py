"""Reads the files of a log: commits and checkpoints.

Only the fields that name files, and those that say how to read the log. Unknown fields and actions
are ignored, as the protocol asks; a known field of another type means a damaged file. Not for:
which files of a log are read (`log`).

Source: Delta Transaction Log Protocol, "Actions" and "Checkpoints".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from ebbtide.arrow import make_schema, texts
from ebbtide.formats.delta.places import DamagedLogError

_VECTOR: Final = pa.struct(
    [("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int64())]
)
_FILE: Final = pa.struct([("path", pa.string()), ("deletionVector", _VECTOR)])
_NAMED: Final = pa.struct([("path", pa.string())])
_LINES: Final = pa.schema([("add", _FILE), ("remove", _FILE), ("cdc", _NAMED), ("sidecar", _NAMED)])
"""The fields of a line that are read, as JSON has them."""
_OF_FILES: Final = (b'{"add":', b'{"remove":', b'{"cdc":')
"""How lines begin that only name files."""
_STORAGE_TYPE: Final = re.compile(rb'"storageType"\s*:\s*"([^"\\]*)"')
_BLOCK_BYTES_MIN: Final = 1 << 20

ACTIONS_SCHEMA: Final = make_schema(
    ("path", pa.string()),
    ("storage", pa.string()),
    ("vector", pa.string()),
    ("offset", pa.int64()),
    ("version", pa.int64()),
    ("kind", pa.int8()),
)
"""Actions that name files: a path with a deletion vector or none, the version, and the kind."""
CDC, REMOVE, ADD = 0, 1, 2
"""Kinds of actions. Of a remove and an add of one version the add is the newer one."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a commit or checkpoint says beside files: the table's protocol and metadata, if they
    change; the commit's time in milliseconds since 1970, if the log has it; the operation."""

    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    committed_ms: int | None = None
    operation: str | None = None
    vectors: frozenset[str] = frozenset()

    def then(self, later: Facts) -> Facts:
        """Returns what both say together: the later protocol and metadata are the valid ones."""
        protocol, metadata = later.protocol or self.protocol, later.metadata or self.metadata
        return replace(later, protocol=protocol, metadata=metadata)


def read_facts(data: bytes) -> Facts:
    """Reads what a commit says beside files. Raises DamagedLogError."""
    if not data.strip():
        raise DamagedLogError("it is empty, and no writer makes an empty one")
    lines = (line for line in data.split(b"\n") if not line.startswith(_OF_FILES))
    rows = [_row(line) for line in lines if line.strip()]
    vectors = frozenset(each.decode("utf-8", "replace") for each in _STORAGE_TYPE.findall(data))
    return _facts(rows, vectors)


def _facts(rows: Iterable[Mapping[str, Any]], vectors: frozenset[str]) -> Facts:
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        for name in ("protocol", "metaData", "commitInfo"):
            value = row.get(name)
            if value is None:
                continue
            if not isinstance(value, dict):
                raise DamagedLogError(f"the action {name} is no object")
            found[name] = value
    info = found.get("commitInfo", {})
    committed, operation = info.get("inCommitTimestamp"), info.get("operation")
    if committed is not None and not isinstance(committed, int):
        raise DamagedLogError("inCommitTimestamp is no whole number")
    operation = operation if isinstance(operation, str) else None
    return Facts(found.get("protocol"), found.get("metaData"), committed, operation, vectors)


def _row(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DamagedLogError(f"a line is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise DamagedLogError("a line is no JSON object")
    return found


def read_commits(files: Sequence[tuple[int, bytes]]) -> pa.Table:
    """Returns the actions of commits, given as version and content, in order (ACTIONS_SCHEMA).
    Raises DamagedLogError."""
    counts = [_line_count(data) for _, data in files]
    lines = _read_lines(b"\n".join(data for _, data in files), sum(counts))
    return actions_of(lines, np.repeat(np.array([v for v, _ in files], np.int64), counts))


def _line_count(data: bytes) -> int:
    return sum(1 for line in data.split(b"\n") if line.strip())


def _read_lines(data: bytes, expected: int) -> pa.Table:
    """Returns lines of JSON as a table of actions (_LINES). Raises DamagedLogError."""
    if not data.lstrip().startswith(b"{"):  # pyarrow 26 crashes if the first value is `null`
        return _read_slowly(data)
    try:
        data.decode()
        found = pj.read_json(
            BytesIO(data),
            pj.ReadOptions(block_size=max(_BLOCK_BYTES_MIN, len(data) + 1), use_threads=False),
            pj.ParseOptions(explicit_schema=_LINES, unexpected_field_behavior="ignore"),
        )
        if found.num_rows == expected:
            return found.combine_chunks()
    except UnicodeDecodeError as error:
        raise DamagedLogError("it is not UTF-8") from error
    except pa.ArrowException:
        pass  # read slowly, which says what is wrong
    return _read_slowly(data)


def _read_slowly(data: bytes) -> pa.Table:
    rows = [_row(line) for line in data.split(b"\n") if line.strip()]
    known = [{name: row.get(name) for name in _LINES.names} for row in rows]
    try:
        return pa.Table.from_pylist(known, schema=_LINES)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise DamagedLogError(f"an action has a field of another type: {error}") from error


def read_checkpoint(data: bytes, name: str, *, tops: Sequence[str] = _LINES.names) -> pa.Table:
    """Returns the actions of a checkpoint's file or sidecar, a row each (_LINES), but null for
    actions that are not in `tops`. Raises DamagedLogError."""
    if name.endswith(".json"):
        return _read_lines(data, _line_count(data))
    try:
        with _open(data) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
            there = [each for each in tops if each in schema.names]
            paths = (file.schema.column(n).path for n in range(len(file.schema)))
            found = file.read([each for each in paths if _is_read(each, there)])
        columns = [
            _typed(found.column(each.name).combine_chunks(), each.type)
            if each.name in there
            else pa.nulls(count, each.type)
            for each in _LINES
        ]
        table = pa.table(columns, schema=_LINES)
        table.validate(full=True)  # a damaged file can have paths that are not UTF-8
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise DamagedLogError(str(error)) from error
    return table


def _open(data: bytes) -> pq.ParquetFile:
    """Opens a checkpoint's file. Writers such as Spark add checksums of pages."""
    return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)


def _is_read(path: str, tops: Sequence[str]) -> bool:
    top, _, leaf = path.partition(".")
    return top in tops and (leaf == "path" or leaf.partition(".")[0] == "deletionVector")


def _typed(column: Any, kind: Any) -> pa.Array[Any]:
    """Returns a column of a checkpoint with the fields of `kind`. An absent field is null."""
    if not pa.types.is_struct(kind):
        found: pa.Array[Any] = column.cast(kind)
        return found
    places = [column.type.get_field_index(each.name) for each in kind]
    fields = [
        pa.nulls(len(column), each.type)
        if place < 0
        else _typed(pc.struct_field(column, [place]), each.type)
        for each, place in zip(kind, places, strict=True)
    ]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pc.is_null(column))


def checkpoint_facts(data: bytes, name: str) -> Facts:
    """Reads the protocol and the metadata in a checkpoint's file. Raises DamagedLogError."""
    if name.endswith(".json"):
        return read_facts(data)
    rows: list[dict[str, Any]] = []
    try:
        with _open(data) as file:
            tops = [t for t in ("protocol", "metaData") if t in file.schema_arrow.names]
            table = file.read(tops)
            for top in tops:
                column = table.column(top)
                rows += [{top: each} for each in column.filter(pc.is_valid(column)).to_pylist()]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedLogError(str(error)) from error
    for row in rows:
        if "metaData" in row:  # Arrow has maps as lists of pairs
            row["metaData"]["configuration"] = dict(row["metaData"].get("configuration") or ())
    return _facts(rows, frozenset())


def actions_of(lines: pa.Table, versions: Any) -> pa.Table:
    """Returns the actions of lines (_LINES) that name files (ACTIONS_SCHEMA). `versions` has one
    for each line. Raises DamagedLogError."""
    tables = []
    for kind, name in ((ADD, "add"), (REMOVE, "remove"), (CDC, "cdc")):
        column: Any = lines.column(name)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        there = pc.is_valid(column)
        rows = column.filter(there)
        if not len(rows):
            continue
        path: Any = pc.struct_field(rows, "path")
        if path.null_count or pc.any(pc.equal(path, pa.scalar(""))).as_py():
            raise DamagedLogError(f"an action {name} has no path")
        vector: Any = pa.nulls(len(rows), _VECTOR)
        if kind != CDC:
            vector = pc.struct_field(rows, "deletionVector")
        fields: list[Any] = [pc.struct_field(vector, each.name) for each in _VECTOR]
        if max(fields[0].null_count, fields[1].null_count) > vector.null_count:
            raise DamagedLogError(f"the deletion vector of an action {name} has no place")
        kinds = np.full(len(rows), kind, np.int8)
        columns = [path, *fields, versions[np.asarray(there)], kinds]
        tables.append(pa.table(columns, schema=ACTIONS_SCHEMA))
    return pa.concat_tables([ACTIONS_SCHEMA.empty_table(), *tables]).combine_chunks()


def sidecars_of(lines: pa.Table) -> list[str]:
    """Returns the names of the sidecars that a checkpoint has."""
    paths = pc.struct_field(lines.column("sidecar"), "path").drop_null()
    return [unquote(each).rpartition("/")[2] for each in texts(paths)]


def surviving(actions: pa.Table) -> pa.Table:
    """Returns the adds that are the newest action for their path and deletion vector."""
    files = newest(actions)
    return files.filter(pc.equal(files.column("kind"), pa.scalar(ADD)))


def newest(actions: pa.Table) -> pa.Table:
    """Returns the newest action for each path and deletion vector. The actions may have any order;
    change data is left out."""
    files = actions.filter(pc.greater(actions.column("kind"), pa.scalar(CDC))).combine_chunks()
    if not files.num_rows:
        return files
    codes: Any = _codes(files)
    rank = np.asarray(files.column("version")) * 4 + np.asarray(files.column("kind"))
    order = np.argsort(rank, kind="stable")
    found = np.zeros(int(codes.max()) + 1, np.int64)
    found[codes[order]] = order  # of equal indices, the last one is assigned
    return files.take(np.sort(found))


def keys_of_files(files: pa.Table) -> Any:
    """Returns a text for each path and deletion vector; equal ones have equal texts."""
    join: Any = pc.binary_join_element_wise
    offset = pc.coalesce(files.column("offset"), pa.scalar(-1, pa.int64())).cast(pa.string())
    vector = join(files.column("storage"), files.column("vector"), offset, "\0")
    return join(files.column("path"), vector.fill_null(""), "\0\0")


def _codes(files: pa.Table) -> Any:
    has_vectors = files.column("storage").null_count < files.num_rows
    keys: Any = keys_of_files(files) if has_vectors else files.column("path")
    keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    return keys.dictionary_encode().indices.to_numpy()
