"""How many files, and how many bytes: the figure that every report is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Count:
    """How many, and their bytes together."""

    objects: int = 0
    bytes_total: int = 0

    def __sub__(self, other: Count) -> Count:
        return Count(
            max(0, self.objects - other.objects), max(0, self.bytes_total - other.bytes_total)
        )

    def or_more(self, other: Count) -> Count:
        """Of each figure the larger one."""
        return Count(max(self.objects, other.objects), max(self.bytes_total, other.bytes_total))

    def __add__(self, other: Count) -> Count:
        return Count(self.objects + other.objects, self.bytes_total + other.bytes_total)
