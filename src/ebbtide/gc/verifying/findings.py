"""What a verification finds, by sorts: the first of each for people, all of them as a file."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.arrow import make_schema
from ebbtide.errors import EbbtideError
from ebbtide.gc.runs import RunFolder

DIFFERENCES_FILE: Final = "verify/differences.parquet"
DIFFERENCES_SCHEMA: Final = make_schema(
    ("sort", pa.string()),
    ("is_note", pa.bool_()),
    ("address", pa.string()),
    ("commit_id", pa.string()),
    ("kind", pa.string()),
    ("size_bytes", pa.int64()),
    ("text", pa.string()),
)
"""A finding: its sort, one of DIFFERENCES or NOTES, and which of both; the address or commit that
it is of, if it is of one; and in words what needs it, or what was found in place of what."""

DIFFERENCES: Final[Mapping[str, str]] = {
    "needed": "would go, and is needed",
    "protected": "would go, and is kept without a commit",
    "young": "would go, and is younger than the grace",
    "changed": "is not as the plan lists it",
    "shape": "is not what the plan says that it is",
    "twice": "is a candidate twice",
    "lost": "was deleted, and is needed",
    "missing": "is needed, and is not there",
    "damaged": "is needed, and can't be read",
    "unrecorded": "is not on record as deleted, missing, failed or kept",
    "stray": "is on record, and is no candidate",
    "reason": "is not what follows from what the plan was decided by",
    "commit": "is another commit in the repository",
    "figure": "does not add up",
    "repository": "is not gone for good",
}
"""What must not be."""

NOTES: Final[Mapping[str, str]] = {
    "revived": "has come to be needed since the plan: the sweep keeps it",
    "gone": "went before the sweep came to it",
    "since": "was changed since the plan",
}
"""What comes with time, and does no harm."""

SHOWN_MAX: Final = 20
"""Findings of one sort that are held for people."""
ROWS_PER_GROUP: Final = 50_000


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of DIFFERENCES_SCHEMA; `kind` and `size_bytes` are what the plan says of the file."""

    sort: str
    text: str
    address: str | None = None
    commit_id: str | None = None
    kind: str | None = None
    size_bytes: int | None = None

    @property
    def is_note(self) -> bool:
        """Whether it does no harm."""
        return self.sort in NOTES


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found. `counts` has the findings of each sort, `shown` the first of each.

    `checked` counts what was looked at, by verify.CHECKED. `path` is the
    file with all findings: None where there are none, or where it could not be written, and then
    `unwritten` says why.
    """

    run_id: str
    repository: str
    counts: Mapping[str, int]
    shown: tuple[Finding, ...]
    checked: Mapping[str, int]
    path: str | None
    unwritten: str | None = None

    @property
    def difference_count(self) -> int:
        """Findings that must not be."""
        return sum(count for sort, count in self.counts.items() if sort in DIFFERENCES)

    @property
    def verified(self) -> bool:
        """Whether there are none."""
        return self.difference_count == 0

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "run_id": self.run_id,
            "repository": self.repository,
            "verified": self.verified,
            "difference_count": self.difference_count,
            "counts": dict(self.counts),
            "differences": [asdict(each) for each in self.shown if not each.is_note],
            "notes": [asdict(each) for each in self.shown if each.is_note],
            "checked": dict(self.checked),
            "path": self.path,
            "unwritten": self.unwritten,
        }


class Findings:
    """Gathers findings, encoded as they come: there may be as many as candidates."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._shown: list[Finding] = []
        self._rows: list[dict[str, Any]] = []
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(self._sink, DIFFERENCES_SCHEMA, compression="zstd")

    @property
    def shown(self) -> tuple[Finding, ...]:
        """The first of each sort, the worst sorts first."""
        order = [*DIFFERENCES, *NOTES]
        return tuple(sorted(self._shown, key=lambda each: order.index(each.sort)))

    def add(self, found: Finding) -> None:
        """Take one."""
        if self.counts[found.sort] < SHOWN_MAX:
            self._shown.append(found)
        self.counts[found.sort] += 1
        self._rows.append(asdict(found) | {"is_note": found.is_note})
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def write(self, folder: RunFolder) -> tuple[str | None, str | None]:
        """Write all of them into the run's folder, in place of what was found before; where they
        are, and why they could not be written."""
        self._flush()
        self._writer.close()
        address = folder.address(DIFFERENCES_FILE)
        try:
            if self.counts:
                folder.storage.put(address, self._sink.getvalue())
                return f"{folder.path}/{DIFFERENCES_FILE}", None
            if folder.storage.head(address) is not None:
                folder.storage.delete([address])
        except EbbtideError as error:
            return None, error.message
        return None, None

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=DIFFERENCES_SCHEMA))
        self._rows = []
