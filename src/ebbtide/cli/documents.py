"""Converts the store's values to JSON documents, with names and units that programs can rely on.

Times are ISO 8601 in UTC, sizes are bytes. Fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebbtide.model import Hold
    from ebbtide.quarantined import Fate
    from ebbtide.store.access.access_keys import AccessKey, Grant
    from ebbtide.store.access.signed_tokens import Rotation
    from ebbtide.store.collections.projects import Project
    from ebbtide.store.collections.queries import VersionRow
    from ebbtide.store.collections.reading import Collection
    from ebbtide.store.content.entries import Entry
    from ebbtide.store.database.commit_rows import CommitRecord
    from ebbtide.store.refs.refs import NamedCommit
    from ebbtide.store.repositories.catalog import Catalogued

Document = dict[str, Any]  # JSON-ready


def instant(value: datetime | None) -> str | None:
    """Returns an instant as text, or None."""
    return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def repository(found: Catalogued) -> Document:
    """Returns the document of a repository."""
    info = found.info
    return {
        "repository_id": info.repository_id,
        "name": info.name,
        "storage_url": info.storage_url,
        "default_branch": info.default_branch,
        "created_at": instant(info.created_at),
        "expires_at": instant(info.expires_at),
        "state": found.state.value,
    }


def ref(found: NamedCommit) -> Document:
    """Returns the document of a branch or tag."""
    return {
        "name": found.name,
        "ref_id": found.ref_id,
        "commit_id": found.commit_id,
        "created_at": instant(found.created_at),
        "expires_at": instant(found.expires_at),
        "state": found.state.value,
    }


def commit(record: CommitRecord, fates: Mapping[str, Fate] | None = None) -> Document:
    """Returns the document of a commit. `run_id` is the run that closed or forgot the commit. If
    its data is in quarantine by `fates`, fields say until when, and how to restore it."""
    fate = fate_of_commit(record, fates or {})
    return {
        "commit_id": record.commit_id,
        "parent_ids": list(record.parent_ids),
        "created_at": instant(record.created_at),
        "written_at": instant(record.written_at),
        "tree_id": record.tree_id,
        "message": record.message,
        "committer": record.committer,
        "metadata": dict(record.metadata),
        "state": commit_state(record),
        "run_id": record.closed_by,
        **({} if fate is None else fate.fields()),
    }


def fate_of_commit(record: CommitRecord, fates: Mapping[str, Fate]) -> Fate | None:
    """Returns what became of the data of a closed commit; None for all other commits."""
    closed_by = record.closed_by
    return None if closed_by is None or record.given_up_at is not None else fates.get(closed_by)


def commit_state(record: CommitRecord) -> str:
    """Returns the state of a commit: `intact`, `expired`, `forgotten` or `given up`."""
    if record.given_up_at is not None:
        return "given up"
    if record.forgotten_by is not None:
        return "forgotten"
    return "intact" if record.tombstoned_by is None else "expired"


def entry(found: Entry) -> Document:
    """Returns the document of an object in a revision."""
    return {
        "path": found.path,
        "address": found.address,
        "size_bytes": found.size_bytes,
        "checksum": found.checksum,
        "mtime": instant(found.mtime),
        "content_type": found.content_type,
        "metadata": dict(found.metadata),
    }


def project(found: Project) -> Document:
    """Returns the document of a project. `state` depends on `ends_at`, the earliest `expires_at` of
    the project and of the projects above it."""
    return {
        "project_id": found.project_id,
        "parent_id": found.parent_id,
        "name": found.name,
        "path": found.path,
        "description": found.description,
        "properties": dict(found.properties),
        "created_at": instant(found.created_at),
        "modified_at": instant(found.modified_at),
        "expires_at": instant(found.expires_at),
        "ends_at": instant(found.ends_at),
        "state": found.state.value,
    }


def collection(found: Collection) -> Document:
    """Returns the document of a collection. `state` depends on `ends_at`, as for a project."""
    return {
        "collection_id": found.collection_id,
        "project_id": found.project_id,
        "name": found.name,
        "path": found.path,
        "description": found.description,
        "properties": dict(found.properties),
        "version": found.version,
        "content_hash": found.content_hash,
        "file_count": found.file_count,
        "size_bytes": found.size_bytes,
        "replication_desired": found.replication_desired,
        "created_at": instant(found.created_at),
        "modified_at": instant(found.modified_at),
        "expires_at": instant(found.expires_at),
        "ends_at": instant(found.ends_at),
        "state": found.state.value,
    }


def version(row: VersionRow) -> Document:
    """Returns the document of a kept version of a collection."""
    return {
        "version": row.version,
        "name": row.name,
        "description": row.description,
        "properties": dict(row.properties),
        "content_hash": row.content_hash,
        "file_count": row.file_count,
        "size_bytes": row.size_bytes,
        "modified_at": instant(row.modified_at),
    }


def rotation(done: Rotation) -> Document:
    """Returns the document of a rotation of the signing keys."""
    return {
        "key_id": done.key_id,
        "retired_ids": list(done.retired_ids),
        "verifying_ids": list(done.verifying_ids),
        "retirable_at": instant(done.retirable_at),
    }


def grant(found: Grant) -> Document:
    """Returns the document of the role that a key has in one repository."""
    return {
        "access_key_id": found.access_key_id,
        "repository": found.repository,
        "repository_id": found.repository_id,
        "role": str(found.role),
    }


def access_key(found: AccessKey, grants: Sequence[Grant] = ()) -> Document:
    """Returns the document of an access key with its grants, without the secret."""
    return {
        "access_key_id": found.access_key_id,
        "role": str(found.role),
        "grants": [grant(each) for each in grants],
        "name": found.name,
        "created_at": instant(found.created_at),
        "revoked_at": instant(found.revoked_at),
    }


def hold(found: Hold) -> Document:
    """Returns the document of a hold."""
    return {
        "commit_id": found.commit_id,
        "reason": found.reason,
        "created_at": instant(found.created_at),
    }
