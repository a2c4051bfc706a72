"""What a storage keeps of deleted objects: the warnings of runs and purges, and the check of the
option that deletes it. Not for: the delete itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ebbtide.errors import InvalidInput
from ebbtide.storage import BucketLock, Retained, Storage


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
