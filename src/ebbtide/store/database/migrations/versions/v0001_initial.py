"""The first version of the tables.

A migration is never edited after its release. It uses plain column types instead of `schema`,
because `schema` changes later.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_PATH = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Creates all tables."""

    op.create_table(
        "repositories",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("storage_url", sa.Text(), nullable=False),
        sa.Column("default_branch", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("tombstoned_by", sa.Text(), nullable=True),
        sa.Column("policy", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_repositories")),
        sa.UniqueConstraint("storage_url", name=op.f("uq_repositories_storage_url")),
    )
    op.create_index(op.f("ix_repositories_name"), "repositories", ["name"], unique=False)
    op.create_table(
        "store_info",
        sa.Column("store_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("store_id", name=op.f("pk_store_info")),
    )
    op.create_table(
        "promised_times",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("microseconds", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_promised_times")),
    )
    op.create_table(
        "branches",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("branch_id", sa.Text(), nullable=False),
        sa.Column("name", _PATH, nullable=False),
        sa.Column("commit_id", sa.Text(), nullable=False),
        sa.Column("staging_token", sa.Text(), nullable=False),
        sa.Column("sealed_tokens", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("hidden", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_branches_repository_id"),
        ),
        sa.PrimaryKeyConstraint("repository_id", "branch_id", name=op.f("pk_branches")),
    )
    op.create_index(
        op.f("ix_branches_repository_id_name"), "branches", ["repository_id", "name"], unique=False
    )
    op.create_table(
        "commits",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("commit_id", sa.Text(), nullable=False),
        sa.Column("parent_ids", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
        sa.Column("tree_id", sa.Text(), nullable=True),
        sa.Column("tree_checksum", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("committer", sa.Text(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("leased_until", sa.BigInteger(), nullable=True),
        sa.Column("tombstoned_by", sa.Text(), nullable=True),
        sa.Column("tombstoned_at", sa.BigInteger(), nullable=True),
        sa.Column("forgotten_by", sa.Text(), nullable=True),
        sa.Column("given_up_reason", sa.Text(), nullable=True),
        sa.Column("given_up_at", sa.BigInteger(), nullable=True),
        sa.Column("collection_id", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_commits_repository_id")
        ),
        sa.PrimaryKeyConstraint("repository_id", "commit_id", name=op.f("pk_commits")),
    )
    op.create_table(
        "gc_leases",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("run_epoch", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_gc_leases_repository_id"),
        ),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_gc_leases")),
    )
    op.create_table(
        "gc_runs",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("run_url", sa.Text(), nullable=False),
        sa.Column("plan_checksum", sa.Text(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("fenced_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_gc_runs_repository_id")
        ),
        sa.PrimaryKeyConstraint("repository_id", "run_id", name=op.f("pk_gc_runs")),
    )
    op.create_table(
        "holds",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("commit_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_holds_repository_id")
        ),
        sa.PrimaryKeyConstraint("repository_id", "commit_id", name=op.f("pk_holds")),
    )
    op.create_table(
        "owner_epochs",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("seen_epoch", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_owner_epochs_repository_id"),
        ),
        sa.PrimaryKeyConstraint("repository_id", "epoch", name=op.f("pk_owner_epochs")),
    )
    op.create_table(
        "signing_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_signing_keys")),
    )
    op.create_table(
        "access_keys",
        sa.Column("access_key_id", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("access_key_id", name=op.f("pk_access_keys")),
    )
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("access_key_id", sa.Text(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["access_key_id"],
            ["access_keys.access_key_id"],
            name=op.f("fk_sessions_access_key_id"),
        ),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"], unique=False)
    op.create_table(
        "upload_tokens",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_upload_tokens_repository_id"),
        ),
        sa.PrimaryKeyConstraint("repository_id", "address", name=op.f("pk_upload_tokens")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_upload_tokens_expires_at"), "upload_tokens", ["expires_at"], unique=False
    )
    op.create_table(
        "copies",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("copy_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_copies_repository_id")
        ),
        sa.PrimaryKeyConstraint("repository_id", "copy_id", name=op.f("pk_copies")),
    )
    op.create_index(
        op.f("ix_copies_repository_id_made_at"),
        "copies",
        ["repository_id", "made_at"],
        unique=False,
    )
    op.create_table(
        "readings",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("reading_id", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_readings_repository_id"),
        ),
        sa.PrimaryKeyConstraint("repository_id", "reading_id", name=op.f("pk_readings")),
    )
    op.create_table(
        "pending",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_pending_repository_id")
        ),
        sa.PrimaryKeyConstraint("repository_id", "address", name=op.f("pk_pending")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "reflog",
        sa.Column("entry_id", sa.Integer(), nullable=False),
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", _PATH, nullable=False),
        sa.Column("commit_id", sa.Text(), nullable=False),
        sa.Column("left_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_reflog_repository_id")
        ),
        sa.PrimaryKeyConstraint("entry_id", name=op.f("pk_reflog")),
    )
    op.create_index(
        op.f("ix_reflog_repository_id_left_at"),
        "reflog",
        ["repository_id", "left_at"],
        unique=False,
    )
    op.create_table(
        "staged",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("path", _PATH, nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("mtime", sa.BigInteger(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=True),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("sharing", sa.Text(), nullable=True),
        sa.Column("replaced_address", sa.Text(), nullable=True),
        sa.Column("replaced_size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("replaced_sharing", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_staged_repository_id")
        ),
        sa.PrimaryKeyConstraint("repository_id", "token", "path", name=op.f("pk_staged")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_staged_address"), "staged", ["address"], unique=False)
    op.create_index(
        "ix_staged_shared_token",
        "staged",
        ["repository_id", "token"],
        unique=False,
        sqlite_where=sa.text("sharing IS NOT NULL"),
        postgresql_where=sa.text("sharing IS NOT NULL"),
    )
    op.create_table(
        "released",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("released_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=True),
        sa.Column("attempt_count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_released_repository_id"),
        ),
        sa.PrimaryKeyConstraint("repository_id", "address", name=op.f("pk_released")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_released_due_at"), "released", ["due_at"], unique=False)
    op.create_table(
        "dropped_tokens",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_dropped_tokens_repository_id"),
        ),
        sa.PrimaryKeyConstraint("repository_id", "token", name=op.f("pk_dropped_tokens")),
    )
    op.create_index(
        op.f("ix_dropped_tokens_dropped_at"), "dropped_tokens", ["dropped_at"], unique=False
    )
    op.create_table(
        "tags",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("tag_id", sa.Text(), nullable=False),
        sa.Column("name", _PATH, nullable=False),
        sa.Column("commit_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_tags_repository_id")
        ),
        sa.PrimaryKeyConstraint("repository_id", "tag_id", name=op.f("pk_tags")),
    )
    op.create_index(
        op.f("ix_tags_repository_id_name"), "tags", ["repository_id", "name"], unique=False
    )
    op.create_table(
        "projects",
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("name", _PATH, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["projects.project_id"], name=op.f("fk_projects_parent_id")
        ),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_projects_repository_id"),
        ),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_projects")),
    )
    op.create_index(op.f("ix_projects_parent_id"), "projects", ["parent_id"], unique=False)
    op.create_index(
        op.f("ix_projects_repository_id_parent_id_name"),
        "projects",
        ["repository_id", "parent_id", "name"],
        unique=False,
    )
    op.create_table(
        "collections",
        sa.Column("collection_id", sa.Text(), nullable=False),
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", _PATH, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("content_id", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("file_count", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("replication_desired", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.project_id"], name=op.f("fk_collections_project_id")
        ),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_collections_repository_id"),
        ),
        sa.PrimaryKeyConstraint("collection_id", name=op.f("pk_collections")),
    )
    op.create_index(
        op.f("ix_collections_project_id_name"), "collections", ["project_id", "name"], unique=False
    )
    op.create_index(
        op.f("ix_collections_repository_id_content_hash"),
        "collections",
        ["repository_id", "content_hash"],
        unique=False,
    )
    op.create_table(
        "collection_versions",
        sa.Column("collection_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("name", _PATH, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("content_id", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("file_count", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["collection_id"],
            ["collections.collection_id"],
            name=op.f("fk_collection_versions_collection_id"),
        ),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.repository_id"],
            name=op.f("fk_collection_versions_repository_id"),
        ),
        sa.PrimaryKeyConstraint("collection_id", "version", name=op.f("pk_collection_versions")),
    )
    op.create_index(
        op.f("ix_collection_versions_repository_id"),
        "collection_versions",
        ["repository_id"],
        unique=False,
    )
    op.create_table(
        "removals",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("storage_url", sa.Text(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("emptied_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_removals")),
    )
    op.create_table(
        "purges",
        sa.Column("purge_id", sa.Text(), nullable=False),
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("repository_name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("record_url", sa.Text(), nullable=False),
        sa.Column("plan_checksum", sa.Text(), nullable=True),
        sa.Column("record_checksum", sa.Text(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("purge_id", name=op.f("pk_purges")),
    )
    op.create_index(op.f("ix_purges_repository_name"), "purges", ["repository_name"], unique=False)
    op.create_table(
        "purge_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_purge_keys")),
    )
    op.create_table(
        "purged",
        sa.Column("repository_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("purge_id", sa.Text(), nullable=False),
        sa.Column("purged_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.repository_id"], name=op.f("fk_purged_repository_id")
        ),
        sa.PrimaryKeyConstraint("repository_id", "address", name=op.f("pk_purged")),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "sqlite":
        _describe_staged()


def _describe_staged() -> None:
    """Tells SQLite's query planner that a repository has many staged rows. Without statistics
    SQLite assumes ten, and reads all of them instead of using another index."""
    op.execute("ANALYZE")
    for index, figures in (
        ("staged", "1000000 1000000 1000 1"),
        ("ix_staged_address", "1000000 1 1 1 1"),
        ("ix_staged_shared_token", "1000 1000 100 1"),
    ):
        op.execute(f"INSERT INTO sqlite_stat1 VALUES ('staged', '{index}', '{figures}')")
    op.execute("ANALYZE sqlite_schema")
