"""Plans that somebody changed, every checksum of them made anew: on the storage and on record."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import slices_of
from ebbtide.gc.candidates import CANDIDATE_SCHEMA
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolders, checksum_of

Row = dict[str, Any]  # by the columns of a part


class Forgery:
    """The plan of a run, to be changed; `seal` makes it one that the sweep takes for its own."""

    def __init__(self, repository: RepositoryFormat, report: RunReport) -> None:
        self.repository = repository
        self.report = report
        self.folder = Path(report.run_path)
        self.plan: dict[str, Any] = json.loads((self.folder / "plan.json").read_text())

    def rows(self, part: Row) -> list[Row]:
        return pq.read_table(self.folder / part["name"]).to_pylist()

    def write(self, part: Row, rows: list[Row], schema: pa.Schema) -> None:
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
        file = self.folder / part["name"]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(sink.getvalue())
        part["checksum"] = hashlib.sha256(sink.getvalue()).hexdigest()
        part["rows"] = len(rows)
        part["bytes"] = sum(row.get("size_bytes", 0) for row in rows)

    def edit(self, name: str, change: Callable[[list[Row]], object]) -> None:
        part = self.plan[name]
        schema = pq.read_schema(self.folder / part["name"])
        rows = self.rows(part)
        change(rows)
        self.write(part, rows, schema)

    def edit_candidates(self, kind: str, change: Callable[[list[Row]], object]) -> None:
        """Change the candidates of one kind, of which there may be none yet."""
        parts = self.plan["candidates"]
        part = next((each for each in parts if each["kind"] == kind), None)
        if part is None:
            part = {
                "name": f"candidates/{kind}-99999-000.parquet",
                "relation": "candidates",
                "kind": kind,
            }
            parts.append(part)
            rows: list[Row] = []
        else:
            rows = self.rows(part)
        change(rows)
        self.write(part, rows, CANDIDATE_SCHEMA)

    def put_in(self, root: Path, address: str, kind: str) -> None:
        """Add a file to the candidates, as a listing would have it."""
        found = (root / address).stat()
        layout, named = self.repository.layout, pa.array([address], pa.string())
        row = {
            "address": address,
            "size_bytes": found.st_size,
            "last_modified": found.st_mtime_ns // 1000,
            "kind": kind,
            "slice": slices_of(layout, named).to_pylist()[0],
        }
        self.edit_candidates(kind, lambda rows: rows.append(row))

    def seal(self) -> None:
        parts = self.plan["candidates"]
        self.plan["counts"]["candidate"] = {
            "objects": sum(part["rows"] for part in parts),
            "bytes_total": sum(part["bytes"] for part in parts),
        }
        self.plan["checksum"] = checksum_of(self.plan)
        (self.folder / "plan.json").write_text(json.dumps(self.plan))
        folders = RunFolders(self.repository, str(self.folder.parent))
        folders.record(folders.of(self.report.run_id), "planned", self.plan["checksum"])
