"""Charts as numbers that templates draw: bars and lines. Not for: HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

LINE_WIDTH: Final = 120
LINE_HEIGHT: Final = 28
_MARGIN: Final = 2


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart. `percent` is its length in percent of the longest bar."""

    label: str
    count: int
    size_bytes: int | None
    percent: float


def bars(rows: Iterable[tuple[str, int, int | None]]) -> list[Bar]:
    """Makes bars of rows (label, count, bytes). The length stands for the bytes; it is 0 if the
    bytes are not known, or if no row has any."""
    found = list(rows)
    longest = max((size or 0 for _, _, size in found), default=0)
    return [
        Bar(label, count, size, round(100 * (size or 0) / longest, 2) if longest else 0.0)
        for label, count, size in found
    ]


@dataclass(frozen=True, slots=True)
class Share:
    """One bar of two parts. `kept_percent` and `lost_percent` are their lengths in percent of the
    chart's longest bar."""

    label: str
    detail: str
    kept: int
    lost: int
    kept_percent: float
    lost_percent: float


def shares(rows: Iterable[tuple[str, str, int, int]]) -> list[Share]:
    """Makes bars of rows (label, detail, kept, lost)."""
    found = list(rows)
    longest = max((kept + lost for _, _, kept, lost in found), default=0)
    scale = 100 / longest if longest else 0.0
    return [
        Share(label, detail, kept, lost, round(kept * scale, 2), round(lost * scale, 2))
        for label, detail, kept, lost in found
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through values, and its last point. Coordinates lie in a box of LINE_WIDTH by
    LINE_HEIGHT."""

    points: str
    last_x: float
    last_y: float


def line(values: Sequence[int]) -> Line | None:
    """Returns a line through the values at even distances, on a scale from zero; None for fewer
    than two values."""
    if len(values) < 2:
        return None
    top = max(values) or 1
    step = (LINE_WIDTH - 2 * _MARGIN) / (len(values) - 1)
    height = LINE_HEIGHT - 2 * _MARGIN
    points = [
        (round(_MARGIN + step * number, 1), round(_MARGIN + height * (1 - value / top), 1))
        for number, value in enumerate(values)
    ]
    return Line(" ".join(f"{x},{y}" for x, y in points), *points[-1])
