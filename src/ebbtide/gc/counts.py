"""Counts of files and their bytes, the figures in all reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
