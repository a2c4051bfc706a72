"""What deleted objects still cost: minimum times of storage classes, and versions that stay.

The storage classes of a plan's candidates say what a delete of cold objects costs, and which ones a
quarantine cannot copy. They are counted where the listing or the inventory gives them, by the names
that storages use there. Minimum durations are those of the vendors' pages that docs/storages.md
names. A storage can keep deleted objects: runs and purges warn of it, and check the option that
deletes them.

Not for: the delete itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import split_by
from ebbtide.errors import InvalidInput
from ebbtide.gc.parts import Count, Counted, PartRows, count_of
from ebbtide.storage import BucketLock, Retained, Storage
from ebbtide.text import count_text, known_size_text

DAYS_MIN: Final[Mapping[str, int]] = {
    "STANDARD_IA": 30,
    "ONEZONE_IA": 30,
    "GLACIER_IR": 90,
    "GLACIER": 90,
    "DEEP_ARCHIVE": 180,
    "Cool": 30,
    "Cold": 90,
    "Archive": 180,
    "NEARLINE": 30,
    "COLDLINE": 90,
    "ARCHIVE": 365,
}
"""The days for which an object of a class is paid, even if it is deleted earlier. Names are those
of S3, of Azure and of Google's S3 interface. Other classes have no minimum."""

ARCHIVED: Final = frozenset({"GLACIER", "DEEP_ARCHIVE", "Archive"})
"""The classes whose objects cannot be read until they are restored. Google's ARCHIVE can. A listing
does not say whether an object was restored."""

_CLASS: Final = "storage class"
_EARLY: Final = "early"
"""The names under which tasks count candidates by storage class, and those of them that are younger
than the minimum of their class."""


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The candidates of one storage class.

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
        counts = {name: getattr(self, name).to_json() for name in ("count", "early", "archived")}
        return {"name": self.name, **counts, "days_min": self.days_min}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ClassFigures:
        """Returns what `to_json` wrote. Raises KeyError for other content."""
        count, early, archived = (
            Count.from_json(content[name]) for name in ("count", "early", "archived")
        )
        return cls(content["name"], count, early, archived, content["days_min"])


@dataclass(frozen=True, slots=True)
class StorageClasses:
    """The storage classes of the candidates. The class of `looked_at` candidates out of `of` is
    known."""

    looked_at: int
    of: int
    found: tuple[ClassFigures, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings for people: objects that are paid longer than they exist, and objects that a
        quarantine cannot copy."""
        among = f"of {self.of:,} candidates"
        if self.looked_at < self.of:
            among += f", of which {self.looked_at:,} have a known class"
        return tuple(
            text
            for each in self.found
            for text in (_early(each, among), _archived(each, among))
            if text
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the field `storage_classes` of plans and reports."""
        return {
            "looked_at": self.looked_at,
            "of": self.of,
            "unknown": self.of - self.looked_at,
            "found": [each.to_json() for each in self.found],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> StorageClasses:
        """Returns what `to_json` wrote. Raises KeyError or TypeError for other content."""
        found = tuple(ClassFigures.from_json(each) for each in content["found"])
        return cls(content["looked_at"], content["of"], found)


def bytes_by_class(classes: StorageClasses | None, total: Count) -> dict[str, int]:
    """Returns the bytes of candidates by storage class, for their price. "" is an unknown class."""
    known = {} if classes is None else {e.name: e.count.bytes_total for e in classes.found}
    rest = total.bytes_total - sum(known.values())
    return {**known, "": rest} if rest > 0 else known


def tell_classes(candidates: pa.Table, now: datetime, answer: PartRows) -> None:
    """Counts candidates (rows of INVENTORY_SCHEMA) whose storage class is known."""
    known = candidates.filter(pc.is_valid(candidates.column("storage_class")))
    for name, rows in split_by(known, "storage_class"):
        since = pa.scalar(now - timedelta(days=DAYS_MIN.get(name, 0)), pa.timestamp("us", "UTC"))
        early = rows.filter(pc.greater(rows.column("last_modified"), since))
        answer.counted(count_of(rows), of=_CLASS, kind=name)
        answer.counted(count_of(early), of=_EARLY, kind=name)


def classes_of(counts: Iterable[Counted], candidate_count: int) -> StorageClasses | None:
    """Returns what tasks told by `tell_classes`; None if no class is known."""
    totals: dict[tuple[str, str], Count] = {}
    for each in counts:
        totals[each.of, each.kind] = totals.get((each.of, each.kind), Count()) + each.count
    figures = tuple(
        ClassFigures(
            name,
            count,
            totals[_EARLY, name],
            count if name in ARCHIVED else Count(),
            DAYS_MIN.get(name, 0),
        )
        for (of, name), count in sorted(totals.items())
        if of == _CLASS
    )
    if not figures:
        return None
    return StorageClasses(sum(each.count.objects for each in figures), candidate_count, figures)


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


def check_deletes_versions(storage: Storage) -> None:
    """Raises InvalidInput `invalid_argument` if versions cannot be deleted from the storage."""
    if not storage.deletes_versions:
        raise InvalidInput(
            "invalid_argument",
            f"versions in {storage.url} cannot be deleted, only those of S3: "
            "leave out --delete-versions and EBBTIDE_DELETE_VERSIONS",
        )


def warnings_of(retained: Retained, *, versions_deleted: bool = False) -> tuple[str, ...]:
    """Returns the warnings for what a storage keeps of deleted objects. None if it keeps nothing,
    or if the run deletes the versions too and no lock keeps them."""
    locked = () if retained.lock is None else _locked(retained.lock)
    if retained.state == "no" or versions_deleted:
        return locked
    if retained.state == "unknown":
        return (
            "it is unknown whether the storage keeps deleted objects: "
            f"{retained.reason}. If it does, their bytes are not free",
        )
    kept = "versions" if retained.state == "versions" else "deleted objects"
    how = (
        "a rule of the bucket or --delete-versions" if kept == "versions" else "their time is over"
    )
    until = f"until {how} deletes them" if kept == "versions" else f"until {how}"
    return (
        f"the storage keeps {kept} ({retained.reason}): the bytes of deleted files are not free "
        f"{until}",
        *locked,
    )


def _locked(lock: BucketLock) -> tuple[str, ...]:
    if lock.state != "on":
        return ()
    return (
        f"the bucket has object lock ({lock.reason}): a delete hides a file, and its bytes use "
        "storage at least until its lock ends. --delete-versions cannot delete a locked version",
    )


def retained_json(retained: Retained) -> dict[str, Any]:
    """Returns the field `retained` of plans and reports."""
    return asdict(retained)


def retained_of(content: Mapping[str, Any]) -> Retained:
    """Returns what `retained_json` wrote, or an older program without `lock`. Raises TypeError for
    other content."""
    lock = content.get("lock")
    return Retained(**{**content, "lock": None if lock is None else BucketLock(**lock)})
