"""The tables of the metadata database, on SQLite and PostgreSQL alike.

Not for: queries (one module per table group beside this one) or migrations (`migrations/`, which a
test holds against these definitions).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ebbtide.model import EPOCH, ONE_MICROSECOND


class Timestamp(sa.types.TypeDecorator[datetime]):
    """An aware UTC datetime as integer microseconds since 1970, alike on every database."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: sa.Dialect) -> int | None:
        """Refuse naive datetimes: a zone that was guessed is a date that is wrong."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a zone")
        return (value - EPOCH) // ONE_MICROSECOND

    def process_result_value(self, value: int | None, _dialect: sa.Dialect) -> datetime | None:
        """An aware datetime, UTC."""
        return None if value is None else EPOCH + value * ONE_MICROSECOND


class IdList(sa.types.TypeDecorator[tuple[str, ...]]):
    """A short list of ids (no blanks in them) as text: parents of a commit, sealed tokens."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, _dialect: sa.Dialect) -> str | None:
        """Joined by blanks."""
        return None if value is None else " ".join(value)

    def process_result_value(
        self, value: str | None, _dialect: sa.Dialect
    ) -> tuple[str, ...] | None:
        """Split at blanks; the empty text is the empty list."""
        return None if value is None else tuple(value.split())


Json = sa.JSON
PathText = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by its UTF-8 bytes on both databases, as Python sorts `str`."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *columns: Any, **options: Any) -> sa.Table:  # SchemaItem of any sort
    return sa.Table(name, metadata, *columns, **options)


def _repository_id() -> sa.Column[str]:
    return sa.Column(
        "repository_id", sa.Text, sa.ForeignKey("repositories.repository_id"), primary_key=True
    )


def _repository_reference() -> sa.Column[str]:
    return sa.Column(
        "repository_id", sa.Text, sa.ForeignKey("repositories.repository_id"), nullable=False
    )


store_info = _table(
    "store_info",
    sa.Column("store_id", sa.Text, primary_key=True),
    sa.Column("created_at", Timestamp, nullable=False),
)

promised_times = _table(
    "promised_times",
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("microseconds", sa.BigInteger, nullable=False),
)
"""How long the store promises things for, by the name of the setting: see `store/promises.py`."""

repositories = _table(
    "repositories",
    sa.Column("repository_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("storage_url", sa.Text, nullable=False, unique=True),
    sa.Column("default_branch", sa.Text, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=True),
    sa.Column("tombstoned_by", sa.Text, nullable=True),
    sa.Column("policy", Json(none_as_null=True), nullable=True),
)
"""Whoever changes a ref, policy or hold takes this row shared; the fence takes it exclusively. A
name is unique among what is not trashed (checked under the row of `store_info`). `tombstoned_by`
names the run that collects the gone repository: nothing brings it back from then on."""
sa.Index(None, repositories.c.name)

owner_epochs = _table(
    "owner_epochs",
    _repository_id(),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("nonce", sa.Text, nullable=False),
    sa.Column("seen_epoch", sa.BigInteger, nullable=False),
    sa.Column("recorded_at", Timestamp, nullable=False),
)
"""The pairs that this database wrote, or was about to write, to `_ebbtide/OWNER`, and which epoch
was there when each was drawn."""

branches = _table(
    "branches",
    _repository_id(),
    sa.Column("branch_id", sa.Text, primary_key=True),
    sa.Column("name", PathText, nullable=False),
    sa.Column("commit_id", sa.Text, nullable=False),
    sa.Column("staging_token", sa.Text, nullable=False),
    sa.Column("sealed_tokens", IdList, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=True),
    sa.Column("hidden", sa.Boolean, nullable=False),
)
"""`sealed_tokens` has the newest first. A `hidden` branch is left out of lists alone. A name is
unique among what is not trashed (checked in the transaction, under the repository's row taken
`FOR UPDATE` by whoever makes or restores a ref)."""
sa.Index(None, branches.c.repository_id, branches.c.name)

tags = _table(
    "tags",
    _repository_id(),
    sa.Column("tag_id", sa.Text, primary_key=True),
    sa.Column("name", PathText, nullable=False),
    sa.Column("commit_id", sa.Text, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=True),
)
sa.Index(None, tags.c.repository_id, tags.c.name)

reflog = _table(
    "reflog",
    sa.Column("entry_id", sa.Integer, primary_key=True),
    _repository_reference(),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("name", PathText, nullable=False),
    sa.Column("commit_id", sa.Text, nullable=False),
    sa.Column("left_at", Timestamp, nullable=False),
)
"""What a ref pointed at until `left_at`: a root for one lease longer."""
sa.Index(None, reflog.c.repository_id, reflog.c.left_at)

commits = _table(
    "commits",
    _repository_id(),
    sa.Column("commit_id", sa.Text, primary_key=True),
    sa.Column("parent_ids", IdList, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("written_at", Timestamp, nullable=False),
    sa.Column("tree_id", sa.Text, nullable=True),
    sa.Column("tree_checksum", sa.Text, nullable=True),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("committer", sa.Text, nullable=False),
    sa.Column("metadata", Json, nullable=False),
    sa.Column("leased_until", Timestamp, nullable=True),
    sa.Column("tombstoned_by", sa.Text, nullable=True),
    sa.Column("tombstoned_at", Timestamp, nullable=True),
    sa.Column("forgotten_by", sa.Text, nullable=True),
    sa.Column("given_up_reason", sa.Text, nullable=True),
    sa.Column("given_up_at", Timestamp, nullable=True),
    sa.Column("collection_id", sa.Text, nullable=True),
)
"""`tombstoned_by` names the run whose fence passed over the commit: its data may be gone.
`forgotten_by` names the run that dropped the record: parents, date and run stay as a stub; tree,
message and metadata are emptied. `given_up_*`: an operator gave a damaged commit up. A row with
`collection_id` is content that was made for a collection, and no part of any history."""

projects = _table(
    "projects",
    sa.Column("project_id", sa.Text, primary_key=True),
    _repository_reference(),
    sa.Column("parent_id", sa.Text, sa.ForeignKey("projects.project_id"), nullable=True),
    sa.Column("name", PathText, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("properties", Json, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("modified_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=True),
)
"""Projects nest. One whose parent is trashed is trashed as well, whatever its own `expires_at`."""
sa.Index(None, projects.c.repository_id, projects.c.parent_id, projects.c.name)
sa.Index(None, projects.c.parent_id)

collections = _table(
    "collections",
    sa.Column("collection_id", sa.Text, primary_key=True),
    _repository_reference(),
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.project_id"), nullable=False),
    sa.Column("name", PathText, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("properties", Json, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("content_id", sa.Text, nullable=False),
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("file_count", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("replication_desired", sa.Integer, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("modified_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=True),
)
"""`content_id` is a row of `commits`. With `replication_desired` 0 it does not keep the data."""
sa.Index(None, collections.c.project_id, collections.c.name)
sa.Index(None, collections.c.repository_id, collections.c.content_hash)

collection_versions = _table(
    "collection_versions",
    sa.Column(
        "collection_id",
        sa.Text,
        sa.ForeignKey("collections.collection_id"),
        primary_key=True,
    ),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    _repository_reference(),
    sa.Column("name", PathText, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("properties", Json, nullable=False),
    sa.Column("content_id", sa.Text, nullable=False),
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("file_count", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("modified_at", Timestamp, nullable=False),
)
"""Earlier versions that somebody asked to keep. They last as long as their collection."""
sa.Index(None, collection_versions.c.repository_id)

removals = _table(
    "removals",
    # No foreign key: the record outlasts the repository.
    sa.Column("repository_id", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("storage_url", sa.Text, nullable=False),
    sa.Column("report", Json, nullable=False),
    sa.Column("emptied_at", Timestamp, nullable=False),
    sa.Column("finished_at", Timestamp, nullable=True),
)
"""A gone repository whose storage a run emptied: from then on only its own files, OWNER and the
repository's rows are left to go, and once they went `finished_at` says when."""

purges = _table(
    "purges",
    sa.Column("purge_id", sa.Text, primary_key=True),
    # No foreign key: the record outlasts the repository.
    sa.Column("repository_id", sa.Text, nullable=False),
    sa.Column("repository_name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("request", Json, nullable=False),
    sa.Column("record_url", sa.Text, nullable=False),
    sa.Column("plan_checksum", sa.Text, nullable=True),
    sa.Column("record_checksum", sa.Text, nullable=True),
    sa.Column("error", Json(none_as_null=True), nullable=True),
    sa.Column("started_at", Timestamp, nullable=False),
    sa.Column("closed_at", Timestamp, nullable=True),
    sa.Column("finished_at", Timestamp, nullable=True),
)
"""`request` is who asked for what and why; `record_url` the folder of the purge's files. `error` is
why one was refused, or failed before it had a plan (`kind`, `message`)."""
sa.Index(None, purges.c.repository_name)

purge_keys = _table(
    "purge_keys",
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("public_key", sa.Text, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
)
"""What signs the records of purges (Ed25519). `secret` is encrypted as those of access keys are."""

purged = _table(
    "purged",
    _repository_id(),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("purge_id", sa.Text, nullable=False),
    sa.Column("purged_at", Timestamp, nullable=False),
    sqlite_with_rowid=False,
)
"""Addresses that were deleted for good, ahead of their time. Whoever refers to an address looks
here in the transaction that makes the reference; no row ever goes while the repository is there."""

holds = _table(
    "holds",
    _repository_id(),
    sa.Column("commit_id", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
)

staged = _table(
    "staged",
    _repository_id(),
    sa.Column("token", sa.Text, primary_key=True),
    sa.Column("path", PathText, primary_key=True),
    sa.Column("address", sa.Text, nullable=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.Text, nullable=False),
    sa.Column("mtime", Timestamp, nullable=False),
    sa.Column("content_type", sa.Text, nullable=True),
    sa.Column("metadata", Json, nullable=False),
    sa.Column("sharing", sa.Text, nullable=True),
    sa.Column("replaced_address", sa.Text, nullable=True),
    sa.Column("replaced_size_bytes", sa.BigInteger, nullable=True),
    sa.Column("replaced_sharing", sa.Text, nullable=True),
    sqlite_with_rowid=False,
)
"""What a branch holds above its commit. A row without an address hides the path (a delete).

`sharing` says who else has the address: null is nobody, `staged` perhaps another row, `committed`
a commit. `replaced_*` is what the last write to the row took the place of; only the statement that
writes it reads it, which so learns it under the row's own lock."""
sa.Index(None, staged.c.address)
sa.Index(
    "ix_staged_shared_token",
    staged.c.repository_id,
    staged.c.token,
    sqlite_where=staged.c.sharing.is_not(None),
    postgresql_where=staged.c.sharing.is_not(None),
)

released = _table(
    "released",
    _repository_id(),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=True),
    sa.Column("shared", sa.Boolean, nullable=False),
    sa.Column("released_at", Timestamp, nullable=False),
    sa.Column("due_at", Timestamp, nullable=False),
    sa.Column("claim_id", sa.Text, nullable=True),
    sa.Column("attempt_count", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)
"""Addresses that were never committed and that lost a reference, to be deleted from `due_at` on.
Of one that is `shared`, staged rows are looked for first. `claim_id` is whoever is deleting it:
until `due_at`, which a claim and a failure put off."""
sa.Index(None, released.c.due_at)

dropped_tokens = _table(
    "dropped_tokens",
    _repository_id(),
    sa.Column("token", sa.Text, primary_key=True),
    sa.Column("dropped_at", Timestamp, nullable=False),
)
"""Staging tokens that no branch has any more; what was staged under them goes step by step."""
sa.Index(None, dropped_tokens.c.dropped_at)

pending = _table(
    "pending",
    _repository_id(),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("started_at", Timestamp, nullable=False),
    sa.Column("ends_at", Timestamp, nullable=False),
    sqlite_with_rowid=False,
)
"""Writes in progress: an address is here before its first byte, until published or ended."""

signing_keys = _table(
    "signing_keys",
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("secret", sa.LargeBinary, nullable=True),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("retired_at", Timestamp, nullable=True),
)
"""The newest signs, each that has a secret verifies. A retired one has none any more: its id tells
what it signed from what nobody signed."""

access_keys = _table(
    "access_keys",
    sa.Column("access_key_id", sa.Text, primary_key=True),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("revoked_at", Timestamp, nullable=True),
)
"""Who may use the server. `secret` is encrypted by a key that is not in the database."""

sessions = _table(
    "sessions",
    sa.Column("token_hash", sa.Text, primary_key=True),
    sa.Column("access_key_id", sa.Text, sa.ForeignKey("access_keys.access_key_id"), nullable=False),
    sa.Column("seal", sa.LargeBinary, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=False),
)
"""Who is logged in to the pages, by the SHA-256 of what their browsers hold. `seal` binds the row's
values together by the key that encrypts secrets: who can write to the database alone makes none."""
sa.Index(None, sessions.c.expires_at)

upload_tokens = _table(
    "upload_tokens",
    _repository_id(),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=False),
    sa.Column("token", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
"""Addresses that were given out and may be uploaded to, and linked or made content of, until
`expires_at`; one that was used is not here any more. `token` says what each is for."""
sa.Index(None, upload_tokens.c.expires_at)

copies = _table(
    "copies",
    _repository_id(),
    sa.Column("copy_id", sa.Text, primary_key=True),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("made_at", Timestamp, nullable=False),
)
"""Staged copies that share an address, for readings that were under way when they were made."""
sa.Index(None, copies.c.repository_id, copies.c.made_at)

readings = _table(
    "readings",
    _repository_id(),
    sa.Column("reading_id", sa.Text, primary_key=True),
    sa.Column("started_at", Timestamp, nullable=False),
    sa.Column("ends_at", Timestamp, nullable=False),
)
"""Who reads staged entries in several transactions, and until when at most."""

gc_leases = _table(
    "gc_leases",
    _repository_id(),
    sa.Column("run_epoch", sa.BigInteger, nullable=False),
    sa.Column("run_id", sa.Text, nullable=True),
    sa.Column("holder", sa.Text, nullable=True),
    sa.Column("heartbeat_at", Timestamp, nullable=False),
)
"""Which run holds the repository. `run_epoch` only grows; `run_id` is null when nobody does.
`holder` names the process, so that one that died on this machine need not be waited for."""

gc_runs = _table(
    "gc_runs",
    _repository_id(),
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("run_url", sa.Text, nullable=False),
    sa.Column("plan_checksum", sa.Text, nullable=True),
    sa.Column("started_at", Timestamp, nullable=False),
    sa.Column("fenced_at", Timestamp, nullable=True),
    sa.Column("finished_at", Timestamp, nullable=True),
)


Row = Mapping[str, Any]  # column name → value of the column's type
