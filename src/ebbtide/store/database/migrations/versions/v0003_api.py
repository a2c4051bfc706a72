"""Protected branches, metadata of repositories, uploads in parts, leases and imports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_PATH = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds two columns, which are null for earlier repositories, and four tables."""
    op.add_column(
        "repositories", sa.Column("protected_branches", sa.JSON(none_as_null=True), nullable=True)
    )
    op.add_column("repositories", sa.Column("metadata", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "multipart_uploads",
        _repository_id("multipart_uploads"),
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("branch", _PATH, nullable=False),
        sa.Column("path", _PATH, nullable=False),
        sa.Column("content_type", sa.Text(), nullable=True),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("repository_id", "upload_id", name=op.f("pk_multipart_uploads")),
    )
    op.create_index(
        op.f("ix_multipart_uploads_repository_id_path"),
        "multipart_uploads",
        ["repository_id", "path"],
    )
    op.create_table(
        "multipart_parts",
        _repository_id("multipart_parts"),
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("part_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "repository_id", "upload_id", "part_number", name=op.f("pk_multipart_parts")
        ),
    )
    op.create_table(
        "leased_addresses",
        _repository_id("leased_addresses"),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("leased_at", sa.BigInteger(), nullable=False),
        sa.Column("leased_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("repository_id", "address", name=op.f("pk_leased_addresses")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "imports",
        _repository_id("imports"),
        sa.Column("import_id", sa.Text(), nullable=False),
        sa.Column("branch", _PATH, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("object_count", sa.BigInteger(), nullable=False),
        sa.Column("commit_id", sa.Text(), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("repository_id", "import_id", name=op.f("pk_imports")),
    )


def _repository_id(table: str) -> sa.Column[str]:
    return sa.Column(
        "repository_id",
        sa.Text(),
        sa.ForeignKey("repositories.repository_id", name=op.f(f"fk_{table}_repository_id")),
        nullable=False,
    )
