"""The result of a verification: the first findings of each sort for people, and all as a file."""

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
"""A finding. `sort` is one of DIFFERENCES, or of NOTES if `is_note`. `address` and `commit_id` name
the file or commit that it is about, if there is one. `text` says what needs the file, or what
differs."""

DIFFERENCES: Final[Mapping[str, str]] = {
    "needed": "would be deleted, and is needed",
    "protected": "would be deleted, and is kept without a commit",
    "young": "would be deleted, and is younger than the grace",
    "changed": "differs from its row in the plan",
    "shape": "has a wrong kind in the plan",
    "twice": "is a candidate twice",
    "lost": "was deleted, and is needed",
    "missing": "is needed, and does not exist",
    "damaged": "is needed, and can't be read",
    "unrecorded": "has no outcome on record",
    "stray": "has an outcome on record, and is no candidate",
    "reason": "differs from a second decision on the plan's record",
    "commit": "differs from the commit in the repository",
    "figure": "differs from a count of the rows",
    "repository": "is not gone, or is still in use",
}
"""The sorts of findings that make a verification fail."""

NOTES: Final[Mapping[str, str]] = {
    "revived": "became needed after the plan was made: the sweep keeps it",
    "gone": "was deleted before the sweep reached it",
    "since": "was changed since the plan",
}
"""The sorts of findings that arise as time passes, and do no harm."""

CHECKED: Final = ("candidates", "outcomes", "commits", "trees", "nodes")
SHOWN_MAX: Final = 20
"""The number of findings of one sort that are held for people."""
ROWS_PER_GROUP: Final = 50_000


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of DIFFERENCES_SCHEMA. `kind` and `size_bytes` of the file are those in the plan."""

    sort: str
    text: str
    address: str | None = None
    commit_id: str | None = None
    kind: str | None = None
    size_bytes: int | None = None

    @property
    def is_note(self) -> bool:
        """Whether the finding does no harm."""
        return self.sort in NOTES


class Verification:
    """Collects the findings of a verification, and is its result.

    `counts` has the number of findings by sort, and `checked` the number of things that were
    checked, by the names in CHECKED. `path` is the file with all findings. It is None if there are
    no findings, or if the file could not be written; `unwritten` then has the reason.
    """

    def __init__(self, run_id: str, repository: str) -> None:
        self.run_id = run_id
        self.repository = repository
        self.counts: Counter[str] = Counter()
        self.checked: Counter[str] = Counter(dict.fromkeys(CHECKED, 0))
        self.path: str | None = None
        self.unwritten: str | None = None
        self._shown: list[Finding] = []
        self._rows: list[dict[str, Any]] = []
        # Findings are encoded as they come: there may be as many as candidates.
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(self._sink, DIFFERENCES_SCHEMA, compression="zstd")

    @property
    def shown(self) -> list[Finding]:
        """The first findings of each sort, the worst sorts first."""
        order = [*DIFFERENCES, *NOTES]
        return sorted(self._shown, key=lambda each: order.index(each.sort))

    @property
    def difference_count(self) -> int:
        """The number of differences."""
        return sum(count for sort, count in self.counts.items() if sort in DIFFERENCES)

    @property
    def verified(self) -> bool:
        """Whether there are no differences."""
        return self.difference_count == 0

    def to_json(self) -> dict[str, Any]:
        """Returns the output of `--json`."""
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

    def add(self, found: Finding) -> None:
        """Adds a finding."""
        if self.counts[found.sort] < SHOWN_MAX:
            self._shown.append(found)
        self.counts[found.sort] += 1
        self._rows.append(asdict(found) | {"is_note": found.is_note})
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def write(self, folder: RunFolder) -> None:
        """Writes all findings into the run's folder, and replaces those of an earlier
        verification."""
        self._flush()
        self._writer.close()
        address = folder.address(DIFFERENCES_FILE)
        try:
            if self.counts:
                folder.storage.put(address, self._sink.getvalue())
                self.path = f"{folder.path}/{DIFFERENCES_FILE}"
            elif folder.storage.head(address) is not None:
                folder.storage.delete([address])
        except EbbtideError as error:
            self.unwritten = error.message

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=DIFFERENCES_SCHEMA))
        self._rows = []
