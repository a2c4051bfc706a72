"""The storage that a step of the mark reads from, and the folder that it writes to."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.formats.base import Layout
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage


@dataclass(frozen=True, slots=True)
class Place:
    """The files of a repository, and the parts `<name>/…` of a run's folder. Picklable."""

    storage: Storage
    layout: Layout
    folder: RunFolder
    name: str

    def named(self, stem: str) -> str:
        """Returns the name of a part within the folder."""
        return f"{self.name}/{stem}.parquet"

    def prefixed(self, stem: str) -> str:
        """Returns a common prefix for the names of parts that are written together."""
        return f"{self.name}/{stem}-"
