"""How many files, and how many bytes: the figure that every report is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Count:
    """How many, and their bytes together. Where it is not `sized`, nobody asked for the size of
    some, and `bytes_total` is that of the others: not to be shown."""

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
        """Of each figure the larger one."""
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
        """The bytes of all; None where nobody knows them."""
        return self.bytes_total if self.sized else None

    @classmethod
    def of(cls, objects: int, known_bytes: int | None) -> Count:
        """The count that has these figures."""
        return cls(objects, known_bytes or 0, known_bytes is not None)

    def to_json(self) -> dict[str, Any]:
        """For plan.json and reports; `bytes_total` null where nobody knows it."""
        return {"objects": self.objects, "bytes_total": self.known_bytes}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Count:
        """The one that `to_json` wrote. KeyError when it is something else."""
        return cls.of(content["objects"], content["bytes_total"])
