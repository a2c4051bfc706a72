"""Describes the tables of the file `repo` of version 2, slot by slot.

Source: Icechunk specification 2.1, `repo.fbs` and `common.fbs`.
"""

from __future__ import annotations

from typing import Final

from ebbtide.formats.icechunk.ids import ID_BYTES
from ebbtide.formats.icechunk.tables import (
    INT32,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    Child,
    Fixed,
    FixedVector,
    Numbers,
    TableVector,
    Text,
    TextVector,
    Union,
    table,
)

_ID: Final = Fixed(ID_BYTES)
_EMPTY: Final = table()

METADATA_ITEM: Final = table(name=Text(), value=Numbers(UINT8))
REF: Final = table(name=Text(), snapshot_index=UINT32)
SNAPSHOT_INFO: Final = table(
    id=_ID,
    parent_offset=INT32,
    flushed_at=UINT64,
    message=Text(),
    metadata=TableVector(METADATA_ITEM),
    pruned_ancestor_tx_logs=FixedVector(ID_BYTES),
)
STATUS: Final = table(availability=UINT8, set_at=UINT64, limited_availability_reason=Text())
_CREATED: Final = table(name=Text())
_MOVED: Final = table(name=Text(), previous_snap_id=_ID)
UPDATE_TYPES: Final = (
    ("RepoInitialized", _EMPTY),
    ("RepoMigrated", table(from_version=UINT8, to_version=UINT8)),
    ("ConfigChanged", _EMPTY),
    ("MetadataChanged", _EMPTY),
    ("TagCreated", _CREATED),
    ("TagDeleted", _MOVED),
    ("BranchCreated", _CREATED),
    ("BranchDeleted", _MOVED),
    ("BranchReset", _MOVED),
    ("NewCommit", table(branch=Text(), new_snap_id=_ID)),
    ("CommitAmended", table(branch=Text(), previous_snap_id=_ID, new_snap_id=_ID)),
    ("NewDetachedSnapshot", table(new_snap_id=_ID)),
    ("GCRan", _EMPTY),
    ("ExpirationRan", _EMPTY),
    ("FeatureFlagChanged", table(id=UINT16, new_value=UINT8, is_set=UINT8)),
    ("RepoStatusChanged", table(status=Child(STATUS))),
)
"""The kinds of entries of the operations log, in the order of the union's numbers, from 1."""

UPDATE: Final = table(
    update_type=Union(tuple(kind for _, kind in UPDATE_TYPES)),
    updated_at=UINT64,
    backup_path=Text(),
)
REPO: Final = table(
    spec_version=UINT8,
    tags=TableVector(REF),
    branches=TableVector(REF),
    deleted_tags=TextVector(),
    snapshots=TableVector(SNAPSHOT_INFO),
    status=Child(STATUS),
    metadata=TableVector(METADATA_ITEM),
    latest_updates=TableVector(UPDATE),
    repo_before_updates=Text(),
    config=Numbers(UINT8),
    enabled_feature_flags=Numbers(UINT16),
    disabled_feature_flags=Numbers(UINT16),
    extra=Numbers(UINT8),
)
REQUIRED: Final = ("tags", "branches", "deleted_tags", "snapshots", "status", "latest_updates")
