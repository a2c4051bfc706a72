"""The tables of the metadata database, the same on SQLite and PostgreSQL.

Not for: queries (one module per table group beside this one) or migrations (`migrations/`). A test
compares the migrations with these definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ebbtide.model import EPOCH, ONE_MICROSECOND


class Timestamp(sa.types.TypeDecorator[datetime]):
    """An aware UTC datetime, stored as integer microseconds since 1970 on every database."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: sa.Dialect) -> int | None:
        """Converts an aware datetime to microseconds. Raises ValueError for a naive one: a guessed
        zone gives a wrong date."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a zone")
        return (value - EPOCH) // ONE_MICROSECOND

    def process_result_value(self, value: int | None, _dialect: sa.Dialect) -> datetime | None:
        """Converts microseconds to an aware UTC datetime."""
        return None if value is None else EPOCH + value * ONE_MICROSECOND


class IdList(sa.types.TypeDecorator[tuple[str, ...]]):
    """A short list of ids without blanks, stored as text: parents of a commit, sealed tokens."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, _dialect: sa.Dialect) -> str | None:
        """Joins the ids with blanks."""
        return None if value is None else " ".join(value)

    def process_result_value(
        self, value: str | None, _dialect: sa.Dialect
    ) -> tuple[str, ...] | None:
        """Splits the text at blanks. The empty text is the empty list."""
        return None if value is None else tuple(value.split())


Json = sa.JSON
PathText = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by its UTF-8 bytes on both databases, as `str` sorts in Python."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *columns: Any, **options: Any) -> sa.Table:  # SchemaItem of any kind
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
"""How long the store's promises last, by the name of the setting
(`store/repositories/repository_rows.py`)."""

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
    sa.Column("namespace", sa.Text, nullable=True),
    sa.Column("protected_branches", Json(none_as_null=True), nullable=True),
    sa.Column("metadata", Json(none_as_null=True), nullable=True),
)
"""A transaction that changes a ref, policy or hold locks this row, at least in share mode. The
fence locks it exclusively. A name is unique among repositories that are not trashed; this is
checked under the row of `store_info`. `tombstoned_by` names the run that collects the gone
repository. Once it is set, the repository cannot be restored."""
sa.Index(None, repositories.c.name)

owner_epochs = _table(
    "owner_epochs",
    _repository_id(),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("nonce", sa.Text, nullable=False),
    sa.Column("seen_epoch", sa.BigInteger, nullable=False),
    sa.Column("recorded_at", Timestamp, nullable=False),
)
"""The pairs of epoch and nonce that this database wrote to `_ebbtide/OWNER`, or was about to write.
`seen_epoch` is the epoch in the file when the pair was drawn."""

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
"""`sealed_tokens` begins with the newest. A `hidden` branch is left out of lists, and nowhere else.
A name is unique among branches and tags that are not trashed. This is checked in the transaction
that makes or restores a ref, which locks the repository's row exclusively."""
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
"""The commits that refs pointed at until `left_at`. Such a commit is kept for one more lease."""
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
"""`tombstoned_by` names the run whose fence closed the commit: its data may be deleted.
`forgotten_by` names the run that forgot the record. Parents, date and run then stay as a stub;
tree, message and metadata are emptied. `given_up_*`: an operator gave up a damaged commit. A row
with a `collection_id` is content that was made for a collection. It is no part of any history."""

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
"""Projects can be in projects. If the parent of a project is trashed, so is the project, whatever
its own `expires_at` says."""
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
"""`content_id` is a row of `commits`. If `replication_desired` is 0, the collection does not keep
its data."""
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
"""Kept earlier versions of collections. A version lasts as long as its collection."""
sa.Index(None, collection_versions.c.repository_id)

arvados_blocks = _table(
    "arvados_blocks",
    _repository_id(),
    sa.Column("md5", sa.Text, primary_key=True),
    sa.Column("size_bytes", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("checksum", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("content_id", sa.Text, nullable=True),
    sqlite_with_rowid=False,
)
"""For a block of Arvados, the object that was written last: its address and its SHA-256.
`content_id` is content that has the object, if any. The table only saves space: no block is read
through it."""

arvados_collections = _table(
    "arvados_collections",
    sa.Column(
        "collection_id",
        sa.Text,
        sa.ForeignKey("collections.collection_id"),
        primary_key=True,
    ),
    _repository_reference(),
    sa.Column("uuid", sa.Text, nullable=False, unique=True),
    sa.Column("portable_data_hash", sa.Text, nullable=False),
    sa.Column("file_count", sa.BigInteger, nullable=False),
    sa.Column("file_size_total", sa.BigInteger, nullable=False),
    sa.Column("preserve_version", sa.Boolean, nullable=False),
    sa.Column("modified_by", sa.Text, nullable=False),
)
"""What a collection of Arvados has besides its row in `collections`. The number and the bytes of
its files are those of its manifest. `modified_by` is an access key's id."""
sa.Index(None, arvados_collections.c.repository_id, arvados_collections.c.portable_data_hash)

arvados_links = _table(
    "arvados_links",
    sa.Column("link_id", sa.Text, primary_key=True),
    _repository_reference(),
    sa.Column("link_class", PathText, nullable=False),
    sa.Column("name", PathText, nullable=False),
    sa.Column("owner_uuid", PathText, nullable=False),
    sa.Column("tail_uuid", PathText, nullable=True),
    sa.Column("head_uuid", PathText, nullable=True),
    sa.Column("properties", Json, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("modified_at", Timestamp, nullable=False),
)
"""Links of Arvados's clients, such as stars and tags. They change no access, and keep no data."""
sa.Index(None, arvados_links.c.repository_id, arvados_links.c.head_uuid)

END_WITH_COLLECTION = (collection_versions, arvados_collections)
"""The tables whose rows end with the collection that they name by `collection_id`."""

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
"""Gone repositories whose storage a run emptied. From `emptied_at` on only the run's own files,
OWNER and the repository's rows remain. `finished_at` is the time when OWNER was closed and the rows
were deleted."""

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
"""`request` has the requester, the named things and the reason. `record_url` is the folder of the
purge's files. `error` (`kind`, `message`) says why a purge was refused, or failed before it had a
plan."""
sa.Index(None, purges.c.repository_name)

purge_keys = _table(
    "purge_keys",
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("public_key", sa.Text, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
)
"""The Ed25519 keys that sign the records of purges. `secret` is encrypted like the secrets of
access keys."""

purged = _table(
    "purged",
    _repository_id(),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("purge_id", sa.Text, nullable=False),
    sa.Column("purged_at", Timestamp, nullable=False),
    sqlite_with_rowid=False,
)
"""Addresses that were purged. A transaction that makes a reference to an existing address looks
here first. No row is deleted while the repository exists."""

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
"""The changes of branches that are not committed yet. A row without an address hides the path (a
delete).

`sharing` says who else has the address: null means nobody, `staged` perhaps another row,
`committed` a commit. `replaced_*` are the values that the last write to the row replaced. Only the
statement that writes them returns them, under the lock of the row.
"""
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
"""Addresses that were never committed and that lost a reference. They can be deleted from `due_at`
on. If an address is `shared`, the reclaimer looks for staged rows with it first. `claim_id` names
the claim under which it is being deleted. A claim holds until `due_at`; a claim and a failed delete
both postpone `due_at`."""
sa.Index(None, released.c.due_at)

dropped_tokens = _table(
    "dropped_tokens",
    _repository_id(),
    sa.Column("token", sa.Text, primary_key=True),
    sa.Column("dropped_at", Timestamp, nullable=False),
)
"""Staging tokens that no branch has any more. The rows staged under them are deleted in steps."""
sa.Index(None, dropped_tokens.c.dropped_at)

pending = _table(
    "pending",
    _repository_id(),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("started_at", Timestamp, nullable=False),
    sa.Column("ends_at", Timestamp, nullable=False),
    sqlite_with_rowid=False,
)
"""Writes in progress. An address is here before its first byte is written, until the write is
published or ends."""

multipart_uploads = _table(
    "multipart_uploads",
    _repository_id(),
    sa.Column("upload_id", sa.Text, primary_key=True),
    sa.Column("branch", PathText, nullable=False),
    sa.Column("path", PathText, nullable=False),
    sa.Column("content_type", sa.Text, nullable=True),
    sa.Column("metadata", Json, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=False),
)
"""Uploads in parts that are neither completed nor aborted. After `expires_at` an upload is void."""
sa.Index(None, multipart_uploads.c.repository_id, multipart_uploads.c.path)

completed_uploads = _table(
    "completed_uploads",
    _repository_id(),
    sa.Column("upload_id", sa.Text, primary_key=True),
    sa.Column("branch", PathText, nullable=False),
    sa.Column("path", PathText, nullable=False),
    sa.Column("parts", sa.Text, nullable=False),
    sa.Column("checksum", sa.Text, nullable=False),
    sa.Column("sums", Json, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=False),
)
"""Results of completed uploads in parts, for clients that repeat the completion. `parts` is a hash
of the parts that the client wanted. `checksum` is the SHA-256 of the object, and `sums` its
metadata of checksums. A row lasts until the upload would have expired."""

multipart_parts = _table(
    "multipart_parts",
    _repository_id(),
    sa.Column("upload_id", sa.Text, primary_key=True),
    sa.Column("part_number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.Text, nullable=False),
    sa.Column("etag", sa.Text, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
)
"""The parts of uploads. Each part is a file at an address with an upload token, so that runs keep
the file until the token expires. `checksum` is the SHA-256 of the part. A part that its client
writes to a signed URL has only an address: its size is 0, its checksum and ETag are empty."""

imports = _table(
    "imports",
    _repository_id(),
    sa.Column("import_id", sa.Text, primary_key=True),
    sa.Column("branch", PathText, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("object_count", sa.BigInteger, nullable=False),
    sa.Column("commit_id", sa.Text, nullable=True),
    sa.Column("error", Json(none_as_null=True), nullable=True),
    sa.Column("started_at", Timestamp, nullable=False),
    sa.Column("updated_at", Timestamp, nullable=False),
)
"""Imports of objects that stay outside the repository. `state` is `running`, `done`, `failed` or
`cancelled`. `updated_at` moves while the import runs."""

signing_keys = _table(
    "signing_keys",
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("secret", sa.LargeBinary, nullable=True),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("retired_at", Timestamp, nullable=True),
)
"""The newest key signs. Every key that has a secret verifies. The secret of a retired key is
deleted; its id stays, so that its tokens are distinguished from tokens that no key signed."""

access_keys = _table(
    "access_keys",
    sa.Column("access_key_id", sa.Text, primary_key=True),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("revoked_at", Timestamp, nullable=True),
)
"""The keys for the server. `secret` is encrypted with a key that is not in the database."""

access_key_grants = _table(
    "access_key_grants",
    sa.Column(
        "access_key_id", sa.Text, sa.ForeignKey("access_keys.access_key_id"), primary_key=True
    ),
    _repository_id(),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("seal", sa.LargeBinary, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
)
"""The roles of keys in single repositories. `seal` authenticates key, repository and role with the
key that encrypts secrets."""
sa.Index(None, access_key_grants.c.repository_id)

sessions = _table(
    "sessions",
    sa.Column("token_hash", sa.Text, primary_key=True),
    sa.Column("access_key_id", sa.Text, sa.ForeignKey("access_keys.access_key_id"), nullable=False),
    sa.Column("seal", sa.LargeBinary, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("expires_at", Timestamp, nullable=False),
)
"""Logins to the web pages, by the SHA-256 of the token in the browser's cookie. `seal`
authenticates the row's values with the key that encrypts secrets: write access to the database
alone is not enough to make a session."""
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
"""Addresses that were given out for uploads. Until `expires_at`, data can be uploaded there, and be
linked or made content of a collection. The row of a used address is deleted. `token` is the signed
token, which names the purpose."""
sa.Index(None, upload_tokens.c.expires_at)

leased_addresses = _table(
    "leased_addresses",
    _repository_id(),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("leased_at", Timestamp, nullable=False),
    sa.Column("leased_until", Timestamp, nullable=False),
    sqlite_with_rowid=False,
)
"""Staged addresses that signed URLs can read until `leased_until`, even if they are dropped. The
next lease deletes ended rows."""

copies = _table(
    "copies",
    _repository_id(),
    sa.Column("copy_id", sa.Text, primary_key=True),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("made_at", Timestamp, nullable=False),
)
"""Addresses that a copy or move staged at a second path. Readings that began before need the
row."""
sa.Index(None, copies.c.repository_id, copies.c.made_at)

readings = _table(
    "readings",
    _repository_id(),
    sa.Column("reading_id", sa.Text, primary_key=True),
    sa.Column("started_at", Timestamp, nullable=False),
    sa.Column("ends_at", Timestamp, nullable=False),
)
"""Readings of staged entries in several transactions, with the time when each ends at the
latest."""

gc_leases = _table(
    "gc_leases",
    _repository_id(),
    sa.Column("run_epoch", sa.BigInteger, nullable=False),
    sa.Column("run_id", sa.Text, nullable=True),
    sa.Column("holder", sa.Text, nullable=True),
    sa.Column("heartbeat_at", Timestamp, nullable=False),
)
"""The run that holds each repository. `run_epoch` only grows; `run_id` is null if no run holds it.
`holder` names the process, so that no run waits for a process that died on this machine."""

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

schedules = _table(
    "schedules",
    sa.Column("repository_key", sa.Text, primary_key=True),
    sa.Column("repository", sa.Text, nullable=False),
    sa.Column("cron", sa.Text, nullable=False),
    sa.Column("timezone", sa.Text, nullable=False),
    sa.Column("jitter_seconds", sa.BigInteger, nullable=False),
    sa.Column("options", Json, nullable=False),
    sa.Column("set_by", sa.Text, nullable=False),
    sa.Column("set_at", Timestamp, nullable=False),
    sa.Column("next_due_at", Timestamp, nullable=True),
    sa.Column("started_count", sa.BigInteger, nullable=False),
    sa.Column("missed_count", sa.BigInteger, nullable=False),
    sa.Column("skipped_count", sa.BigInteger, nullable=False),
    sa.Column("starting_due_at", Timestamp, nullable=True),
    sa.Column("starting_since", Timestamp, nullable=True),
    sa.Column("last_due_at", Timestamp, nullable=True),
    sa.Column("last_started_at", Timestamp, nullable=True),
    sa.Column("last_run_id", sa.Text, nullable=True),
    sa.Column("last_outcome", sa.Text, nullable=True),
    sa.Column("last_error", Json(none_as_null=True), nullable=True),
    sa.Column("last_ended_at", Timestamp, nullable=True),
)
"""When servers start runs. `repository_key` is the repository's id, or the name of one elsewhere,
so that it refers to no row. `next_due_at` is null while the schedule is disabled. The counts are of
due times since `set_at`. `starting_*` is the due time that a server has claimed, until the server
records the run in `last_*`."""


Row = Mapping[str, Any]  # column name → value of the column's type
