"""The warnings of a run if its storage keeps deleted objects. Not for: their delete."""

from __future__ import annotations

from ebbtide.storage import Retained


def warnings_of(retained: Retained, *, versions_deleted: bool = False) -> tuple[str, ...]:
    """Returns the warnings for what a storage keeps of deleted objects. None if it keeps nothing,
    or if the run deletes the versions too."""
    if retained.state == "no" or versions_deleted:
        return ()
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
    )


def retained_json(retained: Retained) -> dict[str, str]:
    """Returns the field `retained` of plans and reports."""
    return {"state": retained.state, "reason": retained.reason}
