"""The storage classes of a plan's candidates: what a delete of cold objects costs, and which ones a
quarantine cannot copy.

No listing of obstore has classes. Therefore a plan asks for the headers of some candidates, chosen
at random. docs/design/009-scale.md says why. Not for: the requests (`storage.classes`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ebbtide.gc.counts import Count
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage
from ebbtide.storage.classes import DAYS_MIN
from ebbtide.text import count_text, known_size_text

_PARTS_MAX: Final = 16
"""The most parts of candidates that are read for a choice. Each has up to 500,000 rows."""
_COLUMNS: Final = ("address", "size_bytes", "last_modified")


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The candidates of one storage class, of those that were looked at.

    `early` are those that are younger than the class's minimum of `days_min` days. `archived` are
    those that cannot be read or copied until they are restored.
    """

    name: str
    count: Count
    early: Count
    archived: Count
    days_min: int

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON for plan.json and reports."""
        return {
            "name": self.name,
            "count": self.count.to_json(),
            "early": self.early.to_json(),
            "archived": self.archived.to_json(),
            "days_min": self.days_min,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ClassFigures:
        """Returns what `to_json` wrote. Raises KeyError for other content."""
        return cls(
            content["name"],
            Count.from_json(content["count"]),
            Count.from_json(content["early"]),
            Count.from_json(content["archived"]),
            content["days_min"],
        )


@dataclass(frozen=True, slots=True)
class CandidateClasses:
    """The storage classes of `looked_at` candidates out of `of`. The class of `unknown` ones could
    not be read."""

    looked_at: int
    of: int
    unknown: int
    found: tuple[ClassFigures, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings for people: objects that are paid longer than they exist, and objects that a
        quarantine cannot copy."""
        among = f"of {self.of:,} candidates" if self.looked_at == self.of else self._sampled
        return tuple(
            text
            for each in self.found
            for text in (_early(each, among), _archived(each, among))
            if text
        )

    @property
    def _sampled(self) -> str:
        return f"of {self.looked_at:,} candidates that were looked at, out of {self.of:,}"

    def to_json(self) -> dict[str, Any]:
        """Returns the field `storage_classes` of plans and reports."""
        return {
            "looked_at": self.looked_at,
            "of": self.of,
            "unknown": self.unknown,
            "found": [each.to_json() for each in self.found],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CandidateClasses:
        """Returns what `to_json` wrote. Raises KeyError or TypeError for other content."""
        found = tuple(ClassFigures.from_json(each) for each in content["found"])
        return cls(content["looked_at"], content["of"], content["unknown"], found)


def look_at_classes(
    storage: Storage,
    folder: RunFolder,
    candidates: Sequence[Part],
    options: RunOptions,
    *,
    now: datetime,
) -> CandidateClasses | None:
    """Asks for the storage classes of at most `class_looks` candidates (an option). None if the
    storage has no classes, or if there is nothing to ask for.

    Rows are chosen at random, from at most 16 parts. The place of the run's folder is the seed: the
    same plan is the same choice.
    """
    looks_max, seed = options.class_looks, folder.prefix
    total = sum(part.rows for part in candidates)
    if not (storage.has_classes and total and looks_max):
        return None
    rows = [
        row
        for part, places in _chosen(candidates, looks_max, seed)
        for row in _rows(folder, part, places)
    ]
    classes = storage.classes([str(row["address"]) for row in rows])
    figures: dict[str, ClassFigures] = {}
    for row, found in zip(rows, classes, strict=True):
        if found is None:
            continue
        days = DAYS_MIN.get(found.name, 0)
        known = figures.get(found.name, ClassFigures(found.name, Count(), Count(), Count(), days))
        one = Count.of(1, row["size_bytes"])
        dated = row["last_modified"]
        is_early = dated is not None and now - dated < timedelta(days=days)
        figures[found.name] = ClassFigures(
            found.name,
            known.count + one,
            known.early + (one if is_early else Count()),
            known.archived + (Count() if found.readable else one),
            days,
        )
    in_order = tuple(figures[name] for name in sorted(figures))
    return CandidateClasses(len(rows), total, classes.count(None), in_order)


def _chosen(candidates: Sequence[Part], looks_max: int, seed: str) -> list[tuple[Part, list[int]]]:
    """Chooses parts, and the numbers of rows in each."""
    rng = random.Random(seed)
    parts = list(candidates)
    if len(parts) > _PARTS_MAX:
        parts = rng.sample(parts, _PARTS_MAX)
    total = sum(part.rows for part in parts)
    numbers = sorted(rng.sample(range(total), min(total, looks_max)))
    chosen: list[tuple[Part, list[int]]] = []
    start = 0
    for part in parts:
        places = [n - start for n in numbers if start <= n < start + part.rows]
        if places:
            chosen.append((part, places))
        start += part.rows
    return chosen


def _rows(folder: RunFolder, part: Part, places: list[int]) -> list[dict[str, Any]]:
    table = read_part(folder, part.name, part.checksum, columns=_COLUMNS)
    return table.take(places).to_pylist()


def _early(found: ClassFigures, among: str) -> str | None:
    if not found.early.objects:
        return None
    return (
        f"{among}, {_files(found.early)} are in the storage class {found.name} and younger than "
        f"its minimum of {found.days_min} days: a delete does not end the bill for that time"
    )


def _archived(found: ClassFigures, among: str) -> str | None:
    if not found.archived.objects:
        return None
    return (
        f"{among}, {_files(found.archived)} are archived ({found.name}): a quarantine cannot copy "
        "them, and they stay as failed. Restore them first, or sweep with --quarantine none"
    )


def _files(count: Count) -> str:
    return f"{count_text(count.objects)} ({known_size_text(count.known_bytes)})"
