"""Charts as numbers that templates draw: bars, lines, and values over dates or lengths. Not for:
HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

LINE_WIDTH: Final = 120
LINE_HEIGHT: Final = 28
_MARGIN: Final = 2
PLOT_WIDTH: Final = 360
PLOT_HEIGHT: Final = 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 10, 164
_TICKS: Final = 4
_LABELS_APART: Final = 0.16
"""The least distance of two labels of lengths, as a part of the axis."""

Scale = Literal["bytes", "whole", "any"]
"""The values of an axis: bytes, whole numbers, or any numbers."""


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


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: its coordinate, and its text."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Values over an axis, in a box of PLOT_WIDTH by PLOT_HEIGHT. `points` has the coordinates of
    each value, in the order of the axis. `values` marks the vertical axis, from 0 at the bottom,
    and `marks` the horizontal one. `level` is the height of one more value, across the axis."""

    title: str
    points: Sequence[tuple[float, float]]
    values: Sequence[Tick]
    marks: Sequence[Tick]
    level: float | None = None
    left: float = _LEFT
    right: float = PLOT_WIDTH - _RIGHT
    bottom: float = _BOTTOM


def over_dates(
    title: str,
    rows: Iterable[tuple[datetime, float]],
    *,
    text: Callable[[float], str],
    scale: Scale,
) -> Plot | None:
    """Returns a chart of values over dates; None for fewer than two dates.

    `text` formats a value for the axis. The marks of the axis are round numbers: powers of two for
    bytes, and 1, 2 or 5 times a power of ten for other values.
    """
    found = sorted(rows)
    if len(found) < 2 or found[0][0] == found[-1][0]:
        return None
    first, last = found[0][0], found[-1][0]
    middle = first + (last - first) / 2
    is_short = (last - first).days < 2
    dates = (first, last) if is_short else (first, middle, last)
    form = "%m-%d %H:%M" if is_short else "%Y-%m-%d"

    def part(instant: datetime) -> float:
        return (instant - first) / (last - first)

    return _plot(
        title,
        [(part(instant), value) for instant, value in found],
        [(part(instant), f"{instant:{form}}") for instant in dates],
        text=text,
        scale=scale,
    )


def over_lengths(
    title: str,
    rows: Sequence[tuple[float, str, float]],
    *,
    level: float,
    text: Callable[[float], str],
    scale: Scale,
) -> Plot:
    """Returns a chart of rows (length, its label, value) over a logarithmic axis. The lengths
    ascend from more than 0. `level`, `text` and `scale` are as those of Plot and `over_dates`."""
    first, last = rows[0][0], rows[-1][0]
    parts = [math.log(length / first) / math.log(last / first) for length, _, _ in rows]
    marks: list[tuple[float, str]] = []
    for part, (_, label, _) in zip(reversed(parts), reversed(rows), strict=True):
        if not marks or marks[-1][0] - part >= _LABELS_APART:
            marks.append((part, label))
    values = [(part, value) for part, (_, _, value) in zip(parts, rows, strict=True)]
    return _plot(title, values, marks[::-1], text=text, scale=scale, level=level)


def _plot(
    title: str,
    points: Sequence[tuple[float, float]],
    marks: Iterable[tuple[float, str]],
    *,
    text: Callable[[float], str],
    scale: Scale,
    level: float | None = None,
) -> Plot:
    """Returns a chart of points and marks, whose places are parts of the axis, from 0 to 1."""
    top = max([value for _, value in points] + [level or 0])
    step = _step(top, scale)
    count = max(1, math.ceil(top / step))
    width, height = PLOT_WIDTH - _RIGHT - _LEFT, _BOTTOM - _TOP

    def x(part: float) -> float:
        return round(_LEFT + width * part, 1)

    def y(value: float) -> float:
        return round(_BOTTOM - height * value / (count * step), 1)

    return Plot(
        title,
        points=[(x(part), y(value)) for part, value in points],
        values=[Tick(y(number * step), text(number * step)) for number in range(count + 1)],
        marks=[Tick(x(part), label) for part, label in marks],
        level=None if level is None else y(level),
    )


def _step(top: float, scale: Scale) -> float:
    """Returns the distance of the marks of an axis that reaches `top`: a round number, of which
    _TICKS reach `top`."""
    if top <= 0:
        return 1.0
    if scale == "bytes":
        return max(1.0, 2.0 ** math.ceil(math.log2(top / _TICKS)))
    power = 10.0 ** math.floor(math.log10(top))
    step = next(part * power for part in (0.2, 0.5, 1, 2, 5) if top / (part * power) <= _TICKS)
    return max(1.0, step) if scale == "whole" else step
