"""Where a step of the mark reads, and where it writes."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.formats.base import Layout
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage


@dataclass(frozen=True, slots=True)
class Place:
    """A repository's files, and the parts `<name>/…` of a run's folder. Picklable."""

    storage: Storage
    layout: Layout
    folder: RunFolder
    name: str

    def named(self, stem: str) -> str:
        """The name of a part within the folder."""
        return f"{self.name}/{stem}.parquet"

    def prefixed(self, stem: str) -> str:
        """What the names of several parts that are written together begin with."""
        return f"{self.name}/{stem}-"
