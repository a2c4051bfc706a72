"""The signed record of a purge: requester, time, reason, named things, and all outcomes.

The list of addresses is in Parquet files beside it; the record has their SHA-256. The signature
(Ed25519) covers the record without the field `signature`, as canonical JSON: keys sorted, no
blanks, characters beyond ASCII escaped. Records never change: each attempt writes a new one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ebbtide.arrow import texts
from ebbtide.errors import Refused
from ebbtide.gc.keys import rows_of
from ebbtide.gc.runs import RunFolder
from ebbtide.purge.deleting import Deleted
from ebbtide.purge.plan import PurgePlan
from ebbtide.store.purge_records import ALGORITHM, PurgeKeys, PurgeRow, is_signed

FORMAT_VERSION: Final = 1
_PLANNED: Final = (
    "purge_id",
    "store_id",
    "repository_id",
    "repository_name",
    "storage_url",
    "named",
    "planned_at",
    "foreign_count",
    "retained",
)
"""The fields that a record has from its plan."""
_NAME: Final = re.compile(r"record-([0-9]+)\.json")


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was read: its file's name, SHA-256, and content."""

    name: str
    checksum: str
    content: dict[str, Any]


def make_record(
    row: PurgeRow, plan: PurgePlan, deleted: Deleted, *, finished_at: datetime, previous: str | None
) -> dict[str, Any]:
    """Returns the record without key and signature. `previous` is the SHA-256 of the earlier
    record."""
    planned = plan.to_json()
    return {
        "format": FORMAT_VERSION,
        **{name: planned[name] for name in _PLANNED},
        "who": row.request["who"],
        "reason": row.request["reason"],
        "request": row.request,
        "started_at": row.started_at.isoformat(),
        "closed_at": None if row.closed_at is None else row.closed_at.isoformat(),
        "finished_at": finished_at.isoformat(),
        "state": "done" if deleted.is_complete else "incomplete",
        "plan_checksum": row.plan_checksum,
        "object_count": rows_of(deleted.parts),
        "size_bytes": sum(part.bytes_total for part in deleted.parts),
        "outcomes": dict(sorted(deleted.outcomes.items())),
        "kept_count": plan.kept_count,
        "list": [
            {
                "name": part.name,
                "rows": part.rows,
                "size_bytes": part.bytes_total,
                "sha256": part.checksum,
            }
            for part in deleted.parts
        ],
        "previous_record_sha256": previous,
    }


def write_record(folder: RunFolder, content: Mapping[str, Any], keys: PurgeKeys) -> Record:
    """Signs a record, and writes it under a new name."""
    key_id, public_key = keys.current()
    whole = {
        **content,
        "key": {"algorithm": ALGORITHM, "key_id": key_id, "public_key": public_key},
    }
    whole["signature"] = keys.sign(_signed_bytes(whole)).signature
    data = json.dumps(whole, indent=1).encode()
    name = f"record-{len(record_names(folder)) + 1}.json"
    folder.storage.put(folder.address(name), data, create_only=True)
    return Record(name, hashlib.sha256(data).hexdigest(), whole)


def record_names(folder: RunFolder) -> list[str]:
    """Returns the names of the existing records, the oldest first."""
    found: list[tuple[int, str]] = []
    for batch in folder.storage.list(folder.prefix, recursive=False):
        for address in texts(batch.column("address")):
            match = _NAME.fullmatch(address.removeprefix(folder.prefix))
            if match:
                found.append((int(match[1]), match[0]))
    return [name for _, name in sorted(found)]


def read_record(folder: RunFolder) -> Record | None:
    """Reads the newest record, or returns None if there is none. Raises Refused `plan_corrupt`."""
    names = record_names(folder)
    if not names:
        return None
    data = folder.storage.get(folder.address(names[-1]))
    try:
        content = json.loads(data)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise Refused("plan_corrupt", f"{folder.path}/{names[-1]} is no JSON object: restore it")
    return Record(names[-1], hashlib.sha256(data).hexdigest(), content)


def is_genuine(record: Record, public_keys: Mapping[str, str]) -> bool:
    """Whether one of the public keys (by key id) verifies the record's signature."""
    key = record.content.get("key")
    signature = record.content.get("signature")
    if not isinstance(key, dict) or not isinstance(signature, str):
        return False
    public_key = public_keys.get(str(key.get("key_id")))
    if public_key is None or key.get("public_key") != public_key:
        return False
    return is_signed(_signed_bytes(record.content), public_key=public_key, signature=signature)


def _signed_bytes(content: Mapping[str, Any]) -> bytes:
    bare = {name: value for name, value in content.items() if name != "signature"}
    return json.dumps(bare, sort_keys=True, separators=(",", ":")).encode()
